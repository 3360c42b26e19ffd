#include <fmt/format.h>
#include <unistd.h>

#include <iostream>

#include "cli/command.h"
#include "cli/json_views.h"

namespace inferscale::cli {
namespace {

struct DeleteArgs {
  std::vector<std::string> ids;
  bool all_in_scope = false;
  bool yes = false;
  bool keep_turns = false;
  bool no_wait = false;
};

Status confirm_all(const Shell& shell, const Scope& scope) {
  const std::string what = fmt::format("everything in scope {}", to_string(scope));
  if (shell.json() || isatty(STDIN_FILENO) != 1) {
    return invalid_argument(fmt::format("--all-in-scope erases {}; add --yes to confirm", what));
  }
  std::cerr << "Erase " << what << "? Type yes: " << std::flush;
  std::string answer;
  if (!std::getline(std::cin, answer) || answer != "yes") {
    return invalid_argument("not confirmed; nothing was erased");
  }
  return {};
}

void print_receipt(const Shell& shell, const DeleteReceipt& receipt) {
  if (shell.json()) {
    shell.print_json(json_text(receipt));
    return;
  }
  shell.print(fmt::format(
      "erased: {} facts, {} versions, {} history rows, {} vectors, {} keyword entries, {} turns\n"
      "records: {} in memory, {} on disk; {} facts had seen them, {} encoded anew\n"
      "read again and found nothing left: {}\n",
      receipt.facts, receipt.versions, receipt.history, receipt.vectors, receipt.keywords,
      receipt.turns, receipt.records_host + receipt.records_gpu, receipt.records_disk,
      receipt.dependants, receipt.dependants_reencoded, receipt.verified ? "yes" : "NO"));
}

Result<int> run_delete(Shell& shell, const DeleteArgs& args) {
  if (args.ids.empty() != args.all_in_scope) {
    return invalid_argument("give the ids of the facts to erase, or --all-in-scope, not both");
  }
  INFERSCALE_ASSIGN_OR_RETURN(const Scope scope, shell.scope());
  if (args.all_in_scope && !args.yes) {
    INFERSCALE_RETURN_IF_ERROR(confirm_all(shell, scope));
  }
  INFERSCALE_ASSIGN_OR_RETURN(const std::unique_ptr<MemoryService> service,
                              shell.open_service(ModelNeed::kIfPresent));
  INFERSCALE_ASSIGN_OR_RETURN(
      const DeleteReceipt receipt,
      service->remove(scope, args.ids, args.keep_turns, !args.no_wait, shell.work_control()));
  shell.progress().finish();
  print_receipt(shell, receipt);
  return receipt.verified ? 0 : error_row(StatusCode::kInternal).exit_code;
}

}  // namespace

void add_delete_command(Command& root, Shell& shell) {
  const auto args = std::make_shared<DeleteArgs>();
  root.add(shell,
           {"delete", "Erase facts, their history, and every record that saw them",
            "inferscale delete FACT_ID --scope user=alice\n"
            "  inferscale delete --all-in-scope --yes --scope user=alice"},
           [&shell, args] { return run_delete(shell, *args); })
      .arguments("ids", args->ids, "Ids of facts")
      .flag("--all-in-scope", args->all_in_scope, "Everything that the scope permits")
      .flag("-y,--yes", args->yes, "Do not ask for confirmation")
      .flag("--keep-turns", args->keep_turns, "Keep turns that no other fact cites")
      .flag("--no-wait", args->no_wait, "Leave encoding the dependants anew to the next command");
}

}  // namespace inferscale::cli
