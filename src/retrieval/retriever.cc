#include "retrieval/retriever.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <unordered_map>
#include <utility>

#include "base/clock.h"
#include "base/utf8.h"

namespace inferscale {
namespace {

// What of a query is embedded. A question is far shorter; a pasted document would take minutes and
// mean nothing.
constexpr std::size_t kMaxEmbeddedQueryBytes = 8U << 10;

// Deeper than k: a fact that both rankings hold further down passes one that only one of them has.
std::size_t candidates_for(std::size_t k) { return std::max<std::size_t>(4 * k, 60); }

Status check_request(const RetrievalRequest& request) {
  if (request.k == 0 || request.k > kMaxRetrieved) {
    return invalid_argument(fmt::format("k is {}: 1 to {} are accepted", request.k, kMaxRetrieved));
  }
  INFERSCALE_RETURN_IF_ERROR(check_text("query", request.query, kMaxQueryBytes));
  if (single_line(request.query).empty()) {
    return invalid_argument("query is white space only");
  }
  return Status();
}

// One direction for a query of several chunks: their mean.
std::vector<float> query_direction(const TextVectors& vectors) {
  std::vector<float> direction(vectors.dim);
  for (std::size_t i = 0; i < vectors.values.size(); ++i) {
    direction[i % vectors.dim] += vectors.values[i];
  }
  double square = 0;
  for (const float value : direction) {
    square += static_cast<double>(value) * value;
  }
  const float scale = square > 0 ? static_cast<float>(1 / std::sqrt(square)) : 0.0F;
  for (float& value : direction) {
    value *= scale;
  }
  return direction;
}

std::vector<RankedId> as_ranking(std::vector<VectorHit> hits) {
  std::vector<RankedId> ranking;
  ranking.reserve(hits.size());
  for (VectorHit& hit : hits) {
    ranking.push_back({std::move(hit.fact_id), hit.score});
  }
  return ranking;
}

}  // namespace

struct Retriever::Impl {
  Catalog& catalog;
  Embedder* const embedder;
  const RetrieverOptions options;
  std::unique_ptr<VectorIndex> index;  // null without an embedder

  Result<std::vector<float>> embed(const std::string& query, std::string& note) const;
  Result<std::vector<RankedId>> keyword_ranking(const RetrievalRequest& request,
                                                const VectorIndex::IdSet* only) const;
  std::vector<FusedId> rank(RetrievalMode mode, std::span<const RankedId> vector,
                            std::span<const RankedId> keyword) const;
  Result<std::vector<RetrievedFact>> fetch(const RetrievalRequest& request,
                                           std::span<const FusedId> ranked) const;
  Result<std::optional<VectorIndex::IdSet>> permitted_by_filter(
      const RetrievalRequest& request) const;
};

Result<std::vector<float>> Retriever::Impl::embed(const std::string& query,
                                                  std::string& note) const {
  if (embedder == nullptr) {
    return unavailable("no embedding model is loaded");
  }
  const std::string head(utf8_prefix(query, kMaxEmbeddedQueryBytes));
  if (head.size() < query.size()) {
    note = fmt::format("the query has {} bytes: its first {} were embedded", query.size(),
                       head.size());
  }
  std::vector<Result<TextVectors>> vectors = embedder->embed(std::span(&head, 1));
  if (vectors.size() != 1) {
    return internal_error(fmt::format("the embedder gave {} results for one text", vectors.size()));
  }
  if (!vectors[0].ok()) {
    return vectors[0].status();
  }
  return query_direction(*vectors[0]);
}

Result<std::optional<VectorIndex::IdSet>> Retriever::Impl::permitted_by_filter(
    const RetrievalRequest& request) const {
  if (request.filter.op == Filter::Op::kAll) {
    return std::optional<VectorIndex::IdSet>();
  }
  INFERSCALE_ASSIGN_OR_RETURN(std::vector<std::string> ids,
                              catalog.matching_ids(request.scope, request.filter));
  return std::optional(
      VectorIndex::IdSet(std::make_move_iterator(ids.begin()), std::make_move_iterator(ids.end())));
}

// The catalog's keyword search knows no filter: ask for more until enough of its hits pass.
Result<std::vector<RankedId>> Retriever::Impl::keyword_ranking(
    const RetrievalRequest& request, const VectorIndex::IdSet* only) const {
  const std::size_t wanted = candidates_for(request.k);
  for (std::size_t limit = wanted;; limit *= 8) {
    INFERSCALE_ASSIGN_OR_RETURN(std::vector<KeywordHit> hits,
                                catalog.keyword_search(request.scope, request.query, limit));
    const bool exhausted = hits.size() < limit;
    std::vector<RankedId> ranking;
    for (KeywordHit& hit : hits) {
      if (ranking.size() < wanted && (only == nullptr || only->contains(hit.fact_id))) {
        ranking.push_back({std::move(hit.fact_id), hit.score});
      }
    }
    const std::size_t available = only == nullptr ? wanted : std::min(wanted, only->size());
    if (exhausted || ranking.size() >= available) {
      return ranking;
    }
  }
}

std::vector<FusedId> Retriever::Impl::rank(RetrievalMode mode, std::span<const RankedId> vector,
                                           std::span<const RankedId> keyword) const {
  std::vector<FusedId> ranked = fuse_rankings(vector, keyword, options.weights);
  if (mode == RetrievalMode::kVector || mode == RetrievalMode::kKeyword) {
    for (FusedId& entry : ranked) {
      entry.score = mode == RetrievalMode::kVector ? entry.vector_score : entry.keyword_score;
    }
  }
  return ranked;
}

// Reads facts until k are found: one that was deleted since it was ranked gives its place to the
// next.
Result<std::vector<RetrievedFact>> Retriever::Impl::fetch(const RetrievalRequest& request,
                                                          std::span<const FusedId> ranked) const {
  std::vector<RetrievedFact> found;
  for (std::size_t begin = 0; begin < ranked.size() && found.size() < request.k;) {
    std::size_t end = std::min(ranked.size(), begin + request.k - found.size());
    while (end < ranked.size() && ranked[end].score == ranked[end - 1].score) {
      ++end;  // all of a tie, so that the newest of them wins and not the one with the smallest id
    }
    std::vector<std::string> ids;
    std::unordered_map<std::string, const FusedId*> by_id;
    for (const FusedId& entry : ranked.subspan(begin, end - begin)) {
      ids.push_back(entry.fact_id);
      by_id.emplace(entry.fact_id, &entry);
    }
    INFERSCALE_ASSIGN_OR_RETURN(std::vector<Fact> facts, catalog.get_facts(request.scope, ids));
    for (Fact& fact : facts) {
      const FusedId& entry = *by_id.at(fact.id);
      found.push_back({std::move(fact), entry.score, entry.vector_score, entry.keyword_score});
    }
    begin = end;
  }
  std::stable_sort(found.begin(), found.end(), [](const RetrievedFact& a, const RetrievedFact& b) {
    return a.score != b.score ? a.score > b.score : a.fact.sequence > b.fact.sequence;
  });
  if (found.size() > request.k) {
    found.resize(request.k);
  }
  return found;
}

Retriever::Retriever(Catalog& catalog, Embedder* embedder, RetrieverOptions options)
    : impl_(new Impl{catalog, embedder, options, nullptr}) {
  if (embedder != nullptr) {
    impl_->index =
        std::make_unique<VectorIndex>(embedder->id(), embedder->dim(), options.index_bytes,
                                      [&catalog, id = embedder->id()](const Scope& request) {
                                        return catalog.vectors(request, id);
                                      });
  }
}

Retriever::~Retriever() = default;

Result<RetrievalResult> Retriever::search(const RetrievalRequest& request) {
  INFERSCALE_RETURN_IF_ERROR(check_request(request));
  RetrievalResult result;
  Stopwatch watch;
  std::vector<float> direction;
  if (request.mode != RetrievalMode::kKeyword) {
    Result<std::vector<float>> embedded = impl_->embed(request.query, result.note);
    if (embedded.ok()) {
      direction = std::move(embedded).value();
    } else if (request.mode == RetrievalMode::kVector) {
      return embedded.status();
    } else {
      result.note = "found by keywords alone: " + embedded.status().message();
    }
  }
  result.vector_used = !direction.empty();
  result.embed_ms = watch.elapsed_ms();
  watch.restart();

  INFERSCALE_ASSIGN_OR_RETURN(const auto permitted, impl_->permitted_by_filter(request));
  const VectorIndex::IdSet* only = permitted ? &*permitted : nullptr;
  std::vector<RankedId> vector;
  if (result.vector_used) {
    INFERSCALE_ASSIGN_OR_RETURN(
        std::vector<VectorHit> hits,
        impl_->index->search(request.scope, direction, candidates_for(request.k), only));
    vector = as_ranking(std::move(hits));
  }
  std::vector<RankedId> keyword;
  if (request.mode != RetrievalMode::kVector) {
    INFERSCALE_ASSIGN_OR_RETURN(keyword, impl_->keyword_ranking(request, only));
  }
  INFERSCALE_ASSIGN_OR_RETURN(result.facts,
                              impl_->fetch(request, impl_->rank(request.mode, vector, keyword)));
  result.retrieve_ms = watch.elapsed_ms();
  return result;
}

void Retriever::on_added(const Scope& scope, const std::string& fact_id,
                         const TextVectors& vectors) {
  if (impl_->index) {
    impl_->index->put(scope, fact_id, vectors);
  }
}

void Retriever::on_removed(const Scope& scope, const std::string& fact_id) {
  if (impl_->index) {
    impl_->index->remove(scope, fact_id);
  }
}

void Retriever::on_scope_erased(const Scope& scope) {
  if (impl_->index) {
    impl_->index->drop(scope);
  }
}

VectorIndexStats Retriever::index_stats() const {
  return impl_->index ? impl_->index->stats() : VectorIndexStats();
}

}  // namespace inferscale
