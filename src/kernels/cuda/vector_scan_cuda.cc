#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <string>

#include "kernels/cuda/vector_scan.h"
#include "kernels/cuda/vector_scan_kernels.h"
#include "kernels/f16.h"

namespace inferscale {
namespace {

constexpr std::uint64_t kManyVectors = 200000;  // from here on blocks of the first pass are large
constexpr std::size_t kMaxPasses = 32;  // each halves the keys at least, of which there are 2^32

std::string text(std::uint64_t value) { return std::to_string(value); }

std::size_t aligned(std::size_t bytes) { return (bytes + 63) / 64 * 64; }

std::uint64_t blocks_for(std::uint64_t items, std::uint64_t per_block) {
  return (items + per_block - 1) / per_block;
}

Status check_options(const CudaVectorScan::Options& o) {
  if (o.dim < 1 || o.dim > CudaVectorScan::kMaxDim) {
    return invalid_argument("dim must be in 1.." + text(CudaVectorScan::kMaxDim) + ", not " +
                            text(o.dim));
  }
  if (o.dtype != KvCodec::kF32 && o.dtype != KvCodec::kF16) {
    return invalid_argument("vectors are kept as f32 or f16");
  }
  if (o.capacity < 1 || o.capacity > std::numeric_limits<std::uint32_t>::max()) {
    return invalid_argument("capacity must be in 1..4294967295, not " + text(o.capacity));
  }
  if (o.max_queries < 1 || o.max_queries > CudaVectorScan::kMaxQueries) {
    return invalid_argument("max_queries must be in 1.." + text(CudaVectorScan::kMaxQueries) +
                            ", not " + text(o.max_queries));
  }
  if (o.max_k < 1 || o.max_k > CudaVectorScan::kMaxK) {
    return invalid_argument("max_k must be in 1.." + text(CudaVectorScan::kMaxK) + ", not " +
                            text(o.max_k));
  }
  return Status();
}

}  // namespace

// What a search tells the device, in one piece of memory: on the host and, at the same offsets, on
// the device.
struct CudaVectorScan::Table {
  float* queries = nullptr;
  std::uint64_t* firsts = nullptr;
  std::uint32_t* counts = nullptr;
  std::array<std::uint32_t*, kMaxPasses + 1> first_blocks{};
  std::size_t head_bytes = 0;    // up to the first of first_blocks
  std::size_t blocks_bytes = 0;  // of each
};

CudaVectorScan::Table CudaVectorScan::table_at(const std::byte* base, std::size_t n) const {
  auto* at = const_cast<std::byte*>(base);
  Table table;
  const auto take = [&at](std::size_t bytes) {
    std::byte* here = at;
    at += aligned(bytes);
    return here;
  };
  table.queries = reinterpret_cast<float*>(take(n * row_elements_ * sizeof(float)));
  table.firsts = reinterpret_cast<std::uint64_t*>(take(n * sizeof(std::uint64_t)));
  table.counts = reinterpret_cast<std::uint32_t*>(take(n * sizeof(std::uint32_t)));
  table.head_bytes = static_cast<std::size_t>(at - base);
  table.blocks_bytes = aligned((n + 1) * sizeof(std::uint32_t));
  for (auto& blocks : table.first_blocks) {
    blocks = reinterpret_cast<std::uint32_t*>(take(table.blocks_bytes));
  }
  return table;
}

Result<std::unique_ptr<CudaVectorScan>> CudaVectorScan::create(const Options& options) {
  INFERSCALE_RETURN_IF_ERROR(check_options(options).with_context("CudaVectorScan"));
  std::unique_ptr<CudaVectorScan> self(new CudaVectorScan);
  INFERSCALE_ASSIGN_OR_RETURN(self->device_, cuda::current_device());
  self->options_ = options;
  Options& o = self->options_;
  if (o.max_scanned == 0) {
    o.max_scanned = o.capacity * o.max_queries;
  }
  const std::size_t element = codec_element_bytes(o.dtype);
  const std::size_t row_bytes = (o.dim * element + 15) / 16 * 16;
  self->row_elements_ = row_bytes / element;
  const Table sizes = self->table_at(nullptr, o.max_queries);
  const std::size_t table_bytes = sizes.head_bytes + (kMaxPasses + 1) * sizes.blocks_bytes;
  const std::uint64_t n_blocks = blocks_for(o.max_scanned, cuda::kFewPerBlock) + o.max_queries;
  const std::uint64_t n_keys =
      n_blocks * std::min<std::uint64_t>(o.max_k, cuda::kFewPerBlock) +
      o.max_queries * (o.max_k + cuda::kManyPerBlock);  // of large blocks as many and a last one
  if (n_blocks > std::numeric_limits<std::int32_t>::max()) {
    return invalid_argument("CudaVectorScan: " + text(o.max_scanned) +
                            " vectors in one search are more than a launch can have");
  }
  using cuda::Buffer;
  using cuda::MemoryKind;
  INFERSCALE_ASSIGN_OR_RETURN(self->vectors_,
                              Buffer::allocate(MemoryKind::kDevice, o.capacity * row_bytes));
  INFERSCALE_ASSIGN_OR_RETURN(self->tables_, Buffer::allocate(MemoryKind::kPinned, table_bytes));
  INFERSCALE_ASSIGN_OR_RETURN(self->device_tables_,
                              Buffer::allocate(MemoryKind::kDevice, table_bytes));
  for (Buffer& keys : self->keys_) {
    INFERSCALE_ASSIGN_OR_RETURN(
        keys, Buffer::allocate(MemoryKind::kDevice, n_keys * sizeof(cuda::ScanKey)));
  }
  INFERSCALE_ASSIGN_OR_RETURN(
      self->hits_,
      Buffer::allocate(MemoryKind::kPinned, o.max_queries * o.max_k * sizeof(cuda::ScanKey)));
  INFERSCALE_ASSIGN_OR_RETURN(self->done_, cuda::Event::create());
  INFERSCALE_RETURN_IF_ERROR(
      cuda::zero_async(self->vectors_.data(), self->vectors_.size(), nullptr));
  INFERSCALE_RETURN_IF_ERROR(cuda::synchronize(nullptr));
  return self;
}

CudaVectorScan::~CudaVectorScan() {
  const cuda::DeviceScope scope(device_);
  (void)done_.wait();  // the device may still read and write what is freed
}

Status CudaVectorScan::write(std::uint64_t first, std::span<const float> vectors) {
  const std::size_t dim = options_.dim;
  const std::uint64_t count = vectors.size() / dim;
  if (vectors.size() % dim != 0 || first > options_.capacity || count > options_.capacity - first) {
    return invalid_argument("CudaVectorScan: " + text(vectors.size()) + " elements from row " +
                            text(first) + " on are not rows of " + text(dim) + " within " +
                            text(options_.capacity));
  }
  const cuda::DeviceScope scope(device_);
  const std::size_t element = codec_element_bytes(options_.dtype);
  const std::size_t row_bytes = row_elements_ * element;
  constexpr std::uint64_t kRowsAtOnce = 4096;
  std::vector<std::byte> rows(std::min(count, kRowsAtOnce) * row_bytes);  // gaps stay zero
  for (std::uint64_t done = 0; done < count; done += kRowsAtOnce) {
    const std::uint64_t n = std::min(kRowsAtOnce, count - done);
    for (std::uint64_t row = 0; row < n; ++row) {
      const float* from = vectors.data() + (done + row) * dim;
      std::byte* to = rows.data() + row * row_bytes;
      if (options_.dtype == KvCodec::kF32) {
        std::memcpy(to, from, dim * element);
        continue;
      }
      for (std::size_t i = 0; i < dim; ++i) {
        const std::uint16_t half = kernels::f16_from_float(from[i]);
        std::memcpy(to + i * element, &half, element);
      }
    }
    INFERSCALE_RETURN_IF_ERROR(cuda::copy_async(vectors_.data() + (first + done) * row_bytes,
                                                rows.data(), n * row_bytes, nullptr));
    INFERSCALE_RETURN_IF_ERROR(cuda::synchronize(nullptr));
  }
  return Status();
}

Status CudaVectorScan::check(std::span<const float> queries, std::span<const ScanScope> scopes,
                             std::size_t k) const {
  if (started_queries_ != 0) {
    return conflict("the last search has not been finished");
  }
  if (scopes.empty() || scopes.size() > options_.max_queries ||
      queries.size() != scopes.size() * options_.dim) {
    return invalid_argument(text(queries.size()) + " elements for " + text(scopes.size()) +
                            " queries of " + text(options_.dim) + "; 1.." +
                            text(options_.max_queries) + " queries are accepted");
  }
  if (k < 1 || k > options_.max_k) {
    return invalid_argument("k must be in 1.." + text(options_.max_k) + ", not " + text(k));
  }
  std::uint64_t scanned = 0;
  for (const ScanScope& scope : scopes) {
    if (scope.first > options_.capacity || scope.count > options_.capacity - scope.first) {
      return invalid_argument("vectors " + text(scope.first) + ".. (" + text(scope.count) +
                              ") reach beyond the capacity of " + text(options_.capacity));
    }
    scanned += scope.count;
  }
  if (scanned > options_.max_scanned) {
    return invalid_argument(text(scanned) + " vectors in one search; " +
                            text(options_.max_scanned) + " is the most");
  }
  return Status();
}

void CudaVectorScan::write_queries(std::span<const float> queries,
                                   std::span<const ScanScope> scopes, std::uint32_t per_block,
                                   const Table& host) const {
  const std::size_t dim = options_.dim;
  for (std::size_t q = 0; q < scopes.size(); ++q) {
    float* to = host.queries + q * row_elements_;
    std::copy_n(queries.data() + q * dim, dim, to);
    std::fill(to + dim, to + row_elements_, 0.0F);
    host.firsts[q] = scopes[q].first;
    host.counts[q] = scopes[q].count;
    const std::uint64_t blocks = blocks_for(scopes[q].count, per_block);
    host.first_blocks[0][0] = 0;
    host.first_blocks[0][q + 1] = host.first_blocks[0][q] + static_cast<std::uint32_t>(blocks);
  }
}

std::vector<cuda::SelectPass> CudaVectorScan::plan_selects(std::size_t n, std::size_t k,
                                                           std::uint32_t kept, const Table& host,
                                                           const Table& device) const {
  std::vector<cuda::SelectPass> passes;
  std::uint32_t most = 2;  // blocks of a query
  while (most > 1) {
    const std::size_t pass = passes.size() + 1;
    const std::uint32_t* before = host.first_blocks[pass - 1];
    std::uint32_t* blocks = host.first_blocks[pass];
    blocks[0] = 0;
    most = 1;
    for (std::size_t q = 0; q < n; ++q) {
      const std::uint64_t keys = std::uint64_t{kept} * (before[q + 1] - before[q]);
      const auto own = static_cast<std::uint32_t>(
          std::max<std::uint64_t>(1, blocks_for(keys, cuda::kSortedPerBlock)));
      most = std::max(most, own);
      blocks[q + 1] = blocks[q] + own;
    }
    cuda::SelectPass select;
    select.in = reinterpret_cast<const cuda::ScanKey*>(keys_[(pass + 1) % 2].data());
    select.out = reinterpret_cast<cuda::ScanKey*>(keys_[pass % 2].data());
    select.in_blocks = device.first_blocks[pass - 1];
    select.first_blocks = device.first_blocks[pass];
    select.n_queries = static_cast<std::uint32_t>(n);
    select.in_kept = kept;
    select.kept = static_cast<std::uint32_t>(k);
    select.n_blocks = blocks[n];
    passes.push_back(select);
    kept = select.kept;
  }
  passes.back().out = reinterpret_cast<cuda::ScanKey*>(hits_.data());  // straight to the host
  return passes;
}

Status CudaVectorScan::start(std::span<const float> queries, std::span<const ScanScope> scopes,
                             std::size_t k, void* stream) {
  INFERSCALE_RETURN_IF_ERROR(check(queries, scopes, k).with_context("CudaVectorScan"));
  const cuda::DeviceScope scope(device_);
  const std::size_t n = scopes.size();
  const Table host = table_at(tables_.data(), n);
  cuda::ScorePass scores;
  std::uint64_t scanned = 0;
  for (const ScanScope& one : scopes) {
    scanned += one.count;
  }
  scores.per_block = scanned < kManyVectors ? cuda::kFewPerBlock : cuda::kManyPerBlock;
  scores.kept = static_cast<std::uint32_t>(std::min<std::size_t>(k, scores.per_block));
  write_queries(queries, scopes, scores.per_block, host);
  scores.n_blocks = host.first_blocks[0][n];
  const Table table = table_at(device_tables_.data(), n);
  const std::vector<cuda::SelectPass> selects = plan_selects(n, k, scores.kept, host, table);
  scores.vectors = vectors_.data();
  scores.queries = table.queries;
  scores.firsts = table.firsts;
  scores.counts = table.counts;
  scores.first_blocks = table.first_blocks[0];
  scores.out = reinterpret_cast<cuda::ScanKey*>(keys_[0].data());
  scores.n_queries = static_cast<std::uint32_t>(n);
  scores.row_elements = static_cast<std::uint32_t>(row_elements_);
  // Copied: for the device to read it where it is was measured to take longer.
  const std::size_t used = host.head_bytes + (selects.size() + 1) * host.blocks_bytes;
  INFERSCALE_RETURN_IF_ERROR(cuda::copy_async(device_tables_.data(), tables_.data(), used, stream));
  INFERSCALE_RETURN_IF_ERROR(cuda::launch_scores(scores, options_.dtype, stream));
  for (const cuda::SelectPass& select : selects) {
    INFERSCALE_RETURN_IF_ERROR(cuda::launch_select(select, stream));
  }
  INFERSCALE_RETURN_IF_ERROR(done_.record(stream));
  started_queries_ = n;
  started_k_ = k;
  return Status();
}

Result<std::vector<std::vector<ScanHit>>> CudaVectorScan::finish() {
  if (started_queries_ == 0) {
    return conflict("CudaVectorScan: no search was started");
  }
  const cuda::DeviceScope scope(device_);
  const Status status = done_.wait();
  std::vector<std::vector<ScanHit>> hits(std::exchange(started_queries_, 0));
  INFERSCALE_RETURN_IF_ERROR(status);
  const auto* keys = reinterpret_cast<const cuda::ScanKey*>(hits_.data());
  for (std::size_t q = 0; q < hits.size(); ++q) {
    for (std::size_t i = 0; i < started_k_ && keys[q * started_k_ + i] != 0; ++i) {
      hits[q].push_back(cuda::hit_of(keys[q * started_k_ + i]));
    }
  }
  return hits;
}

}  // namespace inferscale
