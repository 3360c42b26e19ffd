#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "catalog/catalog.h"
#include "retrieval/embedder.h"
#include "retrieval/fusion.h"
#include "retrieval/vector_index.h"

namespace inferscale {

enum class RetrievalMode { kFused, kVector, kKeyword };

struct RetrievalRequest {
  Scope scope;
  std::string query;   ///< any valid UTF-8 of 1 byte to kMaxQueryBytes with something else than
                       ///< white space in it
  std::size_t k = 10;  ///< 1 to kMaxRetrieved
  Filter filter = {};
  RetrievalMode mode = RetrievalMode::kFused;
};
inline constexpr std::size_t kMaxQueryBytes = 1U << 20;
inline constexpr std::size_t kMaxRetrieved = 10'000;

struct RetrievedFact {
  Fact fact;
  double score = 0;          ///< fused score (in the other modes that mode's own); larger is better
  double vector_score = 0;   ///< cosine; 0 when only keywords found it
  double keyword_score = 0;  ///< BM25; 0 when only the vector found it
};

struct RetrievalResult {
  std::vector<RetrievedFact> facts;  ///< best first, at most k; equal scores: the newer fact first
  double embed_ms = 0;
  double retrieve_ms = 0;
  bool vector_used =
      true;  ///< false in mode kKeyword and when embedding failed: keywords alone, `note` says why
  std::string note;
};

struct RetrieverOptions {
  std::size_t index_bytes = std::size_t{512}
                            << 20;  ///< vectors held in memory, over all scopes (1.6 KB a fact)
  FusionWeights weights = {};
};

/// Finds facts by meaning and by keywords: exact vector scan per scope, BM25, reciprocal rank
/// fusion over the union of candidates (max(4k, 60) of each). Holds the vectors of recently used
/// scopes in memory. Thread-safe.
class Retriever {
 public:
  /// Borrows both; `embedder` may be null (keywords only).
  Retriever(Catalog& catalog, Embedder* embedder, RetrieverOptions options = {});
  ~Retriever();

  /// Live facts that `request.scope` permits; an empty store gives an empty result. When embedding
  /// fails, mode kFused answers from keywords alone. Errors: kInvalidArgument (query, k),
  /// kUnavailable (mode kVector without an embedder), in mode kVector those of the embedder, those
  /// of the catalog.
  [[nodiscard]] Result<RetrievalResult> search(const RetrievalRequest& request);

  /// Must be told of every write, after it is committed, so that a search sees it; of one fact's
  /// writes in their order. `scope` is the fact's own. Replaces the fact's vectors (an update calls
  /// this too); `vectors` may be empty.
  void on_added(const Scope& scope, const std::string& fact_id, const TextVectors& vectors);
  void on_removed(const Scope& scope, const std::string& fact_id);
  /// `scope` is the one given to Catalog::erase_scope.
  void on_scope_erased(const Scope& scope);

  [[nodiscard]] VectorIndexStats index_stats() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace inferscale
