#include <algorithm>
#include <string>

#include "kernels/arguments.h"
#include "kernels/cuda/kv_compose.h"

namespace inferscale {
namespace {

std::string text(std::size_t value) { return std::to_string(value); }

}  // namespace

Result<std::unique_ptr<CudaComposer>> CudaComposer::create(std::shared_ptr<const RopeTable> table,
                                                           const CacheLayout& cache,
                                                           const PageLayout& pages,
                                                           std::uint32_t max_tokens) {
  INFERSCALE_ASSIGN_OR_RETURN(std::shared_ptr<const cuda::DeviceRope> rope,
                              cuda::DeviceRope::upload(std::move(table)));
  return create(std::move(rope), cache, pages, max_tokens);
}

Result<std::unique_ptr<CudaComposer>> CudaComposer::create(
    std::shared_ptr<const cuda::DeviceRope> rope, const CacheLayout& cache, const PageLayout& pages,
    std::uint32_t max_tokens) {
  constexpr const char* kName = "CudaComposer";
  const ConstCacheLayout view = kernels::as_const(cache);
  INFERSCALE_RETURN_IF_ERROR(kernels::check_cache(view, rope->table()).with_context(kName));
  INFERSCALE_RETURN_IF_ERROR(pages.validate().with_context(kName));
  if (!(pages.shape == cache.shape)) {
    return invalid_argument("CudaComposer: pages and cache have different shapes");
  }
  if (max_tokens < 1 || max_tokens > 1U << 24) {
    return invalid_argument("CudaComposer: max_tokens must be in 1..16777216, not " +
                            text(max_tokens));
  }
  std::unique_ptr<CudaComposer> self(new CudaComposer);
  const cuda::DeviceScope scope(rope->device());
  self->pages_ = pages;
  self->n_rows_ = cache.n_rows;
  self->max_tokens_ = max_tokens;
  self->kind_.packed_codec = pages.codec;
  INFERSCALE_RETURN_IF_ERROR(
      cuda::plan_moves(view, rope->table(), max_tokens, &self->moves_, &self->kind_)
          .with_context(kName));
  describe_pages(pages, &self->moves_);
  INFERSCALE_ASSIGN_OR_RETURN(self->layers_, cuda::upload_layers(view));
  INFERSCALE_ASSIGN_OR_RETURN(
      self->tables_, cuda::TableRing::create(kTables, max_tokens * sizeof(cuda::MoveToken)));
  self->moves_.layers = reinterpret_cast<std::byte* const*>(self->layers_.data());
  self->moves_.cos = rope->cos();
  self->moves_.sin = rope->sin();
  self->moves_.key_bias = rope->key_bias();
  self->rope_ = std::move(rope);
  return self;
}

CudaComposer::~CudaComposer() {
  if (rope_ != nullptr) {
    const cuda::DeviceScope scope(rope_->device());
    tables_.drain();
  }
}

Status CudaComposer::check_item(std::size_t index, const PagedItem& item) const {
  const auto name_of = [index] { return "items[" + text(index) + "]"; };
  if (item.n_tokens == 0 && item.rows.empty()) {
    return Status();
  }
  if (item.rows.empty()) {
    return invalid_argument(
        name_of() + ".rows is empty; it must have one row per token: " + text(item.n_tokens));
  }
  std::uint32_t highest = 0;
  for (const std::uint32_t row : item.rows) {
    highest = std::max(highest, row);
  }
  const std::uint64_t end_position = std::uint64_t{item.first_position} + item.n_tokens;
  if (highest >= n_rows_ || item.rows.size() != item.n_tokens ||
      end_position > rope_->table().max_positions()) {
    const kernels::TokenRun run{item.first_position, 0, item.rows, item.n_tokens};
    return kernels::check_run(name_of(), run, rope_->table(), n_rows_);  // says which
  }
  const std::size_t first = item.first_token / pages_.tokens_per_page;
  const std::uint64_t end = std::uint64_t{item.first_token} + item.n_tokens;
  const std::size_t n_pages = (end + pages_.tokens_per_page - 1) / pages_.tokens_per_page;
  if (item.pages.size() < n_pages) {
    return invalid_argument(name_of() + ".pages has " + text(item.pages.size()) +
                            "; tokens up to " + text(end) + " need " + text(n_pages));
  }
  for (std::size_t i = first; i < n_pages; ++i) {
    const auto address = reinterpret_cast<std::uintptr_t>(item.pages[i]);
    if (address == 0 || address % PageLayout::kPartAlignment != 0) {
      return invalid_argument(name_of() + ".pages[" + text(i) + "] is null or no multiple of " +
                              text(PageLayout::kPartAlignment));
    }
  }
  return Status();
}

Status CudaComposer::check(std::span<const PagedItem> items, std::uint32_t* n_tokens) const {
  std::uint64_t total = 0;
  for (std::size_t i = 0; i < items.size(); ++i) {
    total += items[i].n_tokens;
  }
  if (total > max_tokens_) {
    return invalid_argument(text(total) + " tokens in one call; " + text(max_tokens_) +
                            " is the most");
  }
  for (std::size_t i = 0; i < items.size(); ++i) {
    INFERSCALE_RETURN_IF_ERROR(check_item(i, items[i]));
  }
  *n_tokens = static_cast<std::uint32_t>(total);
  return Status();
}

void describe_pages(const PageLayout& pages, cuda::RowMoves* moves) {
  moves->packed_layer_bytes = pages.layer_bytes();
  moves->packed_v_offset = pages.v_offset(0);
  moves->packed_k_scales = pages.part_offset(0, KvPart::kKScales);
  moves->packed_v_scales = pages.part_offset(0, KvPart::kVScales);
}

void write_compose_table(std::span<const PagedItem> items, const PageLayout& pages,
                         cuda::MoveToken* table) {
  for (const PagedItem& item : items) {
    std::size_t page = item.first_token / pages.tokens_per_page;
    std::uint32_t place = item.first_token % pages.tokens_per_page;
    for (std::uint32_t t = 0; t < item.n_tokens; ++t) {
      *table++ = {reinterpret_cast<std::uint64_t>(item.pages[page]), item.rows[t],
                  (item.first_position + t) | place << cuda::kPositionBits};
      if (++place == pages.tokens_per_page) {
        place = 0;
        ++page;
      }
    }
  }
}

Status CudaComposer::compose(std::span<const PagedItem> items, void* stream) {
  cuda::RowMoves moves = moves_;
  INFERSCALE_RETURN_IF_ERROR(check(items, &moves.n_tokens).with_context("CudaComposer"));
  if (moves.n_tokens == 0) {
    return Status();
  }
  const cuda::DeviceScope scope(rope_->device());
  INFERSCALE_ASSIGN_OR_RETURN(std::byte * table, tables_.next());
  auto* tokens = reinterpret_cast<cuda::MoveToken*>(table);
  write_compose_table(items, pages_, tokens);
  moves.tokens = tokens;
  INFERSCALE_RETURN_IF_ERROR(cuda::launch_moves(moves, kind_, stream));
  return tables_.release(stream);
}

}  // namespace inferscale
