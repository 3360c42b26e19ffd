#include "memory/service_core.h"

#include <fmt/format.h>

#include <unordered_set>

#include "base/file.h"
#include "base/log.h"
#include "catalog/sqlite/sqlite_catalog.h"
#include "memory/data_files.h"

namespace inferscale {
namespace {

constexpr std::size_t kSecretBytes = 32;
constexpr std::string_view kContextSetting = "encode_context";

// What a process left that was killed while it wrote the file.
Status wipe_leftovers(const std::filesystem::path& path, FileSystem& files) {
  const std::string start = path.filename().string() + ".tmp-";
  INFERSCALE_ASSIGN_OR_RETURN(const std::vector<FileEntry> entries, files.list(path.parent_path()));
  for (const FileEntry& entry : entries) {
    if (entry.name.starts_with(start)) {
      INFERSCALE_RETURN_IF_ERROR(wipe_file(path.parent_path() / entry.name, files));
    }
  }
  return {};
}

Result<std::vector<std::byte>> read_or_create_secret(const std::filesystem::path& path,
                                                     FileSystem& files) {
  auto existing = read_file(path, 4096, files);
  if (existing.ok() || existing.status().code() != StatusCode::kNotFound) {
    return existing;
  }
  INFERSCALE_RETURN_IF_ERROR(wipe_leftovers(path, files));
  INFERSCALE_ASSIGN_OR_RETURN(std::vector<std::byte> fresh, random_bytes(kSecretBytes));
  // A vLLM server that was started before there was a data directory has made its own.
  auto servers = read_file(path.parent_path() / "vllm" / "secret", 4096, files);
  if (servers.ok() && servers->size() == kSecretBytes) {
    fresh = *std::move(servers);
  }
  INFERSCALE_RETURN_IF_ERROR(write_file_atomic(path, fresh, Durability::kSync, files));
  return fresh;
}

// A directory whose secret is there had a catalog once. To take an empty one for a fresh start
// would wipe the records of facts that a backup may still bring back.
Status check_catalog_not_lost(const std::filesystem::path& directory) {
  std::error_code error;
  const std::filesystem::path catalog = directory / "catalog.sqlite";
  if (std::filesystem::is_symlink(std::filesystem::symlink_status(catalog, error))) {
    return unavailable(catalog.string() +
                       ": a symbolic link, and what it points to is not followed; put the file "
                       "itself here, or make the whole data directory a link");
  }
  if (!std::filesystem::exists(directory / "secret", error)) {
    return {};
  }
  const std::uintmax_t size = std::filesystem::file_size(catalog, error);
  if (!error && size > 0) {
    return {};
  }
  return data_loss(
      catalog.string() +
      ": missing or empty, though there is a secret, which is made after it; bring "
      "the catalog back from a backup, or remove the whole directory to start anew. "
      "The secret of a vLLM server that came first belongs into vllm/secret of a new directory");
}

}  // namespace

Result<std::vector<std::byte>> read_secret(const std::filesystem::path& directory,
                                           FileSystem& files) {
  auto own = read_file(directory / "secret", 4096, files);
  if (own.status().code() != StatusCode::kNotFound) {
    return own;
  }
  auto servers = read_file(directory / "vllm" / "secret", 4096, files);
  return servers.status().code() != StatusCode::kNotFound
             ? std::move(servers)
             : not_found(directory.string() +
                         ": no secret in it or in its folder vllm; the server's data_dir is the "
                         "folder vllm of the data directory that is named here");
}

Result<std::unique_ptr<ServiceCore>> ServiceCore::open(const MemoryOptions& options,
                                                       const ServiceDependencies& dependencies) {
  if (options.directory.empty()) {
    return invalid_argument("data directory: empty; give the folder that holds the memories");
  }
  std::unique_ptr<ServiceCore> core(new ServiceCore());
  core->options_ = options;
  core->dependencies_ = dependencies;
  if (!options.encode_context.empty()) {  // said before anything is made
    INFERSCALE_RETURN_IF_ERROR(parse_context_spec(options.encode_context).status());
  }
  INFERSCALE_RETURN_IF_ERROR(core->files().make_private_directory(options.directory));
  INFERSCALE_RETURN_IF_ERROR(check_catalog_not_lost(options.directory));
  // The catalog takes the writer lock, so it comes first.
  INFERSCALE_ASSIGN_OR_RETURN(core->catalog_, open_sqlite_catalog({options.directory}));
  INFERSCALE_RETURN_IF_ERROR(core->load_context());
  INFERSCALE_RETURN_IF_ERROR(core->load_secret());
  KvStoreOptions store;
  store.host_budget_bytes = options.host_budget_bytes;
  store.disk_budget_bytes = options.disk_budget_bytes;
  store.file_system = &core->files();
  if (options.disk_budget_bytes > 0) {
    store.directory = options.directory / "kv";
  }
  INFERSCALE_ASSIGN_OR_RETURN(core->store_, KvStore::open(store));
  if (dependencies.wrap_store) {
    INFERSCALE_ASSIGN_OR_RETURN(core->store_,
                                dependencies.wrap_store(options, std::move(core->store_)));
  }
  INFERSCALE_RETURN_IF_ERROR(core->sweep_orphans());
  INFERSCALE_RETURN_IF_ERROR(protect_data_directory(options.directory));
  return core;
}

Status ServiceCore::load_context() {
  std::string spelling = options_.encode_context;
  if (spelling.empty()) {
    INFERSCALE_ASSIGN_OR_RETURN(const std::optional<std::string> chosen,
                                catalog_->get_setting(kContextSetting));
    spelling = chosen.value_or(std::string(kDefaultEncodeContext));
  }
  const Result<ContextSpec> spec = parse_context_spec(spelling);
  if (!spec.ok()) {
    return spec.status().with_context("chosen for this data directory (`inferscale reencode`)");
  }
  context_ = *spec;
  return {};
}

Status ServiceCore::choose_context(const ContextSpec& spec) {
  const std::lock_guard lock(context_mutex_);
  INFERSCALE_RETURN_IF_ERROR(catalog_->put_setting(kContextSetting, spec.spelling()));
  context_ = spec;
  return {};
}

Status ServiceCore::load_secret() {
  INFERSCALE_ASSIGN_OR_RETURN(secret_,
                              read_or_create_secret(options_.directory / "secret", files()));
  if (secret_.size() != kSecretBytes) {
    return data_loss(fmt::format(
        "{}: {} bytes instead of {}; remove it, and a new one is made; facts are not touched",
        (options_.directory / "secret").string(), secret_.size(), kSecretBytes));
  }
  return {};
}

// A crash between the two halves of an erase or of an encode job may leave a record that no catalog
// entry names. It could never be served, but it holds somebody's words: it goes.
Status ServiceCore::sweep_orphans() {
  INFERSCALE_ASSIGN_OR_RETURN(const std::vector<RecordKey> named, catalog_->all_record_keys());
  const std::unordered_set<RecordKey> known(named.begin(), named.end());
  std::vector<RecordKey> orphans;
  for (const RecordKey& key : store_->keys()) {
    if (!known.contains(key)) {
      orphans.push_back(key);
    }
  }
  if (orphans.empty()) {
    return {};
  }
  INFERSCALE_ASSIGN_OR_RETURN(const EraseCounts erased, store_->erase(orphans));
  log_message(LogLevel::kWarning,
              fmt::format("removed {} records that no fact names (an earlier process was killed "
                          "between two steps)",
                          std::max(erased.host, erased.disk)));
  return {};
}

Result<EngineParts*> ServiceCore::engine() {
  const std::lock_guard lock(models_mutex_);
  if (!engine_.engine) {
    EngineParts parts;
    INFERSCALE_ASSIGN_OR_RETURN(parts.engine, dependencies_.open_engine(options_));
    PromptOptions prompt;
    if (!options_.system_prompt.empty()) {
      prompt.system_prompt = options_.system_prompt;
    }
    INFERSCALE_ASSIGN_OR_RETURN(
        parts.prompt,
        PromptBuilder::create(parts.engine->tokenizer(), parts.engine->chat_format(), prompt));
    engine_ = std::move(parts);
  }
  return &engine_;
}

EngineParts* ServiceCore::loaded_engine() {
  const std::lock_guard lock(models_mutex_);
  return engine_.engine ? &engine_ : nullptr;
}

Result<Embedder*> ServiceCore::embedder() {
  const std::lock_guard lock(models_mutex_);
  if (!embedder_loaded_) {
    INFERSCALE_ASSIGN_OR_RETURN(embedder_, dependencies_.open_embedder(options_));
    embedder_loaded_ = true;
  }
  return embedder_.get();
}

Result<Retriever*> ServiceCore::retriever() {
  INFERSCALE_ASSIGN_OR_RETURN(Embedder* const embedder, this->embedder());
  const std::lock_guard lock(models_mutex_);
  if (!retriever_) {
    retriever_ = std::make_unique<Retriever>(*catalog_, embedder);
  }
  return retriever_.get();
}

void ServiceCore::notify_added(const Scope& scope, const std::string& fact_id,
                               const TextVectors& vectors) {
  const std::lock_guard lock(models_mutex_);
  if (retriever_) {
    retriever_->on_added(scope, fact_id, vectors);
  }
}

void ServiceCore::notify_removed(const Scope& scope, const std::string& fact_id) {
  const std::lock_guard lock(models_mutex_);
  if (retriever_) {
    retriever_->on_removed(scope, fact_id);
  }
}

void ServiceCore::notify_scope_erased(const Scope& scope) {
  const std::lock_guard lock(models_mutex_);
  if (retriever_) {
    retriever_->on_scope_erased(scope);
  }
}

Result<RunFor> ServiceCore::run_for(const Scope& scope, std::uint32_t top_j) {
  RunFor run{scope, 0, top_j};
  if (dependencies_.wrap_store) {
    INFERSCALE_ASSIGN_OR_RETURN(run.epoch, catalog_->epoch(scope.tenant, scope.user));
  }
  return run;
}

Result<EraseCounts> ServiceCore::erase_records(const Scope& scope,
                                               std::span<const RecordKey> keys) {
  // The catalog names the records no more, so that an epoch that cannot be read must not keep them:
  // a server refuses the epoch 0 and hears of the erase from the next request.
  std::uint64_t epoch = 0;
  if (dependencies_.wrap_store) {
    const Result<std::uint64_t> known = catalog_->epoch(scope.tenant, scope.user);
    epoch = known.ok() ? *known : 0;
  }
  return store_->erase_owned({scope.tenant, scope.user, epoch}, keys);
}

void ServiceCore::erase_refused(const Scope& scope, const RecordKey& key) {
  if (!dependencies_.wrap_store) {
    return;  // then it was never stored
  }
  Status status = catalog_->raise_epoch(scope.tenant, scope.user).status();
  if (status.ok()) {
    const auto erased = erase_records(scope, std::span(&key, 1));
    status = !erased.ok()                ? erased.status()
             : erased->unreached.empty() ? Status()
                                         : unavailable(erased->unreached);
  }
  if (!status.ok()) {
    log_message(LogLevel::kWarning,
                "a record that is not used stays with the engine for now: " + status.to_string());
  }
}

RecordMeta ServiceCore::record_meta(const EngineParts& parts, ContextKind kind) const {
  RecordMeta meta;
  meta.model_fingerprint = parts.fingerprint();
  meta.codec = codec_for_context(options_.store_codec, kind);
  meta.shape = parts.engine->info().model.shape;
  meta.context_kind = kind;
  return meta;
}

}  // namespace inferscale
