#pragma once

#include <algorithm>
#include <ostream>
#include <vector>

#include "equivalence/llama_rig.h"

namespace inferscale::testing {

/// What gates E1 and E2 (kv.md) allow. KL is the mean over the question's tokens.
struct GateLimits {
  double e1_difference = 0.05;
  double e1_kl = 1e-5;
  double e2_difference = 0.05;
};

struct CacheAndStore {
  KvCodec cache;
  KvCodec store;
  GateLimits limits;
};
inline void PrintTo(const CacheAndStore& setting, std::ostream* out) {
  *out << "cache f" << 8 * codec_element_bytes(setting.cache) << ", store f"
       << 8 * codec_element_bytes(setting.store);
}

/// The settings of kv.md; an f16 store below an f32 cache is nobody's setting and rounds twice, so
/// it may differ more.
inline std::vector<CacheAndStore> gate_settings() {
  return {{KvCodec::kF32, KvCodec::kF32, {}},
          {KvCodec::kF16, KvCodec::kF32, {}},
          {KvCodec::kF16, KvCodec::kF16, {}},
          {KvCodec::kF32, KvCodec::kF16, {0.1, 5e-5, 0.1}}};
}

struct GateFigures {
  double difference = 0;
  double kl = 0;
  double changed = 0;  ///< share of the cache's elements
  bool same_greedy = false;
};

/// A context that is prefilled in one piece, and a question behind it.
class JointContext {
 public:
  JointContext(LlamaRig& rig, std::size_t context_tokens, std::size_t question_tokens)
      : rig_(rig),
        context_(random_tokens(context_tokens, rig.spec().vocab_size, 1)),
        question_(random_tokens(question_tokens, rig.spec().vocab_size, 2)) {}

  static constexpr int kGreedy = 8;
  [[nodiscard]] std::uint32_t size() const {
    return static_cast<std::uint32_t>(context_.size() + question_.size()) + kGreedy;
  }

  /// Prefills at `start`, asks, and captures the context in two records.
  void prefill(std::uint32_t start, KvCodec store) {
    rig_.clear();
    rig_.decode(context_, start, 1);
    state_ = rig_.state_copy();
    const std::span<const TokenId> all(context_);
    const std::size_t half = all.size() / 2 + 3;
    first_ = rig_.capture(all.first(half), start, store);
    second_ = rig_.capture(all.subspan(half), start + static_cast<std::uint32_t>(half), store);
    logits_ = ask(start, greedy_);
  }

  /// Places the records at `start` and asks again.
  GateFigures inject(std::uint32_t start, std::uint32_t rotation_error = 0) {
    rig_.clear();
    rig_.inject({{first_, start}, {second_, start + first_->n_tokens()}}, rotation_error);
    GateFigures figures;
    const std::vector<std::byte> state = rig_.state_copy();
    std::vector<TokenId> greedy;
    const LogitRows logits = ask(start, greedy);
    figures.difference = max_difference(logits_, logits);
    figures.kl = mean_kl(logits_, logits);
    figures.same_greedy = greedy == greedy_;
    if (parse_state(state, rig_.state())->positions ==
        parse_state(state_, rig_.state())->positions) {
      figures.changed = changed_share(state_, state, rig_.state());
    }
    return figures;
  }

 private:
  LogitRows ask(std::uint32_t start, std::vector<TokenId>& greedy) {
    const auto behind = start + static_cast<std::uint32_t>(context_.size());
    LogitRows logits = rig_.decode(question_, behind, question_.size());
    greedy = rig_.greedy(logits, behind + static_cast<std::uint32_t>(question_.size()), kGreedy);
    return logits;
  }

  LlamaRig& rig_;
  std::vector<TokenId> context_;
  std::vector<TokenId> question_;
  std::vector<std::byte> state_;
  std::shared_ptr<const Record> first_;
  std::shared_ptr<const Record> second_;
  LogitRows logits_;
  std::vector<TokenId> greedy_;
};

}  // namespace inferscale::testing
