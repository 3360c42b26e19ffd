// Evidence recall of vector, keyword and fused retrieval on LoCoMo (docs/retrieval.md):
//   retrieval_recall --locomo locomo10.json --model all-MiniLM-L6-v2-f16.gguf --conversation
//   conv-26
//                    --out bench/results/retrieval-conv26.json
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "base/file.h"
#include "catalog/sqlite/sqlite_catalog.h"
#include "retrieval/llama_embedder.h"
#include "retrieval/locomo_questions.h"
#include "retrieval/recall.h"
#include "retrieval/retriever.h"

namespace inferscale::bench {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr std::array<std::size_t, 4> kDepths = {5, 10, 20, 50};
struct Mode {
  const char* name;
  RetrievalMode mode;
};
constexpr std::array<Mode, 3> kModes = {{{"vector", RetrievalMode::kVector},
                                         {"bm25", RetrievalMode::kKeyword},
                                         {"fused", RetrievalMode::kFused}}};

struct Options {
  fs::path locomo;
  fs::path model;
  std::vector<std::string> conversations;  // empty: all
  fs::path out;
  bool tune = false;
  FusionWeights weights;
};

/// Each question is embedded once, however many modes and depths ask for it.
class RememberingEmbedder final : public Embedder {
 public:
  explicit RememberingEmbedder(Embedder& inner) : inner_(inner) {}
  const std::string& id() const override { return inner_.id(); }
  std::size_t dim() const override { return inner_.dim(); }
  std::vector<Result<TextVectors>> embed(std::span<const std::string> texts) override {
    std::vector<Result<TextVectors>> results;
    for (const std::string& text : texts) {
      auto known = known_.find(text);
      if (known == known_.end()) {
        known = known_.emplace(text, inner_.embed(std::span(&text, 1))[0]).first;
      }
      results.push_back(known->second);
    }
    return results;
  }

 private:
  Embedder& inner_;
  std::map<std::string, Result<TextVectors>> known_;
};

Scope scope_of(const Conversation& conversation) { return {"default", conversation.id, "", ""}; }

Status store_facts(const Conversation& conversation, Embedder& embedder, Catalog& catalog) {
  std::vector<std::string> texts;
  for (const FactInput& fact : conversation.facts) {
    texts.push_back(fact.text);
  }
  std::vector<Result<TextVectors>> vectors = embedder.embed(texts);
  std::vector<NewFact> facts(texts.size());
  for (std::size_t i = 0; i < facts.size(); ++i) {
    INFERSCALE_ASSIGN_OR_RETURN(facts[i].vectors, std::move(vectors[i]));
    INFERSCALE_ASSIGN_OR_RETURN(const ParsedTime time,
                                parse_rfc3339(conversation.facts[i].event_time));
    facts[i].scope = scope_of(conversation);
    facts[i].text = conversation.facts[i].text;
    facts[i].event_time = time.time;
    facts[i].source_turns = conversation.facts[i].source_turns;
  }
  return catalog.add_facts(facts).status();
}

Result<std::vector<Found>> measure(Retriever& retriever,
                                   const std::vector<Conversation>& conversations,
                                   RetrievalMode mode, std::size_t k) {
  std::vector<Found> found;
  for (const Conversation& conversation : conversations) {
    for (const Question& question : conversation.questions) {
      RetrievalRequest request{scope_of(conversation), question.text, k, Filter(), mode};
      INFERSCALE_ASSIGN_OR_RETURN(const RetrievalResult result, retriever.search(request));
      std::set<std::string> cited;
      for (const RetrievedFact& fact : result.facts) {
        cited.insert(fact.fact.source_turns.begin(), fact.fact.source_turns.end());
      }
      found.push_back(count_found(question, cited));
    }
  }
  return found;
}

std::vector<Found> ceiling(const std::vector<Conversation>& conversations) {
  std::vector<Found> found;
  for (const Conversation& conversation : conversations) {
    std::set<std::string> cited;
    for (const FactInput& fact : conversation.facts) {
      cited.insert(fact.source_turns.begin(), fact.source_turns.end());
    }
    for (const Question& question : conversation.questions) {
      found.push_back(count_found(question, cited));
    }
  }
  return found;
}

Json difference_row(const char* against, std::size_t k, const std::vector<Found>& fused,
                    const std::vector<Found>& other) {
  const auto turns = [](const Recall& recall) { return recall.turns; };
  const auto questions = [](const Recall& recall) { return recall.questions; };
  const Interval by_turn = paired_interval(fused, other, turns);
  const Interval by_question = paired_interval(fused, other, questions);
  return {{"fused_minus", against},
          {"k", k},
          {"turns", recall_of(fused).turns - recall_of(other).turns},
          {"turns_95", {by_turn.low, by_turn.high}},
          {"questions", recall_of(fused).questions - recall_of(other).questions},
          {"questions_95", {by_question.low, by_question.high}}};
}

Result<Json> measure_all(Retriever& retriever, const std::vector<Conversation>& conversations) {
  Json rows = Json::array();
  Json differences = Json::array();
  fmt::print("{:8}{:>4}{:>8}{:>11}\n", "mode", "k", "turns", "questions");
  for (const std::size_t k : kDepths) {
    std::array<std::vector<Found>, kModes.size()> found;
    for (std::size_t m = 0; m < kModes.size(); ++m) {
      INFERSCALE_ASSIGN_OR_RETURN(found[m], measure(retriever, conversations, kModes[m].mode, k));
      const Recall recall = recall_of(found[m]);
      rows.push_back({{"mode", kModes[m].name},
                      {"k", k},
                      {"turns", recall.turns},
                      {"questions", recall.questions}});
      fmt::print("{:8}{:>4}{:>8.3f}{:>11.3f}\n", kModes[m].name, k, recall.turns, recall.questions);
    }
    differences.push_back(difference_row("vector", k, found[2], found[0]));
    differences.push_back(difference_row("bm25", k, found[2], found[1]));
  }
  for (const Json& row : differences) {
    fmt::print(
        "fused - {:7} k {:>2}: turns {:+.3f} [{:+.3f}, {:+.3f}], questions {:+.3f} [{:+.3f}, "
        "{:+.3f}]\n",
        row["fused_minus"].get<std::string>(), row["k"].get<std::size_t>(),
        row["turns"].get<double>(), row["turns_95"][0].get<double>(),
        row["turns_95"][1].get<double>(), row["questions"].get<double>(),
        row["questions_95"][0].get<double>(), row["questions_95"][1].get<double>());
  }
  return Json{{"rows", rows}, {"differences", differences}};
}

/// Mean recall over the depths for a grid of fusion settings.
Status tune(Catalog& catalog, Embedder& embedder, const std::vector<Conversation>& conversations) {
  fmt::print("{:>4}{:>9}{}  mean over depths\n", "k0", "keyword", "   turns at k = 5, 10, 20, 50");
  for (const double k0 : {1.0, 2.0, 3.0, 5.0, 10.0, 20.0, 60.0}) {
    for (const double keyword : {0.3, 0.5, 0.6, 0.7, 1.0}) {
      RetrieverOptions options;
      options.weights = {k0, 1, keyword};
      Retriever retriever(catalog, &embedder, options);
      std::vector<double> turns;
      double mean = 0;
      for (const std::size_t k : kDepths) {
        INFERSCALE_ASSIGN_OR_RETURN(const auto found,
                                    measure(retriever, conversations, RetrievalMode::kFused, k));
        turns.push_back(recall_of(found).turns);
        mean += turns.back() / static_cast<double>(kDepths.size());
      }
      fmt::print("{:>4}{:>9}   {:.4f}  {:.4f}\n", k0, keyword, fmt::join(turns, " "), mean);
    }
  }
  return Status();
}

Result<std::vector<Conversation>> load(const Options& options) {
  INFERSCALE_ASSIGN_OR_RETURN(const auto bytes, read_file(options.locomo, kMaxImportBytes));
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  INFERSCALE_ASSIGN_OR_RETURN(std::vector<Conversation> all, read_conversations(text));
  std::vector<Conversation> chosen;
  for (Conversation& conversation : all) {
    if (options.conversations.empty() ||
        std::find(options.conversations.begin(), options.conversations.end(), conversation.id) !=
            options.conversations.end()) {
      chosen.push_back(std::move(conversation));
    }
  }
  if (chosen.empty()) {
    return not_found(fmt::format("none of the conversations {} is in {}",
                                 fmt::join(options.conversations, ", "), options.locomo.string()));
  }
  return chosen;
}

Json describe(const Options& options, const std::vector<Conversation>& conversations,
              const std::string& embedder_id) {
  std::vector<std::string> ids;
  std::size_t facts = 0;
  int without_evidence = 0;
  for (const Conversation& conversation : conversations) {
    ids.push_back(conversation.id);
    facts += conversation.facts.size();
    without_evidence += conversation.without_evidence;
  }
  const std::vector<Found> best = ceiling(conversations);
  std::size_t turns = 0;
  for (const Found& question : best) {
    turns += question.evidence;
  }
  const Recall recall = recall_of(best);
  const auto complete =
      static_cast<std::size_t>(recall.questions * static_cast<double>(best.size()) + 0.5);
  fmt::print("{}: {} facts, {} questions (and {} without evidence), {} evidence turns\n",
             fmt::join(ids, ", "), facts, best.size(), without_evidence, turns);
  fmt::print(
      "ceiling: {} questions have an observation for every evidence turn; {:.3f} of the turns\n",
      complete, recall.turns);
  return {{"conversations", ids},
          {"embedder", embedder_id},
          {"fusion",
           {{"k0", options.weights.k0},
            {"vector", options.weights.vector},
            {"keyword", options.weights.keyword}}},
          {"facts", facts},
          {"questions", best.size()},
          {"questions_without_evidence", without_evidence},
          {"evidence_turns", turns},
          {"ceiling",
           {{"turns", recall.turns},
            {"questions", recall.questions},
            {"complete_questions", complete}}}};
}

Status run(const Options& options) {
  INFERSCALE_ASSIGN_OR_RETURN(const std::vector<Conversation> conversations, load(options));
  INFERSCALE_ASSIGN_OR_RETURN(const std::unique_ptr<Embedder> model,
                              open_llama_embedder({options.model, 0, {}}));
  const fs::path directory =
      fs::temp_directory_path() / fmt::format("retrieval-recall-{}", ::getpid());
  Status status;
  {
    INFERSCALE_ASSIGN_OR_RETURN(const std::unique_ptr<Catalog> catalog,
                                open_sqlite_catalog({directory, 0}));
    for (const Conversation& conversation : conversations) {
      INFERSCALE_RETURN_IF_ERROR(store_facts(conversation, *model, *catalog));
    }
    RememberingEmbedder embedder(*model);
    Json report = describe(options, conversations, model->id());
    if (options.tune) {
      status = tune(*catalog, embedder, conversations);
    } else {
      RetrieverOptions retriever_options;
      retriever_options.weights = options.weights;
      Retriever retriever(*catalog, &embedder, retriever_options);
      INFERSCALE_ASSIGN_OR_RETURN(const Json measured, measure_all(retriever, conversations));
      report.update(measured);
      if (!options.out.empty()) {
        std::ofstream(options.out) << report.dump(2) << "\n";
      }
    }
  }
  fs::remove_all(directory);
  return status;
}

}  // namespace
}  // namespace inferscale::bench

int main(int argc, char** argv) {
  using namespace inferscale;
  bench::Options options;
  CLI::App app("Evidence recall of retrieval on LoCoMo");
  app.add_option("--locomo", options.locomo, "locomo10.json")->required();
  app.add_option("--model", options.model, "the embedding model")->required();
  app.add_option("--conversation", options.conversations,
                 "sample_id; several may be given (default: all)");
  app.add_option("--out", options.out, "JSON report");
  app.add_option("--k0", options.weights.k0, "of the fusion");
  app.add_option("--keyword-weight", options.weights.keyword,
                 "of the fusion; that of vectors is 1");
  app.add_flag("--tune", options.tune, "compare fusion settings instead");
  CLI11_PARSE(app, argc, argv);
  if (const Status status = bench::run(options); !status.ok()) {
    fmt::print(stderr, "retrieval_recall: {}\n", status.to_string());
    return error_row(status.code()).exit_code;
  }
  return 0;
}
