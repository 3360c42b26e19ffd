#include "memory/service.h"

#include <fmt/format.h>

#include "base/file.h"
#include "engine/llama/llama_engine.h"
#include "engine/vllm/vllm_engine.h"
#include "memory/calibration.h"
#include "memory/chat.h"
#include "retrieval/llama_embedder.h"

namespace inferscale {

namespace {

Result<VllmOptions> vllm_options(const MemoryOptions& options) {
  VllmOptions vllm;
  INFERSCALE_ASSIGN_OR_RETURN(vllm.address, parse_vllm_address(options.engine));
  vllm.control_file = options.directory / "vllm" / "control.json";
  INFERSCALE_ASSIGN_OR_RETURN(vllm.secret, read_secret(options.directory));
  return vllm;
}

void use_vllm(ServiceDependencies& dependencies) {
  dependencies.open_engine = [](const MemoryOptions& options) -> Result<std::unique_ptr<Engine>> {
    INFERSCALE_ASSIGN_OR_RETURN(const VllmOptions vllm, vllm_options(options));
    return open_vllm_engine(vllm);
  };
  dependencies.wrap_store = [](const MemoryOptions& options,
                               std::unique_ptr<KvStore> local) -> Result<std::unique_ptr<KvStore>> {
    INFERSCALE_ASSIGN_OR_RETURN(const VllmOptions vllm, vllm_options(options));
    return make_vllm_store(vllm, std::move(local));
  };
}

}  // namespace

ServiceDependencies llama_dependencies() {
  ServiceDependencies dependencies;
  dependencies.open_engine = [](const MemoryOptions& options) -> Result<std::unique_ptr<Engine>> {
    if (options.model.empty()) {
      return invalid_argument("model: not set; give the path of a GGUF file");
    }
    LlamaEngineOptions engine;
    engine.model = options.model;
    engine.cache_directory = options.cache_directory;
    engine.cache_dtype = options.cache_dtype;
    engine.context_tokens = options.context_tokens;
    engine.threads = options.threads;
    return open_llama_engine(engine);
  };
  dependencies.open_embedder =
      [](const MemoryOptions& options) -> Result<std::unique_ptr<Embedder>> {
    if (options.embedder.empty()) {
      return std::unique_ptr<Embedder>();
    }
    LlamaEmbedderOptions embedder;
    embedder.model = options.embedder;
    embedder.cache_directory = options.cache_directory;
    embedder.threads = options.threads;
    return open_llama_embedder(embedder);
  };
  return dependencies;
}

Result<ServiceDependencies> service_dependencies(const MemoryOptions& options) {
  ServiceDependencies dependencies = llama_dependencies();
  if (!options.engine.empty()) {
    INFERSCALE_RETURN_IF_ERROR(parse_vllm_address(options.engine).status());
    use_vllm(dependencies);
  }
  return dependencies;
}

Result<std::unique_ptr<MemoryService>> open_memory_service(
    const MemoryOptions& options, const ServiceDependencies& dependencies) {
  INFERSCALE_ASSIGN_OR_RETURN(std::unique_ptr<ServiceCore> core,
                              ServiceCore::open(options, dependencies));
  return std::unique_ptr<MemoryService>(std::make_unique<Service>(std::move(core)));
}

Result<std::unique_ptr<MemoryService>> MemoryService::open(const MemoryOptions& options) {
  INFERSCALE_ASSIGN_OR_RETURN(const ServiceDependencies dependencies,
                              service_dependencies(options));
  return open_memory_service(options, dependencies);
}

Service::Service(std::unique_ptr<ServiceCore> core)
    : core_(std::move(core)), encoder_(*core_), answerer_(*core_, encoder_) {
  if (core_->options().encode_in_background) {
    start_worker();
  }
}

void Service::start_worker() {
  EncodeWorker::Work work;
  work.pass = [this](const WorkControl& control) -> Result<EncodeReply> {
    INFERSCALE_ASSIGN_OR_RETURN(const CatalogCounts counts, core_->catalog().counts_all());
    if (counts.facts == 0) {
      return EncodeReply();  // without loading models for it
    }
    INFERSCALE_RETURN_IF_ERROR(embed_missing(control));
    return encoder_.encode_pending(control);
  };
  work.next_due_us = [this]() -> std::optional<TimestampUs> {
    EngineParts* const parts = core_->loaded_engine();
    if (parts == nullptr) {
      return std::nullopt;
    }
    const auto counts =
        core_->catalog().count_encode_failures(parts->fingerprint(), core_->context().spelling());
    if (!counts.ok() || !counts->next_try) {
      return std::nullopt;
    }
    return *counts->next_try - core_->now();
  };
  encoder_.set_on_want([this] { leave_to_worker(); });
  worker_ = std::make_unique<EncodeWorker>(std::move(work));
}

void Service::leave_to_worker() {
  if (worker_) {
    worker_->wake();
  }
}

Result<AskReply> Service::ask(const AskRequest& request) { return answerer_.ask(request); }

Result<CompareReply> Service::compare(const AskRequest& request, std::uint32_t rounds) {
  return answerer_.compare(request, rounds);
}

Result<std::unique_ptr<Chat>> Service::open_chat(const ChatOptions& options) {
  INFERSCALE_ASSIGN_OR_RETURN(EngineParts* const parts, core_->engine());
  if (options.max_tokens < 1 || options.max_tokens >= parts->engine->info().context_tokens) {
    return invalid_argument(fmt::format("max_tokens: {} is outside 1 .. {}", options.max_tokens,
                                        parts->engine->info().context_tokens - 1));
  }
  return std::unique_ptr<Chat>(std::make_unique<ServiceChat>(
      *core_, answerer_, options, fmt::format("chat-{}", chats_opened_.fetch_add(1))));
}

Result<std::uint32_t> Service::calibrate_top_j() { return inferscale::calibrate_top_j(*core_, {}); }

}  // namespace inferscale
