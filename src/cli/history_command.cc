#include "cli/command.h"
#include "cli/json_views.h"
#include "cli/status_line.h"
#include "cli/text_table.h"

namespace inferscale::cli {
namespace {

Result<int> run_history(Shell& shell, const std::string& id) {
  INFERSCALE_ASSIGN_OR_RETURN(const Scope scope, shell.scope());
  INFERSCALE_ASSIGN_OR_RETURN(const std::unique_ptr<MemoryService> service,
                              shell.open_service(ModelNeed::kIfPresent));
  INFERSCALE_ASSIGN_OR_RETURN(const std::vector<FactHistoryRow> rows, service->history(scope, id));
  if (shell.json()) {
    shell.print_json(json_text(id, rows));
    return 0;
  }
  TextTable table({{"v", Align::kRight},
                   {"event"},
                   {"valid from"},
                   {"valid to"},
                   {"fact", Align::kLeft, true}});
  for (const FactHistoryRow& row : rows) {
    table.add_row({std::to_string(row.version), row.event, row.valid_from,
                   row.valid_to.empty() ? "now" : row.valid_to, row.text});
  }
  shell.print(table.render(static_cast<std::size_t>(terminal_columns())));
  return 0;
}

}  // namespace

void add_history_command(Command& root, Shell& shell) {
  const auto id = std::make_shared<std::string>();
  root.add(shell,
           {"history", "Show all versions of a fact",
            "inferscale history FACT_ID --scope user=alice"},
           [&shell, id] { return run_history(shell, *id); })
      .argument("id", *id, "The fact's id");
}

}  // namespace inferscale::cli
