#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/file_system.h"
#include "catalog/catalog.h"
#include "engine/engine.h"
#include "inferscale/kv_store.h"
#include "inferscale/memory.h"
#include "memory/answer_registry.h"
#include "memory/context_spec.h"
#include "memory/prefill_rate.h"
#include "prompt/prompt_builder.h"
#include "retrieval/embedder.h"
#include "retrieval/retriever.h"

namespace inferscale {

[[nodiscard]] inline bool is_cancelled(const WorkControl& control) {
  return control.cancelled != nullptr && control.cancelled->load();
}

/// Where the service gets its models from; tests give fakes.
struct ServiceDependencies {
  std::function<Result<std::unique_ptr<Engine>>(const MemoryOptions&)> open_engine;
  std::function<Result<std::unique_ptr<Embedder>>(const MemoryOptions&)>
      open_embedder;  ///< may give null
  /// Puts a store of records that an engine keeps in front of the data directory's own. Null: the
  /// data directory keeps them all.
  std::function<Result<std::unique_ptr<KvStore>>(const MemoryOptions&, std::unique_ptr<KvStore>)>
      wrap_store;
  FileSystem* files = nullptr;                  ///< of everything but the catalog; null: posix
  std::function<TimestampUs()> clock = now_us;  ///< for what is tried again later
};
/// libllama for both.
[[nodiscard]] ServiceDependencies llama_dependencies();
/// The same, but the engine that the options name. Errors: kInvalidArgument.
[[nodiscard]] Result<ServiceDependencies> service_dependencies(const MemoryOptions& options);

/// `MemoryService::open` with other models.
[[nodiscard]] Result<std::unique_ptr<MemoryService>> open_memory_service(
    const MemoryOptions& options, const ServiceDependencies& dependencies);

/// An engine together with what is fixed once it is known.
struct EngineParts {
  std::unique_ptr<Engine> engine;
  std::optional<PromptBuilder> prompt;
  [[nodiscard]] const Hash128& fingerprint() const { return engine->info().model.fingerprint; }
};

/// What all parts of the service share: the stores, and the models, loaded when first asked for.
/// The installation's secret: the data directory's, or that of a vLLM server that was there before
/// it. Errors: kNotFound (neither), those of the file system.
[[nodiscard]] Result<std::vector<std::byte>> read_secret(const std::filesystem::path& directory,
                                                         FileSystem& files = posix_file_system());

/// Thread-safe.
class ServiceCore {
 public:
  [[nodiscard]] static Result<std::unique_ptr<ServiceCore>> open(
      const MemoryOptions& options, const ServiceDependencies& dependencies);

  [[nodiscard]] const MemoryOptions& options() const { return options_; }
  /// What facts are encoded behind now.
  [[nodiscard]] ContextSpec context() const {
    const std::lock_guard lock(context_mutex_);
    return context_;
  }
  /// From now on, and for later services of this data directory.
  [[nodiscard]] Status choose_context(const ContextSpec& spec);
  [[nodiscard]] std::span<const std::byte> secret() const { return secret_; }
  [[nodiscard]] Catalog& catalog() { return *catalog_; }
  [[nodiscard]] KvStore& store() { return *store_; }
  [[nodiscard]] AnswerRegistry& answers() { return answers_; }
  [[nodiscard]] TimestampUs now() const { return dependencies_.clock(); }

  /// Loads the model on the first call. A failed load is tried again by the next call.
  [[nodiscard]] Result<EngineParts*> engine();
  /// Null while the model is not loaded.
  [[nodiscard]] EngineParts* loaded_engine();
  /// Null when the service was opened without an embedding model.
  [[nodiscard]] Result<Embedder*> embedder();
  [[nodiscard]] Result<Retriever*> retriever();
  /// Tells the retriever of a write if it is loaded (else it reads the catalog when it is).
  void notify_added(const Scope& scope, const std::string& fact_id, const TextVectors& vectors);
  void notify_removed(const Scope& scope, const std::string& fact_id);
  void notify_scope_erased(const Scope& scope);

  /// For whom a run is. Only an engine that keeps records needs the epoch. Errors: those of the
  /// catalog.
  [[nodiscard]] Result<RunFor> run_for(const Scope& scope, std::uint32_t top_j = 0);
  /// Erases records of `scope`'s owner, whose epoch the catalog has raised for it, wherever they
  /// are. Errors: those of the store and the catalog; kUnavailable when an engine that keeps
  /// records does not answer is none (`EraseCounts::unreached`). REQUIRES: record_mutex is held.
  [[nodiscard]] Result<EraseCounts> erase_records(const Scope& scope,
                                                  std::span<const RecordKey> keys);
  /// Erases a record that an engine has captured and the catalog has refused: nothing names it, so
  /// no delete would find it. REQUIRES: record_mutex is held.
  void erase_refused(const Scope& scope, const RecordKey& key);

  /// Meta of records of a kind that this service writes now, but for context id and scope.
  [[nodiscard]] RecordMeta record_meta(const EngineParts& parts, ContextKind kind) const;

  /// The machine was too busy to measure `top_j`: not tried again in this process unless asked to.
  void defer_calibration() { calibration_deferred_ = true; }
  [[nodiscard]] bool calibration_deferred() const { return calibration_deferred_; }

  /// What prefilling takes with this engine, learned from the answers.
  [[nodiscard]] PrefillRate& prefill_rate() { return prefill_rate_; }

  /// Held while a record is committed and stored, and while facts are erased: an erase can then not
  /// pass between a commit and its put.
  [[nodiscard]] std::mutex& record_mutex() { return record_mutex_; }

 private:
  ServiceCore() = default;
  [[nodiscard]] FileSystem& files() const {
    return dependencies_.files != nullptr ? *dependencies_.files : posix_file_system();
  }
  Status load_context();
  Status load_secret();
  Status sweep_orphans();

  MemoryOptions options_;
  ServiceDependencies dependencies_;
  mutable std::mutex context_mutex_;
  ContextSpec context_;  // guarded by context_mutex_
  std::vector<std::byte> secret_;
  std::unique_ptr<Catalog> catalog_;
  std::unique_ptr<KvStore> store_;
  AnswerRegistry answers_;

  std::mutex models_mutex_;  // guards what follows
  EngineParts engine_;
  std::unique_ptr<Embedder> embedder_;
  bool embedder_loaded_ = false;
  std::unique_ptr<Retriever> retriever_;

  PrefillRate prefill_rate_;
  std::atomic<bool> calibration_deferred_{false};
  std::mutex record_mutex_;
};

}  // namespace inferscale
