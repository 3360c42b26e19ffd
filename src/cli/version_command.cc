#include "cli/command.h"

namespace inferscale::cli {

void add_version_command(Command& root, Shell& shell) {
  root.add(shell, {"version", "Print the version", "inferscale version --json"},
           [&shell]() -> Result<int> {
             if (shell.json()) {
               shell.print_json(R"({"version":")" INFERSCALE_VERSION R"("})");
             } else {
               shell.print("inferscale " INFERSCALE_VERSION "\n");
             }
             return 0;
           });
}

}  // namespace inferscale::cli
