// Remembers three facts and answers a question from their KV.
//   remember DATA_DIRECTORY MODEL.gguf [EMBEDDER.gguf]
#include <inferscale/memory.h>

#include <iostream>
#include <vector>

namespace {

int report(const inferscale::Status& status) {
  std::cerr << status.to_string() << '\n';
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::cerr << "remember DATA_DIRECTORY MODEL.gguf [EMBEDDER.gguf]\n";
    return 2;
  }
  inferscale::MemoryOptions options;
  options.directory = argv[1];
  options.model = argv[2];
  options.embedder = argc > 3 ? argv[3] : "";
  options.cache_directory = options.directory / "cache";
  options.top_j =
      0;  // every fact from its KV; unset, as many go as text as this machine has time for
  auto opened = inferscale::MemoryService::open(options);
  if (!opened.ok()) {
    return report(opened.status());
  }
  inferscale::MemoryService& memory = **opened;

  inferscale::Scope scope;
  scope.user = "mara";
  const std::vector<inferscale::FactInput> facts = {
      {"Mara has a whippet called Biscuit.", "{}", "2025-01-04T09:00:00Z", {}},
      {"Mara is allergic to hazelnuts.", "{}", "2025-02-11T18:30:00Z", {}},
      {"Mara rows on Tuesdays.", R"({"topic":"sport"})", "", {}}};
  const auto added = memory.add(scope, {}, facts, true, {});
  if (!added.ok()) {
    return report(added.status());
  }

  inferscale::AskRequest request;
  request.scope = scope;
  request.question = "What is Mara's dog called?";
  request.max_tokens = 24;
  const auto reply = memory.ask(request);
  if (!reply.ok()) {
    return report(reply.status());
  }
  std::cout << reply->answer << '\n'
            << reply->tokens.injected << " tokens injected, " << reply->tokens.prefilled
            << " prefilled, first token after " << reply->timings.ttft << " ms\n";
  for (const inferscale::FallbackCount& fallback : reply->fallbacks) {
    std::cout << fallback.reason << ": " << fallback.count << '\n';
  }
  return 0;
}
