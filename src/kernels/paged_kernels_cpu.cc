#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/arguments.h"
#include "kernels/paged_kernels.h"

namespace inferscale {
namespace {

RecordMeta meta_of(const PageLayout& pages) {
  RecordMeta meta;
  meta.shape = pages.shape;
  meta.codec = pages.codec;
  return meta;
}

/// The item's tokens as a record.
Result<std::shared_ptr<const Record>> gather(const PagedItem& item, const PageLayout& pages) {
  const std::vector<TokenId> unnamed(item.n_tokens);
  INFERSCALE_ASSIGN_OR_RETURN(RecordBuilder builder,
                              RecordBuilder::create(meta_of(pages), unnamed));
  const std::size_t k_bytes = pages.k_token_bytes();
  const std::size_t v_bytes = pages.v_token_bytes();
  for (std::uint32_t layer = 0; layer < pages.shape.n_layers; ++layer) {
    for (std::size_t i = 0; i < item.n_tokens; ++i) {
      const std::size_t token = item.first_token + i;
      const std::byte* page = item.pages[token / pages.tokens_per_page];
      const std::size_t in_page = token % pages.tokens_per_page;
      std::memcpy(builder.layer_k(layer) + i * k_bytes,
                  page + pages.k_offset(layer) + in_page * k_bytes, k_bytes);
      std::memcpy(builder.layer_v(layer) + i * v_bytes,
                  page + pages.v_offset(layer) + in_page * v_bytes, v_bytes);
    }
  }
  return std::move(builder).seal();
}

/// Written to be compared with: gathers what lies in the pages and leaves the rest to kv_compose.
class CpuComposer final : public PagedComposer {
 public:
  explicit CpuComposer(PagedCache where) : where_(std::move(where)) {}

  Status compose(std::span<const PagedItem> items, void* /*stream*/) override {
    INFERSCALE_RETURN_IF_ERROR(check_paged_items(items, where_).with_context("compose"));
    std::vector<std::shared_ptr<const Record>> records;
    std::vector<ComposeItem> gathered;
    for (const PagedItem& item : items) {
      if (item.n_tokens == 0) {
        continue;
      }
      INFERSCALE_ASSIGN_OR_RETURN(std::shared_ptr<const Record> record, gather(item, where_.pages));
      ComposeItem& out = gathered.emplace_back();
      out.record = record.get();
      out.first_position = item.first_position;
      out.rows = item.rows;
      records.push_back(std::move(record));
    }
    return kv_compose(gathered, *where_.table, where_.cache);
  }

 private:
  const PagedCache where_;
};

class CpuBatch final : public CaptureBatch {
 public:
  explicit CpuBatch(std::vector<RecordBuilder> runs) : runs_(std::move(runs)) {}

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
    const RecordMeta meta = meta_of(where_.pages);
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
