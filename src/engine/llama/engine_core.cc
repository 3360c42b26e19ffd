#include "engine/llama/engine_core.h"

#include <fmt/core.h>

#include <algorithm>
#include <thread>

#include "base/log.h"
#include "engine/llama/self_test.h"
#include "model/gguf_model.h"

namespace inferscale {
namespace {

constexpr std::uint32_t kDefaultContext = 8192;
constexpr std::uint32_t kDefaultSessions = 8;
constexpr std::uint32_t kDefaultBatchTokens = 512;
constexpr std::uint32_t kMaxBranches = 128;

Result<std::uint32_t> context_tokens(const LlamaEngineOptions& options, const ModelSpec& spec) {
  if (options.context_tokens == 0) {
    return std::min(spec.trained_positions, kDefaultContext);
  }
  if (options.context_tokens > spec.trained_positions) {
    return invalid_argument(
        fmt::format("context_tokens is {}, the model was trained for 1..{} positions",
                    options.context_tokens, spec.trained_positions));
  }
  return options.context_tokens;
}

Status check_options(const LlamaEngineOptions& options) {
  if (options.max_branches == 0 || options.max_branches > kMaxBranches) {
    return invalid_argument(
        fmt::format("max_branches is {}, accepted are 1..{}", options.max_branches, kMaxBranches));
  }
  if (options.max_queue == 0) {
    return invalid_argument("max_queue is 0, at least 1 is needed");
  }
  if (options.threads < 0 || options.threads > 512) {
    return invalid_argument(fmt::format("threads is {}, accepted are 0..512", options.threads));
  }
  if (options.cache_dtype != KvCodec::kF16 && options.cache_dtype != KvCodec::kF32) {
    return unsupported("cache_dtype: accepted are f16 and f32");
  }
  return Status();
}

Result<LlamaModelPtr> load_model(const std::filesystem::path& path) {
  llama_model_params params = llama_model_default_params();
  params.n_gpu_layers = 0;
  LlamaModelPtr model;
  try {
    model.reset(llama_model_load_from_file(path.c_str(), params));
  } catch (const std::exception& error) {
    return data_loss(fmt::format("{}: {}", path.string(), error.what()));
  }
  if (model == nullptr) {
    return data_loss(fmt::format("{}: libllama could not load the model", path.string()));
  }
  return model;
}

int thread_count(int requested) {
  return requested > 0 ? requested
                       : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

/// What of the engine's settings changes the KV that it computes, beyond the model: part of the
/// fingerprint. The cache's type is in it because later layers see rounded rows of earlier tokens.
std::string fingerprint_settings(KvCodec cache_dtype) {
  return fmt::format("llama cache={}", codec_name(cache_dtype));
}

Status make_context(LlamaCore& core, const LlamaEngineOptions& options) {
  const std::uint32_t max_sessions =
      core.hooks->max_sessions != 0 ? core.hooks->max_sessions : kDefaultSessions;
  SequencesOptions settings;
  settings.context_tokens = core.info.context_tokens;
  settings.sequences =
      static_cast<std::uint32_t>(kFirstBranchSequence) + options.max_branches + max_sessions;
  settings.batch_tokens =
      core.hooks->batch_tokens != 0 ? core.hooks->batch_tokens : kDefaultBatchTokens;
  settings.batch_tokens = std::min(settings.batch_tokens, core.info.context_tokens);
  settings.cache_dtype = options.cache_dtype;
  settings.threads = thread_count(options.threads);
  INFERSCALE_ASSIGN_OR_RETURN(core.sequences, LlamaSequences::create(core.model.get(), settings));
  const auto first_session = kFirstBranchSequence + static_cast<std::int32_t>(options.max_branches);
  core.sessions = std::make_unique<SessionTable>(*core.sequences, first_session, max_sessions);
  return Status();
}

void run_self_test(LlamaCore& core, bool enabled) {
  core.info.injection = true;
  if (!enabled) {
    return;
  }
  const Result<StateForm> form =
      self_test(*core.sequences, core.state, *core.rope, core.hooks->state_form);
  core.sequences->clear();
  if (form.ok()) {
    core.state.form = *form;
    return;
  }
  core.info.injection = false;
  core.info.injection_off_reason = form.status().message();
  log_message(LogLevel::kWarning, "injection is off: " + core.info.injection_off_reason);
}

}  // namespace

Result<std::unique_ptr<LlamaCore>> LlamaCore::open(const LlamaEngineOptions& options,
                                                   std::shared_ptr<LlamaEngineHooks> hooks) {
  INFERSCALE_RETURN_IF_ERROR(check_options(options));
  ensure_llama_backend();
  auto core = std::make_unique<LlamaCore>();
  core->hooks = std::move(hooks);
  FingerprintOptions fingerprint;
  fingerprint.cache_directory = options.cache_directory;
  fingerprint.engine_settings = fingerprint_settings(options.cache_dtype);
  INFERSCALE_ASSIGN_OR_RETURN(core->info.model, read_model_spec(options.model, fingerprint));
  INFERSCALE_ASSIGN_OR_RETURN(core->info.context_tokens, context_tokens(options, core->info.model));
  core->info.cache_dtype = options.cache_dtype;
  core->info.max_branches = options.max_branches;
  core->info.library = fmt::format("libllama {}", llama_version());
  const RopeSpec& rope = core->hooks->rope ? *core->hooks->rope : core->info.model.rope;
  INFERSCALE_ASSIGN_OR_RETURN(
      core->rope, RopeTable::build(rope, core->info.context_tokens, core->info.model.key_bias));
  INFERSCALE_ASSIGN_OR_RETURN(core->model, load_model(options.model));
  core->state = {StateForm::kPlain, core->info.model.shape, options.cache_dtype};
  INFERSCALE_RETURN_IF_ERROR(make_context(*core, options));
  run_self_test(*core, options.self_test);
  return core;
}

void LlamaCore::reset() {
  sequences->clear();
  sessions->forget_all();
}

}  // namespace inferscale
