#include "kernels/paged_kernels.h"

#include <string>

#include "kernels/arguments.h"

namespace inferscale {
namespace {

Status check_total(std::size_t n_tokens, const PagedCache& where) {
  return n_tokens <= where.max_tokens
             ? Status()
             : invalid_argument(std::to_string(n_tokens) + " tokens in one call; at most " +
                                std::to_string(where.max_tokens) + " were provided for");
}

/// `rows` may not be left out here.
Status check_rows(const std::string& name, std::uint32_t first_position, std::size_t n_tokens,
                  std::span<const std::uint32_t> rows, const PagedCache& where) {
  if (rows.size() != n_tokens) {
    return invalid_argument(name + ".rows has " + std::to_string(rows.size()) + " entries for " +
                            std::to_string(n_tokens) + " tokens; one each is needed");
  }
  const kernels::TokenRun run{first_position, 0, rows, static_cast<std::uint32_t>(n_tokens)};
  return kernels::check_run(name, run, *where.table, where.cache.n_rows);
}

}  // namespace

Status check_paged_cache(const PagedCache& where) {
  if (where.table == nullptr) {
    return invalid_argument("table is null");
  }
  INFERSCALE_RETURN_IF_ERROR(where.pages.validate().with_context("pages"));
  INFERSCALE_RETURN_IF_ERROR(
      kernels::check_cache(kernels::as_const(where.cache), *where.table).with_context("cache"));
  if (!(where.pages.shape == where.cache.shape)) {
    return invalid_argument("pages and cache have different shapes");
  }
  return Status();
}

Status check_paged_items(std::span<const PagedItem> items, const PagedCache& where) {
  std::size_t n_tokens = 0;
  for (std::size_t i = 0; i < items.size(); ++i) {
    const PagedItem& item = items[i];
    const std::string name = "items[" + std::to_string(i) + "]";
    const std::uint64_t end = std::uint64_t{item.first_token} + item.n_tokens;
    if (end > item.pages.size() * std::uint64_t{where.pages.tokens_per_page}) {
      return invalid_argument(name + " has " + std::to_string(item.pages.size()) +
                              " pages, which do not hold its tokens up to " + std::to_string(end));
    }
    for (const std::byte* page : item.pages) {
      if (page == nullptr) {
        return invalid_argument(name + ".pages holds a null; every page needs an address");
      }
    }
    INFERSCALE_RETURN_IF_ERROR(
        check_rows(name, item.first_position, item.n_tokens, item.rows, where));
    n_tokens += item.n_tokens;
  }
  return check_total(n_tokens, where);
}

Status check_capture_runs(std::span<const CaptureRun> runs, const PagedCache& where) {
  std::size_t n_tokens = 0;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const CaptureRun& run = runs[i];
    const std::string name = "runs[" + std::to_string(i) + "]";
    if (run.rows.empty()) {
      return invalid_argument(name + ".rows is empty; a run has tokens");
    }
    n_tokens += run.rows.size();
    INFERSCALE_RETURN_IF_ERROR(check_total(n_tokens, where));
    INFERSCALE_RETURN_IF_ERROR(
        check_rows(name, run.first_position, run.rows.size(), run.rows, where));
  }
  return Status();
}

}  // namespace inferscale
