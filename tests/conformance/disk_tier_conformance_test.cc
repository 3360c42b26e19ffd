#include <filesystem>

#include "conformance/tier_suite.h"
#include "kv/disk_tier.h"
#include "unit/kv/files.h"
#include "unit/kv/temp_directory.h"

namespace inferscale::testing {
namespace {

struct DiskHarness {
  static constexpr bool kKeepsHeld = false;
  std::unique_ptr<Tier> open(std::uint64_t budget_bytes) {
    return std::move(DiskTier::open(directory.path(), budget_bytes)).value();
  }
  void corrupt(const RecordKey& key) {
    const std::string name = key.value.to_hex();
    const auto path = directory.path() / name.substr(0, 2) / (name + ".iskv");
    std::vector<std::byte> bytes = read_bytes(path);
    bytes.at(bytes.size() / 2) ^= std::byte{1};
    write_bytes(path, bytes);
  }
  TempDirectory directory;
};

}  // namespace

INSTANTIATE_TYPED_TEST_SUITE_P(Disk, TierSuite, DiskHarness);

}  // namespace inferscale::testing
