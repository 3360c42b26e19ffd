#include "cli/eval/eval_models.h"

#include <map>
#include <mutex>

#include "base/file.h"

namespace inferscale::cli {
namespace {

class LentEngine final : public Engine {
 public:
  explicit LentEngine(Engine& engine) : engine_(engine) {}
  const EngineInfo& info() const override { return engine_.info(); }
  const Tokenizer& tokenizer() const override { return engine_.tokenizer(); }
  const ChatFormat& chat_format() const override { return engine_.chat_format(); }
  Result<RunResult> run(RunRequest request) override { return engine_.run(std::move(request)); }
  Status drop_session(const std::string& session) override { return engine_.drop_session(session); }

 private:
  Engine& engine_;
};

class LentEmbedder final : public Embedder {
 public:
  explicit LentEmbedder(Embedder& embedder) : embedder_(embedder) {}
  const std::string& id() const override { return embedder_.id(); }
  std::size_t dim() const override { return embedder_.dim(); }
  std::vector<Result<TextVectors>> embed(std::span<const std::string> texts) override {
    return embedder_.embed(texts);
  }

 private:
  Embedder& embedder_;
};

/// Every memory of a case embeds the same facts and questions.
class RememberingEmbedder final : public Embedder {
 public:
  explicit RememberingEmbedder(std::unique_ptr<Embedder> embedder)
      : embedder_(std::move(embedder)) {}
  const std::string& id() const override { return embedder_->id(); }
  std::size_t dim() const override { return embedder_->dim(); }
  std::vector<Result<TextVectors>> embed(std::span<const std::string> texts) override {
    const std::lock_guard lock(mutex_);
    std::vector<std::string> missing;
    for (const std::string& text : texts) {
      if (!known_.contains(text)) {
        missing.push_back(text);
      }
    }
    std::vector<Result<TextVectors>> vectors;
    if (!missing.empty()) {
      vectors = embedder_->embed(missing);
    }
    for (std::size_t i = 0; i < missing.size(); ++i) {
      known_.insert_or_assign(missing[i], std::move(vectors[i]));
    }
    std::vector<Result<TextVectors>> all;
    for (const std::string& text : texts) {
      all.push_back(known_.at(text));
    }
    return all;
  }

 private:
  std::unique_ptr<Embedder> embedder_;
  std::mutex mutex_;
  std::map<std::string, Result<TextVectors>> known_;
};

}  // namespace

Result<std::unique_ptr<EvalModels>> EvalModels::open(const MemoryOptions& options,
                                                     const ServiceDependencies& dependencies) {
  std::unique_ptr<EvalModels> models(new EvalModels());
  models->options_ = options;
  models->dependencies_ = dependencies;
  INFERSCALE_ASSIGN_OR_RETURN(models->engine_, dependencies.open_engine(options));
  const EngineInfo& info = models->engine_->info();
  if (!info.injection) {
    return unavailable("injection is off, there is nothing to evaluate: " +
                       info.injection_off_reason);
  }
  INFERSCALE_ASSIGN_OR_RETURN(std::unique_ptr<Embedder> embedder,
                              dependencies.open_embedder(options));
  if (embedder != nullptr) {
    models->embedder_ = std::make_unique<RememberingEmbedder>(std::move(embedder));
  }
  return models;
}

ServiceDependencies EvalModels::lend() const {
  ServiceDependencies dependencies;
  dependencies.open_engine = [this](const MemoryOptions&) -> Result<std::unique_ptr<Engine>> {
    return std::unique_ptr<Engine>(std::make_unique<LentEngine>(*engine_));
  };
  dependencies.open_embedder = [this](const MemoryOptions&) -> Result<std::unique_ptr<Embedder>> {
    if (embedder_ == nullptr) {
      return std::unique_ptr<Embedder>();
    }
    return std::unique_ptr<Embedder>(std::make_unique<LentEmbedder>(*embedder_));
  };
  if (dependencies_.wrap_store) {
    dependencies.wrap_store = [this](const MemoryOptions&, std::unique_ptr<KvStore> local) {
      return dependencies_.wrap_store(options_, std::move(local));
    };
  }
  return dependencies;
}

Status EvalModels::prepare(const std::filesystem::path& directory) const {
  if (!dependencies_.wrap_store) {
    return Status();
  }
  FileSystem& files = posix_file_system();
  INFERSCALE_ASSIGN_OR_RETURN(const std::vector<std::byte> secret,
                              read_secret(options_.directory, files));
  INFERSCALE_RETURN_IF_ERROR(files.make_private_directory(directory));
  INFERSCALE_RETURN_IF_ERROR(files.make_private_directory(directory / "vllm"));
  return write_file_atomic(directory / "vllm" / "secret", secret, Durability::kNone, files);
}

}  // namespace inferscale::cli
