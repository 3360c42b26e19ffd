#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "inferscale/export.h"
#include "inferscale/status.h"

namespace inferscale {

/// A token id of the served model's vocabulary.
using TokenId = std::int32_t;

/// 128 bits of a hash or of an HMAC, in the byte order in which the function defines its digest.
struct Hash128 {
  std::array<std::byte, 16> bytes{};
  friend auto operator<=>(const Hash128&, const Hash128&) = default;
  friend bool operator==(const Hash128&, const Hash128&) = default;
  /// 32 lower-case hexadecimal digits.
  [[nodiscard]] INFERSCALE_API std::string to_hex() const;
  /// Inverse of `to_hex`. Errors: kInvalidArgument unless exactly 32 hexadecimal digits.
  [[nodiscard]] INFERSCALE_API static Result<Hash128> from_hex(std::string_view hex);
};

/// Whose a fact, turn or record is. Empty `agent` or `run` means "not set".
/// A request may use what belongs to an equal tenant and user, and to an equal agent and run where
/// the request sets them (`scope_permits`), or what belongs to the system or to its tenant as a
/// whole.
struct Scope {
  std::string tenant = "default";
  std::string user = "default";  ///< empty only in tenant-wide and system scopes
  std::string agent;
  std::string run;
  friend auto operator<=>(const Scope&, const Scope&) = default;
  friend bool operator==(const Scope&, const Scope&) = default;
};

/// The scope of what all tenants share (headers, primers): all four fields empty.
[[nodiscard]] INFERSCALE_API Scope system_scope();

/// Parses "user=alice,agent=tutor,run=r1,tenant=acme" (any order, each at most once; `user` and
/// `tenant` default to "default"). Errors: kInvalidArgument for unknown or repeated keys, an empty
/// value, a value over 256 bytes, invalid UTF-8 or control characters.
[[nodiscard]] INFERSCALE_API Result<Scope> parse_scope(std::string_view text);

/// Inverse of `parse_scope`, for messages.
[[nodiscard]] INFERSCALE_API std::string to_string(const Scope& scope);

/// The rule above: may a request in scope `request` use what belongs to `owner`?
[[nodiscard]] INFERSCALE_API bool scope_permits(const Scope& request, const Scope& owner);

/// A collision-resistant 128-bit name of a scope (truncated SHA-256 of its length-prefixed fields).
[[nodiscard]] INFERSCALE_API Hash128 scope_hash(const Scope& scope);

}  // namespace inferscale

template <>
struct std::hash<inferscale::Hash128> {
  std::size_t operator()(const inferscale::Hash128& h) const noexcept {
    std::size_t value = 0;
    for (std::size_t i = 0; i < sizeof(value); ++i) {
      value = (value << 8) | std::to_integer<std::size_t>(h.bytes[i]);
    }
    return value;
  }
};
