// embedded_distribution MODEL.gguf: what the embedded engine, in f32, says comes next after facts
// that were encoded apart. For tests that compare another engine with it.
//
// stdin:  {"header": [ids], "facts": [[ids], …], "question": [ids]}
// stdout: {"injected": [log-probabilities of all tokens], "text": […], "tokens_injected": n}
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/llama/llama_engine.h"

namespace inferscale {
namespace {

using Ids = std::vector<TokenId>;
using Records = std::vector<std::shared_ptr<const Record>>;

struct Prompt {
  Ids header;
  std::vector<Ids> facts;
  Ids question;
};

RecordMeta meta_of(const Engine& engine) {
  RecordMeta meta;
  meta.model_fingerprint = engine.info().model.fingerprint;
  meta.shape = engine.info().model.shape;
  meta.codec = KvCodec::kF32;
  return meta;
}

/// The rows of `tokens` behind what `before` holds.
Result<std::shared_ptr<const Record>> encode(Engine& engine, const Ids& before, const Ids& tokens) {
  RunRequest run;
  run.plan.push_back({before, Lease()});
  Branch branch;
  branch.tokens = tokens;
  const auto begin = static_cast<std::uint32_t>(before.size());
  branch.captures.push_back(
      {begin, begin + static_cast<std::uint32_t>(tokens.size()), meta_of(engine)});
  run.branches.push_back(std::move(branch));
  INFERSCALE_ASSIGN_OR_RETURN(RunResult result, engine.run(std::move(run)));
  return std::move(result.branches.at(0).records.at(0));
}

/// With `records`, of the header and of each fact, they are injected.
Result<RunResult> ask(Engine& engine, const Prompt& prompt, const Records& records) {
  RunRequest run;
  const auto add = [&](const Ids& tokens, std::size_t i) {
    run.plan.push_back({tokens, i < records.size() ? Lease(records[i]) : Lease()});
  };
  add(prompt.header, 0);
  std::size_t size = prompt.header.size() + prompt.question.size();
  for (std::size_t i = 0; i < prompt.facts.size(); ++i) {
    add(prompt.facts[i], i + 1);
    size += prompt.facts[i].size();
  }
  Branch branch;
  branch.tokens = prompt.question;
  branch.score_positions = {static_cast<std::uint32_t>(size - 1)};
  run.branches.push_back(std::move(branch));
  return engine.run(std::move(run));
}

Result<nlohmann::json> answer(const std::string& model, const Prompt& prompt) {
  LlamaEngineOptions options;
  options.model = model;
  options.cache_dtype = KvCodec::kF32;
  options.context_tokens = 2048;
  options.threads = 2;
  INFERSCALE_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine, open_llama_engine(options));
  Records records(1 + prompt.facts.size());
  INFERSCALE_ASSIGN_OR_RETURN(records[0], encode(*engine, {}, prompt.header));
  for (std::size_t i = 0; i < prompt.facts.size(); ++i) {
    INFERSCALE_ASSIGN_OR_RETURN(records[i + 1], encode(*engine, prompt.header, prompt.facts[i]));
  }
  INFERSCALE_ASSIGN_OR_RETURN(const RunResult injected, ask(*engine, prompt, records));
  INFERSCALE_ASSIGN_OR_RETURN(const RunResult text, ask(*engine, prompt, {}));
  return nlohmann::json{{"injected", injected.branches.at(0).scores.at(0).log_probs},
                        {"text", text.branches.at(0).scores.at(0).log_probs},
                        {"tokens_injected", injected.tokens_injected}};
}

int run(int argc, char** argv) {
  const nlohmann::json input = nlohmann::json::parse(std::cin, nullptr, false);
  if (argc != 2 || !input.is_object()) {
    std::cerr << "usage: embedded_distribution MODEL.gguf < PROMPT.json\n";
    return 2;
  }
  const Prompt prompt{input.at("header"), input.at("facts"), input.at("question")};
  const Result<nlohmann::json> result = answer(argv[1], prompt);
  if (!result.ok()) {
    std::cerr << result.status().to_string() << "\n";
    return 1;
  }
  std::cout << result->dump() << "\n";
  return 0;
}

}  // namespace
}  // namespace inferscale

int main(int argc, char** argv) {
  try {
    return inferscale::run(argc, argv);
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
