#include "cli/fact_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/json_views.h"

namespace inferscale::cli {

void print_fact(const Shell& shell, const FactView& fact) {
  if (shell.json()) {
    shell.print_json(json_text(fact));
    return;
  }
  shell.print(fmt::format(
      "{}\n  id        {} (version {})\n  scope     {}\n  event     {}\n  ingested  {}\n"
      "  sources   {}\n  metadata  {}\n",
      fact.text, fact.id, fact.version, to_string(fact.scope),
      fact.event_time.empty() ? "-" : fact.event_time, fact.ingest_time,
      fact.source_turns.empty() ? "-" : fmt::format("{}", fmt::join(fact.source_turns, ", ")),
      fact.metadata));
}

}  // namespace inferscale::cli
