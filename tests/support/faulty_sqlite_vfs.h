#pragma once

#include "support/fault_injector.h"

namespace inferscale::testing {

/// Puts a VFS in front of SQLite's default one, for the rest of the process, whose steps are
/// counted and fail as `faults` says: writes, truncations, syncs, removals and reads of databases,
/// logs and journals (not the shared memory of a log, which holds nothing that must last). Call it
/// once, before anything opens a database. `faults` must outlive all databases.
void install_faulty_sqlite_vfs(FaultInjector& faults);

}  // namespace inferscale::testing
