#include "cli/command.h"
#include "cli/fact_text.h"

namespace inferscale::cli {
namespace {

Result<int> run_get(Shell& shell, const std::string& id) {
  INFERSCALE_ASSIGN_OR_RETURN(const Scope scope, shell.scope());
  INFERSCALE_ASSIGN_OR_RETURN(const std::unique_ptr<MemoryService> service,
                              shell.open_service(ModelNeed::kIfPresent));
  INFERSCALE_ASSIGN_OR_RETURN(const FactView fact, service->get(scope, id));
  print_fact(shell, fact);
  return 0;
}

}  // namespace

void add_get_command(Command& root, Shell& shell) {
  const auto id = std::make_shared<std::string>();
  root.add(shell, {"get", "Show one fact", "inferscale get FACT_ID --scope user=alice"},
           [&shell, id] { return run_get(shell, *id); })
      .argument("id", *id, "The fact's id");
}

}  // namespace inferscale::cli
