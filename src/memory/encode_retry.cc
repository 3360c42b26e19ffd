#include "memory/encode_retry.h"

#include <algorithm>

#include "catalog/catalog.h"

namespace inferscale {
namespace {

constexpr TimestampUs kFirstUs = 1'000'000;
constexpr TimestampUs kLongestUs = TimestampUs{3600} * 1'000'000;
constexpr std::uint32_t kMaxDoublings = 12;  // beyond the longest
static_assert(kLongestUs + kLongestUs / 2 < kMaxEncodeRetryUs,
              "else a long wait looks like a clock that was set back");

}  // namespace

TimestampUs retry_delay_us(std::uint32_t attempts, std::uint32_t random) {
  const std::uint32_t doublings = std::min(std::max(attempts, 1U) - 1, kMaxDoublings);
  const TimestampUs delay = std::min(kFirstUs << doublings, kLongestUs);
  return delay / 2 + static_cast<TimestampUs>((static_cast<std::uint64_t>(delay) * random) >> 32U);
}

}  // namespace inferscale
