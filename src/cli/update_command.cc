#include "cli/command.h"
#include "cli/delete_receipt.h"
#include "cli/fact_text.h"
#include "cli/json_views.h"

namespace inferscale::cli {
namespace {

constexpr std::size_t kMaxStdinBytes = 64U << 20;

struct UpdateArgs {
  UpdateRequest request;
  bool erase_old = false;
  bool no_wait = false;
};

Result<DeleteReceipt> erase_old_versions(Shell& shell, const UpdateArgs& args,
                                         MemoryService& service, const FactView& fact) {
  DeleteRequest request;
  request.scope = fact.scope;
  request.ids = {fact.id};
  request.old_versions = true;
  return service.remove(request, !args.no_wait, shell.work_control());
}

Result<int> run_update(Shell& shell, const UpdateArgs& args) {
  UpdateRequest request = args.request;
  if (!request.text && !request.metadata && !request.event_time) {
    return invalid_argument("nothing to change: give --text, --metadata or --time");
  }
  INFERSCALE_ASSIGN_OR_RETURN(request.scope, shell.scope());
  if (request.text) {
    INFERSCALE_ASSIGN_OR_RETURN(request.text, text_or_stdin(*request.text, kMaxStdinBytes));
  }
  INFERSCALE_ASSIGN_OR_RETURN(
      const std::unique_ptr<MemoryService> service,
      shell.open_service(args.no_wait ? ModelNeed::kIfPresent : ModelNeed::kRequired));
  // What is about to be erased is not worth encoding behind.
  const bool wait = !args.no_wait && !args.erase_old;
  INFERSCALE_ASSIGN_OR_RETURN(const FactView fact,
                              service->update(request, wait, shell.work_control()));
  if (!args.erase_old) {
    shell.progress().finish();
    print_fact(shell, fact);
    return 0;
  }
  INFERSCALE_ASSIGN_OR_RETURN(const DeleteReceipt receipt,
                              erase_old_versions(shell, args, *service, fact));
  if (!args.no_wait) {
    INFERSCALE_RETURN_IF_ERROR(service->encode_pending(shell.work_control()).status());
  }
  shell.progress().finish();
  if (shell.json()) {
    shell.print_json(json_text(fact, receipt));
  } else {
    print_fact(shell, fact);
    print_receipt(shell, receipt);
  }
  return receipt_exit_code(receipt);
}

}  // namespace

void add_update_command(Command& root, Shell& shell) {
  const auto args = std::make_shared<UpdateArgs>();
  root.add(shell,
           {"update", "Change a fact; the old version stays in its history",
            "inferscale update FACT_ID --text \"Mara lives in Ljubljana\" --if-version 1 "
            "--scope user=alice\n"
            "  inferscale update FACT_ID --text \"Mara has moved\" --erase-old --scope user=alice"},
           [&shell, args] { return run_update(shell, *args); })
      .argument("id", args->request.id, "The fact's id")
      .text("--text", args->request.text, "TEXT", "New text, - for stdin")
      .text("--metadata", args->request.metadata, "JSON", "New metadata, a JSON object")
      .text("--time", args->request.event_time, "TIME", "New event time, RFC 3339")
      .number("--if-version", args->request.if_version, 1, 1'000'000'000,
              "Refuse unless this is the version that is live")
      .flag("--erase-old", args->erase_old,
            "Erase all older versions, their words and the records that saw them")
      .flag("--no-wait", args->no_wait, "Store only; the next command encodes");
}

}  // namespace inferscale::cli
