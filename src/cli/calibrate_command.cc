#include <fmt/format.h>

#include "cli/command.h"

namespace inferscale::cli {
namespace {

Result<int> run_calibrate(Shell& shell) {
  INFERSCALE_ASSIGN_OR_RETURN(const std::unique_ptr<MemoryService> service,
                              shell.open_service(ModelNeed::kRequired));
  INFERSCALE_ASSIGN_OR_RETURN(const std::uint32_t top_j, service->calibrate_top_j());
  if (shell.json()) {
    shell.print_json(fmt::format(R"({{"top_j":{}}})", top_j));
  } else {
    shell.print(fmt::format("top_j is now {} on this machine and model\n", top_j));
  }
  return 0;
}

}  // namespace

void add_calibrate_command(Command& root, Shell& shell) {
  root.add(shell,
           {"calibrate", "Measure again how many best facts are worth prefilling as text",
            "inferscale calibrate"},
           [&shell] { return run_calibrate(shell); });
}

}  // namespace inferscale::cli
