#pragma once

#include "cli/import/import_formats.h"
#include "cli/json_views.h"
#include "cli/shell.h"

namespace inferscale::cli {

/// Stores what an export holds, in durable steps; ends early, with kOk, after a Ctrl-C. Adds what
/// it did to `report`.
[[nodiscard]] Status store_exported(Shell& shell, MemoryService& service, const Scope& target,
                                    const ExportedItems& items, bool dry_run, ImportReport& report);

}  // namespace inferscale::cli
