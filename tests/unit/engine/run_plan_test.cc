// Which tokens of a run are reused, injected and prefilled; and which requests are refused.

#include "engine/run_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/fake_engine.h"
#include "engine/fake_kv.h"

namespace inferscale {
namespace {

using ::testing::HasSubstr;

EngineInfo info() { return FakeEngine({.context_tokens = 64, .max_branches = 4}).info(); }

RecordMeta meta() {
  RecordMeta meta;
  meta.model_fingerprint = info().model.fingerprint;
  meta.shape = info().model.shape;
  return meta;
}

Lease lease_of(const std::vector<TokenId>& tokens, const RecordMeta& record_meta) {
  RecordBuilder builder = RecordBuilder::create(record_meta, tokens).value();
  fill_fake_kv(tokens, builder);
  return Lease(std::move(builder).seal());
}

Segment text(std::vector<TokenId> tokens) { return {std::move(tokens), Lease()}; }
Segment ready(std::vector<TokenId> tokens) {
  Lease lease = lease_of(tokens, meta());
  return {std::move(tokens), std::move(lease)};
}

RunRequest request_of(std::vector<Segment> plan, std::vector<TokenId> tail = {9, 9}) {
  RunRequest request;
  request.plan = std::move(plan);
  request.branches.resize(1);
  request.branches[0].tokens = std::move(tail);
  return request;
}

RunPlan plan_of(const RunRequest& request, const CachedSequence* cached = nullptr) {
  Result<RunPlan> plan = make_run_plan(request, info(), cached);
  EXPECT_TRUE(plan.ok()) << plan.status().to_string();
  return plan.value();
}

std::string fallbacks(const RunPlan& plan) {
  std::string text;
  for (const Fallback& fallback : plan.fallbacks) {
    text += fallback.reason + "=" + std::to_string(fallback.count) + " ";
  }
  return text;
}

TEST(RunPlan, InjectsTheFirstRunOfSegmentsWithKv) {
  const RunPlan plan = plan_of(request_of({text({1, 2, 3}), ready({4, 5}), ready({6}), text({7})}));
  EXPECT_EQ(plan.reused, 0U);
  EXPECT_EQ(plan.inject_begin, 3U);
  EXPECT_EQ(plan.inject_end, 6U);
  EXPECT_EQ(plan.first_segment, 1U);
  EXPECT_EQ(plan.last_segment, 3U);
  EXPECT_EQ(fallbacks(plan), "");
}

TEST(RunPlan, SegmentsWithKvBehindTextAreCountedAndPrefilled) {
  const RunPlan plan = plan_of(request_of({ready({1}), text({2}), ready({3}), ready({4})}));
  EXPECT_EQ(plan.inject_end, 1U);
  EXPECT_EQ(fallbacks(plan), "behind_text=2 ");
}

TEST(RunPlan, AMissingRecordCostsItsOwnTokens) {
  Segment missing{{2, 3}, Lease(MissReason::kEvicted)};
  std::vector<Segment> segments;
  segments.push_back(std::move(missing));
  segments.push_back(ready({4}));
  const RunPlan plan = plan_of(request_of(std::move(segments)));
  EXPECT_EQ(plan.inject_begin, 2U);
  EXPECT_EQ(plan.inject_end, 3U);
  // Whoever asked for the lease has counted why it is not ready.
  EXPECT_EQ(fallbacks(plan), "");
}

TEST(RunPlan, WhatDoesNotMatchIsNotInjected) {
  RecordMeta other_model = meta();
  other_model.model_fingerprint.bytes[3] ^= std::byte{1};
  RecordMeta other_shape = meta();
  other_shape.shape.n_layers = 1;
  RecordMeta shard = meta();
  shard.shard_count = 2;
  const std::vector<TokenId> tokens = {4, 5};
  const std::pair<Lease, const char*> wrong[] = {
      {lease_of({4, 6}, meta()), "wrong_tokens=1 "},
      {lease_of({4}, meta()), "wrong_tokens=1 "},
      {lease_of(tokens, other_model), "wrong_fingerprint=1 "},
      {lease_of(tokens, other_shape), "wrong_fingerprint=1 "},
      {lease_of(tokens, shard), "wrong_fingerprint=1 "},
  };
  for (const auto& [lease, reason] : wrong) {
    const RunPlan plan = plan_of(request_of({ready({1}), {tokens, lease}, ready({6})}));
    EXPECT_EQ(plan.inject_end, 1U);
    EXPECT_EQ(fallbacks(plan), std::string(reason) + "behind_text=1 ");
  }
}

TEST(RunPlan, NothingIsInjectedWhenSwitchedOffOrNotAskedFor) {
  EngineInfo off = info();
  off.injection = false;
  RunRequest request = request_of({ready({1}), ready({2})});
  const RunPlan plan = make_run_plan(request, off, nullptr).value();
  EXPECT_EQ(plan.inject_end, 0U);
  EXPECT_EQ(fallbacks(plan), "injection_off=2 ");
  request.allow_injection = false;
  EXPECT_EQ(fallbacks(plan_of(request)), "");
  EXPECT_EQ(plan_of(request).inject_end, 0U);
}

TEST(RunPlan, ASessionsCommonPrefixIsReused) {
  const CachedSequence cached{{1, 2, 3, 4, 5}, SIZE_MAX};
  const RunPlan same_start = plan_of(request_of({text({1, 2, 3})}, {8}), &cached);
  EXPECT_EQ(same_start.reused, 3U);
  EXPECT_EQ(same_start.inject_begin, 3U);
  EXPECT_EQ(same_start.inject_end, 3U);
  EXPECT_EQ(plan_of(request_of({text({1, 2, 3, 4, 5})}, {6}), &cached).reused, 5U);
  EXPECT_EQ(plan_of(request_of({text({2})}, {6}), &cached).reused, 0U);
}

TEST(RunPlan, TheLastTokenIsComputedWhenItsLogitsAreNeeded) {
  const CachedSequence cached{{1, 2, 3, 4, 5}, SIZE_MAX};
  RunRequest request = request_of({text({1, 2, 3})}, {4, 5});
  EXPECT_EQ(plan_of(request, &cached).reused, 5U);
  request.sampling.max_tokens = 1;
  EXPECT_EQ(plan_of(request, &cached).reused, 4U);
  request.branches[0].score_positions = {4, 2};
  EXPECT_EQ(plan_of(request, &cached).reused, 2U);
}

TEST(RunPlan, ASegmentThatIsHalfInTheCacheIsInjectedWhole) {
  const CachedSequence cached{{1, 2, 3, 4}, SIZE_MAX};
  const RunPlan plan = plan_of(request_of({text({1, 2}), ready({3, 5, 6})}), &cached);
  EXPECT_EQ(plan.reused, 2U);
  EXPECT_EQ(plan.inject_begin, 2U);
  EXPECT_EQ(plan.inject_end, 5U);
  // Without KV the half that is there stays.
  EXPECT_EQ(plan_of(request_of({text({1, 2}), text({3, 5, 6})}), &cached).reused, 3U);
}

TEST(RunPlan, SegmentsInTheSessionsCacheAreNotInjectedAgain) {
  const CachedSequence cached{{1, 2, 3}, SIZE_MAX};
  const RunPlan plan = plan_of(request_of({ready({1, 2, 3}), ready({4})}), &cached);
  EXPECT_EQ(plan.reused, 3U);
  EXPECT_EQ(plan.inject_begin, 3U);
  EXPECT_EQ(plan.inject_end, 4U);
  EXPECT_EQ(plan.first_segment, 1U);
}

TEST(RunPlan, TheTextArmReusesNothingThatWasInjected) {
  const CachedSequence cached{{1, 2, 3, 4}, 2};
  RunRequest request = request_of({text({1, 2, 3, 4})});
  EXPECT_EQ(plan_of(request, &cached).reused, 4U);
  request.allow_injection = false;
  EXPECT_EQ(plan_of(request, &cached).reused, 2U);
}

TEST(RunPlan, EmptySegmentsDoNotBreakARun) {
  const RunPlan plan = plan_of(request_of({text({}), ready({1}), text({}), ready({2}), text({})}));
  EXPECT_EQ(plan.inject_begin, 0U);
  EXPECT_EQ(plan.inject_end, 2U);
}

TEST(RunPlan, AScoredPositionIsNeverInjected) {
  RunRequest request = request_of({text({1}), ready({2, 3})});
  request.branches[0].score_positions = {0, 3};
  EXPECT_TRUE(make_run_plan(request, info(), nullptr).ok());
  request.branches[0].score_positions = {2};
  EXPECT_EQ(make_run_plan(request, info(), nullptr).status().code(), StatusCode::kInvalidArgument);
}

class CheckRequestTest : public ::testing::Test {
 protected:
  void refuses(StatusCode code, const char* word) {
    const Status status = check_request(request_, info());
    EXPECT_EQ(status.code(), code) << status.to_string();
    EXPECT_THAT(status.message(), HasSubstr(word));
  }
  RunRequest request_ = request_of({text({1, 2}), text({3})});
};

TEST_F(CheckRequestTest, AcceptsWhatIsFine) {
  request_.branches[0].captures = {{0, 2, meta()}, {2, 5, meta()}};
  request_.branches[0].score_positions = {0, 4};
  request_.sampling.max_tokens = 100;
  request_.session = "s";
  EXPECT_TRUE(check_request(request_, info()).ok());
}

TEST_F(CheckRequestTest, Branches) {
  request_.branches.clear();
  refuses(StatusCode::kInvalidArgument, "1..4 branches");
  request_.branches.resize(5);
  refuses(StatusCode::kInvalidArgument, "not 5");
  request_.branches.resize(2);
  EXPECT_TRUE(check_request(request_, info()).ok());
  request_.session = "s";
  refuses(StatusCode::kInvalidArgument, "session");
  request_.session.clear();
  request_.sampling.max_tokens = 1;
  refuses(StatusCode::kInvalidArgument, "generation");
  request_.branches.resize(1);
  request_.branches[0].tokens.clear();
  refuses(StatusCode::kInvalidArgument, "generation");
}

TEST_F(CheckRequestTest, NoTokensAtAll) {
  request_ = request_of({}, {});
  refuses(StatusCode::kInvalidArgument, "at least one token");
}

TEST_F(CheckRequestTest, TokenIds) {
  request_.branches[0].tokens = {-1};
  refuses(StatusCode::kInvalidArgument, "token id -1");
  request_ = request_of({text({259})});
  refuses(StatusCode::kInvalidArgument, "0..258");
}

TEST_F(CheckRequestTest, LongerThanTheContext) {
  request_.branches[0].tokens.assign(61, 1);
  EXPECT_TRUE(check_request(request_, info()).ok());
  request_.branches[0].tokens.assign(62, 1);
  refuses(StatusCode::kResourceExhausted, "needs 65 tokens (plan 3, branches 62)");
}

TEST_F(CheckRequestTest, CaptureRanges) {
  for (const auto& [begin, end] :
       {std::pair{2U, 2U}, {3U, 2U}, {0U, 6U}, {4000000000U, 4000000001U}}) {
    request_.branches[0].captures = {{begin, end, meta()}};
    refuses(StatusCode::kInvalidArgument, "capture range");
  }
  RecordMeta other = meta();
  other.shape.head_dim_v = 2;
  request_.branches[0].captures = {{0, 1, other}};
  refuses(StatusCode::kInvalidArgument, "shape");
  other = meta();
  other.model_fingerprint = Hash128{};
  request_.branches[0].captures = {{0, 1, other}};
  refuses(StatusCode::kInvalidArgument, "fingerprint");
  other = meta();
  other.codec = static_cast<KvCodec>(77);
  request_.branches[0].captures = {{0, 1, other}};
  refuses(StatusCode::kInvalidArgument, "codec");
}

TEST_F(CheckRequestTest, ScorePositionsAndSampling) {
  request_.branches[0].score_positions = {5};
  refuses(StatusCode::kInvalidArgument, "score position 5");
  request_.branches[0].score_positions.clear();
  request_.sampling.temperature = -1;
  refuses(StatusCode::kInvalidArgument, "temperature");
  request_.sampling.temperature = std::nanf("");
  refuses(StatusCode::kInvalidArgument, "temperature");
  request_.sampling.temperature = 1;
  request_.sampling.top_p = 0;
  refuses(StatusCode::kInvalidArgument, "top_p");
}

}  // namespace
}  // namespace inferscale
