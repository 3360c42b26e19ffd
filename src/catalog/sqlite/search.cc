#include <algorithm>
#include <cmath>
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
  INFERSCALE_RETURN_IF_ERROR(statement.for_each([&](const Statement& row) {
    const std::int64_t fact = row.integer(0);
    if (!postings.empty() && postings.back().fact == fact) {
      ++postings.back().count;
    } else {
      postings.push_back({fact, 1});
    }
  }));
  return postings;
}

/// A hit with what breaks ties: the fact that was told first comes first.
struct Ranked {
  std::int64_t fact = 0;
  KeywordHit hit;
  friend bool operator<(const Ranked& a, const Ranked& b) {
    return a.hit.score != b.hit.score ? a.hit.score > b.hit.score : a.fact < b.fact;
  }
};

/// The terms of one owner's facts, with what BM25 needs to weigh them. Statistics are the owner's
/// own: what others store changes neither a score nor an order.
class OwnerSearch {
 public:
  OwnerSearch(Connection& connection, std::int64_t owner)
      : connection_(connection), owner_(owner) {}

  Status read(const std::vector<std::string>& terms) {
    INFERSCALE_ASSIGN_OR_RETURN(
        Statement statement,
        connection_.prepare("SELECT live_facts, live_terms FROM owners WHERE pk = ?1"));
    INFERSCALE_RETURN_IF_ERROR(statement.with(owner_).step().status());
    const double facts = std::max(1.0, static_cast<double>(statement.integer(0)));
    average_length_ = std::max(1.0, static_cast<double>(statement.integer(1)) / facts);
    for (const std::string& term : terms) {
      INFERSCALE_ASSIGN_OR_RETURN(
          const std::vector<Posting> postings,
          read_postings(connection_, KeywordTokenizer::index_term(owner_, term)));
      const auto n = static_cast<double>(postings.size());
      const double idf = std::log(1 + (facts - n + 0.5) / (n + 0.5));
      for (const Posting& posting : postings) {
        matches_.push_back({posting.fact, idf, static_cast<double>(posting.count)});
      }
    }
    std::stable_sort(matches_.begin(), matches_.end(),
                     [](const Match& a, const Match& b) { return a.fact < b.fact; });
    return Status();
  }

  /// Adds the best `limit` facts of the scopes that `readable` holds to `ranked`.
  Status rank(const std::unordered_set<std::int64_t>& readable, std::size_t limit,
              std::vector<Ranked>& ranked) const {
    const std::vector<Candidate> candidates = make_candidates();
    INFERSCALE_ASSIGN_OR_RETURN(
        Statement statement,
        connection_.prepare("SELECT scope, n_terms, id FROM facts WHERE pk = ?1"));
    std::vector<Ranked> best;
    for (const Candidate& candidate : candidates) {
      if (best.size() == limit && best.back().hit.score > candidate.bound) {
        break;
      }
      INFERSCALE_ASSIGN_OR_RETURN(const bool found, statement.with(candidate.fact()).step());
      if (!found || !readable.contains(statement.integer(0))) {
        continue;
      }
      const auto length = static_cast<double>(statement.integer(1));
      Ranked next{candidate.fact(), {statement.text(2), score(candidate.matches, length)}};
      best.insert(std::upper_bound(best.begin(), best.end(), next), std::move(next));
      if (best.size() > limit) {
        best.pop_back();
      }
    }
    ranked.insert(ranked.end(), best.begin(), best.end());
    return Status();
  }

 private:
  struct Match {
    std::int64_t fact;
    double idf;
    double count;
  };
  /// A fact scores at most `bound`, what it would score if it were very short.
  struct Candidate {
    double bound;
    std::span<const Match> matches;
    [[nodiscard]] std::int64_t fact() const { return matches.front().fact; }
  };

  /// Best bound first: then lengths need to be read only as far as bounds can still win.
  [[nodiscard]] std::vector<Candidate> make_candidates() const {
    std::vector<Candidate> candidates;
    const std::span<const Match> all(matches_);
    for (std::size_t begin = 0, end = 0; begin < all.size(); begin = end) {
      while (end < all.size() && all[end].fact == all[begin].fact) {
        ++end;
      }
      const std::span<const Match> matches = all.subspan(begin, end - begin);
      candidates.push_back({score(matches, 0), matches});
    }
    std::stable_sort(candidates.begin(), candidates.end(),
                     [](const Candidate& a, const Candidate& b) { return a.bound > b.bound; });
    return candidates;
  }

  [[nodiscard]] double score(std::span<const Match> matches, double length) const {
    const double norm = kK1 * (1 - kB + kB * length / average_length_);
    double sum = 0;
    for (const Match& match : matches) {
      sum += match.idf * match.count * (kK1 + 1) / (match.count + norm);
    }
    return sum;
  }

  Connection& connection_;
  std::int64_t owner_;
  double average_length_ = 1;
  std::vector<Match> matches_;  // by fact
};

}  // namespace

Result<std::vector<KeywordHit>> SqliteCatalog::keyword_search(const Scope& request,
                                                              std::string_view query,
                                                              std::size_t limit) {
  INFERSCALE_ASSIGN_OR_RETURN(ReaderPool::Lease reader, readers_.acquire());
  Connection& connection = reader.connection();
  const std::vector<std::string> terms = query_terms(reader.tokenizer(), query);
  if (terms.empty() || limit == 0) {
    return std::vector<KeywordHit>();
  }
  INFERSCALE_ASSIGN_OR_RETURN(const std::vector<ScopeRow> scopes,
                              readable_scopes(connection, request));
  std::unordered_set<std::int64_t> readable;
  std::unordered_set<std::int64_t> owners;
  for (const ScopeRow& scope : scopes) {
    readable.insert(scope.pk);
    owners.insert(scope.owner);
  }
  std::vector<Ranked> ranked;
  for (const std::int64_t owner : owners) {
    OwnerSearch search(connection, owner);
    INFERSCALE_RETURN_IF_ERROR(search.read(terms));
    INFERSCALE_RETURN_IF_ERROR(search.rank(readable, limit, ranked));
  }
  std::sort(ranked.begin(), ranked.end());
  ranked.resize(std::min(ranked.size(), limit));
  std::vector<KeywordHit> hits;
  for (Ranked& row : ranked) {
    hits.push_back(std::move(row.hit));
  }
  return hits;
}

}  // namespace inferscale::sqlite
