// A process that works on a data directory is killed, at random and at every single step, and its
// calls fail in every way that disks know; after each the directory is opened again and everything
// that was acknowledged is there. docs/reliability.md says what is promised and how long runs are
// made.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <iterator>
#include <random>
#include <set>
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
    records_missing += report.records_missing.size();
    questions += report.questions;
  }
  void print(const char* what) const {
    fmt::print(
        "{}: {} kills; {} operations acknowledged; {} facts, {} records and {} answers checked; "
        "{} records to encode again\n",
        what, kills, acknowledged, facts, records, questions, records_missing);
  }
};

// One has room for all records, one is compacted now and then, one evicts all the time.
constexpr std::uint64_t kDiskBudgets[] = {64ULL << 20, 512ULL << 10, 48ULL << 10};

/// A directory on which one child after the other works and is killed.
class KillRun {
 public:
  KillRun(std::uint64_t disk_budget_bytes, bool with_llama, std::mt19937_64& random)
      : with_llama_(with_llama), random_(random) {
    options_.directory = directory_.data();
    options_.disk_budget_bytes = disk_budget_bytes;
    if (with_llama) {
      RandomModelOptions model;
      model.trained_positions = 2048;
      options_.model = directory_.model();
      EXPECT_TRUE(write_random_model(options_.model, model).ok());
    }
  }

  void kill_once(std::uint64_t round, std::string when, Totals* totals) {
    std::vector<std::string> arguments = {
        "--directory",    options_.directory.string(),
        "--disk-budget",  std::to_string(options_.disk_budget_bytes),
        "--seed",         std::to_string(random_()),
        "--first-marker", std::to_string(1000 * (round + 1))};
    if (with_llama_) {
      arguments.insert(arguments.end(), {"--model", options_.model.string()});
    }
    if (random_() % 2 == 0) {
      arguments.emplace_back("--background");
    }
    const std::optional<KillTime> kill = choose_kill(&arguments, &when);
    const ChildEnd end = run_child(arguments, kill, oracle_);
    ASSERT_EQ(end.failure, "") << when;
    ASSERT_TRUE(end.killed) << when;
    const CheckReport report = check_copy(options_, oracle_, random_());
    expect_clean(report, when);
    expect_few_lost(report, when);
    totals->add(end, report);
  }

 private:
  /// After some lines and some time, or at a step.
  std::optional<KillTime> choose_kill(std::vector<std::string>* arguments, std::string* when) {
    if (random_() % 2 == 0) {
      const int lines = static_cast<int>(random_() % 40);
      return KillTime{lines, std::chrono::microseconds(random_() % (with_llama_ ? 60'000 : 6'000))};
    }
    const std::uint64_t step = 1 + random_() % 400;
    arguments->insert(arguments->end(), {"--kill-at", std::to_string(step)});
    if (random_() % 2 == 0) {
      arguments->emplace_back("--half");
    }
    *when += fmt::format(" step {}", step);
    return std::nullopt;
  }

  /// Where there is room for all records, a kill costs at most the one that was being stored.
  void expect_few_lost(const CheckReport& report, const std::string& when) {
    std::size_t lost = 0;
    for (const std::string& record : report.records_missing) {
      lost += missing_.contains(record) ? 0 : 1;
    }
    if (options_.disk_budget_bytes == kDiskBudgets[0]) {
      EXPECT_LE(lost, 1U) << when;
    }
    missing_ = report.records_missing;
  }

  const CrashDirectory directory_;
  CrashServiceOptions options_;
  const bool with_llama_;
  std::mt19937_64& random_;
  Oracle oracle_;
  std::set<std::string> missing_;
};

/// Kills children on one directory after the other until there were `kills` kills.
void kill_at_random(std::uint64_t kills, std::uint64_t seed, bool with_llama) {
  constexpr std::uint64_t kRounds = 25;  // on one directory
  std::mt19937_64 random(seed);
  Totals totals;
  for (std::uint64_t directory = 0; totals.kills < kills; ++directory) {
    KillRun run(kDiskBudgets[directory % std::size(kDiskBudgets)], with_llama, random);
    for (std::uint64_t round = 0; round < kRounds && totals.kills < kills; ++round) {
      run.kill_once(round, fmt::format("seed {} directory {} round {}", seed, directory, round),
                    &totals);
      if (::testing::Test::HasFailure()) {
        totals.print("until then");
        return;
      }
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
      CrashServiceOptions options;
      options.directory = directory.data();
      const CheckReport report = check_copy(options, oracle, step);
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
