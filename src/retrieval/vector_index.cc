#include "retrieval/vector_index.h"

#include <fmt/format.h>

#include <utility>

#include "base/log.h"
#include "retrieval/vector_table.h"

namespace inferscale {
namespace {

// Scopes without facts cost next to no bytes; this bounds how many of them are remembered.
constexpr std::size_t kMaxScopes = 4096;

}  // namespace

struct VectorIndex::Entry {
  Entry(Scope request, std::size_t dim) : scope(std::move(request)), table(dim) {}

  const Scope scope;
  std::shared_mutex mutex;  // guards the next two; held alone while loading, so that writers queue
                            // behind the load
  bool loaded = false;
  Table table;
  // Guarded by VectorIndex::mutex_:
  std::size_t bytes = 0;
  std::size_t rows = 0;
  bool listed = true;  // false once evicted or dropped
};

VectorIndex::VectorIndex(std::string embedder_id, std::size_t dim, std::size_t budget_bytes,
                         Loader loader)
    : embedder_id_(std::move(embedder_id)),
      dim_(dim),
      budget_bytes_(budget_bytes),
      loader_(std::move(loader)) {}

VectorIndex::~VectorIndex() = default;

std::shared_ptr<VectorIndex::Entry> VectorIndex::entry_of(const Scope& request) {
  const std::lock_guard lock(mutex_);
  if (const auto known = by_scope_.find(request); known != by_scope_.end()) {
    entries_.splice(entries_.begin(), entries_, known->second);
    return entries_.front();
  }
  entries_.push_front(std::make_shared<Entry>(request, dim_));
  by_scope_.emplace(request, entries_.begin());
  evict_to_budget();
  return entries_.front();
}

void VectorIndex::unlist(std::list<std::shared_ptr<Entry>>::iterator position) {
  Entry& entry = **position;
  entry.listed = false;
  total_bytes_ -= entry.bytes;
  by_scope_.erase(entry.scope);
  entries_.erase(position);
}

void VectorIndex::evict_to_budget() {
  while (entries_.size() > 1 && (total_bytes_ > budget_bytes_ || entries_.size() > kMaxScopes)) {
    unlist(std::prev(entries_.end()));
  }
  if (total_bytes_ > budget_bytes_) {
    if (!std::exchange(warned_, true)) {
      log_message(LogLevel::kWarning,
                  fmt::format("the vectors of scope {} need {} bytes, more than the {} of the "
                              "vector index: they are "
                              "read from the catalog at every search; raise index_bytes",
                              to_string(entries_.front()->scope), total_bytes_, budget_bytes_));
    }
    unlist(entries_.begin());
  }
}

// REQUIRES: the caller holds entry.mutex.
void VectorIndex::account(Entry& entry) {
  const std::lock_guard lock(mutex_);
  if (!entry.listed) {
    return;
  }
  total_bytes_ += entry.table.bytes() - entry.bytes;
  entry.bytes = entry.table.bytes();
  entry.rows = entry.table.rows();
  evict_to_budget();
}

Status VectorIndex::load(Entry& entry) {
  const std::lock_guard lock(entry.mutex);
  if (entry.loaded) {
    return Status();
  }
  Result<VectorRows> rows = loader_(entry.scope);
  if (!rows.ok()) {
    return rows.status();
  }
  INFERSCALE_RETURN_IF_ERROR(entry.table.assign(std::move(rows).value()));
  entry.loaded = true;
  {
    const std::lock_guard index_lock(mutex_);
    ++loads_;
  }
  account(entry);
  return Status();
}

Result<std::vector<VectorHit>> VectorIndex::search(const Scope& request,
                                                   std::span<const float> query, std::size_t k,
                                                   const IdSet* only) {
  if (query.size() != dim_) {
    return invalid_argument(
        fmt::format("the query vector has {} values, the index {}", query.size(), dim_));
  }
  const std::shared_ptr<Entry> entry = entry_of(request);
  for (;;) {
    {
      const std::shared_lock lock(entry->mutex);
      if (entry->loaded) {
        return entry->table.search(query, k, only);
      }
    }
    INFERSCALE_RETURN_IF_ERROR(load(*entry));
  }
}

std::vector<std::shared_ptr<VectorIndex::Entry>> VectorIndex::entries_that_see(
    const Scope& owner) const {
  const std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<Entry>> seeing;
  for (const std::shared_ptr<Entry>& entry : entries_) {
    if (scope_permits(entry->scope, owner)) {
      seeing.push_back(entry);
    }
  }
  return seeing;
}

void VectorIndex::put(const Scope& owner, const std::string& fact_id, const TextVectors& vectors) {
  const bool usable = vectors.embedder_id == embedder_id_ && vectors.dim == dim_ &&
                      vectors.values.size() % dim_ == 0;
  for (const std::shared_ptr<Entry>& entry : entries_that_see(owner)) {
    const std::lock_guard lock(entry->mutex);
    if (!entry->loaded) {
      continue;  // its load starts after this commit, so it reads it
    }
    entry->table.put(fact_id,
                     usable ? std::span<const float>(vectors.values) : std::span<const float>());
    account(*entry);
  }
}

void VectorIndex::remove(const Scope& owner, const std::string& fact_id) {
  put(owner, fact_id, TextVectors());
}

void VectorIndex::drop(const Scope& erased) {
  const std::lock_guard lock(mutex_);
  for (auto position = entries_.begin(); position != entries_.end();) {
    const auto next = std::next(position);
    if ((*position)->scope.tenant == erased.tenant || erased.tenant.empty()) {
      unlist(position);
    }
    position = next;
  }
}

VectorIndexStats VectorIndex::stats() const {
  const std::lock_guard lock(mutex_);
  VectorIndexStats stats{.scopes = entries_.size(), .bytes = total_bytes_, .loads = loads_};
  for (const std::shared_ptr<Entry>& entry : entries_) {
    stats.rows += entry->rows;
  }
  return stats;
}

}  // namespace inferscale
