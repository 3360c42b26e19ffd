#include "engine/vllm/vllm_engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <mutex>
#include <optional>
#include <thread>

#include "base/clock.h"
#include "engine/run_plan.h"
#include "engine/vllm/json_call.h"
#include "engine/vllm/parking.h"
#include "engine/vllm/remote_kv_store.h"
#include "engine/vllm/scoring.h"
#include "engine/vllm/vllm_request.h"

namespace inferscale {
namespace {

constexpr std::size_t kBranchesAtOnce = 8;
constexpr std::uint32_t kMaxBranches = 64;
constexpr int kMaxRuns = 64;  // at once, of all threads

struct ServedModel {
  std::string id;
  std::uint64_t max_model_len = 0;
};

Result<ServedModel> served_model(HttpClient& client, const std::string& url) {
  vllm::JsonCall call;
  call.method = "GET";
  call.url = url + "/v1/models";
  const Result<vllm::Json> reply = vllm::call_json(client, call);
  if (!reply.ok()) {
    return reply.status().with_context("vLLM server (is it running, and has it loaded its model?)");
  }
  const vllm::Json& list = vllm::part_field(*reply, "data");
  if (!list.is_array() || list.empty() || !list[0].is_object() ||
      vllm::text_field(list[0], "id").empty()) {
    return unavailable(call.url + ": names no model");
  }
  return ServedModel{vllm::text_field(list[0], "id"), vllm::number_field(list[0], "max_model_len")};
}

/// Counts the runs that are under way.
class RunCount {
 public:
  explicit RunCount(std::atomic<int>& runs) : runs_(runs), at_once_(++runs) {}
  ~RunCount() { --runs_; }
  RunCount(const RunCount&) = delete;
  RunCount& operator=(const RunCount&) = delete;
  [[nodiscard]] int at_once() const { return at_once_; }

 private:
  std::atomic<int>& runs_;
  const int at_once_;
};

class VllmEngine final : public Engine {
 public:
  static Result<std::unique_ptr<Engine>> open(const VllmOptions& options) {
    std::unique_ptr<VllmEngine> engine(new VllmEngine(options));
    INFERSCALE_ASSIGN_OR_RETURN(const ServedModel model,
                                served_model(*engine->client_, options.address.url));
    INFERSCALE_ASSIGN_OR_RETURN(const vllm::ControlInfo info, engine->control_.info());
    if (model.max_model_len != 0 && model.max_model_len != info.max_model_len) {
      return conflict(fmt::format(
          "the control channel is that of another server: it says {} tokens of context, {} says "
          "{}; name the right one with control=URL or control-file=PATH",
          info.max_model_len, options.address.url, model.max_model_len));
    }
    INFERSCALE_ASSIGN_OR_RETURN(
        engine->tokenizer_,
        vllm::ServerTokenizer::open(*engine->client_, options.address.url, model.id));
    engine->chat_format_.emplace(*engine->client_, options.address.url, model.id);
    engine->model_ = model.id;
    engine->parking_.emplace(std::max(info.block_size, 1U));
    engine->fill_info(info, model);
    return std::unique_ptr<Engine>(std::move(engine));
  }

  const EngineInfo& info() const override { return info_; }
  const Tokenizer& tokenizer() const override { return *tokenizer_; }
  const ChatFormat& chat_format() const override { return *chat_format_; }
  Result<RunResult> run(RunRequest request) override;
  /// The server forgets its part by itself.
  Status drop_session(const std::string& session) override {
    parking_->forget(session);
    return Status();
  }

 private:
  explicit VllmEngine(const VllmOptions& options)
      : options_(options),
        client_(make_http_client({.ca_file = {}, .kept_connections = kBranchesAtOnce})),
        control_(options.address, options.control_file, options.secret) {}

  void fill_info(const vllm::ControlInfo& control, const ServedModel& model);
  [[nodiscard]] vllm::ServerParts parts() {
    return {*client_, control_, *tokenizer_, info_, options_.address.url, model_, options_.secret};
  }
  [[nodiscard]] Result<std::vector<vllm::BranchOutcome>> run_branches(const RunRequest& request,
                                                                      const RunPlan& plan);
  [[nodiscard]] Status check_run(const RunRequest& request) const;
  void note_session(const RunRequest& request, bool parks, const vllm::BranchOutcome& outcome);

  const VllmOptions options_;
  const std::unique_ptr<HttpClient> client_;
  vllm::ControlClient control_;
  std::unique_ptr<vllm::ServerTokenizer> tokenizer_;
  std::optional<vllm::ServerChatFormat> chat_format_;
  std::optional<vllm::ParkingLot> parking_;
  std::string model_;
  EngineInfo info_;
  std::uint32_t vocab_size_ = 0;  // of the model's last layer; 0: the server does not say
  std::atomic<int> runs_{0};
};

void VllmEngine::fill_info(const vllm::ControlInfo& control, const ServedModel& model) {
  info_.model = control.spec;
  info_.model.name = model.id;
  info_.model.vocab_size = std::numeric_limits<TokenId>::max();  // the server knows, and checks
  info_.cache_dtype = control.cache_dtype;
  vocab_size_ = control.spec.vocab_size;
  // The server makes one token at least.
  info_.context_tokens = std::max(control.max_model_len, 1U) - 1;
  info_.max_branches = kMaxBranches;
  info_.injection = control.injection;
  info_.injection_off_reason =
      control.injection ? "" : "the vLLM server injects nothing: " + control.reason;
  info_.library = "vllm " + control.vllm_version;
  if (control.store_codec != control.cache_dtype) {  // figures with these are of their own
    info_.library += fmt::format(", records in {}", codec_name(control.store_codec));
  }
}

/// The first branch alone, so that what all share is in the server's prefix cache for the others.
Result<std::vector<vllm::BranchOutcome>> VllmEngine::run_branches(const RunRequest& request,
                                                                  const RunPlan& plan) {
  const std::vector<RecordKey> before = parking_->before(request);
  std::vector<vllm::BranchOutcome> outcomes(request.branches.size());
  INFERSCALE_ASSIGN_OR_RETURN(
      outcomes[0], vllm::run_branch(parts(), request, plan, request.branches[0], before));
  std::atomic<std::size_t> next{1};
  std::mutex mutex;
  Status failed;
  const auto work = [&] {
    for (std::size_t i = next.fetch_add(1); i < outcomes.size(); i = next.fetch_add(1)) {
      Result<vllm::BranchOutcome> outcome =
          vllm::run_branch(parts(), request, plan, request.branches[i], before);
      const std::lock_guard lock(mutex);
      if (outcome.ok()) {
        outcomes[i] = std::move(outcome).value();
      } else if (failed.ok()) {
        failed = outcome.status();
        next = outcomes.size();
      }
    }
  };
  std::vector<std::thread> threads;
  for (std::size_t i = 1; i < std::min(outcomes.size(), kBranchesAtOnce + 1); ++i) {
    threads.emplace_back(work);
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  INFERSCALE_RETURN_IF_ERROR(failed);
  return outcomes;
}

/// Whether the connector says that the segment, which begins at token `begin`, came from its
/// record.
bool was_injected(const Segment& segment, std::size_t begin, const RecordKey& key,
                  const vllm::BranchOutcome& outcome) {
  return std::any_of(
      outcome.trace.segments.begin(), outcome.trace.segments.end(), [&](const auto& span) {
        return span.key == key && span.begin == begin && span.end == begin + segment.tokens.size();
      });
}

void note_segments(const RunRequest& request, const RunPlan& plan,
                   const std::vector<vllm::BranchOutcome>& outcomes,
                   std::span<const std::byte> secret, RunResult& result) {
  result.segment_injected.assign(request.plan.size(), false);
  std::size_t begin = 0;
  for (std::size_t i = 0; i < plan.last_segment; ++i) {
    const Segment& segment = request.plan[i];
    if (i >= plan.first_segment && !segment.tokens.empty()) {
      const RecordKey key = make_record_key(secret, segment.lease.record()->meta(), segment.tokens);
      result.segment_injected[i] =
          std::all_of(outcomes.begin(), outcomes.end(), [&](const vllm::BranchOutcome& outcome) {
            return was_injected(segment, begin, key, outcome);
          });
    }
    begin += segment.tokens.size();
  }
}

/// A place that is scored has what the answer had: its records may have gone in between.
Status check_probes(const RunRequest& request, const std::vector<vllm::BranchOutcome>& probed,
                    std::span<const std::byte> secret, const RunResult& result) {
  std::size_t begin = 0;
  for (std::size_t i = 0; i < request.plan.size(); ++i) {
    const Segment& segment = request.plan[i];
    if (result.segment_injected[i]) {
      const RecordKey key = make_record_key(secret, segment.lease.record()->meta(), segment.tokens);
      if (!std::all_of(probed.begin(), probed.end(), [&](const vllm::BranchOutcome& outcome) {
            return was_injected(segment, begin, key, outcome);
          })) {
        return unavailable(
            "the vLLM server injected a record for the answer and not for a place that is scored; "
            "give its tiers more room (gpu_budget, host_budget)");
      }
    }
    begin += segment.tokens.size();
  }
  return Status();
}

Status note_captures(const Branch& branch, const std::vector<TokenId>& tokens,
                     const vllm::BranchOutcome& outcome, std::span<const std::byte> secret,
                     RunResult& result) {
  BranchResult out;
  for (const CaptureRange& range : branch.captures) {
    const auto ids = std::span(tokens).subspan(range.begin, range.end - range.begin);
    const RecordKey key = make_record_key(secret, range.meta, ids);
    const std::vector<RecordKey>& captured = outcome.trace.captured;
    if (std::find(captured.begin(), captured.end(), key) == captured.end()) {
      add_fallback(result.fallbacks, "capture_failed");
      out.records.push_back(nullptr);
      continue;
    }
    INFERSCALE_ASSIGN_OR_RETURN(std::shared_ptr<const Record> record,
                                Record::describe(range.meta, ids));
    out.records.push_back(std::move(record));
  }
  result.branches.push_back(std::move(out));
  return Status();
}

void note_counts(std::size_t prompt, const vllm::BranchOutcome& outcome, RunResult& result) {
  const auto all = static_cast<std::uint32_t>(prompt);
  const std::uint32_t reused = std::min(outcome.trace.local_hit, all);
  const std::uint32_t injected = std::min(outcome.trace.injected, all - reused);
  result.tokens_reused += reused;
  result.tokens_injected += injected;
  result.tokens_prefilled += all - reused - injected;
  for (const Fallback& fallback : outcome.trace.fallbacks) {
    add_fallback(result.fallbacks, fallback.reason, fallback.count);
  }
  if (outcome.load_failed) {
    add_fallback(result.fallbacks, "engine_load_failed");
  }
  if (!outcome.traced) {
    add_fallback(result.fallbacks, "trace_missing");
  }
}

Status VllmEngine::check_run(const RunRequest& request) const {
  INFERSCALE_RETURN_IF_ERROR(check_request(request, info_));
  return vllm::check_scores(request, vocab_size_);
}

void VllmEngine::note_session(const RunRequest& request, bool parks,
                              const vllm::BranchOutcome& outcome) {
  if (!parks) {
    parking_->turn_ran(request.session, outcome.trace);
    return;
  }
  std::vector<TokenId> tokens = sequence_tokens(request, request.branches.front());
  std::optional<vllm::RequestTrace::Span> record;
  for (const CaptureRange& range : request.branches.front().captures) {
    const auto ids = std::span(tokens).subspan(range.begin, range.end - range.begin);
    const RecordKey key = make_record_key(options_.secret, range.meta, ids);
    const std::vector<RecordKey>& captured = outcome.trace.captured;
    if (std::find(captured.begin(), captured.end(), key) != captured.end()) {
      record = {key, range.begin, range.end};
    }
  }
  parking_->parked(request.session, std::move(tokens), record);
}

Result<RunResult> VllmEngine::run(RunRequest request) {
  const Stopwatch watch;
  INFERSCALE_RETURN_IF_ERROR(check_run(request));
  const bool parks = vllm::is_parking(request);
  if (parks) {
    INFERSCALE_ASSIGN_OR_RETURN(const std::optional<CaptureRange> rest,
                                parking_->rest(request, info_));
    if (rest) {
      request.branches.front().captures.push_back(*rest);
    }
  }
  const RunCount counted(runs_);
  if (counted.at_once() > kMaxRuns) {
    return resource_exhausted(
        fmt::format("{} runs are under way on the vLLM server; try again later", kMaxRuns));
  }
  INFERSCALE_ASSIGN_OR_RETURN(const RunPlan plan, make_run_plan(request, info_, nullptr));
  INFERSCALE_ASSIGN_OR_RETURN(std::vector<vllm::BranchOutcome> outcomes,
                              run_branches(request, plan));
  // Behind the branches, whose blocks they find in the server's prefix cache.
  std::vector<vllm::BranchOutcome> probed;
  if (const std::optional<RunRequest> probes = vllm::score_probes(request)) {
    INFERSCALE_ASSIGN_OR_RETURN(probed, run_branches(*probes, plan));
  }
  if (!request.session.empty()) {
    note_session(request, parks, outcomes.front());
  }
  RunResult result;
  result.fallbacks = plan.fallbacks;
  note_segments(request, plan, outcomes, options_.secret, result);
  INFERSCALE_RETURN_IF_ERROR(check_probes(request, probed, options_.secret, result));
  for (std::size_t i = 0; i < outcomes.size(); ++i) {
    const std::vector<TokenId> tokens = sequence_tokens(request, request.branches[i]);
    note_counts(tokens.size(), outcomes[i], result);
    INFERSCALE_RETURN_IF_ERROR(
        note_captures(request.branches[i], tokens, outcomes[i], options_.secret, result));
  }
  INFERSCALE_RETURN_IF_ERROR(
      vllm::note_scores(request, outcomes, probed, vocab_size_, result.branches));
  if (request.sampling.max_tokens > 0) {
    result.tokens = std::move(outcomes[0].generated);
    result.stopped_by_limit = outcomes[0].stopped_by_limit;
    result.timings.first_token_ms = outcomes[0].first_token_ms;
    result.timings.decode_ms = outcomes[0].total_ms - outcomes[0].first_token_ms;
  }
  result.timings.total_ms = watch.elapsed_ms();
  result.timings.prefill_ms =
      request.sampling.max_tokens > 0 ? outcomes[0].first_token_ms : result.timings.total_ms;
  return result;
}

}  // namespace

Result<std::unique_ptr<Engine>> open_vllm_engine(const VllmOptions& options) {
  return VllmEngine::open(options);
}

std::unique_ptr<KvStore> make_vllm_store(const VllmOptions& options,
                                         std::unique_ptr<KvStore> local) {
  return std::make_unique<vllm::RemoteKvStore>(
      std::move(local),
      std::make_shared<vllm::ControlClient>(options.address, options.control_file, options.secret));
}

}  // namespace inferscale
