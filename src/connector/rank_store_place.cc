#include <fmt/format.h>

#include <algorithm>
#include <mutex>

#include "connector/rank_store.h"

namespace inferscale {

Status RankStore::check_for_host(const PreparedLoad& load) {
  return load.pages_.empty()
             ? Status()
             : invalid_argument("a load is for a device's cache, not for rows of the host");
}

Status RankStore::compose(std::span<const PreparedLoad* const> loads,
                          const CacheLayout& cache) const {
  std::vector<ComposeItem> items;
  std::size_t n_tokens = 0;
  for (const PreparedLoad* load : loads) {
    INFERSCALE_RETURN_IF_ERROR(load->status());
    INFERSCALE_RETURN_IF_ERROR(check_for_host(*load));
    for (std::size_t i = 0; i < load->leases_.size(); ++i) {
      ComposeItem& item = items.emplace_back();
      item.record = load->leases_[i].record();
      item.first_position = load->parts_[i].first_position;
      item.first_row = n_tokens;
      n_tokens += item.record->n_tokens();
    }
  }
  INFERSCALE_RETURN_IF_ERROR(check_shape(cache.shape));
  INFERSCALE_RETURN_IF_ERROR(check_rows(cache.n_rows, n_tokens));
  return compose_items(items, cache);
}

Status RankStore::add_items(const Placement& placement, std::vector<ComposeItem>* items) const {
  const PreparedLoad& load = *placement.load;
  INFERSCALE_RETURN_IF_ERROR(load.status());
  INFERSCALE_RETURN_IF_ERROR(check_for_host(load));
  const std::uint64_t end = std::uint64_t{placement.begin} + placement.rows.size();
  std::uint64_t covered = placement.begin;
  for (std::size_t i = 0; i < load.leases_.size(); ++i) {
    const Record* record = load.leases_[i].record();
    const std::uint64_t first = load.parts_[i].first_position;
    const std::uint64_t behind = first + record->n_tokens();
    if (i > 0 &&
        first != load.parts_[i - 1].first_position + load.leases_[i - 1].record()->n_tokens()) {
      return invalid_argument("the records of a load do not follow one another");
    }
    const std::uint64_t from = std::max<std::uint64_t>(first, placement.begin);
    const std::uint64_t to = std::min(behind, end);
    if (from >= to) {
      continue;
    }
    ComposeItem& item = items->emplace_back();
    item.record = record;
    item.first_position = static_cast<std::uint32_t>(from);
    item.rows = placement.rows.subspan(from - placement.begin, to - from);
    item.first_token = static_cast<std::uint32_t>(from - first);
    item.n_tokens = static_cast<std::uint32_t>(to - from);
    covered = from == covered ? to : covered;
  }
  if (covered != end) {
    return invalid_argument(fmt::format("the load has no record for position {}", covered));
  }
  return Status();
}

Status RankStore::place(std::span<const Placement> placements, const CacheLayout& cache) const {
  INFERSCALE_RETURN_IF_ERROR(check_shape(cache.shape));
  std::vector<ComposeItem> items;
  for (const Placement& placement : placements) {
    INFERSCALE_RETURN_IF_ERROR(add_items(placement, &items));
  }
  return compose_items(items, cache);
}

Status RankStore::compose_items(std::span<const ComposeItem> items,
                                const CacheLayout& cache) const {
  std::uint64_t bytes = 0;
  for (const ComposeItem& item : items) {
    // A load may come from another store than this one.
    if (!is_own(item.record->meta())) {
      return invalid_argument("a load holds a record of another model or shard");
    }
    bytes += item.record->bytes().size();
  }
  if (bytes < kTeamBytes) {
    return kv_compose(items, *rope_, cache);
  }
  std::mutex mutex;
  Status failed;
  team_.run(shape_.n_layers, [&](std::size_t first, std::size_t count) {
    const LayerRange layers{static_cast<std::uint32_t>(first), static_cast<std::uint32_t>(count)};
    const Status status = kv_compose(items, *rope_, cache, layers);
    if (!status.ok()) {
      const std::lock_guard lock(mutex);
      failed = status;
    }
  });
  return failed;
}

}  // namespace inferscale
