#include "connector/rank_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "connector/rank_store_parts.h"
#include "kernels/transcode.h"

namespace inferscale {
namespace {

/// How an engine deals heads to ranks: evenly, or each to several ranks when there are more of
/// them. 0 where neither comes out even.
std::uint32_t shard_heads(std::uint32_t heads, std::uint32_t shards) {
  if (heads >= shards) {
    return heads % shards == 0 ? heads / shards : 0;
  }
  return shards % heads == 0 ? 1 : 0;
}

/// What a rank's heads have of the model's key bias.
std::vector<float> shard_key_bias(const ModelSpec& spec, std::uint32_t index,
                                  std::uint32_t shards) {
  if (spec.key_bias.empty() || shards == 1) {
    return spec.key_bias;
  }
  const std::uint32_t heads = spec.shape.n_kv_heads;
  const std::size_t count = shard_heads(heads, shards) * std::size_t{spec.shape.head_dim_k};
  // Of fewer heads than ranks each head is several neighbouring ranks'.
  const std::size_t first = heads >= shards ? index * count : index / (shards / heads) * count;
  std::vector<float> own;
  for (std::uint32_t layer = 0; layer < spec.shape.n_layers; ++layer) {
    const float* row = spec.key_bias.data() + layer * spec.shape.k_elements() + first;
    own.insert(own.end(), row, row + count);
  }
  return own;
}

Status check_options(const RankStoreOptions& options) {
  INFERSCALE_RETURN_IF_ERROR(options.spec.shape.validate().with_context("spec.shape"));
  INFERSCALE_RETURN_IF_ERROR(
      check_key_bias(options.spec.key_bias, options.spec.shape).with_context("spec"));
  INFERSCALE_RETURN_IF_ERROR(options.spec.rope.validate().with_context("spec.rope"));
  if (options.spec.rope.rotary_dim > options.spec.shape.head_dim_k) {
    return invalid_argument(
        fmt::format("spec.rope.rotary_dim must be at most head_dim_k ({}), not {}",
                    options.spec.shape.head_dim_k, options.spec.rope.rotary_dim));
  }
  if (!codec_is_known(options.codec)) {
    return invalid_argument("codec must be f16, bf16, f32, q8, fp8_e4m3 or q4");
  }
  if (options.threads < 1 || options.threads > WorkTeam::kMaxThreads) {
    return invalid_argument(
        fmt::format("threads must be in 1..{}, not {}", WorkTeam::kMaxThreads, options.threads));
  }
  if (options.shard_count < 1 || options.shard_index >= options.shard_count) {
    return invalid_argument(fmt::format("shard_index must be in 0..shard_count-1, not {} of {}",
                                        options.shard_index, options.shard_count));
  }
  if (shard_heads(options.spec.shape.n_kv_heads, options.shard_count) == 0) {
    return invalid_argument(
        fmt::format("shard_count {} and n_kv_heads {}: one must be a multiple of the other",
                    options.shard_count, options.spec.shape.n_kv_heads));
  }
  return Status();
}

StatusCode code_of(MissReason reason) {
  switch (reason) {
    case MissReason::kChecksum:
      return StatusCode::kDataLoss;
    case MissReason::kWrongScope:
      return StatusCode::kPermissionDenied;
    case MissReason::kWrongModel:
    case MissReason::kWrongTokens:
    case MissReason::kWrongContext:
      return StatusCode::kInvalidArgument;
    case MissReason::kNoRoom:
    case MissReason::kSlowLoad:
    case MissReason::kNoDeviceRoom:
      return StatusCode::kResourceExhausted;
    case MissReason::kDeviceFailed:
      return StatusCode::kUnavailable;
    case MissReason::kNone:
    case MissReason::kAbsent:
    case MissReason::kEvicted:
    case MissReason::kErased:
      break;
  }
  return StatusCode::kNotFound;
}

Status closed() { return unavailable("the record store is closed"); }

}  // namespace

RankStore::RankStore(RankStoreOptions options, const KvShape& shape,
                     std::shared_ptr<const RopeTable> rope, std::shared_ptr<Files> files)
    : options_(std::move(options)),
      shape_(shape),
      rope_(std::move(rope)),
      team_(options_.threads, options_.region),
      files_(std::move(files)) {}

Result<std::unique_ptr<RankStore>> RankStore::open(RankStoreOptions options) {
  INFERSCALE_RETURN_IF_ERROR(check_options(options));
  INFERSCALE_ASSIGN_OR_RETURN(
      std::shared_ptr<const RopeTable> rope,
      RopeTable::build(options.spec.rope, options.max_positions,
                       shard_key_bias(options.spec, options.shard_index, options.shard_count)));
  KvShape shape = options.spec.shape;
  shape.n_kv_heads = shard_heads(shape.n_kv_heads, options.shard_count);
  auto files = std::make_shared<Files>();
  KvStoreOptions store;
  store.host_budget_bytes = options.host_budget_bytes;
  store.disk_budget_bytes = options.disk_budget_bytes;
  if (!options.directory.empty()) {
    INFERSCALE_RETURN_IF_ERROR(posix_file_system().make_private_directory(options.directory));
    INFERSCALE_ASSIGN_OR_RETURN(FileLock lock, FileLock::acquire(options.directory / "kv.lock"));
    files->lock.emplace(std::move(lock));
    store.directory = options.directory / "kv";
  }
  INFERSCALE_ASSIGN_OR_RETURN(files->store, KvStore::open(store));
  return std::unique_ptr<RankStore>(
      new RankStore(std::move(options), shape, std::move(rope), std::move(files)));
}

Result<std::shared_ptr<RankStore::Files>> RankStore::files() const {
  const std::lock_guard lock(mutex_);
  if (files_ == nullptr) {
    return closed();
  }
  return files_;
}

void RankStore::close() {
  std::shared_ptr<Files> ended;
  const std::lock_guard lock(mutex_);
  ended.swap(files_);
}

bool RankStore::is_own(const RecordMeta& meta) const {
  return meta.model_fingerprint == options_.spec.fingerprint && meta.shape == shape_ &&
         meta.shard_index == options_.shard_index && meta.shard_count == options_.shard_count;
}

void RankStore::check_lease(const LoadItem& item, const RecordMeta* meta, MissReason reason,
                            PreparedLoad* load) const {
  const std::string name = "record " + item.key.value.to_hex();
  if (meta == nullptr) {
    load->status_ = Status(code_of(reason), name + ": " + miss_reason_name(reason));
  } else if (!is_own(*meta)) {
    load->status_ = invalid_argument(name + ": " + miss_reason_name(MissReason::kWrongModel));
  } else if (std::uint64_t{item.first_position} + item.tokens.size() > rope_->max_positions()) {
    load->status_ = invalid_argument(fmt::format(
        "{}: positions {}..{} are not within 0..{}", name, item.first_position,
        std::uint64_t{item.first_position} + item.tokens.size() - 1, rope_->max_positions() - 1));
  }
  if (!load->status_.ok()) {
    load->failed_key_ = item.key;
  }
}

std::vector<RecordRequest> RankStore::requests_of(std::span<const LoadItem> items) const {
  std::vector<RecordRequest> requests;
  for (const LoadItem& item : items) {
    RecordRequest& request = requests.emplace_back();
    request.key = item.key;
    request.model_fingerprint = options_.spec.fingerprint;
    request.shape = shape_;
    request.scope = item.scope;
    request.token_ids = item.tokens;
    request.any_context = !item.context_id.has_value();
    request.context_id = item.context_id.value_or(Hash128{});
  }
  return requests;
}

Status RankStore::read_parts(std::span<const LoadItem> items, bool on_device, PreparedLoad* load) {
  for (const LoadItem& item : items) {
    const auto size = static_cast<std::uint32_t>(item.tokens.size());
    const bool all = item.n_tokens == LoadItem().n_tokens;
    if (item.first_token > size || (!all && item.n_tokens > size - item.first_token) ||
        (!on_device && (item.first_token != 0 || (!all && item.n_tokens != size)))) {
      load->failed_key_ = item.key;
      return invalid_argument(fmt::format("record {}: tokens {}..+{} of {}",
                                          item.key.value.to_hex(), item.first_token, item.n_tokens,
                                          size));
    }
    const std::uint32_t n = all ? size - item.first_token : item.n_tokens;
    load->parts_.push_back({item.first_position, item.first_token, n});
    load->tokens_ += n;
  }
  return Status();
}

// The records of a large load are verified by several threads.
std::vector<Lease> RankStore::acquire_records(KvStore& store, std::span<const LoadItem> items,
                                              std::span<const RecordRequest> requests) const {
  std::uint64_t bytes = 0;
  for (const LoadItem& item : items) {
    bytes += item.tokens.size() * token_bytes();
  }
  if (bytes < kTeamBytes) {
    return store.acquire(requests);
  }
  std::vector<Lease> leases(requests.size());
  team_.run(requests.size(), [&](std::size_t first, std::size_t count) {
    std::vector<Lease> some = store.acquire(requests.subspan(first, count));
    std::move(some.begin(), some.end(), leases.begin() + static_cast<std::ptrdiff_t>(first));
  });
  return leases;
}

PreparedLoad RankStore::prepare(std::span<const LoadItem> items) {
  PreparedLoad load;
  const Result<std::shared_ptr<Files>> files = this->files();
  if (!files.ok()) {
    load.status_ = files.status();
    return load;
  }
  const std::vector<RecordRequest> requests = requests_of(items);
  std::vector<Lease> leases;
  std::vector<PageLease> pages;
  if ((*files)->device != nullptr) {
    pages = (*files)->device->acquire_pages(requests);
  } else {
    leases = acquire_records(*(*files)->store, items, requests);
  }
  for (std::size_t i = 0; i < items.size() && load.status_.ok(); ++i) {
    if (!pages.empty()) {
      check_lease(items[i], pages[i].ready() ? &pages[i].meta() : nullptr, pages[i].reason(),
                  &load);
    } else {
      check_lease(items[i], leases[i].ready() ? &leases[i].record()->meta() : nullptr,
                  leases[i].reason(), &load);
    }
  }
  if (!load.status_.ok()) {
    return load;
  }
  load.status_ = read_parts(items, (*files)->device != nullptr, &load);
  if (!load.status_.ok()) {
    return load;
  }
  load.leases_ = std::move(leases);
  load.pages_ = std::move(pages);
  return load;
}

Status RankStore::check_shape(const KvShape& shape) const {
  const KvShape& own = shape_;
  if (!(shape == own)) {
    return invalid_argument(fmt::format(
        "k and v have {} layers, {} heads, {} and {} elements a head; the model has {}, {}, {}, {}",
        shape.n_layers, shape.n_kv_heads, shape.head_dim_k, shape.head_dim_v, own.n_layers,
        own.n_kv_heads, own.head_dim_k, own.head_dim_v));
  }
  return Status();
}

Status RankStore::check_rows(std::size_t n_rows, std::size_t n_tokens) const {
  if (n_rows != n_tokens) {
    return invalid_argument(
        fmt::format("there are {} rows for {} tokens; one each is needed", n_rows, n_tokens));
  }
  return Status();
}

Status RankStore::capture(const CaptureMeta& meta, std::span<const TokenId> tokens,
                          std::uint32_t first_position, const ConstCacheLayout& cache) {
  INFERSCALE_RETURN_IF_ERROR(check_rows(cache.n_rows, tokens.size()));
  return store_rows(meta, tokens, first_position, cache, {});
}

Status RankStore::capture_rows(const CaptureMeta& meta, std::span<const TokenId> tokens,
                               std::uint32_t first_position, const ConstCacheLayout& cache,
                               std::span<const std::uint32_t> rows) {
  INFERSCALE_RETURN_IF_ERROR(check_rows(rows.size(), tokens.size()));
  return store_rows(meta, tokens, first_position, cache, rows);
}

Status RankStore::store_rows(const CaptureMeta& meta, std::span<const TokenId> tokens,
                             std::uint32_t first_position, const ConstCacheLayout& cache,
                             std::span<const std::uint32_t> rows) {
  INFERSCALE_ASSIGN_OR_RETURN(const std::shared_ptr<Files> files, this->files());
  INFERSCALE_RETURN_IF_ERROR(check_shape(cache.shape));
  RecordMeta full = meta_of(meta);
  const KvCodec codec = full.codec;
  full.codec = capture_codec(codec, cache.dtype);
  INFERSCALE_ASSIGN_OR_RETURN(RecordBuilder builder, RecordBuilder::create(full, tokens));
  CaptureSource source;
  source.first_position = first_position;
  source.rows = rows;
  INFERSCALE_RETURN_IF_ERROR(kv_capture(cache, source, *rope_, builder));
  return keep(*files, meta.key, std::move(builder), codec);
}

RecordMeta RankStore::meta_of(const CaptureMeta& meta) const {
  RecordMeta full;
  full.model_fingerprint = options_.spec.fingerprint;
  full.context_id = meta.context_id;
  full.scope = meta.scope;
  full.context_kind = meta.context_kind;
  full.codec = codec_for_context(options_.codec, meta.context_kind);
  full.shape = shape_;
  full.shard_index = options_.shard_index;
  full.shard_count = options_.shard_count;
  full.context_tokens = meta.context_tokens;
  return full;
}

Status RankStore::keep(Files& files, const RecordKey& key, RecordBuilder builder, KvCodec codec) {
  INFERSCALE_ASSIGN_OR_RETURN(std::shared_ptr<const Record> record,
                              seal_as(std::move(builder), codec));
  const Status stored = files.store->put(key, std::move(record));
  // A disk that fails degrades the store, and `stats` says so; the record is there all the same.
  return stored.code() == StatusCode::kUnavailable ? Status() : stored;
}

bool RankStore::contains(const RecordKey& key) const {
  const Result<std::shared_ptr<Files>> files = this->files();
  return files.ok() && (*files)->store->contains(key);
}

Result<EraseCounts> RankStore::erase(std::span<const RecordKey> keys) {
  INFERSCALE_ASSIGN_OR_RETURN(const std::shared_ptr<Files> files, this->files());
  return files->store->erase(keys);
}

Result<EraseCounts> RankStore::erase_scope(const Hash128& scope) {
  INFERSCALE_ASSIGN_OR_RETURN(const std::shared_ptr<Files> files, this->files());
  return files->store->erase_scope(scope);
}

Result<KvStoreStats> RankStore::stats() const {
  INFERSCALE_ASSIGN_OR_RETURN(const std::shared_ptr<Files> files, this->files());
  return files->store->stats();
}

Status RankStore::flush() {
  INFERSCALE_ASSIGN_OR_RETURN(const std::shared_ptr<Files> files, this->files());
  return files->store->flush();
}

}  // namespace inferscale
