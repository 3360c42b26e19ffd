#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <iostream>

#include "cli/command.h"
#include "cli/delete_receipt.h"

namespace inferscale::cli {
namespace {

struct DeleteArgs {
  std::vector<std::string> ids;
  std::string filter;
  bool all_in_scope = false;
  bool old_versions = false;
  bool dry_run = false;
  bool yes = false;
  bool keep_turns = false;
  bool no_wait = false;
};

Result<DeleteRequest> make_request(const Shell& shell, const DeleteArgs& args) {
  std::vector<const char*> choices;
  if (!args.ids.empty()) {
    choices.push_back("ids");
  }
  if (!args.filter.empty()) {
    choices.push_back("--filter");
  }
  if (args.all_in_scope) {
    choices.push_back("--all-in-scope");
  }
  if (choices.empty()) {
    return invalid_argument("give the ids of the facts to erase, or --filter, or --all-in-scope");
  }
  if (choices.size() > 1) {
    return invalid_argument(fmt::format(
        "{} cannot be given together: each says by itself which facts to erase; give one of them",
        fmt::join(choices, " and ")));
  }
  DeleteRequest request;
  INFERSCALE_ASSIGN_OR_RETURN(request.scope, shell.scope());
  request.ids = args.ids;
  request.filter = args.filter;
  request.all_in_scope = args.all_in_scope;
  request.old_versions = args.old_versions;
  request.keep_turns = args.keep_turns;
  request.dry_run = args.dry_run;
  return request;
}

/// What is erased without being named one by one is counted and confirmed first.
Status confirm(const Shell& shell, MemoryService& service, const DeleteRequest& request) {
  const std::string what = fmt::format(
      "{}{} in scope {}", request.old_versions ? "the old versions of " : "",
      request.all_in_scope ? "everything" : "what matches --filter", to_string(request.scope));
  if (shell.json() || isatty(STDIN_FILENO) != 1) {
    return invalid_argument(
        fmt::format("this erases {}; add --yes to confirm, or --dry-run to count it", what));
  }
  DeleteRequest count = request;
  count.dry_run = true;
  INFERSCALE_ASSIGN_OR_RETURN(const DeleteReceipt receipt, service.remove(count, false, {}));
  std::cerr << "Erase " << what << ": " << receipt.facts << " facts, " << receipt.versions
            << " versions, " << receipt.turns << " turns? Type yes: " << std::flush;
  std::string answer;
  if (!std::getline(std::cin, answer) || answer != "yes") {
    return invalid_argument("not confirmed; nothing was erased");
  }
  return {};
}

Result<int> run_delete(Shell& shell, const DeleteArgs& args) {
  INFERSCALE_ASSIGN_OR_RETURN(const DeleteRequest request, make_request(shell, args));
  INFERSCALE_ASSIGN_OR_RETURN(const std::unique_ptr<MemoryService> service,
                              shell.open_service(ModelNeed::kIfPresent));
  if (request.ids.empty() && !request.dry_run && !args.yes) {
    INFERSCALE_RETURN_IF_ERROR(confirm(shell, *service, request));
  }
  INFERSCALE_ASSIGN_OR_RETURN(const DeleteReceipt receipt,
                              service->remove(request, !args.no_wait, shell.work_control()));
  shell.progress().finish();
  print_receipt(shell, receipt);
  return receipt_exit_code(receipt);
}

}  // namespace

void add_delete_command(Command& root, Shell& shell) {
  const auto args = std::make_shared<DeleteArgs>();
  root.add(shell,
           {"delete", "Erase facts, their history, and every record that saw them",
            "inferscale delete FACT_ID --scope user=alice\n"
            "  inferscale delete FACT_ID --old-versions --scope user=alice\n"
            "  inferscale delete --filter '{\"city\":\"Graz\"}' --dry-run --scope user=alice\n"
            "  inferscale delete --all-in-scope --yes --scope user=alice"},
           [&shell, args] { return run_delete(shell, *args); })
      .arguments("ids", args->ids, "Ids of facts")
      .text("--filter", args->filter, "JSON", "Facts whose metadata match (docs/cli.md)")
      .flag("--all-in-scope", args->all_in_scope, "Everything that the scope permits")
      .flag("--old-versions", args->old_versions,
            "Of these facts only what was superseded; the facts stay")
      .flag("--dry-run", args->dry_run, "Count what would go, and erase nothing")
      .flag("-y,--yes", args->yes, "Do not ask for confirmation")
      .flag("--keep-turns", args->keep_turns, "Keep turns that no other fact cites")
      .flag("--no-wait", args->no_wait, "Leave encoding the dependants anew to the next command");
}

}  // namespace inferscale::cli
