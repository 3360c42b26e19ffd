#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "connector/scheduler_index.h"
#include "unit/kv/sample_records.h"

namespace inferscale::testing {

using Tokens = std::vector<TokenId>;

inline const Scope kUser{"acme", "zoe", "", ""};

/// Fact `number` of a scope: four tokens that no other fact has.
inline IndexedRecord fact(std::uint32_t number, const Scope& scope = kUser) {
  const auto first = static_cast<TokenId>(1000 + 4 * number);
  return {key_of(number),
          scope_hash(scope),
          ContextKind::kWindow,
          {first, first + 1, first + 2, first + 3}};
}

/// A record of a prompt's first five tokens.
inline IndexedRecord header(const Scope& scope = system_scope()) {
  return {key_of(900'000), scope_hash(scope), ContextKind::kPrefix, {1, 2, 3, 4, 5}};
}

inline std::unique_ptr<SchedulerIndex> make_index(std::uint32_t n_ranks = 1) {
  auto index = std::move(SchedulerIndex::create(n_ranks)).value();
  index->learn_scope(kUser);
  return index;
}

/// On every rank.
inline void add_all(SchedulerIndex& index, const std::vector<IndexedRecord>& records,
                    std::uint32_t n_ranks = 1) {
  for (std::uint32_t rank = 0; rank < n_ranks; ++rank) {
    for (const IndexedRecord& record : records) {
      const Result<bool> added = index.add(rank, record);
      ASSERT_TRUE(added.ok() && *added);
    }
  }
}

inline Tokens join(const std::vector<Tokens>& parts) {
  Tokens all;
  for (const Tokens& part : parts) {
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

inline RequestParams asking_for(const std::vector<IndexedRecord>& records,
                                const Scope& scope = kUser) {
  RequestParams params;
  params.scope = scope;
  params.purpose = RequestPurpose::kInject;
  for (const IndexedRecord& record : records) {
    params.inject.push_back(record.key);
  }
  return params;
}

/// "5..9 9..13; record_missing 1": begin and end of every segment, then why keys were not matched.
inline std::string describe(const Match& match) {
  std::string text;
  for (const MatchedSegment& segment : match.segments) {
    text.append(text.empty() ? "" : " ").append(std::to_string(segment.begin));
    text.append("..").append(std::to_string(segment.end));
  }
  for (const MatchFallback& fallback : match.fallbacks) {
    text.append("; ").append(match_miss_name(fallback.reason)).append(" ");
    text.append(std::to_string(fallback.count));
  }
  const std::uint32_t begin = match.segments.empty() ? 0 : match.segments.front().begin;
  const std::uint32_t end = match.segments.empty() ? 0 : match.segments.back().end;
  EXPECT_EQ(match.begin, begin);
  EXPECT_EQ(match.end, end);
  return text;
}

}  // namespace inferscale::testing
