#include "connector/load_plan.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

namespace inferscale {
namespace {

struct PackedItem {
  Hash128 key;
  Hash128 scope;
  Hash128 context_id;
  std::uint32_t has_context = 0;
  std::uint32_t first_position = 0;
  std::uint32_t size = 0;
  std::uint32_t first_token = 0;
  std::uint32_t n_tokens = 0;
};
static_assert(std::is_trivially_copyable_v<PackedItem>);

}  // namespace

LoadPlan plan_load(const Match& match, std::uint32_t begin, std::uint32_t end) {
  LoadPlan plan;
  plan.bytes.reserve(match.segments.size() * sizeof(PackedItem));
  for (const MatchedSegment& segment : match.segments) {
    if (segment.end <= begin || segment.begin >= end) {
      continue;
    }
    PackedItem item;
    item.key = segment.key.value;
    item.scope = segment.scope;
    item.has_context = segment.context_id.has_value() ? 1 : 0;
    item.context_id = segment.context_id.value_or(Hash128());
    item.first_position = segment.begin;
    item.size = segment.end - segment.begin;
    item.first_token = std::max(begin, segment.begin) - segment.begin;
    item.n_tokens = std::min(end, segment.end) - segment.begin - item.first_token;
    plan.first = plan.bytes.empty() ? segment.begin : plan.first;
    plan.last = segment.end;
    const auto* const bytes = reinterpret_cast<const std::byte*>(&item);
    plan.bytes.insert(plan.bytes.end(), bytes, bytes + sizeof item);
  }
  return plan;
}

Result<std::vector<LoadItem>> load_items(std::span<const std::byte> plan,
                                         std::span<const TokenId> tokens) {
  if (plan.size() % sizeof(PackedItem) != 0) {
    return invalid_argument("plan: not the bytes of whole records");
  }
  std::vector<LoadItem> items(plan.size() / sizeof(PackedItem));
  for (std::size_t i = 0; i < items.size(); ++i) {
    PackedItem packed;
    std::memcpy(&packed, plan.data() + i * sizeof packed, sizeof packed);
    if (packed.size > tokens.size()) {
      return invalid_argument("tokens: fewer than the records have");
    }
    LoadItem& item = items[i];
    item.key = RecordKey{packed.key};
    item.scope = packed.scope;
    if (packed.has_context != 0) {
      item.context_id = packed.context_id;
    }
    item.tokens.assign(tokens.begin(), tokens.begin() + packed.size);
    item.first_position = packed.first_position;
    item.first_token = packed.first_token;
    item.n_tokens = packed.n_tokens;
    tokens = tokens.subspan(packed.size);
  }
  if (!tokens.empty()) {
    return invalid_argument("tokens: more than the records have");
  }
  return items;
}

LoadLimit limit_load(const Match& match, std::uint32_t local_hit, std::uint64_t max_tokens) {
  std::uint64_t tokens = 0;
  for (std::size_t i = 0; i < match.segments.size(); ++i) {
    const MatchedSegment& segment = match.segments[i];
    tokens += segment.end > local_hit ? segment.end - segment.begin : 0;
    if (tokens > max_tokens) {
      return {segment.begin, match.segments.size() - i};
    }
  }
  return {match.end, 0};
}

}  // namespace inferscale
