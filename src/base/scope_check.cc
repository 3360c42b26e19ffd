#include "base/scope_check.h"

#include <fmt/format.h>

#include <string>
#include <utility>

#include "base/utf8.h"

namespace inferscale {
namespace {

constexpr std::size_t kMaxScopeValueBytes = 256;

std::string sub(std::string_view item, std::string_view field) {
  return item.empty() ? std::string(field) : fmt::format("{}.{}", item, field);
}

}  // namespace

Status check_scope(std::string_view item, const Scope& scope) {
  const std::pair<const char*, const std::string*> fields[] = {{"tenant", &scope.tenant},
                                                               {"user", &scope.user},
                                                               {"agent", &scope.agent},
                                                               {"run", &scope.run}};
  for (const auto& [name, value] : fields) {
    const std::string field = sub(item, fmt::format("scope.{}", name));
    if (value->empty()) {
      continue;
    }
    INFERSCALE_RETURN_IF_ERROR(check_text(field, *value, kMaxScopeValueBytes));
    if (find_line_breaker(*value) != std::string_view::npos) {
      return invalid_argument(field + " must not contain control characters");
    }
  }
  if (scope.user.empty() && !(scope.agent.empty() && scope.run.empty())) {
    return invalid_argument(sub(item, "scope.user") + " must be set where agent or run is");
  }
  if (scope.tenant.empty() && !scope.user.empty()) {
    return invalid_argument(sub(item, "scope.tenant") + " must be set where user is");
  }
  return Status();
}

}  // namespace inferscale
