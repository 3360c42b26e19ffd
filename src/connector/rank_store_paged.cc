#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "connector/rank_store_parts.h"
#include "kernels/transcode.h"

namespace inferscale {

Status RankStore::attach_device(const DeviceFactory& factory, int device_index,
                                std::uint64_t gpu_budget_bytes, std::uint64_t pinned_budget_bytes) {
  INFERSCALE_ASSIGN_OR_RETURN(const std::shared_ptr<Files> files, this->files());
  if (files->device != nullptr) {
    return invalid_argument("the store has a device already");
  }
  DeviceOptions wanted;
  wanted.device = device_index;
  wanted.layout = pages();
  wanted.gpu_budget_bytes = gpu_budget_bytes;
  wanted.pinned_budget_bytes = pinned_budget_bytes;
  INFERSCALE_RETURN_IF_ERROR(wanted.layout.validate());
  INFERSCALE_ASSIGN_OR_RETURN(std::unique_ptr<DeviceBackend> device, factory(wanted));
  if (device->gpu() == nullptr && device->pinned() == nullptr) {  // before the store is given away
    return invalid_argument(
        fmt::format("gpu and pinned budgets: neither holds a single page, of {} bytes",
                    wanted.layout.page_bytes()));
  }
  INFERSCALE_ASSIGN_OR_RETURN(std::unique_ptr<DeviceStore> store,
                              DeviceStore::create(std::move(files->store), std::move(device)));
  files->device = store.get();
  files->store = std::move(store);
  return Status();
}

std::size_t RankStore::device_tokens() const {
  const Result<std::shared_ptr<Files>> files = this->files();
  if (!files.ok() || (*files)->device == nullptr) {
    return 0;
  }
  DeviceBackend& device = (*files)->device->device();
  std::size_t pages = 0;
  for (const std::shared_ptr<PageMemory>& memory : {device.gpu(), device.pinned()}) {
    pages = std::max(pages, memory == nullptr ? 0 : memory->n_pages());
  }
  return pages * options_.tokens_per_page;
}

Status RankStore::bind_cache(const CacheLayout& cache, std::size_t max_tokens,
                             std::size_t max_capture_tokens) {
  INFERSCALE_ASSIGN_OR_RETURN(const std::shared_ptr<Files> files, this->files());
  if (files->device == nullptr) {
    return invalid_argument("this store has no device");
  }
  INFERSCALE_RETURN_IF_ERROR(check_shape(cache.shape));
  DeviceBackend& device = files->device->device();
  auto bound = std::make_shared<Bound>();
  bound->where.table = rope_;
  bound->where.cache = cache;
  bound->where.pages = pages();
  bound->where.max_tokens = max_tokens;
  bound->streams = files->device->streams();
  INFERSCALE_RETURN_IF_ERROR(check_paged_cache(bound->where));
  INFERSCALE_ASSIGN_OR_RETURN(bound->composer, device.make_composer(bound->where));
  PagedCache captured = bound->where;
  captured.max_tokens = max_capture_tokens == 0 ? max_tokens : max_capture_tokens;
  INFERSCALE_ASSIGN_OR_RETURN(bound->capturer, device.make_capturer(captured));
  const std::lock_guard lock(mutex_);
  bound_.swap(bound);
  return Status();
}

Result<std::shared_ptr<RankStore::Bound>> RankStore::bound() const {
  const std::lock_guard lock(mutex_);
  if (bound_ == nullptr) {
    return invalid_argument("no cache: bind_cache says where it is");
  }
  return bound_;
}

Status RankStore::compose_paged(std::span<const PreparedLoad* const> loads,
                                std::span<const std::uint32_t> rows, void* stream) {
  INFERSCALE_ASSIGN_OR_RETURN(const std::shared_ptr<Bound> bound, this->bound());
  std::vector<PagedItem> items;
  std::vector<const PageLease*> leases;
  std::size_t n_tokens = 0;
  for (const PreparedLoad* load : loads) {
    INFERSCALE_RETURN_IF_ERROR(load->status());
    n_tokens += load->tokens();
    if (n_tokens > rows.size() || load->pages_.size() != load->parts_.size()) {
      return invalid_argument("there are fewer rows than tokens, or a load is not for a device");
    }
    std::size_t at = n_tokens - load->tokens();
    for (std::size_t i = 0; i < load->pages_.size(); ++i) {
      const PageLease& lease = load->pages_[i];
      // A load may come from another store than this one.
      if (!bound->streams->owns(lease) || !is_own(lease.meta())) {
        return invalid_argument("a load holds a record of another store, model or shard");
      }
      PagedItem& item = items.emplace_back();
      item.pages = lease.addresses();
      item.first_token = load->parts_[i].first_token;
      item.n_tokens = load->parts_[i].n_tokens;
      item.first_position = load->parts_[i].first_position + item.first_token;
      item.rows = rows.subspan(at, item.n_tokens);
      at += item.n_tokens;
      leases.push_back(&lease);
    }
  }
  if (n_tokens != rows.size()) {
    return invalid_argument(
        fmt::format("{} rows for {} tokens; one each is needed", rows.size(), n_tokens));
  }
  if (items.empty()) {
    return Status();
  }
  INFERSCALE_RETURN_IF_ERROR(bound->streams->publish(stream));
  const std::lock_guard lock(bound->mutex);
  const Status composed = bound->composer->compose(items, stream);
  if (composed.code() == StatusCode::kInvalidArgument) {
    return composed;
  }
  const Status noted = bound->streams->note_use(leases, stream);
  return composed.ok() ? noted : composed;
}

Result<PendingCapture> RankStore::capture_paged(std::vector<CaptureItem> items,
                                                std::span<const std::uint32_t> rows, void* stream) {
  INFERSCALE_ASSIGN_OR_RETURN(const std::shared_ptr<Bound> bound, this->bound());
  std::vector<CaptureRun> runs;
  std::size_t n_tokens = 0;
  for (const CaptureItem& item : items) {
    if (item.tokens.size() > rows.size() - n_tokens) {
      return invalid_argument(fmt::format("{} rows are fewer than tokens", rows.size()));
    }
    runs.push_back({item.first_position, rows.subspan(n_tokens, item.tokens.size())});
    n_tokens += item.tokens.size();
  }
  if (n_tokens != rows.size()) {
    return invalid_argument(
        fmt::format("{} rows for {} tokens; one each is needed", rows.size(), n_tokens));
  }
  PendingCapture pending;
  if (items.empty()) {
    return pending;
  }
  {
    const std::lock_guard lock(bound->mutex);
    INFERSCALE_ASSIGN_OR_RETURN(pending.batch_, bound->capturer->capture(runs, stream));
  }
  pending.items_ = std::move(items);
  return pending;
}

Result<RecordBuilder*> RankStore::build(PendingCapture& pending, std::size_t item) const {
  if (item >= pending.items_.size()) {
    return invalid_argument(fmt::format("item {} of a capture of {}", item, pending.items_.size()));
  }
  if (!pending.built_.has_value() || pending.built_item_ != item) {
    pending.built_.reset();
    const CaptureItem& wanted = pending.items_[item];
    RecordMeta meta = meta_of(wanted.meta);
    meta.codec = pages().codec;  // in which the device has read them
    INFERSCALE_ASSIGN_OR_RETURN(RecordBuilder builder, RecordBuilder::create(meta, wanted.tokens));
    INFERSCALE_RETURN_IF_ERROR(pending.batch_->read(item, builder));
    pending.built_.emplace(std::move(builder));
    pending.built_item_ = item;
  }
  return &*pending.built_;
}

Result<std::vector<float>> RankStore::first_layer_keys(PendingCapture& pending,
                                                       std::size_t item) const {
  INFERSCALE_ASSIGN_OR_RETURN(RecordBuilder * builder, build(pending, item));
  return layer_keys_as_floats(*builder, 0, *rope_);
}

Status RankStore::store(PendingCapture& pending, std::size_t item) {
  INFERSCALE_ASSIGN_OR_RETURN(const std::shared_ptr<Files> files, this->files());
  INFERSCALE_ASSIGN_OR_RETURN(RecordBuilder * builder, build(pending, item));
  RecordBuilder whole = std::move(*builder);
  pending.built_.reset();
  const CaptureMeta& meta = pending.items_[item].meta;
  return keep(*files, meta.key, std::move(whole), meta_of(meta).codec);
}

}  // namespace inferscale
