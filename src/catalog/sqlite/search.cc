#include <algorithm>
#include <cmath>
#include <unordered_map>
#include <unordered_set>

#include "catalog/sqlite/sqlite_catalog_impl.h"

namespace inferscale::sqlite {
namespace {

constexpr std::size_t kMaxTerms = 64;
// BM25's usual constants.
constexpr double kK1 = 1.2;
constexpr double kB = 0.75;

/// Distinct terms of a query; function words only where there is nothing else.
std::vector<std::string> query_terms(KeywordTokenizer& tokenizer, std::string_view query) {
  std::vector<std::string> terms;
  std::vector<std::string> stop_terms;
  std::unordered_set<std::string> seen;
  tokenizer.for_each_term(query, [&](std::string_view term) {
    if (seen.insert(std::string(term)).second) {
      (tokenizer.is_stop_term(term) ? stop_terms : terms).emplace_back(term);
    }
    return seen.size() < kMaxTerms;
  });
  return terms.empty() ? stop_terms : terms;
}

/// How often each fact of an owner has a term.
struct Posting {
  std::int64_t fact;
  std::int64_t count;
};

Result<std::vector<Posting>> read_postings(Connection& connection, const std::string& index_term) {
  INFERSCALE_ASSIGN_OR_RETURN(
      Statement statement, connection.prepare("SELECT doc FROM keyword_instances WHERE term = ?1"));
  statement.with(std::string_view(index_term));
  std::vector<Posting> postings;
  while (true) {
    INFERSCALE_ASSIGN_OR_RETURN(const bool more, statement.step());
    if (!more) {
      return postings;
    }
    const std::int64_t fact = statement.integer(0);
    if (!postings.empty() && postings.back().fact == fact) {
      ++postings.back().count;
    } else {
      postings.push_back({fact, 1});
    }
  }
}

/// The terms of one owner's facts, with what BM25 needs to weigh them.
class OwnerSearch {
 public:
  OwnerSearch(Connection& connection, std::int64_t owner)
      : connection_(connection), owner_(owner) {}

  Status read(const std::vector<std::string>& terms) {
    INFERSCALE_ASSIGN_OR_RETURN(
        Statement statement,
        connection_.prepare("SELECT live_facts, live_terms FROM owners WHERE pk = ?1"));
    INFERSCALE_RETURN_IF_ERROR(statement.with(owner_).step().status());
    const auto facts = static_cast<double>(statement.integer(0));
    average_length_ =
        std::max(1.0, static_cast<double>(statement.integer(1)) / std::max(1.0, facts));
    for (const std::string& term : terms) {
      INFERSCALE_ASSIGN_OR_RETURN(
          const std::vector<Posting> postings,
          read_postings(connection_, KeywordTokenizer::index_term(owner_, term)));
      const auto n = static_cast<double>(postings.size());
      const double idf = std::log(1 + (facts - n + 0.5) / (n + 0.5));
      for (const Posting& posting : postings) {
        matches_[posting.fact].push_back({idf, static_cast<double>(posting.count)});
      }
    }
    return Status();
  }

  /// Adds the best `limit` facts of the scopes that `readable` holds to `hits`.
  Status rank(const std::unordered_set<std::int64_t>& readable, std::size_t limit,
              std::vector<KeywordHit>& hits) {
    std::vector<Candidate> candidates;
    candidates.reserve(matches_.size());
    for (const auto& [fact, terms] : matches_) {
      candidates.push_back({fact, score(terms, 0)});
    }
    // A fact scores at most what it would score if it were very short. Lengths are read in that
    // order, and no further than a fact that cannot get among the best.
    std::sort(candidates.begin(), candidates.end(), [](const Candidate& a, const Candidate& b) {
      return a.score != b.score ? a.score > b.score : a.fact < b.fact;
    });
    INFERSCALE_ASSIGN_OR_RETURN(
        Statement statement,
        connection_.prepare("SELECT scope, n_terms, id FROM facts WHERE pk = ?1"));
    const std::size_t first = hits.size();
    for (const Candidate& candidate : candidates) {
      if (hits.size() - first == limit && hits.back().score >= candidate.score) {
        break;
      }
      INFERSCALE_ASSIGN_OR_RETURN(const bool found, statement.with(candidate.fact).step());
      if (!found || !readable.contains(statement.integer(0))) {
        continue;
      }
      const auto length = static_cast<double>(statement.integer(1));
      insert(hits, first, limit, {statement.text(2), score(matches_[candidate.fact], length)});
    }
    return Status();
  }

 private:
  struct Match {
    double idf;
    double count;
  };
  struct Candidate {
    std::int64_t fact;
    double score;
  };

  [[nodiscard]] double score(const std::vector<Match>& terms, double length) const {
    double sum = 0;
    for (const Match& term : terms) {
      const double norm = kK1 * (1 - kB + kB * length / average_length_);
      sum += term.idf * term.count * (kK1 + 1) / (term.count + norm);
    }
    return sum;
  }

  /// Keeps hits[first..] sorted, best first, at most `limit` long. Equal scores: first come first.
  static void insert(std::vector<KeywordHit>& hits, std::size_t first, std::size_t limit,
                     KeywordHit hit) {
    const auto place = std::upper_bound(
        hits.begin() + static_cast<std::ptrdiff_t>(first), hits.end(), hit,
        [](const KeywordHit& a, const KeywordHit& b) { return a.score > b.score; });
    hits.insert(place, std::move(hit));
    if (hits.size() - first > limit) {
      hits.pop_back();
    }
  }

  Connection& connection_;
  std::int64_t owner_;
  double average_length_ = 1;
  std::unordered_map<std::int64_t, std::vector<Match>> matches_;
};

}  // namespace

Result<std::vector<KeywordHit>> SqliteCatalog::keyword_search(const Scope& request,
                                                              std::string_view query,
                                                              std::size_t limit) {
  std::vector<KeywordHit> hits;
  INFERSCALE_ASSIGN_OR_RETURN(ReaderPool::Lease reader, readers_.acquire());
  Connection& connection = reader.connection();
  const std::vector<std::string> terms = query_terms(reader.tokenizer(), query);
  if (terms.empty() || limit == 0) {
    return hits;
  }
  INFERSCALE_ASSIGN_OR_RETURN(const std::vector<ScopeRow> scopes,
                              readable_scopes(connection, request));
  std::unordered_set<std::int64_t> readable;
  std::unordered_set<std::int64_t> owners;
  for (const ScopeRow& scope : scopes) {
    readable.insert(scope.pk);
    owners.insert(scope.owner);
  }
  for (const std::int64_t owner : owners) {
    OwnerSearch search(connection, owner);
    INFERSCALE_RETURN_IF_ERROR(search.read(terms));
    INFERSCALE_RETURN_IF_ERROR(search.rank(readable, limit, hits));
  }
  std::stable_sort(hits.begin(), hits.end(),
                   [](const KeywordHit& a, const KeywordHit& b) { return a.score > b.score; });
  if (hits.size() > limit) {
    hits.resize(limit);
  }
  return hits;
}

}  // namespace inferscale::sqlite
