#include "engine/llama/run.h"

#include <fmt/core.h>

#include <algorithm>

#include "base/log.h"
#include "engine/llama/sampling.h"
#include "inferscale/kv_kernels.h"
#include "kernels/transcode.h"

namespace inferscale {
namespace {

constexpr const char* kStateRejected = "state_rejected";
constexpr const char* kComposeFailed = "compose_failed";
constexpr const char* kCaptureFailed = "capture_failed";
constexpr const char* kCaptureOff = "capture_off";

std::int32_t as_position(std::size_t index) { return static_cast<std::int32_t>(index); }

/// Lets a request's flag end decoding, for as long as the request lives.
class CancelScope {
 public:
  CancelScope(LlamaSequences& sequences, const std::atomic<bool>* cancelled)
      : sequences_(sequences) {
    sequences_.set_cancel_flag(cancelled);
  }
  ~CancelScope() { sequences_.set_cancel_flag(nullptr); }
  CancelScope(const CancelScope&) = delete;
  CancelScope& operator=(const CancelScope&) = delete;

 private:
  LlamaSequences& sequences_;
};

/// Adds the time since `watch` started to `total`.
void add_time(double& total, const Stopwatch& watch) { total += watch.elapsed_ms(); }

}  // namespace

Result<RunResult> LlamaRun::execute() {
  INFERSCALE_RETURN_IF_ERROR(check_request(request_, core_.info));
  const CancelScope scope(*core_.sequences, request_.cancelled);
  INFERSCALE_RETURN_IF_ERROR(begin());
  Status status = fill_cache();
  if (status.ok()) {
    status = generate();
  }
  if (status.ok()) {
    capture();
  }
  finish(status.ok());
  if (!status.ok()) {
    return status;
  }
  result_.timings.total_ms = clock_.elapsed_ms();
  return std::move(result_);
}

Status LlamaRun::begin() {
  plan_tokens_ = plan_tokens(request_);
  tokens_ = sequence_tokens(request_, single() ? request_.branches.front() : Branch{});
  result_.branches.resize(request_.branches.size());
  result_.segment_injected.assign(request_.plan.size(), false);
  for (std::size_t i = 0; i < request_.branches.size(); ++i) {
    result_.branches[i].scores.resize(request_.branches[i].score_positions.size());
  }
  const Session* known = core_.sessions->find(request_.session);
  INFERSCALE_ASSIGN_OR_RETURN(
      plan_, make_run_plan(request_, core_.info, known != nullptr ? &known->cached : nullptr));
  result_.fallbacks = plan_.fallbacks;
  result_.tokens_reused = static_cast<std::uint32_t>(plan_.reused);
  if (!request_.session.empty()) {
    Session& session = core_.sessions->open(request_.session);
    main_ = session.sequence;
    core_.sessions->truncate(session, plan_.reused);
  }
  std::size_t cells = tokens_.size() + request_.sampling.max_tokens;
  for (const Branch& branch : request_.branches) {
    cells += single() ? 0 : branch.tokens.size();
  }
  const std::size_t capacity = core_.info.context_tokens;
  core_.sessions->make_room(std::min(cells, capacity), capacity, request_.session);
  return Status();
}

Status LlamaRun::fill_cache() {
  if (plan_.inject_end > plan_.inject_begin) {
    INFERSCALE_RETURN_IF_ERROR(prefill_text(plan_.reused, plan_.inject_begin, false));
    if (const char* reason = inject()) {
      start_again_as_text(reason);
    }
  }
  const bool generates = request_.sampling.max_tokens > 0;
  INFERSCALE_RETURN_IF_ERROR(prefill_text(plan_.inject_end, tokens_.size(), generates));
  return single() ? Status() : prefill_branches();
}

Status LlamaRun::compose() {
  std::vector<std::int32_t> positions;
  for (std::size_t i = plan_.inject_begin; i < plan_.inject_end; ++i) {
    positions.push_back(as_position(i));
  }
  INFERSCALE_RETURN_IF_ERROR(core_.compose_buffer.prepare(core_.state, positions));
  std::vector<ComposeItem> items;
  std::size_t row = 0;
  for (std::size_t i = plan_.first_segment; i < plan_.last_segment; ++i) {
    const Segment& segment = request_.plan[i];
    if (!segment.tokens.empty()) {
      const auto position = static_cast<std::uint32_t>(plan_.inject_begin + row);
      items.push_back({segment.lease.record(), position, row, {}});
    }
    row += segment.tokens.size();
  }
  INFERSCALE_RETURN_IF_ERROR(kv_compose(items, *core_.rope, core_.compose_buffer.rows()));
  // A restore that fails half-way may leave damage behind, so libllama only gets what it will
  // accept.
  return parse_state(core_.compose_buffer.bytes(), core_.state).status();
}

const char* LlamaRun::inject() {
  Stopwatch watch;
  const Status composed = compose();
  add_time(result_.timings.compose_ms, watch);
  if (!composed.ok()) {
    log_message(LogLevel::kError, "composing failed: " + composed.to_string());
    return kComposeFailed;
  }
  watch.restart();
  if (core_.hooks->reject_states.load() > 0) {
    core_.hooks->reject_states.fetch_sub(1);
    core_.compose_buffer.rows().k[0][-1] ^= std::byte{0xff};  // the row size in front of the row
  }
  const Status written = core_.sequences->write(kScratchSequence, core_.compose_buffer.bytes());
  if (!written.ok()) {
    log_message(LogLevel::kError, "libllama rejected a composed state: " + written.to_string());
    return kStateRejected;
  }
  core_.sequences->share(kScratchSequence, main_, as_position(plan_.inject_begin),
                         as_position(plan_.inject_end));
  core_.sequences->remove(kScratchSequence, 0, -1);
  add_time(result_.timings.inject_ms, watch);
  result_.tokens_injected = static_cast<std::uint32_t>(plan_.inject_end - plan_.inject_begin);
  for (std::size_t i = plan_.first_segment; i < plan_.last_segment; ++i) {
    result_.segment_injected[i] = !request_.plan[i].tokens.empty();
  }
  return nullptr;
}

/// Nothing of this run is trusted to be in the cache any more.
void LlamaRun::start_again_as_text(const char* reason) {
  add_fallback(result_.fallbacks, reason,
               static_cast<std::uint32_t>(plan_.last_segment - plan_.first_segment));
  core_.sequences->remove(kScratchSequence, 0, -1);
  core_.sequences->remove(main_, 0, -1);
  if (Session* session = core_.sessions->find(request_.session)) {
    core_.sessions->truncate(*session, 0);
  }
  plan_ = RunPlan{};
  result_.tokens_reused = 0;
  result_.tokens_prefilled = 0;
}

bool LlamaRun::scored(std::int32_t sequence, std::size_t position) const {
  for (std::size_t i = 0; i < request_.branches.size(); ++i) {
    if (sequence != main_ && sequence != sequence_of(i)) {
      continue;
    }
    const std::vector<std::uint32_t>& wanted = request_.branches[i].score_positions;
    if (std::find(wanted.begin(), wanted.end(), position) != wanted.end()) {
      return true;
    }
  }
  return false;
}

Status LlamaRun::keep_scores(std::int32_t sequence, std::size_t position,
                             std::span<const float> logits) {
  std::vector<float> log_probs;
  for (std::size_t i = 0; i < request_.branches.size(); ++i) {
    const std::vector<std::uint32_t>& wanted = request_.branches[i].score_positions;
    for (std::size_t k = 0; k < wanted.size(); ++k) {
      if (wanted[k] != position || (sequence != main_ && sequence != sequence_of(i))) {
        continue;
      }
      if (log_probs.empty()) {
        INFERSCALE_ASSIGN_OR_RETURN(log_probs, log_softmax(logits));
      }
      result_.branches[i].scores[k] = {static_cast<std::uint32_t>(position), log_probs};
    }
  }
  return Status();
}

Status LlamaRun::prefill(std::vector<BatchToken> batch) {
  if (batch.empty()) {
    return Status();
  }
  const Stopwatch watch;
  for (BatchToken& token : batch) {
    token.logits = token.logits || scored(token.sequence, static_cast<std::size_t>(token.position));
  }
  const Status status =
      core_.sequences->decode(batch, [&](std::size_t i, std::span<const float> logits) {
        return keep_scores(batch[i].sequence, static_cast<std::size_t>(batch[i].position), logits);
      });
  add_time(result_.timings.prefill_ms, watch);
  result_.tokens_prefilled += static_cast<std::uint32_t>(batch.size());
  return status;
}

Status LlamaRun::prefill_text(std::size_t begin, std::size_t end, bool want_last) {
  std::vector<BatchToken> batch;
  for (std::size_t i = begin; i < end; ++i) {
    batch.push_back({tokens_[i], as_position(i), main_, want_last && i + 1 == end});
  }
  return prefill(std::move(batch));
}

Status LlamaRun::prefill_branches() {
  std::vector<BatchToken> batch;
  for (std::size_t i = 0; i < request_.branches.size(); ++i) {
    if (plan_tokens_ > 0) {
      core_.sequences->share(main_, sequence_of(i), 0, as_position(plan_tokens_));
    }
    std::size_t position = plan_tokens_;
    for (const TokenId token : request_.branches[i].tokens) {
      batch.push_back({token, as_position(position++), sequence_of(i), false});
    }
  }
  return prefill(std::move(batch));
}

Status LlamaRun::generate() {
  if (request_.sampling.max_tokens == 0) {
    return Status();
  }
  INFERSCALE_ASSIGN_OR_RETURN(const LlamaSamplerPtr sampler, make_sampler(request_.sampling));
  Stopwatch watch;
  std::size_t position = tokens_.size();
  for (;;) {
    llama_context* context = core_.sequences->context();
    const TokenId token =
        llama_sampler_sample(sampler.get(), context, core_.sequences->last_output());
    if (result_.timings.first_token_ms == 0) {
      result_.timings.first_token_ms = clock_.elapsed_ms();
      watch.restart();
    }
    if (llama_vocab_is_eog(llama_model_get_vocab(core_.model.get()), token)) {
      break;
    }
    result_.tokens.push_back(token);
    if (request_.on_token != nullptr && !request_.on_token(token)) {
      break;
    }
    if (result_.tokens.size() >= request_.sampling.max_tokens ||
        position >= core_.info.context_tokens) {
      result_.stopped_by_limit = true;
      break;
    }
    const BatchToken next{token, as_position(position++), main_, true};
    INFERSCALE_RETURN_IF_ERROR(core_.sequences->decode({&next, 1}, nullptr));
    ++decoded_;
  }
  add_time(result_.timings.decode_ms, watch);
  return Status();
}

void LlamaRun::capture() {
  const Stopwatch watch;
  for (std::size_t i = 0; i < request_.branches.size(); ++i) {
    for (const CaptureRange& range : request_.branches[i].captures) {
      std::shared_ptr<const Record> record;
      if (core_.info.injection) {
        Result<std::shared_ptr<const Record>> captured = capture_range(i, range);
        if (captured.ok()) {
          record = std::move(captured).value();
        } else {
          log_message(LogLevel::kError, "capture failed: " + captured.status().to_string());
        }
      }
      if (record == nullptr) {
        add_fallback(result_.fallbacks, core_.info.injection ? kCaptureFailed : kCaptureOff);
      }
      result_.branches[i].records.push_back(std::move(record));
    }
  }
  add_time(result_.timings.capture_ms, watch);
}

Result<std::shared_ptr<const Record>> LlamaRun::capture_range(std::size_t branch,
                                                              const CaptureRange& range) {
  INFERSCALE_ASSIGN_OR_RETURN(
      const StateView view,
      core_.sequences->read(sequence_of(branch), as_position(range.begin), as_position(range.end),
                            kScratchSequence, core_.state));
  const std::size_t count = range.end - range.begin;
  // Rows come in the order of the cells, which need not be that of the positions.
  std::vector<std::uint32_t> rows(count, UINT32_MAX);
  for (std::size_t row = 0; row < view.positions.size(); ++row) {
    const std::size_t index = static_cast<std::size_t>(view.positions[row]) - range.begin;
    if (index >= count || rows[index] != UINT32_MAX) {
      return internal_error(
          fmt::format("position {} of a captured range is there twice or should not be there",
                      view.positions[row]));
    }
    rows[index] = static_cast<std::uint32_t>(row);
  }
  const std::vector<TokenId> tokens = sequence_tokens(request_, request_.branches[branch]);
  RecordMeta meta = range.meta;
  meta.codec = capture_codec(range.meta.codec, view.rows.dtype);
  INFERSCALE_ASSIGN_OR_RETURN(
      RecordBuilder builder,
      RecordBuilder::create(meta, std::span(tokens).subspan(range.begin, count)));
  INFERSCALE_RETURN_IF_ERROR(kv_capture(view.rows, {range.begin, 0, rows}, *core_.rope, builder));
  return seal_as(std::move(builder), range.meta.codec);
}

void LlamaRun::finish(bool ok) {
  if (core_.sequences->broken()) {
    core_.reset();
    return;
  }
  core_.sequences->remove(kScratchSequence, 0, -1);
  for (std::size_t i = 0; !single() && i < request_.branches.size(); ++i) {
    core_.sequences->remove(sequence_of(i), 0, -1);
  }
  Session* session = core_.sessions->find(request_.session);
  if (session == nullptr) {
    core_.sequences->remove(main_, 0, -1);
    return;
  }
  if (!ok) {
    core_.sessions->truncate(*session, plan_.reused);
    return;
  }
  if (result_.tokens_injected > 0) {
    session->cached.first_injected = std::min(session->cached.first_injected, plan_.inject_begin);
  }
  session->cached.tokens = tokens_;
  session->cached.tokens.insert(session->cached.tokens.end(), result_.tokens.begin(),
                                result_.tokens.begin() + static_cast<std::ptrdiff_t>(decoded_));
}

}  // namespace inferscale
