// The rig of `bench ttft` on made-up engines: every arm gives what it says, inside the program and
// over a server.
#include <gtest/gtest.h>

#include "base/file.h"
#include "cli/bench/ttft_rig.h"
#include "engine/fake_engine.h"
#include "support/fake_vllm.h"
#include "unit/kv/temp_directory.h"
#include "unit/retrieval/fake_embedder.h"

namespace inferscale::cli {
namespace {

constexpr std::uint32_t kMost = 5;

class BenchRigTest : public ::testing::Test {
 protected:
  BenchRigTest() {
    embedded_.open_engine = [](const MemoryOptions&) -> Result<std::unique_ptr<Engine>> {
      return std::unique_ptr<Engine>(std::make_unique<FakeEngine>());
    };
    embedded_.open_embedder = open_embedder;
  }

  static Result<std::unique_ptr<Embedder>> open_embedder(const MemoryOptions&) {
    return std::unique_ptr<Embedder>(std::make_unique<FakeEmbedder>());
  }

  /// Options and dependencies for `server_`.
  ServiceDependencies use_server() {
    memory_.directory = directory_.path();
    std::filesystem::create_directories(memory_.directory / "vllm");
    EXPECT_TRUE(
        write_file_atomic(memory_.directory / "vllm" / "secret", secret_, Durability::kNone).ok());
    memory_.engine = "vllm=" + server_.url() + ",control=" + server_.control_url();
    ServiceDependencies dependencies = std::move(service_dependencies(memory_)).value();
    dependencies.open_embedder = open_embedder;
    return dependencies;
  }

  void expect_arms_are_what_they_say(TtftRig& rig) {
    const auto header = static_cast<std::uint32_t>(rig.workload().prompt().header().size());
    for (int round = 0; round < 2; ++round) {
      for (const Arm arm : {Arm::kNone, Arm::kText, Arm::kInject}) {
        const Result<TtftSample> sample = rig.measure(arm, kMost, 0);
        ASSERT_TRUE(sample.ok()) << sample.status().to_string();
        EXPECT_GT(sample->ttft, 0);
        EXPECT_EQ(sample->injected, header + (arm == Arm::kInject ? sample->facts_tokens : 0));
        EXPECT_EQ(sample->prefilled,
                  rig.question_tokens() + (arm == Arm::kText ? sample->facts_tokens : 0))
            << "nothing of the round before is found";
      }
      const Result<TtftSample> warm = rig.measure(Arm::kWarm, kMost, 0);
      ASSERT_TRUE(warm.ok()) << warm.status().to_string();
      EXPECT_EQ(warm->injected, 0U);
      EXPECT_GE(warm->reused, warm->facts_tokens) << "less than a block is left over";
      EXPECT_LE(warm->prefilled, rig.question_tokens() + header);
    }
  }

  testing::TempDirectory directory_;
  MemoryOptions memory_;
  ServiceDependencies embedded_;
  const std::vector<std::byte> secret_ = std::vector<std::byte>(32, std::byte{7});
  FakeVllm server_{secret_};
};

TEST_F(BenchRigTest, OnTheEngineInsideTheProgram) {
  const auto rig = TtftRig::open(memory_, embedded_, kMost, {});
  ASSERT_TRUE(rig.ok()) << rig.status().to_string();
  expect_arms_are_what_they_say(**rig);
}

TEST_F(BenchRigTest, OverAServerWhichForgetsTheFactsAfterwards) {
  const ServiceDependencies dependencies = use_server();
  {
    const auto rig = TtftRig::open(memory_, dependencies, kMost, {});
    ASSERT_TRUE(rig.ok()) << rig.status().to_string();
    EXPECT_GT(server_.records(), kMost + 1U);
    expect_arms_are_what_they_say(**rig);
  }
  EXPECT_EQ(server_.records(), 1U) << "the header's, which belongs to nobody";
  EXPECT_EQ(server_.erase_calls(), 1U);
}

TEST_F(BenchRigTest, WhatDoesNotFitOrIsCancelledIsNotEncoded) {
  const ServiceDependencies dependencies = use_server();
  const Status too_many = TtftRig::open(memory_, dependencies, 1000, {}).status();
  EXPECT_EQ(too_many.code(), StatusCode::kResourceExhausted) << too_many.to_string();
  const std::atomic<bool> cancelled{true};
  WorkControl control;
  control.cancelled = &cancelled;
  const Status stopped = TtftRig::open(memory_, dependencies, kMost, control).status();
  EXPECT_EQ(stopped.code(), StatusCode::kUnavailable) << stopped.to_string();
  EXPECT_LE(server_.records(), 1U) << "the header's, if it was quicker";
}

TEST_F(BenchRigTest, WithoutInjectionThereIsNothingToMeasure) {
  server_.set_injection(false);
  EXPECT_EQ(TtftRig::open(memory_, use_server(), kMost, {}).status().code(),
            StatusCode::kUnavailable);
}

}  // namespace
}  // namespace inferscale::cli
