#include "conformance/file_system_suite.h"
#include "support/fault_injector.h"
#include "support/faulty_file_system.h"
#include "support/memory_file_system.h"
#include "unit/kv/temp_directory.h"

namespace inferscale::testing {
namespace {

struct PosixHarness {
  FileSystem& files() { return posix_file_system(); }
  std::filesystem::path root() { return directory.path(); }
  TempDirectory directory;
};

struct MemoryHarness {
  MemoryHarness() { (void)memory.make_private_directory("/data"); }
  FileSystem& files() { return memory; }
  std::filesystem::path root() { return "/data"; }
  MemoryFileSystem memory;
};

/// Without faults, over another.
template <typename Harness>
struct FaultyHarness {
  FileSystem& files() { return faulty; }
  std::filesystem::path root() { return inner.root(); }
  Harness inner;
  FaultInjector faults;
  FaultyFileSystem faulty{inner.files(), faults};
};

}  // namespace

INSTANTIATE_TYPED_TEST_SUITE_P(Posix, FileSystemSuite, PosixHarness);
INSTANTIATE_TYPED_TEST_SUITE_P(Memory, FileSystemSuite, MemoryHarness);
INSTANTIATE_TYPED_TEST_SUITE_P(FaultyPosix, FileSystemSuite, FaultyHarness<PosixHarness>);
INSTANTIATE_TYPED_TEST_SUITE_P(FaultyMemory, FileSystemSuite, FaultyHarness<MemoryHarness>);

}  // namespace inferscale::testing
