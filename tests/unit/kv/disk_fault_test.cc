// A run of everything that a disk tier does, with a fault or a power cut at every single step.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "support/fault_injector.h"
#include "support/faulty_file_system.h"
#include "unit/kv/disk_fixture.h"

namespace inferscale::testing {
namespace {

using Numbers = std::set<std::uint32_t>;

/// Runs the same operations each time and notes what was acknowledged.
class Script {
 public:
  Script(FileSystem& files, std::uint64_t budget_bytes)
      : files_(files), budget_bytes_(budget_bytes) {}

  void run() {
    open();
    put({1, 2, 3, 4, 5, 6, 7, 8});
    flush();
    erase({2, 5});
    put({9, 3});  // 3 is replaced
    get({1, 4});
    compact();
    erase({7, 1});
    flush();
    put({10, 11, 12});
    tier_.reset();
    open();
    erase({8, 10});
    get({3, 6});
    put({13});
    compact();
    flush();
    tier_.reset();
  }

  Numbers stored;   ///< put, and not taken away since
  Numbers durable;  ///< of these, those that a flush has promised to keep
  Numbers erased;   ///< whose erasure was acknowledged

 private:
  void open() {
    auto tier = DiskTier::open(kDiskDirectory, budget_bytes_, quiet_options(files_, 3));
    tier_ = tier.ok() ? std::move(*tier) : nullptr;
  }
  void forget(std::uint32_t number) {
    stored.erase(number);
    durable.erase(number);
  }
  void put(const std::vector<std::uint32_t>& numbers) {
    for (const std::uint32_t number : numbers) {
      if (tier_ == nullptr) {
        return;
      }
      forget(number);  // a replaced record may survive, or not
      std::vector<RecordKey> evicted;
      const Status status = tier_->put(Item(number).key, Item(number).record(), &evicted);
      for (std::uint32_t other = 1; other < 20; ++other) {
        if (std::find(evicted.begin(), evicted.end(), Item(other).key) != evicted.end()) {
          forget(other);
        }
      }
      if (status.ok()) {
        stored.insert(number);
      } else {
        EXPECT_EQ(status.code(), StatusCode::kUnavailable);
        EXPECT_NE(tier_->stats().degraded, "");
      }
    }
  }
  void get(const std::vector<std::uint32_t>& numbers) {
    for (const std::uint32_t number : numbers) {
      if (tier_ != nullptr) {
        EXPECT_NE(served(*tier_, number), Served::kWrong);
      }
    }
  }
  void erase(const std::vector<std::uint32_t>& numbers) {
    if (tier_ == nullptr) {
      return;
    }
    for (const std::uint32_t number : numbers) {
      forget(number);
    }
    if (testing::erase(*tier_, numbers).ok()) {
      erased.insert(numbers.begin(), numbers.end());
    }
    get(numbers);
    for (const std::uint32_t number : numbers) {
      EXPECT_FALSE(tier_->contains(Item(number).key));
    }
  }
  void flush() {
    if (tier_ != nullptr && tier_->flush().ok()) {
      durable = stored;
    }
  }
  void compact() {
    if (tier_ != nullptr) {
      (void)tier_->compact();
    }
  }

  FileSystem& files_;
  const std::uint64_t budget_bytes_;
  std::unique_ptr<DiskTier> tier_;
};

struct Budget {
  const char* name;
  std::uint64_t bytes;
};
/// One that holds everything, and one that makes records give way.
std::vector<Budget> budgets() { return {{"large", 1U << 20}, {"small", 4500}}; }

std::uint64_t count_steps(std::uint64_t budget_bytes, bool reads) {
  MemoryFileSystem memory;
  FaultInjector faults;
  FaultyFileSystem files(memory, faults);
  faults.arm({});
  Script(files, budget_bytes).run();
  return reads ? faults.reads() : faults.changes();
}

/// What must hold once the medium works again.
void expect_sound(MemoryFileSystem& memory, std::uint64_t budget_bytes, const Script& script,
                  const Numbers& kept) {
  for (const std::uint32_t number : script.erased) {
    EXPECT_FALSE(leaves_bytes(memory, number)) << "number " << number;
  }
  {
    const auto tier = open_tier(memory, 3, budget_bytes);
    ASSERT_NE(tier, nullptr);
    for (std::uint32_t number = 1; number < 15; ++number) {
      const Served result = served(*tier, number);
      EXPECT_NE(result, Served::kWrong) << "number " << number;
      if (kept.contains(number)) {
        EXPECT_EQ(result, Served::kExact) << "number " << number;
      }
      if (script.erased.contains(number)) {
        EXPECT_EQ(result, Served::kAbsent) << "number " << number;
      }
    }
    EXPECT_TRUE(put(*tier, 30).ok());
    EXPECT_EQ(tier->stats().degraded, "");
    EXPECT_LE(tier->stats().bytes + tier->stats().dead_bytes, budget_bytes);
  }
  {
    const auto tier = open_tier(memory, 3, budget_bytes);
    EXPECT_EQ(served(*tier, 30), Served::kExact);
    std::vector<std::uint32_t> all(14);
    for (std::uint32_t i = 0; i < 14; ++i) {
      all[i] = i + 1;
    }
    EXPECT_TRUE(erase(*tier, all).ok());
  }
  for (std::uint32_t number = 1; number < 15; ++number) {
    EXPECT_FALSE(leaves_bytes(memory, number)) << "number " << number;
  }
}

TEST(DiskFault, TheLastSpaceIsLeftToTheCatalog) {
  MemoryFileSystem memory;
  const auto tier = open_tier(memory);
  ASSERT_TRUE(put(*tier, 0).ok());
  memory.set_free_bytes((64U << 20) + 100);
  const Status refused = put(*tier, 1);
  EXPECT_EQ(refused.code(), StatusCode::kUnavailable);
  EXPECT_NE(refused.message().find("kept for the catalog"), std::string::npos);
  EXPECT_NE(tier->stats().degraded, "");
  EXPECT_EQ(served(*tier, 0), Served::kExact);
  EXPECT_TRUE(erase(*tier, {0}).ok()) << "which needs no space";
  memory.set_free_bytes(std::nullopt);
  EXPECT_TRUE(put(*tier, 1).ok());
  EXPECT_EQ(tier->stats().degraded, "");
}

TEST(DiskFault, TheScriptItselfIsSound) {
  for (const Budget& budget : budgets()) {
    MemoryFileSystem memory;
    Script script(memory, budget.bytes);
    script.run();
    EXPECT_EQ(script.erased, (Numbers{1, 2, 5, 7, 8, 10}));
    EXPECT_EQ(script.stored.contains(4), budget.bytes > 10000);  // else it was evicted
    EXPECT_EQ(script.stored, script.durable);
    expect_sound(memory, budget.bytes, script, script.durable);
  }
}

TEST(DiskFault, AFaultAtAnyStepLosesNothingElse) {
  for (const Budget& budget : budgets()) {
    for (const bool reads : {false, true}) {
      const std::uint64_t steps = count_steps(budget.bytes, reads);
      ASSERT_GT(steps, 10U);
      for (const Fault fault : {Fault::kNoSpace, Fault::kIo, Fault::kShort}) {
        for (std::uint64_t at = 1; at <= steps && !::testing::Test::HasFailure(); ++at) {
          SCOPED_TRACE(std::string(budget.name) + " budget, " + (reads ? "read " : "change ") +
                       std::to_string(at) + ", fault " + std::to_string(static_cast<int>(fault)));
          MemoryFileSystem memory;
          FaultInjector faults;
          FaultyFileSystem files(memory, faults);
          faults.arm({.fault = fault, .at = at, .reads = reads});
          Script script(files, budget.bytes);
          script.run();
          faults.heal();
          expect_sound(memory, budget.bytes, script, script.stored);
        }
      }
    }
  }
}

TEST(DiskFault, APowerCutAtAnyStepKeepsWhatWasPromised) {
  for (const Budget& budget : budgets()) {
    const std::uint64_t steps = count_steps(budget.bytes, false);
    for (std::uint64_t at = 1; at <= steps; ++at) {
      for (std::uint64_t seed = 0; seed < 6 && !::testing::Test::HasFailure(); ++seed) {
        SCOPED_TRACE(std::string(budget.name) + " budget, step " + std::to_string(at) + ", seed " +
                     std::to_string(seed));
        MemoryFileSystem memory;
        FaultInjector faults;
        FaultyFileSystem files(memory, faults);
        faults.arm({.fault = Fault::kIo, .at = at, .until_healed = true});
        Script script(files, budget.bytes);
        script.run();
        if (seed == 0) {
          memory.power_cut();
        } else {
          memory.power_cut(seed);
        }
        expect_sound(memory, budget.bytes, script, script.durable);
      }
    }
  }
}

}  // namespace
}  // namespace inferscale::testing
