#include <filesystem>

#include "conformance/tier_suite.h"
#include "kv/disk_tier.h"
#include "support/memory_file_system.h"
#include "unit/kv/segment_files.h"
#include "unit/kv/temp_directory.h"

namespace inferscale::testing {
namespace {

template <typename Medium>
struct DiskHarness {
  static std::uint64_t stored_bytes(const Record& record) { return record.bytes().size(); }
  static constexpr bool kKeepsHeld = false;
  static std::uint64_t budget(std::uint64_t count, std::uint64_t size) {
    return disk_budget(count, size);
  }
  std::unique_ptr<Tier> open(std::uint64_t budget_bytes) {
    DiskTier::Options options;
    options.files = &medium.files();
    return std::move(DiskTier::open(medium.directory(), budget_bytes, options)).value();
  }
  void corrupt(const RecordKey& key) { corrupt_entries(medium.files(), medium.directory(), key); }
  Medium medium;
};

struct PosixMedium {
  FileSystem& files() { return posix_file_system(); }
  std::filesystem::path directory() { return temporary.path() / "kv"; }
  TempDirectory temporary;
};

struct MemoryMedium {
  FileSystem& files() { return memory; }
  std::filesystem::path directory() { return "/kv"; }
  MemoryFileSystem memory;
};

struct MediumWithoutHoles : MemoryMedium {
  MediumWithoutHoles() { memory.set_punches(false); }
};

}  // namespace

INSTANTIATE_TYPED_TEST_SUITE_P(Disk, TierSuite, DiskHarness<PosixMedium>);
INSTANTIATE_TYPED_TEST_SUITE_P(Memory, TierSuite, DiskHarness<MemoryMedium>);
INSTANTIATE_TYPED_TEST_SUITE_P(WithoutHoles, TierSuite, DiskHarness<MediumWithoutHoles>);

}  // namespace inferscale::testing
