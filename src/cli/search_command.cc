#include <fmt/format.h>

#include "cli/command.h"
#include "cli/json_views.h"
#include "cli/status_line.h"
#include "cli/text_table.h"

namespace inferscale::cli {
namespace {

constexpr std::uint32_t kMaxFacts = 1000;
constexpr std::size_t kMaxQueryBytes = 2U << 20;

struct SearchArgs {
  std::string query;
  std::uint32_t k = 10;
  std::string filter;
};

void print_hits(const Shell& shell, const SearchReply& reply) {
  if (reply.hits.empty()) {
    shell.note("nothing found");
    return;
  }
  TextTable table({{"#", Align::kRight},
                   {"score", Align::kRight},
                   {"date"},
                   {"fact", Align::kLeft, true},
                   {"id"}});
  std::size_t rank = 0;
  for (const SearchHit& hit : reply.hits) {
    table.add_row({std::to_string(++rank), fmt::format("{:.4f}", hit.score),
                   hit.fact.event_time.substr(0, 10), hit.fact.text, hit.fact.id});
  }
  shell.print(table.render(static_cast<std::size_t>(terminal_columns())));
}

Result<int> run_search(Shell& shell, const SearchArgs& args) {
  INFERSCALE_ASSIGN_OR_RETURN(const Scope scope, shell.scope());
  INFERSCALE_ASSIGN_OR_RETURN(const std::string query, text_or_stdin(args.query, kMaxQueryBytes));
  INFERSCALE_ASSIGN_OR_RETURN(const std::unique_ptr<MemoryService> service,
                              shell.open_service(ModelNeed::kIfPresent));
  INFERSCALE_ASSIGN_OR_RETURN(const SearchReply reply,
                              service->search(scope, query, args.k, args.filter));
  if (shell.json()) {
    shell.print_json(json_text(reply));
    return 0;
  }
  print_hits(shell, reply);
  if (!reply.note.empty()) {
    shell.note("note: " + reply.note);
  }
  return 0;
}

}  // namespace

void add_search_command(Command& root, Shell& shell) {
  const auto args = std::make_shared<SearchArgs>();
  root.add(shell,
           {"search", "Find facts by meaning and by keywords",
            "inferscale search \"pets\" --k 5 --filter '{\"city\":\"Graz\"}' --scope user=alice"},
           [&shell, args] { return run_search(shell, *args); })
      .argument("query", args->query, "What to look for, - for stdin")
      .number("-k,--k", args->k, 1, kMaxFacts, "How many facts")
      .text("--filter", args->filter, "JSON", "Condition on the metadata (docs/cli.md)");
}

}  // namespace inferscale::cli
