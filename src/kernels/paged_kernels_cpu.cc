#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "kernels/arguments.h"
#include "kernels/kv_rows.h"
#include "kernels/paged_kernels.h"
#include "kernels/rotation.h"

namespace inferscale {
namespace {

/// Tokens `first` .. `first + count - 1` of an item, all of which lie in one page.
struct PageRun {
  const std::byte* page = nullptr;
  std::size_t first_in_page = 0;
  std::size_t first = 0;  ///< counted from the item's first token
  std::size_t count = 0;
};

void compose_run(const PagedItem& item, const PageRun& run, const kernels::Rotation& rotation,
                 const PagedCache& where) {
  const KvShape& shape = where.pages.shape;
  const CacheLayout& cache = where.cache;
  const std::size_t element = codec_element_bytes(where.pages.codec);
  const kernels::CacheRows rows{0, item.rows};
  kernels::RowMove move;
  move.source_codec = where.pages.codec;
  move.target_codec = cache.dtype;
  move.n_tokens = run.count;
  move.n_heads = shape.n_kv_heads;
  for (std::uint32_t layer = 0; layer < shape.n_layers; ++layer) {
    move.head_dim = shape.head_dim_k;
    move.source = kernels::packed_rows(run.page + where.pages.k_offset(layer), run.first_in_page,
                                       move.n_heads, move.head_dim * element);
    move.target =
        kernels::cache_rows(cache.k[layer], run.first, rows, cache.k_strides, cache.rows_per_block);
    kernels::rotate_rows(move, rotation);
    move.head_dim = shape.head_dim_v;
    move.source = kernels::packed_rows(run.page + where.pages.v_offset(layer), run.first_in_page,
                                       move.n_heads, move.head_dim * element);
    move.target =
        kernels::cache_rows(cache.v[layer], run.first, rows, cache.v_strides, cache.rows_per_block);
    kernels::convert_rows(move);
  }
}

class CpuComposer final : public PagedComposer {
 public:
  explicit CpuComposer(PagedCache where) : where_(std::move(where)) {}

  Status compose(std::span<const PagedItem> items, void* /*stream*/) override {
    INFERSCALE_RETURN_IF_ERROR(check_paged_items(items, where_).with_context("compose"));
    kernels::RotationTile rotations(*where_.table, kernels::RotationTile::Direction::kForward);
    const std::size_t per_page = where_.pages.tokens_per_page;
    for (const PagedItem& item : items) {
      for (std::size_t first = 0; first < item.n_tokens;) {
        const std::size_t token = item.first_token + first;
        PageRun run;
        run.page = item.pages[token / per_page];
        run.first_in_page = token % per_page;
        run.first = first;
        run.count =
            std::min({item.n_tokens - first, per_page - run.first_in_page, rotations.capacity()});
        const auto position = item.first_position + static_cast<std::uint32_t>(first);
        compose_run(item, run, rotations.fill(position, run.count), where_);
        first += run.count;
      }
    }
    return Status();
  }

 private:
  const PagedCache where_;
};

class CpuBatch final : public CaptureBatch {
 public:
  explicit CpuBatch(std::vector<RecordBuilder> runs) : runs_(std::move(runs)) {}

  bool ready() override { return true; }
  Status wait() override { return Status(); }
  Status read(std::size_t run, RecordBuilder& builder) override {
    if (run >= runs_.size()) {
      return invalid_argument("run " + std::to_string(run) + " of " + std::to_string(runs_.size()) +
                              ", counted from 0");
    }
    RecordBuilder& from = runs_[run];
    const RecordMeta& meta = from.meta();
    if (!(builder.meta().shape == meta.shape) || builder.meta().codec != meta.codec ||
        builder.n_tokens() != from.n_tokens()) {
      return invalid_argument(
          "builder: another shape, codec or number of tokens than was captured");
    }
    const std::size_t element = codec_element_bytes(meta.codec);
    for (std::uint32_t layer = 0; layer < meta.shape.n_layers; ++layer) {
      std::memcpy(builder.layer_k(layer), from.layer_k(layer),
                  from.n_tokens() * meta.shape.k_elements() * element);
      std::memcpy(builder.layer_v(layer), from.layer_v(layer),
                  from.n_tokens() * meta.shape.v_elements() * element);
    }
    return Status();
  }

 private:
  std::vector<RecordBuilder> runs_;
};

class CpuCapturer final : public PagedCapturer {
 public:
  explicit CpuCapturer(PagedCache where) : where_(std::move(where)) {}

  Result<std::unique_ptr<CaptureBatch>> capture(std::span<const CaptureRun> runs,
                                                void* /*stream*/) override {
    INFERSCALE_RETURN_IF_ERROR(check_capture_runs(runs, where_).with_context("capture"));
    RecordMeta meta;
    meta.shape = where_.pages.shape;
    meta.codec = where_.pages.codec;
    std::vector<RecordBuilder> captured;
    for (const CaptureRun& run : runs) {
      const std::vector<TokenId> unnamed(run.rows.size());
      INFERSCALE_ASSIGN_OR_RETURN(RecordBuilder builder, RecordBuilder::create(meta, unnamed));
      CaptureSource source;
      source.first_position = run.first_position;
      source.rows = run.rows;
      INFERSCALE_RETURN_IF_ERROR(
          kv_capture(kernels::as_const(where_.cache), source, *where_.table, builder));
      captured.push_back(std::move(builder));
    }
    return std::unique_ptr<CaptureBatch>(std::make_unique<CpuBatch>(std::move(captured)));
  }

 private:
  const PagedCache where_;
};

}  // namespace

Result<std::unique_ptr<PagedComposer>> make_cpu_composer(PagedCache where) {
  INFERSCALE_RETURN_IF_ERROR(check_paged_cache(where));
  return std::unique_ptr<PagedComposer>(std::make_unique<CpuComposer>(std::move(where)));
}

Result<std::unique_ptr<PagedCapturer>> make_cpu_capturer(PagedCache where) {
  INFERSCALE_RETURN_IF_ERROR(check_paged_cache(where));
  return std::unique_ptr<PagedCapturer>(std::make_unique<CpuCapturer>(std::move(where)));
}

}  // namespace inferscale
