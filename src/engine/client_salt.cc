#include "engine/client_salt.h"

#include <fmt/format.h>

#include <atomic>
#include <cstdint>

#include "base/clock.h"

namespace inferscale {

std::string fresh_client_salt(std::string_view what) {
  static std::atomic<std::uint64_t> salts{0};
  return fmt::format("{}-{}-{}", what, now_us(), ++salts);
}

}  // namespace inferscale
