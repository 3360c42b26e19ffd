#include "memory/context_spec.h"

#include <fmt/format.h>

#include <charconv>

namespace inferscale {

std::string ContextSpec::spelling() const {
  return kind == ContextKind::kHeader ? "header" : fmt::format("{}:{}", context_kind_name(kind), n);
}

Result<ContextSpec> parse_context_spec(std::string_view text) {
  if (text == "header") {
    return ContextSpec{ContextKind::kHeader, 0};
  }
  const std::size_t colon = text.find(':');
  const std::string_view kind = text.substr(0, colon);
  if (colon != std::string_view::npos && (kind == "primer" || kind == "window")) {
    const std::string_view digits = text.substr(colon + 1);
    std::uint32_t n = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), n);
    if (error == std::errc() && end == digits.data() + digits.size() && n >= 1 &&
        n <= kMaxContextFacts) {
      return ContextSpec{kind == "primer" ? ContextKind::kPrimer : ContextKind::kWindow, n};
    }
  }
  return invalid_argument(
      fmt::format("encode context '{}': use header, primer:N or window:N with N from 1 to {}",
                  text.substr(0, 64), kMaxContextFacts));
}

}  // namespace inferscale
