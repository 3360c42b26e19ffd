#include "cli/command.h"
#include "cli/json_views.h"
#include "cli/status_line.h"
#include "cli/text_table.h"

namespace inferscale::cli {
namespace {

struct ListArgs {
  std::uint32_t limit = 50;
  std::string cursor;
  std::string filter;
};

Result<int> run_list(Shell& shell, const ListArgs& args) {
  INFERSCALE_ASSIGN_OR_RETURN(const Scope scope, shell.scope());
  INFERSCALE_ASSIGN_OR_RETURN(const std::unique_ptr<MemoryService> service,
                              shell.open_service(ModelNeed::kIfPresent));
  INFERSCALE_ASSIGN_OR_RETURN(const FactList list,
                              service->list(scope, args.filter, args.limit, args.cursor));
  if (shell.json()) {
    shell.print_json(json_text(list));
    return 0;
  }
  if (list.facts.empty()) {
    shell.note("no facts");
    return 0;
  }
  TextTable table({{"id"}, {"v", Align::kRight}, {"date"}, {"fact", Align::kLeft, true}});
  for (const FactView& fact : list.facts) {
    table.add_row(
        {fact.id, std::to_string(fact.version), fact.event_time.substr(0, 10), fact.text});
  }
  shell.print(table.render(static_cast<std::size_t>(terminal_columns())));
  if (!list.next_cursor.empty()) {
    shell.note("more: add --cursor " + list.next_cursor);
  }
  return 0;
}

}  // namespace

void add_list_command(Command& root, Shell& shell) {
  const auto args = std::make_shared<ListArgs>();
  root.add(shell,
           {"list", "Show facts in the order in which they came",
            "inferscale list --limit 20 --scope user=alice"},
           [&shell, args] { return run_list(shell, *args); })
      .number("--limit", args->limit, 1, 10000, "How many")
      .text("--cursor", args->cursor, "CURSOR", "Go on where the last page ended")
      .text("--filter", args->filter, "JSON", "Condition on the metadata (docs/cli.md)");
}

}  // namespace inferscale::cli
