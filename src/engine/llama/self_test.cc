#include "engine/llama/self_test.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "engine/llama/engine_core.h"
#include "inferscale/kv_kernels.h"
#include "kernels/transcode.h"

namespace inferscale {
namespace {

// Positions are never 0: there every rotation is the identity and hides errors.
constexpr std::int32_t kLayoutPosition = 5;
constexpr std::int32_t kLayoutTokens = 3;
constexpr std::size_t kRopePositions = 6;

/// One token alone in a sequence of its own.
struct Probe {
  std::int32_t sequence = 0;
  std::int32_t position = 0;
};

std::vector<Probe> make_probes(std::int32_t context, std::int32_t sequences) {
  std::vector<std::int32_t> positions = {context - 1, context / 2 + 1, context / 4, 131, 17, 1};
  std::vector<Probe> probes;
  for (const std::int32_t position : positions) {
    const std::int32_t sequence = kFirstBranchSequence + static_cast<std::int32_t>(probes.size());
    if (position > 0 && position < context && sequence < sequences) {
      probes.push_back({sequence, position});
    }
  }
  return probes;
}

/// Fills a run of one sequence and all probes in one batch: it is the forward pass that costs time.
Status decode_all(LlamaSequences& sequences, const std::vector<Probe>& probes) {
  const llama_vocab* vocab = llama_model_get_vocab(llama_get_model(sequences.context()));
  const TokenId probe_token = llama_vocab_n_tokens(vocab) / 3;
  const TokenId other_token = llama_vocab_n_tokens(vocab) / 2;
  std::vector<BatchToken> batch;
  for (std::int32_t i = 0; i < kLayoutTokens; ++i) {
    batch.push_back(
        {i == 1 ? other_token : probe_token, kLayoutPosition + i, kMainSequence, false});
  }
  for (const Probe& probe : probes) {
    batch.push_back({probe_token, probe.position, probe.sequence, false});
  }
  batch.back().logits = true;
  return sequences.decode(batch, nullptr);
}

Result<StateForm> find_form(std::span<const std::byte> raw, StateSpec& spec,
                            std::optional<StateForm> only) {
  std::string reasons;
  for (const StateForm form : {StateForm::kPlain, StateForm::kWithRotationWords}) {
    if (only && *only != form) {
      continue;
    }
    spec.form = form;
    const Result<StateView> view = parse_state(raw, spec);
    if (!view.ok()) {
      reasons += fmt::format("; {}: {}", state_form_name(form), view.status().message());
      continue;
    }
    for (std::int32_t i = 0; i < kLayoutTokens; ++i) {
      if (view->positions.size() != kLayoutTokens || view->positions[i] != kLayoutPosition + i) {
        return data_loss("the self-test's state does not hold the positions that were decoded");
      }
    }
    return form;
  }
  return unsupported("this libllama lays out sequence states in no known form" + reasons);
}

/// Builds the same state by formula, gives it to another sequence, and reads it back.
Status check_round_trip(LlamaSequences& sequences, const StateSpec& spec,
                        std::span<const std::byte> raw) {
  const std::vector<std::byte> original(raw.begin(), raw.end());
  INFERSCALE_ASSIGN_OR_RETURN(const StateView view, parse_state(original, spec));
  StateBuffer built;
  INFERSCALE_RETURN_IF_ERROR(built.prepare(spec, view.positions));
  for (std::uint32_t layer = 0; layer < spec.shape.n_layers; ++layer) {
    std::memcpy(built.rows().k[layer], view.rows.k[layer],
                view.rows.n_rows * view.rows.k_strides.row);
    std::memcpy(built.rows().v[layer], view.rows.v[layer],
                view.rows.n_rows * view.rows.v_strides.row);
  }
  INFERSCALE_RETURN_IF_ERROR(sequences.write(kScratchSequence, built.bytes()));
  INFERSCALE_ASSIGN_OR_RETURN(const auto again, sequences.read_raw(kScratchSequence));
  INFERSCALE_ASSIGN_OR_RETURN(const StateView restored, parse_state(again, spec));
  sequences.remove(kScratchSequence, 0, -1);
  if (!same_cells(view, restored)) {
    return data_loss("a sequence state that was written reads back changed");
  }
  return Status();
}

Result<std::vector<float>> unrotated_key(LlamaSequences& sequences, const StateSpec& spec,
                                         const RopeTable& rope, const Probe& probe) {
  INFERSCALE_ASSIGN_OR_RETURN(
      const StateView view,
      sequences.read(probe.sequence, probe.position, probe.position + 1, kScratchSequence, spec));
  RecordMeta meta;
  meta.shape = spec.shape;
  meta.codec = KvCodec::kF32;
  const TokenId token = 0;
  INFERSCALE_ASSIGN_OR_RETURN(RecordBuilder builder, RecordBuilder::create(meta, {&token, 1}));
  const CaptureSource source{static_cast<std::uint32_t>(probe.position), 0, {}};
  INFERSCALE_RETURN_IF_ERROR(kv_capture(view.rows, source, rope, builder));
  return layer_keys_as_floats(builder, 0, rope);
}

/// How far two pairs may differ: both were rounded to the cache's type, and libllama computes
/// angles in fp32 by repeated multiplication, whose error grows with the position.
double tolerance(KvCodec dtype, std::int32_t position) {
  return (dtype == KvCodec::kF32 ? 2e-5 : 2e-3) + 5e-7 * position;
}

/// Pairs shorter than this part of their head's average are measured against it: there rounding
/// is all that is left.
constexpr double kShortPair = 0.2;

/// Largest difference of two pairs of a head, relative to the pair's length. Pairs, since a wrong
/// factor may turn only the slowest ones, which carry little of the head.
double head_difference(const float* a, const float* b, const RopeSpec& spec) {
  const std::size_t pairs = spec.rotary_dim / 2;
  const bool halves = spec.pairing == RopePairing::kHalves;
  const auto x = [&](std::size_t i) { return halves ? i : 2 * i; };
  const auto y = [&](std::size_t i) { return halves ? i + pairs : 2 * i + 1; };
  double average = 0;
  for (std::size_t i = 0; i < pairs; ++i) {
    average += std::hypot(a[x(i)], a[y(i)]) / static_cast<double>(pairs);
  }
  if (!(average > 0)) {
    return HUGE_VAL;
  }
  double largest = 0;
  for (std::size_t i = 0; i < pairs; ++i) {
    const double difference = std::hypot(a[x(i)] - b[x(i)], a[y(i)] - b[y(i)]);
    const double length = std::max<double>(std::hypot(a[x(i)], a[y(i)]), kShortPair * average);
    if (!std::isfinite(difference)) {
      return HUGE_VAL;  // a comparison with NaN must not look like agreement
    }
    largest = std::max(largest, difference / length);
  }
  return largest;
}

double key_difference(const std::vector<float>& a, const std::vector<float>& b,
                      const StateSpec& spec, const RopeSpec& rope) {
  double largest = 0;
  for (std::uint32_t head = 0; head < spec.shape.n_kv_heads; ++head) {
    const std::size_t at = std::size_t{head} * spec.shape.head_dim_k;
    largest = std::max(largest, head_difference(a.data() + at, b.data() + at, rope));
  }
  return largest;
}

Status check_rope(LlamaSequences& sequences, const StateSpec& spec, const RopeTable& rope,
                  const std::vector<Probe>& probes) {
  const Probe first{kMainSequence, kLayoutPosition};
  INFERSCALE_ASSIGN_OR_RETURN(const std::vector<float> expected,
                              unrotated_key(sequences, spec, rope, first));
  for (const Probe& probe : probes) {
    INFERSCALE_ASSIGN_OR_RETURN(const std::vector<float> key,
                                unrotated_key(sequences, spec, rope, probe));
    const double difference = key_difference(expected, key, spec, rope.spec());
    const double allowed = tolerance(spec.dtype, probe.position);
    if (!(difference <= allowed)) {
      return unsupported(fmt::format(
          "the RopeSpec is not the model's: a key at position {} differs from position {} by "
          "{:.2g} before rotation, allowed {:.2g}",
          probe.position, kLayoutPosition, difference, allowed));
    }
  }
  return Status();
}

}  // namespace

Result<StateForm> self_test(LlamaSequences& sequences, StateSpec spec, const RopeTable& rope,
                            std::optional<StateForm> only) {
  const auto context = static_cast<std::int32_t>(sequences.options().context_tokens);
  const auto available = static_cast<std::int32_t>(sequences.options().sequences);
  const std::vector<Probe> probes = make_probes(context, available);
  if (context < 2 * (kLayoutPosition + kLayoutTokens) + static_cast<std::int32_t>(kRopePositions)) {
    return invalid_argument(
        fmt::format("a context of {} tokens is too small for the self-test", context));
  }
  INFERSCALE_RETURN_IF_ERROR(decode_all(sequences, probes));
  INFERSCALE_ASSIGN_OR_RETURN(const auto raw, sequences.read_raw(kMainSequence));
  INFERSCALE_ASSIGN_OR_RETURN(const StateForm form, find_form(raw, spec, only));
  INFERSCALE_RETURN_IF_ERROR(check_round_trip(sequences, spec, raw));
  INFERSCALE_RETURN_IF_ERROR(check_rope(sequences, spec, rope, probes));
  return form;
}

}  // namespace inferscale
