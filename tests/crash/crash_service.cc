#include "crash/crash_service.h"

#include <utility>
#include <vector>

#include "unit/retrieval/fake_embedder.h"

namespace inferscale::testing {

Result<std::unique_ptr<CrashService>> open_crash_service(const CrashServiceOptions& options) {
  auto made = std::make_unique<CrashService>();
  MemoryOptions memory;
  memory.directory = options.directory;
  memory.cache_directory = options.directory.parent_path() / "cache";
  memory.model = options.model;
  memory.encode_context = "window:2";
  memory.top_j = 0;
  memory.encode_in_background = options.background;
  memory.threads = 1;
  memory.context_tokens = 2048;
  memory.disk_budget_bytes = options.disk_budget_bytes;
  ServiceDependencies dependencies;
  if (options.model.empty()) {
    dependencies.open_engine =
        [service = made.get()](const MemoryOptions&) -> Result<std::unique_ptr<Engine>> {
      auto engine = std::make_unique<FakeEngine>(FakeEngineOptions());
      service->engine = engine.get();
      return std::unique_ptr<Engine>(std::move(engine));
    };
  } else {
    dependencies = llama_dependencies();
  }
  dependencies.open_embedder = [](const MemoryOptions&) -> Result<std::unique_ptr<Embedder>> {
    return std::unique_ptr<Embedder>(std::make_unique<FakeEmbedder>());
  };
  dependencies.files = options.files;
  INFERSCALE_ASSIGN_OR_RETURN(std::unique_ptr<ServiceCore> core,
                              ServiceCore::open(memory, dependencies));
  made->core = core.get();
  made->service = std::make_unique<Service>(std::move(core));
  return made;
}

Result<OracleState> CrashService::state(const Oracle& oracle) const {
  OracleState state;
  std::vector<std::string> turn_ids;
  for (const std::string& marker : oracle.markers()) {
    turn_ids.push_back(turn_of(marker));
  }
  for (const std::string& user : crash_users()) {
    const Scope scope = scope_of(user);
    INFERSCALE_ASSIGN_OR_RETURN(const FactList list, service->list(scope, "", 1000, ""));
    for (const FactView& fact : list.facts) {
      OracleFact& known = state.facts[fact.id];
      known.user = user;
      known.turn = fact.source_turns.empty() ? "" : fact.source_turns.front();
      INFERSCALE_ASSIGN_OR_RETURN(const std::vector<FactHistoryRow> history,
                                  service->history(scope, fact.id));
      for (const FactHistoryRow& row : history) {
        known.texts.push_back(row.text);
      }
      known.version = fact.version;
      if (history.empty() || history.back().text != fact.text ||
          history.back().version != fact.version) {
        return internal_error("fact " + fact.id + " and its history disagree");
      }
    }
    INFERSCALE_ASSIGN_OR_RETURN(const std::vector<Turn> turns,
                                core->catalog().get_turns(scope, turn_ids));
    for (const Turn& turn : turns) {
      state.turns[user].insert(turn.id);
    }
  }
  return state;
}

}  // namespace inferscale::testing
