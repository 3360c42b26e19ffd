#include "memory/service.h"

#include <fmt/format.h>

#include "engine/llama/llama_engine.h"
#include "memory/calibration.h"
#include "memory/chat.h"
#include "retrieval/llama_embedder.h"

namespace inferscale {

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

Result<std::unique_ptr<MemoryService>> open_memory_service(
    const MemoryOptions& options, const ServiceDependencies& dependencies) {
  INFERSCALE_ASSIGN_OR_RETURN(std::unique_ptr<ServiceCore> core,
                              ServiceCore::open(options, dependencies));
  return std::unique_ptr<MemoryService>(std::make_unique<Service>(std::move(core)));
}

Result<std::unique_ptr<MemoryService>> MemoryService::open(const MemoryOptions& options) {
  return open_memory_service(options, llama_dependencies());
}

Service::Service(std::unique_ptr<ServiceCore> core)
    : core_(std::move(core)), encoder_(*core_), answerer_(*core_, encoder_) {}

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
