#pragma once

#include <filesystem>
#include <memory>

#include "catalog/catalog.h"

namespace inferscale {

struct SqliteCatalogOptions {
  std::filesystem::path directory;  ///< holds catalog.sqlite and the writer lock; created with mode 0700
};

/// Opens or creates the catalog: WAL, foreign keys, secure_delete, schema migrated to the current version in one
/// transaction. Errors: kConflict when another process has the directory open (the message names it), kUnsupported for
/// a schema newer than this program, kDataLoss, kUnavailable.
[[nodiscard]] Result<std::unique_ptr<Catalog>> open_sqlite_catalog(const SqliteCatalogOptions& options);

}  // namespace inferscale
