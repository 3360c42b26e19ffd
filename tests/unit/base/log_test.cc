#include "base/log.h"

#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace inferscale {
namespace {

class LogTest : public ::testing::Test {
 protected:
  ~LogTest() override { set_log_sink(nullptr); }
};

TEST_F(LogTest, GoesToTheSinkAndNowhereWithoutOne) {
  log_message(LogLevel::kError, "dropped");
  std::vector<std::string> seen;
  set_log_sink([&](LogLevel level, std::string_view message) {
    seen.push_back(std::to_string(static_cast<int>(level)) + std::string(message));
  });
  log_message(LogLevel::kDebug, "a");
  log_message(LogLevel::kError, "b");
  set_log_sink(nullptr);
  log_message(LogLevel::kError, "dropped");
  EXPECT_EQ(seen, (std::vector<std::string>{"0a", "3b"}));
}

TEST_F(LogTest, ASinkThatThrowsHurtsNobody) {
  set_log_sink([](LogLevel, std::string_view) { throw std::runtime_error("no"); });
  EXPECT_NO_THROW(log_message(LogLevel::kInfo, "x"));
}

TEST_F(LogTest, ASinkMayReplaceItself) {
  set_log_sink([](LogLevel, std::string_view) { set_log_sink(nullptr); });
  log_message(LogLevel::kInfo, "x");
  log_message(LogLevel::kInfo, "y");
}

TEST_F(LogTest, ThreadsMayLogWhileTheSinkChanges) {
  std::atomic<int> count{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([] {
      for (int n = 0; n < 500; ++n) {
        log_message(LogLevel::kInfo, "x");
      }
    });
  }
  for (int n = 0; n < 200; ++n) {
    set_log_sink([&](LogLevel, std::string_view) { ++count; });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_LE(count.load(), 2000);
}

}  // namespace
}  // namespace inferscale
