#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "kernels/arguments.h"
#include "kernels/cuda/kv_capture.h"

namespace inferscale {
namespace {

constexpr std::size_t kAlignment = 64;

std::size_t aligned(std::size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

std::string text(std::size_t value) { return std::to_string(value); }

Status check_options(const CudaCapturer::Options& options) {
  if (options.max_tokens < 1 || options.max_tokens > 1U << 24) {
    return invalid_argument("max_tokens must be in 1..16777216, not " + text(options.max_tokens));
  }
  if (options.max_runs < 1 || options.max_runs > 1U << 16) {
    return invalid_argument("max_runs must be in 1..65536, not " + text(options.max_runs));
  }
  if (options.max_batches < 1 || options.max_batches > 64) {
    return invalid_argument("max_batches must be in 1..64, not " + text(options.max_batches));
  }
  return Status();
}

// The table of a launch: the runs, then the tokens.
std::size_t runs_bytes(std::uint32_t max_runs) { return max_runs * sizeof(cuda::PackedRun); }

}  // namespace

Result<std::unique_ptr<CudaCapturer>> CudaCapturer::create(
    std::shared_ptr<const cuda::DeviceRope> rope, const ConstCacheLayout& cache,
    const Options& options) {
  INFERSCALE_RETURN_IF_ERROR(check_options(options).with_context("CudaCapturer"));
  INFERSCALE_RETURN_IF_ERROR(
      kernels::check_cache(cache, rope->table()).with_context("CudaCapturer"));
  std::unique_ptr<CudaCapturer> self(new CudaCapturer);
  self->device_ = rope->device();
  self->rope_ = std::move(rope);
  const cuda::DeviceScope scope(self->device_);
  self->shape_ = cache.shape;
  self->n_rows_ = cache.n_rows;
  self->options_ = options;
  self->kind_.capture = true;
  self->kind_.packed_codec = options.codec;
  INFERSCALE_RETURN_IF_ERROR(
      cuda::plan_moves(cache, self->rope_->table(), options.max_tokens, &self->moves_, &self->kind_)
          .with_context("CudaCapturer"));
  self->moves_.cos = self->rope_->cos();
  self->moves_.sin = self->rope_->sin();
  self->moves_.key_bias = self->rope_->key_bias();
  INFERSCALE_ASSIGN_OR_RETURN(self->layers_, cuda::upload_layers(cache));
  self->moves_.layers = reinterpret_cast<std::byte* const*>(self->layers_.data());
  INFERSCALE_ASSIGN_OR_RETURN(
      self->tables_, cuda::TableRing::create(options.max_batches + 1,
                                             runs_bytes(options.max_runs) +
                                                 options.max_tokens * sizeof(cuda::MoveToken)));
  // Every run may lose up to an alignment for each of its layers' keys, values and scales.
  const std::size_t largest =
      kv_token_bytes(self->shape_, options.codec) * options.max_tokens +
      std::size_t{3} * self->shape_.n_layers * kAlignment * options.max_runs;
  INFERSCALE_ASSIGN_OR_RETURN(self->device_bytes_,
                              cuda::Buffer::allocate(cuda::MemoryKind::kDevice, 2 * largest));
  INFERSCALE_ASSIGN_OR_RETURN(self->host_bytes_,
                              cuda::Buffer::allocate(cuda::MemoryKind::kPinned, 2 * largest));
  self->ring_ = StagingRing(2 * largest);
  INFERSCALE_ASSIGN_OR_RETURN(self->copies_, cuda::Stream::create());
  for (std::uint32_t i = 0; i < options.max_batches; ++i) {
    Slot slot;
    INFERSCALE_ASSIGN_OR_RETURN(slot.read, cuda::Event::create());
    INFERSCALE_ASSIGN_OR_RETURN(slot.done, cuda::Event::create());
    slot.runs.reserve(options.max_runs);
    self->slots_.push_back(std::move(slot));
  }
  return self;
}

CudaCapturer::~CudaCapturer() {
  const cuda::DeviceScope scope(device_);
  for (const Slot& slot : slots_) {  // the device may still write into what is freed now
    (void)slot.read.wait();
    (void)slot.done.wait();
  }
}

std::size_t CudaCapturer::v_offset(std::uint32_t n_tokens) const {
  return aligned(n_tokens * moves_.k_token_bytes);
}

std::size_t CudaCapturer::layer_bytes(std::uint32_t n_tokens) const {
  return scales_offset(n_tokens) + aligned(2 * n_tokens * moves_.scale_token_bytes);
}

std::size_t CudaCapturer::scales_offset(std::uint32_t n_tokens) const {
  return v_offset(n_tokens) + aligned(n_tokens * moves_.v_token_bytes);
}

Status CudaCapturer::check(std::span<const CaptureRun> runs, std::uint32_t* n_tokens) const {
  if (runs.empty() || runs.size() > options_.max_runs) {
    return invalid_argument(text(runs.size()) + " runs; 1.." + text(options_.max_runs) +
                            " are accepted");
  }
  std::uint64_t total = 0;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const std::string name = "runs[" + text(i) + "]";
    const CaptureRun& run = runs[i];
    total += run.rows.size();
    if (run.rows.empty()) {
      return invalid_argument(name + " has no rows");
    }
    const kernels::TokenRun tokens{run.first_position, 0, run.rows,
                                   static_cast<std::uint32_t>(run.rows.size())};
    INFERSCALE_RETURN_IF_ERROR(kernels::check_run(name, tokens, rope_->table(), n_rows_));
  }
  if (total > options_.max_tokens) {
    return invalid_argument(text(total) + " tokens; a batch has at most " +
                            text(options_.max_tokens));
  }
  *n_tokens = static_cast<std::uint32_t>(total);
  return Status();
}

Result<CudaCapturer::Slot*> CudaCapturer::take_slot(std::span<const CaptureRun> runs) {
  std::size_t bytes = 0;
  for (const CaptureRun& run : runs) {
    bytes += layer_bytes(static_cast<std::uint32_t>(run.rows.size())) * shape_.n_layers;
  }
  const std::lock_guard lock(mutex_);
  const auto slot = std::find_if(slots_.begin(), slots_.end(),
                                 [](const Slot& candidate) { return candidate.batch == 0; });
  if (slot == slots_.end()) {
    return resource_exhausted("all " + text(slots_.size()) +
                              " capture batches are in use: release one first");
  }
  const std::optional<std::size_t> offset = ring_.take(bytes);
  if (!offset) {
    return resource_exhausted("no " + text(bytes) + " bytes are free for a capture batch of " +
                              text(host_bytes_.size()) + " for all: release one first");
  }
  slot->batch = ++last_batch_;
  slot->offset = *offset;
  slot->bytes = bytes;
  slot->runs.clear();
  std::size_t at = *offset;
  for (const CaptureRun& run : runs) {
    const auto n_tokens = static_cast<std::uint32_t>(run.rows.size());
    slot->runs.push_back({at, n_tokens});
    at += layer_bytes(n_tokens) * shape_.n_layers;
  }
  return &*slot;
}

void CudaCapturer::free_slot(Slot* slot) {
  const std::lock_guard lock(mutex_);
  ring_.give_back(slot->offset);
  slot->batch = 0;
}

void CudaCapturer::write_tables(std::span<const CaptureRun> runs, std::byte* table,
                                const Slot& slot) const {
  auto* packed = reinterpret_cast<cuda::PackedRun*>(table);
  auto* token = reinterpret_cast<cuda::MoveToken*>(table + runs_bytes(options_.max_runs));
  std::uint32_t first_token = 0;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const std::uint32_t n = slot.runs[i].n_tokens;
    packed[i].address = reinterpret_cast<std::uint64_t>(device_bytes_.data() + slot.runs[i].offset);
    packed[i].layer_bytes = layer_bytes(n);
    packed[i].v_offset = v_offset(n);
    packed[i].k_scales = scales_offset(n);
    packed[i].v_scales = scales_offset(n) + n * moves_.scale_token_bytes;
    packed[i].first_token = first_token;
    packed[i].first_position = runs[i].first_position;
    for (const std::uint32_t row : runs[i].rows) {
      *token++ = {i, row, 0};
    }
    first_token += n;
  }
}

// The engine's stream holds the launch alone: its next step need not wait for the way to the host.
Status CudaCapturer::launch(const cuda::RowMoves& moves, Slot* slot, void* stream) {
  INFERSCALE_RETURN_IF_ERROR(cuda::launch_moves(moves, kind_, stream));
  INFERSCALE_RETURN_IF_ERROR(tables_.release(stream));
  INFERSCALE_RETURN_IF_ERROR(slot->read.record(stream));
  INFERSCALE_RETURN_IF_ERROR(slot->read.hold(copies_.get()));
  std::byte* const on_device = device_bytes_.data() + slot->offset;
  INFERSCALE_RETURN_IF_ERROR(
      cuda::copy_async(host_bytes_.data() + slot->offset, on_device, slot->bytes, copies_.get()));
  // What is erased later must not be left here.
  INFERSCALE_RETURN_IF_ERROR(cuda::zero_async(on_device, slot->bytes, copies_.get()));
  return slot->done.record(copies_.get());
}

Result<CudaCapturer::Batch> CudaCapturer::start(std::span<const CaptureRun> runs, void* stream) {
  cuda::RowMoves moves = moves_;
  INFERSCALE_RETURN_IF_ERROR(check(runs, &moves.n_tokens).with_context("CudaCapturer"));
  const cuda::DeviceScope scope(device_);
  INFERSCALE_ASSIGN_OR_RETURN(Slot* const slot, take_slot(runs));
  const Result<std::byte*> table = tables_.next();
  if (!table.ok()) {
    free_slot(slot);
    return table.status();
  }
  write_tables(runs, *table, *slot);
  moves.runs = reinterpret_cast<const cuda::PackedRun*>(*table);
  moves.tokens = reinterpret_cast<const cuda::MoveToken*>(*table + runs_bytes(options_.max_runs));
  // After an error nobody knows what the device still does with this memory: it stays taken.
  INFERSCALE_RETURN_IF_ERROR(launch(moves, slot, stream));
  return slot->batch;
}

const CudaCapturer::Slot* CudaCapturer::find(Batch batch) const {
  const std::lock_guard lock(mutex_);
  for (const Slot& slot : slots_) {
    if (batch != 0 && slot.batch == batch) {
      return &slot;
    }
  }
  return nullptr;
}

Result<bool> CudaCapturer::ready(Batch batch) const {
  const Slot* slot = find(batch);
  if (slot == nullptr) {
    return not_found("no capture batch " + text(batch));
  }
  return slot->done.passed();
}

Status CudaCapturer::wait(Batch batch) const {
  const Slot* slot = find(batch);
  return slot != nullptr ? slot->done.wait() : not_found("no capture batch " + text(batch));
}

Status CudaCapturer::fill(Batch batch, std::size_t run, RecordBuilder& builder) const {
  const Slot* slot = find(batch);
  if (slot == nullptr || run >= slot->runs.size()) {
    return not_found("no run " + text(run) + " of a capture batch " + text(batch));
  }
  const Place& place = slot->runs[run];
  if (!(builder.meta().shape == shape_) || builder.meta().codec != options_.codec ||
      builder.n_tokens() != place.n_tokens) {
    return invalid_argument("the record has another shape, codec or number of tokens than run " +
                            text(run) + " of the capture");
  }
  const std::byte* from = host_bytes_.data() + place.offset;
  const std::uint32_t n = place.n_tokens;
  const std::size_t scales = n * moves_.scale_token_bytes;
  for (std::uint32_t layer = 0; layer < shape_.n_layers; ++layer) {
    std::memcpy(builder.layer_k(layer), from, n * moves_.k_token_bytes);
    std::memcpy(builder.layer_v(layer), from + v_offset(n), n * moves_.v_token_bytes);
    std::memcpy(builder.layer_part(layer, KvPart::kKScales), from + scales_offset(n), scales);
    std::memcpy(builder.layer_part(layer, KvPart::kVScales), from + scales_offset(n) + scales,
                scales);
    from += layer_bytes(n);
  }
  return builder.check_scales();
}

void CudaCapturer::release(Batch batch) {
  for (Slot& slot : slots_) {
    if (&slot == find(batch)) {
      explicit_bzero(host_bytes_.data() + slot.offset, slot.bytes);
      free_slot(&slot);
      return;
    }
  }
}

}  // namespace inferscale
