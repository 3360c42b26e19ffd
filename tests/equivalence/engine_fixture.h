#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "engine/llama/engine_core.h"
#include "equivalence/llama_rig.h"
#include "support/random_model.h"

namespace inferscale::testing {

/// An engine on a small random model with f32 weights and cache, and requests for it: a header and
/// four facts, their records captured from one joint prefill, so that injecting them must give the
/// text's own answer.
class EngineFixture : public ::testing::Test {
 protected:
  static constexpr std::uint32_t kContextTokens = 512;

  void SetUp() override {
    path_ = directory_ / "model.gguf";
    ASSERT_TRUE(write_random_model(path_, {}).ok());
    engine_ = open(hooks_);
    ASSERT_NE(engine_, nullptr);
    const std::uint32_t vocab = engine_->info().model.vocab_size;
    for (std::uint32_t i = 0; i < 5; ++i) {
      segments_.push_back(random_tokens(20 + 3 * i, vocab, 100 + i));
    }
    question_ = random_tokens(9, vocab, 200);
  }

  [[nodiscard]] LlamaEngineOptions options() const {
    LlamaEngineOptions options;
    options.model = path_;
    options.cache_dtype = KvCodec::kF32;
    options.context_tokens = kContextTokens;
    options.threads = 1;
    options.max_branches = 8;
    return options;
  }

  std::unique_ptr<Engine> open(std::shared_ptr<LlamaEngineHooks> hooks) {
    Result<std::unique_ptr<Engine>> engine =
        open_llama_engine_with_hooks(options(), std::move(hooks));
    EXPECT_TRUE(engine.ok()) << engine.status().to_string();
    return engine.ok() ? std::move(engine).value() : nullptr;
  }

  [[nodiscard]] RecordMeta meta() const {
    RecordMeta meta;
    meta.model_fingerprint = engine_->info().model.fingerprint;
    meta.shape = engine_->info().model.shape;
    meta.codec = KvCodec::kF32;
    return meta;
  }

  /// All segments as text, then the question.
  [[nodiscard]] RunRequest ask(std::uint32_t max_tokens = 12) const {
    RunRequest request;
    for (const std::vector<TokenId>& segment : segments_) {
      request.plan.push_back({segment, Lease()});
    }
    request.branches.resize(1);
    request.branches[0].tokens = question_;
    request.sampling.max_tokens = max_tokens;
    return request;
  }

  /// Records of all segments, as the text arm computes them.
  std::vector<std::shared_ptr<const Record>> records() {
    RunRequest request = ask(0);
    std::uint32_t begin = 0;
    for (const std::vector<TokenId>& segment : segments_) {
      const auto end = begin + static_cast<std::uint32_t>(segment.size());
      request.branches[0].captures.push_back({begin, end, meta()});
      begin = end;
    }
    return run(request).branches.at(0).records;
  }

  /// `ask` with the records in the plan.
  RunRequest ask_injected(std::uint32_t max_tokens = 12) {
    RunRequest request = ask(max_tokens);
    const auto all = records();
    for (std::size_t i = 0; i < all.size(); ++i) {
      request.plan[i].lease = Lease(all[i]);
    }
    return request;
  }

  RunResult run(const RunRequest& request) { return run(*engine_, request); }
  static RunResult run(Engine& engine, const RunRequest& request) {
    Result<RunResult> result = engine.run(request);
    EXPECT_TRUE(result.ok()) << result.status().to_string();
    return result.ok() ? std::move(result).value() : RunResult{};
  }

  [[nodiscard]] std::uint32_t plan_size() const {
    std::size_t size = 0;
    for (const std::vector<TokenId>& segment : segments_) {
      size += segment.size();
    }
    return static_cast<std::uint32_t>(size);
  }

  static std::string fallbacks(const RunResult& result) {
    std::string text;
    for (const Fallback& fallback : result.fallbacks) {
      text += fallback.reason + "=" + std::to_string(fallback.count) + " ";
    }
    return text;
  }

  TempDirectory directory_;
  std::filesystem::path path_;
  std::shared_ptr<LlamaEngineHooks> hooks_ = std::make_shared<LlamaEngineHooks>();
  std::unique_ptr<Engine> engine_;
  std::vector<std::vector<TokenId>> segments_;
  std::vector<TokenId> question_;
};

}  // namespace inferscale::testing
