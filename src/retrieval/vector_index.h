#pragma once

#include <cstddef>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <span>
#include <string>
#include <unordered_set>
#include <vector>

#include "catalog/catalog.h"
#include "inferscale/status.h"
#include "inferscale/types.h"

namespace inferscale {

/// One fact found by its vectors: by its best chunk, when it has several.
struct VectorHit {
  std::string fact_id;
  float score = 0;  ///< cosine (all vectors have norm 1)
};

struct VectorIndexStats {
  std::size_t scopes = 0;  ///< in memory
  std::size_t rows = 0;
  std::size_t bytes = 0;
  std::size_t loads = 0;  ///< since construction
};

/// The vectors of recently used scopes in memory, searched exactly. A scope is loaded at its first
/// search, kept up to date by put and remove, and dropped by least recent use when all of them
/// exceed the budget. What is cached is what one request scope may see, so a search never has to
/// sort out foreign rows; a fact that several request scopes see (user, user and agent) is held
/// once for each that is in use. Thread-safe: searches of a scope run in parallel.
class VectorIndex {
 public:
  /// Reads what `request` permits. Called without locks that writers of other scopes wait for.
  using Loader = std::function<Result<VectorRows>(const Scope& request)>;
  using IdSet = std::unordered_set<std::string>;

  /// Holds vectors of this embedder only. `budget_bytes`: a scope that exceeds it alone is read
  /// again at every search.
  VectorIndex(std::string embedder_id, std::size_t dim, std::size_t budget_bytes, Loader loader);
  ~VectorIndex();

  /// The k best facts that `request` permits, best first (fewer when there are fewer), among `only`
  /// unless it is null. Errors: kInvalidArgument (query of another dim), those of the loader,
  /// kDataLoss (rows of another dim).
  [[nodiscard]] Result<std::vector<VectorHit>> search(const Scope& request,
                                                      std::span<const float> query, std::size_t k,
                                                      const IdSet* only);

  /// The fact's vectors are now these; empty ones, or ones of another embedder, only take the old
  /// ones out. Calls for one fact must come in the order of its commits.
  void put(const Scope& owner, const std::string& fact_id, const TextVectors& vectors);
  void remove(const Scope& owner, const std::string& fact_id);
  /// Forgets all scopes that may hold facts of `erased`.
  void drop(const Scope& erased);

  [[nodiscard]] VectorIndexStats stats() const;

 private:
  class Table;  // the rows of one scope
  struct Entry;

  std::shared_ptr<Entry> entry_of(const Scope& request);
  [[nodiscard]] Status load(Entry& entry);
  std::vector<std::shared_ptr<Entry>> entries_that_see(const Scope& owner) const;
  void account(Entry& entry);
  void unlist(std::list<std::shared_ptr<Entry>>::iterator position);
  void evict_to_budget();

  const std::string embedder_id_;
  const std::size_t dim_;
  const std::size_t budget_bytes_;
  const Loader loader_;

  mutable std::mutex mutex_;  // guards what follows; never held while a scope is loaded or scanned
  std::list<std::shared_ptr<Entry>> entries_;  // most recently used first
  std::map<Scope, std::list<std::shared_ptr<Entry>>::iterator> by_scope_;
  std::size_t total_bytes_ = 0;
  std::size_t loads_ = 0;
  bool warned_ = false;
};

}  // namespace inferscale
