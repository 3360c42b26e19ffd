#include "catalog/sqlite/scopes.h"

#include <algorithm>

namespace inferscale::sqlite {
namespace {

Result<std::vector<ScopeRow>> scopes_of_owner(Connection& connection, const Scope& owner) {
  INFERSCALE_ASSIGN_OR_RETURN(
      Statement statement,
      connection.prepare("SELECT s.pk, s.owner, s.agent, s.run FROM scopes s "
                         "JOIN owners o ON o.pk = s.owner WHERE o.tenant = ?1 AND o.user = ?2"));
  statement.with(std::string_view(owner.tenant), std::string_view(owner.user));
  std::vector<ScopeRow> rows;
  INFERSCALE_RETURN_IF_ERROR(statement.for_each([&](const Statement& row) {
    rows.push_back({row.integer(0), row.integer(1),
                    Scope{owner.tenant, owner.user, row.text(2), row.text(3)}});
  }));
  return rows;
}

template <typename Rule>
Result<std::vector<ScopeRow>> scopes_where(Connection& connection, const Scope& request,
                                           Rule accepts) {
  std::vector<Scope> owners = {Scope{request.tenant, request.user, "", ""},
                               Scope{request.tenant, "", "", ""}, system_scope()};
  std::sort(owners.begin(), owners.end());
  owners.erase(std::unique(owners.begin(), owners.end()), owners.end());
  std::vector<ScopeRow> rows;
  for (const Scope& owner : owners) {
    INFERSCALE_ASSIGN_OR_RETURN(std::vector<ScopeRow> found, scopes_of_owner(connection, owner));
    for (ScopeRow& row : found) {
      if (accepts(request, row.scope)) {
        rows.push_back(std::move(row));
      }
    }
  }
  return rows;
}

}  // namespace

bool may_write(const Scope& request, const Scope& owner) {
  const bool shared = owner.user.empty();
  return shared ? request == owner : scope_permits(request, owner);
}

Result<std::vector<ScopeRow>> readable_scopes(Connection& connection, const Scope& request) {
  return scopes_where(connection, request, scope_permits);
}

Result<std::vector<ScopeRow>> writable_scopes(Connection& connection, const Scope& request) {
  return scopes_where(connection, request, may_write);
}

Result<std::optional<ScopeRow>> find_scope(Connection& connection, const Scope& scope) {
  INFERSCALE_ASSIGN_OR_RETURN(Statement statement,
                              connection.prepare("SELECT pk, owner FROM scopes WHERE hash = ?1"));
  INFERSCALE_ASSIGN_OR_RETURN(const bool row, statement.with(scope_hash(scope)).step());
  if (!row) {
    return std::optional<ScopeRow>();
  }
  return std::optional<ScopeRow>({statement.integer(0), statement.integer(1), scope});
}

Result<ScopeRow> ensure_scope(Connection& connection, const Scope& scope) {
  INFERSCALE_ASSIGN_OR_RETURN(std::optional<ScopeRow> found, find_scope(connection, scope));
  if (found) {
    return *std::move(found);
  }
  const std::string_view tenant = scope.tenant;
  const std::string_view user = scope.user;
  INFERSCALE_RETURN_IF_ERROR(connection.run(
      "INSERT INTO owners(tenant, user) VALUES(?1, ?2) ON CONFLICT DO NOTHING", tenant, user));
  INFERSCALE_ASSIGN_OR_RETURN(
      const std::int64_t owner,
      connection.integer("SELECT pk FROM owners WHERE tenant = ?1 AND user = ?2", tenant, user));
  INFERSCALE_RETURN_IF_ERROR(connection.run(
      "INSERT INTO scopes(owner, agent, run, hash) VALUES(?1, ?2, ?3, ?4)", owner,
      std::string_view(scope.agent), std::string_view(scope.run), scope_hash(scope)));
  return ScopeRow{connection.last_insert_rowid(), owner, scope};
}

}  // namespace inferscale::sqlite
