#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "catalog/erase_request.h"
#include "catalog/sqlite/connection.h"

namespace inferscale::sqlite {

/// The rows (tenant, user) of a query, each at epoch 0.
[[nodiscard]] Result<std::vector<OwnerEpoch>> owners_in(Connection& connection,
                                                        std::string_view sql);
/// Owners of the entries in temp.doomed_records, as a query for `owners_in`. Records of the system
/// have none.
inline constexpr std::string_view kOwnersOfDoomedRecords =
    "SELECT DISTINCT o.tenant, o.user FROM temp.doomed_records d JOIN records r ON r.pk = d.pk"
    " JOIN scopes s ON s.hash = r.scope_hash JOIN owners o ON o.pk = s.owner";

/// Raises the epoch of each by one and fills it in. REQUIRES: a write transaction.
[[nodiscard]] Status raise_epochs(Connection& connection, std::vector<OwnerEpoch>& owners);

}  // namespace inferscale::sqlite
