#include "catalog/sqlite/sqlite_catalog.h"
#include "conformance/catalog_suite.h"

namespace inferscale::testing {

INSTANTIATE_TEST_SUITE_P(Backends, CatalogSuite,
                         ::testing::Values(CatalogBackend{
                             "Sqlite",
                             [](const std::filesystem::path& directory) {
                               return open_sqlite_catalog({directory, 0});
                             }}),
                         ::testing::PrintToStringParamName());

}  // namespace inferscale::testing
