// A process that works on a data directory is killed, at random and at every single step, and its
// calls fail in every way that disks know; after each the directory is opened again and everything
// that was acknowledged is there. docs/reliability.md says what is promised and how long runs are
// made.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <random>
#include <string>

#include "crash/check.h"
#include "crash/child.h"
#include "crash/crash_directory.h"
#include "support/random_model.h"

namespace inferscale::testing {
namespace {

namespace fs = std::filesystem;

struct Totals {
  std::uint64_t kills = 0, acknowledged = 0, facts = 0, records = 0, records_missing = 0,
                questions = 0;

  void add(const ChildEnd& end, const CheckReport& report) {
    kills += end.killed ? 1 : 0;
    acknowledged += end.acknowledged;
    facts += report.facts;
    records += report.records;
    records_missing += report.records_missing;
    questions += report.questions;
  }
  void print(const char* what) const {
    fmt::print(
        "{}: {} kills; {} operations acknowledged; {} facts, {} records and {} answers checked; "
        "{} records to encode again\n",
        what, kills, acknowledged, facts, records, questions, records_missing);
  }
};

/// Kills children on one directory after the other until there were `kills` kills.
void kill_at_random(std::uint64_t kills, std::uint64_t seed, bool with_llama) {
  constexpr std::uint64_t kRounds = 25;  // on one directory
  std::mt19937_64 random(seed);
  Totals totals;
  for (std::uint64_t directories = 0; totals.kills < kills; ++directories) {
    const CrashDirectory directory;
    if (with_llama) {
      RandomModelOptions options;
      options.trained_positions = 2048;
      ASSERT_TRUE(write_random_model(directory.model(), options).ok());
    }
    const fs::path model = with_llama ? directory.model() : fs::path();
    Oracle oracle;
    for (std::uint64_t round = 0; round < kRounds && totals.kills < kills; ++round) {
      std::vector<std::string> arguments = {"--directory",    directory.data().string(),
                                            "--seed",         std::to_string(random()),
                                            "--first-marker", std::to_string(1000 * (round + 1))};
      if (with_llama) {
        arguments.insert(arguments.end(), {"--model", model.string()});
      }
      std::optional<KillTime> kill;
      std::string when = fmt::format("seed {} directory {} round {}", seed, directories, round);
      if (random() % 2 == 0) {
        kill = KillTime{static_cast<int>(random() % 40),
                        std::chrono::microseconds(random() % (with_llama ? 60'000 : 6'000))};
      } else {
        const std::uint64_t step = 1 + random() % 400;
        arguments.insert(arguments.end(), {"--kill-at", std::to_string(step)});
        if (random() % 2 == 0) {
          arguments.emplace_back("--half");
        }
        when += fmt::format(" step {}", step);
      }
      const ChildEnd end = run_child(arguments, kill, oracle);
      ASSERT_EQ(end.failure, "") << when;
      ASSERT_TRUE(end.killed) << when;
      const CheckReport report = check_copy(directory.data(), model, oracle, random());
      expect_clean(report, when);
      ASSERT_FALSE(::testing::Test::HasFailure());
      totals.add(end, report);
    }
  }
  totals.print(with_llama ? "libllama" : "fake engine");
}

TEST(Crash, SurvivesKillsAtRandom) {
  kill_at_random(setting("INFERSCALE_CRASH_KILLS", 60), setting("INFERSCALE_CRASH_SEED", 1), false);
}

TEST(Crash, SurvivesKillsAtRandomWithAModel) {
  kill_at_random(setting("INFERSCALE_CRASH_MODEL_KILLS", 5), setting("INFERSCALE_CRASH_SEED", 1),
                 true);
}

TEST(Crash, SurvivesAKillAtEveryStep) {
  // A prime, so that in time every kind of step is met; 1 in the long run.
  const std::uint64_t stride = setting("INFERSCALE_CRASH_STRIDE", 5);
  Totals totals;
  std::uint64_t steps = 0;
  for (const bool half : {false, true}) {
    for (std::uint64_t step = 1;; step += stride) {
      const CrashDirectory directory;
      std::vector<std::string> arguments = {"--directory", directory.data().string(), "--script",
                                            "--kill-at", std::to_string(step)};
      if (half) {
        arguments.emplace_back("--half");
      }
      Oracle oracle;
      const ChildEnd end = run_child(arguments, std::nullopt, oracle);
      const std::string when = fmt::format("{} step {}", half ? "half" : "whole", step);
      ASSERT_EQ(end.failure, "") << when;
      const CheckReport report = check_copy(directory.data(), "", oracle, step);
      expect_clean(report, when);
      ASSERT_FALSE(::testing::Test::HasFailure());
      totals.add(end, report);
      if (!end.killed) {
        steps = end.steps;
        break;
      }
    }
  }
  totals.print(fmt::format("script of {} steps, every {}", steps, stride).c_str());
  EXPECT_GT(steps, 100U);
}

}  // namespace
}  // namespace inferscale::testing
