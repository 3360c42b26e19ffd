#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>

#include "catalog/catalog.h"

namespace inferscale {

struct SqliteCatalogOptions {
  /// Holds catalog.sqlite and the writer lock; created with mode 0700.
  std::filesystem::path directory;
  /// Limit of the database file; 0: none but the disk's. A full catalog answers kResourceExhausted.
  std::uint64_t max_bytes = 0;
};

/// Opens or creates the catalog: WAL, foreign keys, secure_delete, schema migrated to the current
/// version, each step in one transaction. Errors: kConflict when another process (or another
/// catalog of this one) has the directory open (the message names it), kUnsupported for a schema
/// newer than this program, kDataLoss, kUnavailable.
[[nodiscard]] Result<std::unique_ptr<Catalog>> open_sqlite_catalog(
    const SqliteCatalogOptions& options);

}  // namespace inferscale
