#include <fmt/format.h>

#include <memory>

#include "cli/command.h"
#include "cli/interrupt.h"
#include "cli/json_views.h"

namespace inferscale::cli {
namespace {

Result<int> run_reencode(Shell& shell, bool all) {
  INFERSCALE_ASSIGN_OR_RETURN(const std::unique_ptr<MemoryService> service,
                              shell.open_service(ModelNeed::kRequired));
  INFERSCALE_ASSIGN_OR_RETURN(
      const EncodeReply reply,
      service->reencode({shell.options().context, all}, shell.work_control()));
  shell.progress().finish();
  INFERSCALE_ASSIGN_OR_RETURN(const StatsReply stats, service->stats());
  if (shell.json()) {
    shell.print_json(json_text(reply, stats.encode_context, stats.encode.pending, interrupted()));
  } else {
    shell.print(fmt::format("facts are encoded behind {}: {} encoded now, {} failed, {} pending\n",
                            stats.encode_context, reply.encoded, reply.failed,
                            stats.encode.pending));
  }
  if (interrupted()) {
    shell.note("stopped; run the same command again (without --all) to go on");
    return interrupt_exit_code();
  }
  return 0;
}

}  // namespace

void add_reencode_command(Command& root, Shell& shell) {
  const auto all = std::make_shared<bool>(false);
  root.add(shell,
           {"reencode", "Choose what facts are encoded behind, and encode again what is not",
            "inferscale reencode --context names:8"},
           [&shell, all] { return run_reencode(shell, *all); })
      .flag("--all", *all, "Every fact, not only those that were encoded behind something else");
}

}  // namespace inferscale::cli
