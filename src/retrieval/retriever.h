#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "catalog/catalog.h"
#include "retrieval/embedder.h"

namespace inferscale {

enum class RetrievalMode { kFused, kVector, kKeyword };

struct RetrievalRequest {
  Scope scope;
  std::string query;
  std::size_t k = 10;
  Filter filter;
  RetrievalMode mode = RetrievalMode::kFused;
};

struct RetrievedFact {
  Fact fact;
  double score = 0;          ///< fused score; larger is better
  double vector_score = 0;   ///< cosine; 0 when only keywords found it
  double keyword_score = 0;  ///< BM25; 0 when only the vector found it
};

struct RetrievalResult {
  std::vector<RetrievedFact> facts;  ///< best first, at most k
  double embed_ms = 0;
  double retrieve_ms = 0;
  bool vector_used = true;           ///< false when embedding failed: keywords alone, `note` says why
  std::string note;
};

/// Finds facts by meaning and by keywords: exact vector scan per scope, BM25, reciprocal rank fusion over the union of
/// candidates. Holds the vectors of recently used scopes in memory. Thread-safe.
class Retriever {
 public:
  /// Borrows both; `embedder` may be null (keywords only).
  Retriever(Catalog& catalog, Embedder* embedder);
  ~Retriever();

  [[nodiscard]] Result<RetrievalResult> search(const RetrievalRequest& request);

  /// Must be told of every write, after it is committed, so that a search sees it.
  void on_added(const Scope& scope, const std::string& fact_id, const TextVectors& vectors);
  void on_removed(const Scope& scope, const std::string& fact_id);
  void on_scope_erased(const Scope& scope);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace inferscale
