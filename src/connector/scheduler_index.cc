#include "connector/scheduler_index.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>

#include "connector/token_search.h"

namespace inferscale {
namespace {

constexpr std::uint32_t kMaxRanks = 1024;
constexpr std::size_t kMaxRecordTokens = std::size_t{1} << 20;
/// What a rank says late comes within a step or two of the erase; far more keys than that.
constexpr std::size_t kRememberedErased = std::size_t{1} << 18;
constexpr std::size_t kRememberedExpected = std::size_t{1} << 16;

bool stands_at(std::span<const TokenId> prompt, std::size_t begin,
               std::span<const TokenId> tokens) {
  return begin <= prompt.size() && prompt.size() - begin >= tokens.size() &&
         std::equal(tokens.begin(), tokens.end(), prompt.begin() + begin);
}

}  // namespace

const char* match_miss_name(MatchMiss miss) {
  switch (miss) {
    case MatchMiss::kRecordMissing:
      return "record_missing";
    case MatchMiss::kWrongScope:
      return "wrong_scope";
    case MatchMiss::kWrongTokens:
      return "wrong_tokens";
    case MatchMiss::kWrongContext:
      return "wrong_context";
    case MatchMiss::kBehindGap:
      return "behind_gap";
  }
  return "unknown";
}

Result<std::unique_ptr<SchedulerIndex>> SchedulerIndex::create(std::uint32_t n_ranks) {
  if (n_ranks < 1 || n_ranks > kMaxRanks) {
    return invalid_argument(fmt::format("n_ranks must be in 1..{}, not {}", kMaxRanks, n_ranks));
  }
  return std::unique_ptr<SchedulerIndex>(new SchedulerIndex(n_ranks));
}

SchedulerIndex::SchedulerIndex(std::uint32_t n_ranks)
    : n_ranks_(n_ranks), erased_(kRememberedErased), expected_(kRememberedExpected) {
  learn_scope(system_scope());
}

Result<bool> SchedulerIndex::add(std::uint32_t rank, const IndexedRecord& record) {
  if (rank >= n_ranks_) {
    return invalid_argument(fmt::format("rank must be in 0..{}, not {}", n_ranks_ - 1, rank));
  }
  if (record.tokens.empty() || record.tokens.size() > kMaxRecordTokens) {
    return invalid_argument(fmt::format("a record must have 1..{} tokens, not {}", kMaxRecordTokens,
                                        record.tokens.size()));
  }
  const std::lock_guard lock(mutex_);
  if (erased_.contains(record.key)) {
    return false;
  }
  const auto [entry, created] = entries_.try_emplace(record.key);
  Entry& known = entry->second;
  if (created) {
    known.record = std::make_shared<const IndexedRecord>(record);
    known.has.assign(n_ranks_, false);
  } else if (*known.record != record) {
    remove(entry);
    return false;
  }
  if (!known.has[rank]) {
    known.has[rank] = true;
    if (++known.count == n_ranks_) {
      ++ready_;
      expected_.erase(record.key);
      expected_scopes_.erase(record.key);
    }
  }
  return true;
}

Status SchedulerIndex::drop(std::uint32_t rank, std::span<const RecordKey> keys) {
  if (rank >= n_ranks_) {
    return invalid_argument(fmt::format("rank must be in 0..{}, not {}", n_ranks_ - 1, rank));
  }
  const std::lock_guard lock(mutex_);
  for (const RecordKey& key : keys) {
    const auto entry = entries_.find(key);
    if (entry == entries_.end() || !entry->second.has[rank]) {
      continue;
    }
    ready_ -= entry->second.count == n_ranks_ ? 1 : 0;
    entry->second.has[rank] = false;
    if (--entry->second.count == 0) {
      entries_.erase(entry);
    }
  }
  return Status();
}

void SchedulerIndex::expect(const RecordKey& key, const Hash128& scope) {
  const std::lock_guard lock(mutex_);
  erased_.erase(key);
  if (expected_scopes_.size() >= kRememberedExpected && !expected_.contains(key)) {
    if (const std::optional<RecordKey> oldest = expected_.take_oldest()) {
      expected_scopes_.erase(*oldest);
    }
  }
  expected_.insert(key);
  expected_scopes_[key] = scope;
}

void SchedulerIndex::remove(std::unordered_map<RecordKey, Entry>::iterator entry) {
  ready_ -= entry->second.count == n_ranks_ ? 1 : 0;
  entries_.erase(entry);
}

void SchedulerIndex::mark_erased(const RecordKey& key) {
  erased_.insert(key);
  expected_.erase(key);
  expected_scopes_.erase(key);
}

std::size_t SchedulerIndex::erase(std::span<const RecordKey> keys) {
  const std::lock_guard lock(mutex_);
  std::size_t known = 0;
  for (const RecordKey& key : keys) {
    if (const auto entry = entries_.find(key); entry != entries_.end()) {
      remove(entry);
      ++known;
    }
    mark_erased(key);
  }
  return known;
}

std::vector<RecordKey> SchedulerIndex::erase_owner(std::string_view tenant, std::string_view user) {
  const std::lock_guard lock(mutex_);
  const Hash128 whole = scope_hash(Scope{std::string(tenant), std::string(user), "", ""});
  const auto is_owner = [&](const Hash128& hash) {
    const auto scope = scopes_.find(hash);
    return hash == whole ||
           (scope != scopes_.end() && scope->second.tenant == tenant && scope->second.user == user);
  };
  std::vector<RecordKey> keys;
  for (const auto& [key, entry] : entries_) {
    if (is_owner(entry.record->scope)) {
      keys.push_back(key);
    }
  }
  for (const auto& [key, scope] : expected_scopes_) {
    if (!entries_.contains(key) && is_owner(scope)) {
      keys.push_back(key);
    }
  }
  for (const RecordKey& key : keys) {
    if (const auto entry = entries_.find(key); entry != entries_.end()) {
      remove(entry);
    }
    mark_erased(key);
  }
  std::sort(keys.begin(), keys.end());
  return keys;
}

void SchedulerIndex::learn_scope(const Scope& scope) {
  const Hash128 hash = scope_hash(scope);
  const std::lock_guard lock(mutex_);
  scopes_.emplace(hash, scope);
}

bool SchedulerIndex::permits(const Scope& request, const Hash128& owner) const {
  const auto scope = scopes_.find(owner);
  return scope != scopes_.end() && scope_permits(request, scope->second);
}

std::vector<SchedulerIndex::Candidate> SchedulerIndex::candidates(
    const RequestParams& params) const {
  const Hash128 own = scope_hash(params.scope);
  const Hash128 tenant = scope_hash(owner_scope(params.scope, RecordOwner::kTenant));
  std::vector<Candidate> all(params.inject.size());
  const std::lock_guard lock(mutex_);
  for (std::size_t i = 0; i < all.size(); ++i) {
    const auto entry = entries_.find(params.inject[i]);
    if (entry == entries_.end() || entry->second.count != n_ranks_) {
      continue;
    }
    const IndexedRecord& record = *entry->second.record;
    if (record.scope != own && record.scope != tenant && !permits(params.scope, record.scope)) {
      all[i].miss = MatchMiss::kWrongScope;
    } else if (record.context_kind == ContextKind::kPrefix && i > 0) {
      all[i].miss = MatchMiss::kWrongContext;
    } else {
      all[i].record = entry->second.record;
    }
  }
  return all;
}

Match SchedulerIndex::match(std::span<const TokenId> prompt, const RequestParams& params) const {
  const std::vector<Candidate> all = candidates(params);
  const bool skip =
      all.size() > 1 && all[0].record == nullptr && all[0].miss == MatchMiss::kRecordMissing;
  const std::size_t first = skip ? 1 : 0;

  std::vector<std::span<const TokenId>> parts;
  for (std::size_t i = first; i < all.size() && all[i].record != nullptr; ++i) {
    parts.emplace_back(all[i].record->tokens);
  }
  const bool at_start = !parts.empty() && all[first].record->context_kind == ContextKind::kPrefix;
  const std::size_t begin = at_start ? 0 : find_longest_run(prompt, parts).begin;
  Match match;
  for (std::size_t i = 0, position = begin; i < parts.size(); position += parts[i++].size()) {
    if (!stands_at(prompt, position, parts[i])) {
      break;
    }
    const IndexedRecord& record = *all[first + i].record;
    match.segments.push_back({params.inject[first + i], static_cast<std::uint32_t>(position),
                              static_cast<std::uint32_t>(position + parts[i].size()), record.scope,
                              record.context_id});
  }
  if (!match.segments.empty()) {
    match.begin = match.segments.front().begin;
    match.end = match.segments.back().end;
  }

  std::array<std::uint32_t, kMatchMisses> counts{};
  const std::size_t stop = first + match.segments.size();
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (i >= first && i < stop) {
      continue;
    }
    const MatchMiss usable = i == stop ? MatchMiss::kWrongTokens : MatchMiss::kBehindGap;
    ++counts[static_cast<std::size_t>(all[i].record != nullptr ? usable : all[i].miss)];
  }
  for (std::size_t i = 0; i < counts.size(); ++i) {
    if (counts[i] > 0) {
      match.fallbacks.push_back({static_cast<MatchMiss>(i), counts[i]});
    }
  }
  return match;
}

bool SchedulerIndex::contains(const RecordKey& key) const {
  const std::lock_guard lock(mutex_);
  const auto entry = entries_.find(key);
  return entry != entries_.end() && entry->second.count == n_ranks_;
}

std::size_t SchedulerIndex::size() const {
  const std::lock_guard lock(mutex_);
  return ready_;
}

}  // namespace inferscale
