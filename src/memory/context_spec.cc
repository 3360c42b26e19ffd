#include "memory/context_spec.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>

#include "base/utf8.h"

namespace inferscale {
namespace {

constexpr std::array kCounted = {ContextKind::kPrimer, ContextKind::kNames, ContextKind::kTurns,
                                 ContextKind::kWindow, ContextKind::kNear,  ContextKind::kLog,
                                 ContextKind::kChain};
constexpr std::array kPlain = {ContextKind::kHeader, ContextKind::kAlone};

bool is_plain(ContextKind kind) {
  return std::find(kPlain.begin(), kPlain.end(), kind) != kPlain.end();
}

}  // namespace

std::string ContextSpec::spelling() const {
  return is_plain(kind) ? context_kind_name(kind)
                        : fmt::format("{}:{}", context_kind_name(kind), n);
}

Result<ContextSpec> parse_context_spec(std::string_view text) {
  for (const ContextKind kind : kPlain) {
    if (text == context_kind_name(kind)) {
      return ContextSpec{kind, 0};
    }
  }
  const std::size_t colon = text.find(':');
  const std::string_view name = text.substr(0, colon);
  const auto* const kind = std::find_if(kCounted.begin(), kCounted.end(), [&](ContextKind known) {
    return name == context_kind_name(known);
  });
  if (colon != std::string_view::npos && kind != kCounted.end()) {
    const std::string_view digits = text.substr(colon + 1);
    std::uint32_t n = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), n);
    if (error == std::errc() && end == digits.data() + digits.size() && n >= 1 &&
        n <= kMaxContextFacts) {
      return ContextSpec{*kind, n};
    }
  }
  return invalid_argument(
      fmt::format("encode context '{}': use header, alone, primer:N, names:N, turns:N, window:N, "
                  "near:N, log:N or chain:N with N from 1 to {}",
                  utf8_prefix(text, 64), kMaxContextFacts));
}

}  // namespace inferscale
