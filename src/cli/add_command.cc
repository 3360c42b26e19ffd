#include <fmt/format.h>

#include "cli/command.h"
#include "cli/interrupt.h"
#include "cli/json_views.h"

namespace inferscale::cli {
namespace {

constexpr std::size_t kMaxStdinBytes = 64U << 20;

struct AddArgs {
  std::string text;
  std::string time;
  std::string metadata = "{}";
  bool no_wait = false;
};

Result<int> run_add(Shell& shell, const AddArgs& args) {
  INFERSCALE_ASSIGN_OR_RETURN(const Scope scope, shell.scope());
  FactInput fact;
  INFERSCALE_ASSIGN_OR_RETURN(fact.text, text_or_stdin(args.text, kMaxStdinBytes));
  fact.event_time = args.time;
  fact.metadata = args.metadata;
  INFERSCALE_ASSIGN_OR_RETURN(
      const std::unique_ptr<MemoryService> service,
      shell.open_service(args.no_wait ? ModelNeed::kIfPresent : ModelNeed::kRequired));
  INFERSCALE_ASSIGN_OR_RETURN(
      const AddReply reply,
      service->add(scope, {}, std::span(&fact, 1), !args.no_wait, shell.work_control()));
  shell.progress().finish();
  if (!reply.errors.empty() && reply.ids.empty()) {
    return Status(reply.errors[0].code, reply.errors[0].message);
  }
  if (shell.json()) {
    shell.print_json(json_text(reply));
  } else {
    for (const std::string& id : reply.ids) {
      shell.print(id + "\n");
    }
    shell.note(fmt::format("{} new, {} known already, {} encoded", reply.facts_added,
                           reply.facts_existing, reply.facts_encoded));
    if (!reply.note.empty()) {
      shell.note("inferscale: warning: " + reply.note);
    }
  }
  return report_item_errors(shell, reply.errors);
}

}  // namespace

void add_add_command(Command& root, Shell& shell) {
  const auto args = std::make_shared<AddArgs>();
  root.add(shell,
           {"add", "Remember one fact",
            "inferscale add \"Mara adopted a whippet named Pixel\" --time 2025-02-03 "
            "--scope user=alice"},
           [&shell, args] { return run_add(shell, *args); })
      .argument("text", args->text, "The fact, - for stdin")
      .text("--time", args->time, "TIME", "When it was true or said, RFC 3339")
      .text("--metadata", args->metadata, "JSON", "A JSON object kept with the fact")
      .flag("--no-wait", args->no_wait, "Store only; the next command encodes");
}

}  // namespace inferscale::cli
