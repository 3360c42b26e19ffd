#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "inferscale/kv_record.h"
#include "inferscale/status.h"

namespace inferscale {

/// A configured encode context: "header", "primer:8", "window:8".
struct ContextSpec {
  ContextKind kind = ContextKind::kWindow;
  std::uint32_t n = 8;  ///< 0 for the kinds that take no number
  [[nodiscard]] std::string spelling() const;
  friend bool operator==(const ContextSpec&, const ContextSpec&) = default;
};

/// What facts are encoded behind where nobody has chosen anything else.
inline constexpr std::string_view kDefaultEncodeContext = "window:8";

/// Errors: kInvalidArgument that lists the accepted forms (N from 1 to kMaxContextFacts).
inline constexpr std::uint32_t kMaxContextFacts = 64;
[[nodiscard]] Result<ContextSpec> parse_context_spec(std::string_view text);

}  // namespace inferscale
