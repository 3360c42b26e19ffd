#include "cli/restore_run.h"

#include <algorithm>

#include "cli/interrupt.h"

namespace inferscale::cli {
namespace {

// Each batch is one durable step: what a Ctrl-C or a crash leaves behind is whole batches.
constexpr std::size_t kItemsPerBatch = 128;

void add_errors(const std::vector<ItemError>& errors, std::span<const std::uint64_t> sources,
                ImportReport& report) {
  for (ItemError error : errors) {
    const std::uint64_t item = sources[error.item];
    error.item = item;
    error.message = "line " + std::to_string(item + 1) + ": " + error.message;
    report.errors.push_back(std::move(error));
  }
}

}  // namespace

Status store_exported(Shell& shell, MemoryService& service, const Scope& target,
                      const ExportedItems& items, bool dry_run, ImportReport& report) {
  const WorkControl control = shell.work_control();
  report.dry_run = dry_run;
  for (std::size_t from = 0; from < items.turns.size() && !interrupted(); from += kItemsPerBatch) {
    const std::size_t count = std::min(kItemsPerBatch, items.turns.size() - from);
    control.progress("turns", from, items.turns.size());
    INFERSCALE_ASSIGN_OR_RETURN(
        const RestoreReply reply,
        service.restore(target, std::span(items.turns).subspan(from, count), {}, dry_run));
    report.turns += reply.turns;
    add_errors(reply.turn_errors, std::span(items.turn_items).subspan(from, count), report);
  }
  for (std::size_t from = 0; from < items.facts.size() && !interrupted(); from += kItemsPerBatch) {
    const std::size_t count = std::min(kItemsPerBatch, items.facts.size() - from);
    control.progress("facts", from, items.facts.size());
    INFERSCALE_ASSIGN_OR_RETURN(
        const RestoreReply reply,
        service.restore(target, {}, std::span(items.facts).subspan(from, count), dry_run));
    report.facts_added += reply.facts_added;
    report.facts_existing += reply.facts_existing;
    report.versions += reply.versions;
    report.renamed += reply.facts_renamed;
    add_errors(reply.fact_errors, std::span(items.fact_items).subspan(from, count), report);
  }
  shell.progress().finish();
  return {};
}

}  // namespace inferscale::cli
