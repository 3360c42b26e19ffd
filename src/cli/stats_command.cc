#include <fmt/format.h>

#include "cli/command.h"
#include "cli/json_views.h"
#include "cli/option_values.h"

namespace inferscale::cli {
namespace {

std::string stats_text(const StatsReply& stats) {
  std::string text = fmt::format(
      "facts      {} ({} without a record), {} versions, {} vectors, {} turns, {} scopes\n"
      "model      {}\nfingerprint {}\ncontext    {}\ntop_j      {}\ninjection  {}\n"
      "records    {}\n",
      stats.facts, stats.facts_pending, stats.versions, stats.vectors, stats.turns, stats.scopes,
      stats.model.empty() ? "none" : stats.model, stats.model_fingerprint, stats.encode_context,
      stats.top_j, stats.injection, stats.records);
  const EncodeQueueStats& queue = stats.encode;
  if (queue.waiting + queue.given_up > 0) {
    text += fmt::format("encoding   {} pending, {} of them failed (next try {}), {} given up\n",
                        queue.pending, queue.waiting,
                        queue.next_try.empty() ? "never" : queue.next_try, queue.given_up);
  }
  for (const EncodeFailureView& failure : queue.failures) {
    text += fmt::format("  {} after {} tries: {}\n", failure.id, failure.attempts, failure.error);
  }
  for (const TierStats& tier : stats.kv.tiers) {
    text += fmt::format("  {:8} {} records, {} of {}; {} hits, {} evictions, {} corrupt\n",
                        tier.name, tier.records, format_size(tier.bytes),
                        format_size(tier.budget_bytes), tier.hits, tier.evictions, tier.corrupt);
    if (!tier.degraded.empty()) {
      text += fmt::format("  {:8} takes no records: {}\n", "", tier.degraded);
    }
  }
  return text;
}

Result<int> run_stats(Shell& shell) {
  INFERSCALE_ASSIGN_OR_RETURN(const std::unique_ptr<MemoryService> service,
                              shell.open_service(ModelNeed::kIfPresent));
  INFERSCALE_ASSIGN_OR_RETURN(const StatsReply stats, service->stats());
  if (shell.json()) {
    shell.print_json(json_text(stats));
  } else {
    shell.print(stats_text(stats));
  }
  return 0;
}

}  // namespace

void add_stats_command(Command& root, Shell& shell) {
  root.add(shell,
           {"stats", "Count what is stored, and say how it is used", "inferscale stats --json"},
           [&shell] { return run_stats(shell); });
}

}  // namespace inferscale::cli
