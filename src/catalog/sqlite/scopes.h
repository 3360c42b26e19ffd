#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "catalog/sqlite/connection.h"
#include "inferscale/types.h"

namespace inferscale::sqlite {

/// A scope that holds something.
struct ScopeRow {
  std::int64_t pk = 0;
  std::int64_t owner = 0;
  Scope scope;
};

/// Whether a request may change what belongs to `owner`: what it may read (scope_permits), except
/// what is shared with others, which only a request of exactly that shared scope changes.
[[nodiscard]] bool may_write(const Scope& request, const Scope& owner);

/// Scopes whose content the request may read.
[[nodiscard]] Result<std::vector<ScopeRow>> readable_scopes(Connection& connection,
                                                            const Scope& request);
/// Scopes whose content the request may change.
[[nodiscard]] Result<std::vector<ScopeRow>> writable_scopes(Connection& connection,
                                                            const Scope& request);
/// Exactly this scope, if anything was ever stored in it.
[[nodiscard]] Result<std::optional<ScopeRow>> find_scope(Connection& connection,
                                                         const Scope& scope);
/// Exactly this scope, created when missing.
[[nodiscard]] Result<ScopeRow> ensure_scope(Connection& connection, const Scope& scope);

}  // namespace inferscale::sqlite
