#include "catalog/sqlite/sqlite_catalog.h"
#include "conformance/catalog_suite.h"

namespace inferscale::testing {
namespace {

const CatalogBackend kSqlite{"Sqlite", [](const std::filesystem::path& directory) {
                               return open_sqlite_catalog({directory, 0});
                             }};

std::string backend_name(const ::testing::TestParamInfo<CatalogBackend>& info) {
  return info.param.name;
}

INSTANTIATE_TEST_SUITE_P(Backends, CatalogSuite, ::testing::Values(kSqlite), backend_name);
INSTANTIATE_TEST_SUITE_P(Backends, CatalogFilters, ::testing::Values(kSqlite), backend_name);

}  // namespace
}  // namespace inferscale::testing
