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
  for (std::uint32_t layer = 0; layer < pages.shape.n_layers; ++layer) {
    for (std::size_t i = 0; i < item.n_tokens; ++i) {
      const std::size_t token = item.first_token + i;
      const std::byte* page = item.pages[token / pages.tokens_per_page];
      const std::size_t in_page = token % pages.tokens_per_page;
      for (const KvPart part : kTokenParts) {
        const std::size_t bytes = pages.part_bytes(part);
        std::memcpy(builder.layer_part(layer, part) + i * bytes,
                    page + pages.part_offset(layer, part) + in_page * bytes, bytes);
      }
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

/// A run, and whether its rows could be stored: as on a device, that is known when it is read.
struct CapturedRun {
  RecordBuilder builder;
  Status status;
};

class CpuBatch final : public CaptureBatch {
 public:
  explicit CpuBatch(std::vector<CapturedRun> runs) : runs_(std::move(runs)) {}

  Status wait() override { return Status(); }
  Status read(std::size_t run, RecordBuilder& builder) override {
    if (run >= runs_.size()) {
      return invalid_argument("run " + std::to_string(run) + " of " + std::to_string(runs_.size()) +
                              ", counted from 0");
    }
    RecordBuilder& from = runs_[run].builder;
    const RecordMeta& meta = from.meta();
    if (!(builder.meta().shape == meta.shape) || builder.meta().codec != meta.codec ||
        builder.n_tokens() != from.n_tokens()) {
      return invalid_argument(
          "builder: another shape, codec or number of tokens than was captured");
    }
    INFERSCALE_RETURN_IF_ERROR(runs_[run].status);
    for (std::uint32_t layer = 0; layer < meta.shape.n_layers; ++layer) {
      for (const KvPart part : kTokenParts) {
        std::memcpy(builder.layer_part(layer, part), from.layer_part(layer, part),
                    from.n_tokens() * part_token_bytes(meta.shape, meta.codec, part));
      }
    }
    return Status();
  }

 private:
  std::vector<CapturedRun> runs_;
};

class CpuCapturer final : public PagedCapturer {
 public:
  explicit CpuCapturer(PagedCache where) : where_(std::move(where)) {}

  Result<std::unique_ptr<CaptureBatch>> capture(std::span<const CaptureRun> runs,
                                                void* /*stream*/) override {
    INFERSCALE_RETURN_IF_ERROR(check_capture_runs(runs, where_).with_context("capture"));
    const RecordMeta meta = meta_of(where_.pages);
    std::vector<CapturedRun> captured;
    for (const CaptureRun& run : runs) {
      const std::vector<TokenId> unnamed(run.rows.size());
      INFERSCALE_ASSIGN_OR_RETURN(RecordBuilder builder, RecordBuilder::create(meta, unnamed));
      CaptureSource source;
      source.first_position = run.first_position;
      source.rows = run.rows;
      Status status = kv_capture(kernels::as_const(where_.cache), source, *where_.table, builder);
      captured.push_back({std::move(builder), std::move(status)});
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
