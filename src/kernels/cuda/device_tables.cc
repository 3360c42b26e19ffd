#include "kernels/cuda/device_tables.h"

namespace inferscale::cuda {
namespace {

// Pageable memory: the call has read it when it returns, but the bytes may not be there yet.
Result<Buffer> uploaded(const void* from, std::size_t size) {
  INFERSCALE_ASSIGN_OR_RETURN(Buffer buffer, Buffer::allocate(MemoryKind::kDevice, size));
  INFERSCALE_RETURN_IF_ERROR(copy_async(buffer.data(), from, size, nullptr));
  INFERSCALE_RETURN_IF_ERROR(synchronize(nullptr));
  return buffer;
}

}  // namespace

Result<std::shared_ptr<const DeviceRope>> DeviceRope::upload(
    std::shared_ptr<const RopeTable> table) {
  const std::shared_ptr<DeviceRope> rope(new DeviceRope);
  INFERSCALE_ASSIGN_OR_RETURN(rope->device_, current_device());
  const std::size_t bytes = std::size_t{table->max_positions()} * table->pairs() * sizeof(float);
  INFERSCALE_ASSIGN_OR_RETURN(rope->cos_, uploaded(table->cos_row(0), bytes));
  INFERSCALE_ASSIGN_OR_RETURN(rope->sin_, uploaded(table->sin_row(0), bytes));
  const std::span<const float> bias = table->key_bias();
  if (!bias.empty()) {
    INFERSCALE_ASSIGN_OR_RETURN(rope->key_bias_, uploaded(bias.data(), bias.size_bytes()));
  }
  rope->table_ = std::move(table);
  return std::shared_ptr<const DeviceRope>(rope);
}

Result<Buffer> upload_layers(const ConstCacheLayout& cache) {
  std::vector<const std::byte*> layers = cache.k;
  layers.insert(layers.end(), cache.v.begin(), cache.v.end());
  return uploaded(layers.data(), layers.size() * sizeof(layers[0]));
}

Result<TableRing> TableRing::create(std::size_t slots, std::size_t bytes) {
  TableRing ring;
  ring.slot_bytes_ = (bytes + 255) / 256 * 256;
  INFERSCALE_ASSIGN_OR_RETURN(ring.tables_,
                              Buffer::allocate(MemoryKind::kPinned, slots * ring.slot_bytes_));
  for (std::size_t i = 0; i < slots; ++i) {
    INFERSCALE_ASSIGN_OR_RETURN(Event event, Event::create());
    ring.used_.push_back(std::move(event));
  }
  return ring;
}

Result<std::byte*> TableRing::next() {
  current_ = (current_ + 1) % used_.size();
  INFERSCALE_ASSIGN_OR_RETURN(const bool free, used_[current_].passed());
  if (!free) {
    INFERSCALE_RETURN_IF_ERROR(used_[current_].wait());
  }
  return tables_.data() + current_ * slot_bytes_;
}

Status TableRing::release(void* stream) { return used_[current_].record(stream); }

void TableRing::drain() const {
  for (const Event& event : used_) {
    (void)event.wait();  // of a device that failed nobody reads any more
  }
}

}  // namespace inferscale::cuda
