#include <fmt/format.h>

#include <utility>

#include "connector/rank_store_parts.h"

namespace inferscale {

Status RankStore::put_device_before(const RankStoreOptions& options, const KvShape& shape,
                                    Files* files) {
  DeviceOptions wanted;
  wanted.device = options.device_index;
  wanted.layout = {shape, options.codec, options.tokens_per_page};
  wanted.gpu_budget_bytes = options.gpu_budget_bytes;
  wanted.pinned_budget_bytes = options.pinned_budget_bytes;
  INFERSCALE_RETURN_IF_ERROR(wanted.layout.validate());
  INFERSCALE_ASSIGN_OR_RETURN(std::unique_ptr<DeviceBackend> device, options.device(wanted));
  INFERSCALE_ASSIGN_OR_RETURN(std::unique_ptr<DeviceStore> store,
                              DeviceStore::create(std::move(files->store), std::move(device)));
  files->device = store.get();
  files->store = std::move(store);
  return Status();
}

Status RankStore::bind_cache(const CacheLayout& cache, std::size_t max_tokens) {
  INFERSCALE_ASSIGN_OR_RETURN(const std::shared_ptr<Files> files, this->files());
  if (files->device == nullptr) {
    return invalid_argument("this store was opened without a device");
  }
  INFERSCALE_RETURN_IF_ERROR(check_cache(cache.shape, cache.n_rows, cache.n_rows));
  DeviceBackend& device = files->device->device();
  auto bound = std::make_shared<Bound>();
  bound->where.table = rope_;
  bound->where.cache = cache;
  bound->where.pages = {shape_, options_.codec, options_.tokens_per_page};
  bound->where.max_tokens = max_tokens;
  bound->streams = files->device->streams();
  INFERSCALE_RETURN_IF_ERROR(check_paged_cache(bound->where));
  INFERSCALE_ASSIGN_OR_RETURN(bound->composer, device.make_composer(bound->where));
  INFERSCALE_ASSIGN_OR_RETURN(bound->capturer, device.make_capturer(bound->where));
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
    if (n_tokens > rows.size() || load->pages_.size() != load->first_positions_.size()) {
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
      item.n_tokens = lease.n_tokens();
      item.first_position = load->first_positions_[i];
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

Result<std::vector<Status>> RankStore::finish(PendingCapture pending) {
  INFERSCALE_ASSIGN_OR_RETURN(const std::shared_ptr<Files> files, this->files());
  std::vector<Status> statuses;
  if (pending.batch_ == nullptr) {
    return statuses;
  }
  INFERSCALE_RETURN_IF_ERROR(pending.batch_->wait());
  for (std::size_t run = 0; run < pending.items_.size(); ++run) {
    const CaptureItem& item = pending.items_[run];
    Result<RecordBuilder> builder = RecordBuilder::create(meta_of(item.meta), item.tokens);
    Status status = builder.status();
    if (status.ok()) {
      status = pending.batch_->read(run, *builder);
    }
    if (status.ok()) {
      status = keep(*files, item.meta.key, std::move(builder).value());
    }
    statuses.push_back(std::move(status));
  }
  return statuses;
}

}  // namespace inferscale
