// The prompt is the same list of token ids with and without injection, and the one that the whole
// text gives when it is tokenised at once: over real questions and real facts. INFERSCALE_LOCOMO
// names the LoCoMo file; without it the project's own conversation is used.
// INFERSCALE_LOCOMO_QUESTIONS raises the number of questions (200 is the full run).
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "cli/import/import_formats.h"
#include "memory/answerer.h"
#include "memory/encoder.h"
#include "unit/kv/temp_directory.h"

namespace inferscale {
namespace {

struct RealData {
  std::vector<FactInput> facts;
  std::vector<std::string> questions;
};

std::string read_text(const std::filesystem::path& path) {
  auto bytes = read_file(path, 1U << 30);
  EXPECT_TRUE(bytes.ok()) << bytes.status().to_string();
  return bytes.ok() ? std::string(reinterpret_cast<const char*>(bytes->data()), bytes->size()) : "";
}

std::filesystem::path locomo_path() {
  const char* set = std::getenv("INFERSCALE_LOCOMO");
  return set != nullptr
             ? std::filesystem::path(set)
             : std::filesystem::path(INFERSCALE_SOURCE_DIR) / "../shared/data/locomo10.json";
}

std::vector<RealData> load_locomo(std::size_t conversations, std::size_t questions_each) {
  const std::string text = read_text(locomo_path());
  std::vector<RealData> all;
  for (const auto& item : nlohmann::json::parse(text)) {
    ImportOptions options;
    options.format = ImportFormat::kLocomo;
    options.conversation = item["sample_id"].get<std::string>();
    RealData data;
    data.facts = parse_import(text, options)->facts;
    for (const auto& qa : item["qa"]) {
      if (data.questions.size() < questions_each) {
        data.questions.push_back(qa["question"].get<std::string>());
      }
    }
    all.push_back(std::move(data));
    if (all.size() == conversations) {
      break;
    }
  }
  return all;
}

RealData load_demo() {
  const std::filesystem::path demo = std::filesystem::path(INFERSCALE_SOURCE_DIR) / "examples/demo";
  RealData data;
  data.facts = parse_facts_file(read_text(demo / "facts.jsonl"))->facts;
  std::ifstream lines(demo / "questions.jsonl");
  for (std::string line; std::getline(lines, line);) {
    data.questions.push_back(nlohmann::json::parse(line)["question"].get<std::string>());
  }
  return data;
}

std::vector<TokenId> prompt_tokens(const EngineParts& parts, const PreparedPrompt& prompt) {
  std::vector<TokenId> tokens = parts.prompt->header();
  for (const PreparedPrompt::Line& line : prompt.lines) {
    tokens.insert(tokens.end(), line.tokens.begin(), line.tokens.end());
  }
  tokens.insert(tokens.end(), prompt.tail.begin(), prompt.tail.end());
  return tokens;
}

// The same prompt as a client of a chat server would send it: text in messages, tokenised in one
// piece.
std::vector<TokenId> whole_tokens(const EngineParts& parts, const PreparedPrompt& prompt,
                                  const std::string& question) {
  const PromptOptions words;
  std::string user = words.preamble + "\n";
  for (const PreparedPrompt::Line& line : prompt.lines) {
    user += PromptBuilder::fact_line_text(line.fact.text, line.fact.event_time,
                                          line.fact.event_offset_minutes);
  }
  user += words.question_label + question;
  auto text =
      parts.engine->chat_format().render({{"system", words.system_prompt}, {"user", user}}, true);
  std::vector<TokenId> tokens = parts.engine->tokenizer().prompt_prefix();
  const std::vector<TokenId> rest = parts.engine->tokenizer().encode(text.value(), true).value();
  tokens.insert(tokens.end(), rest.begin(), rest.end());
  return tokens;
}

class RealQuestions : public ::testing::Test {
 protected:
  void check(const RealData& data) {
    testing::TempDirectory directory;
    MemoryOptions options;
    options.directory = directory.path() / "data";
    options.encode_context = "header";
    options.top_j = 0;  // not what this machine, busy as it may be, is measured to prefill for free
    const std::filesystem::path models =
        std::filesystem::path(std::getenv("HOME")) / ".cache/inferscale/models";
    const char* set = std::getenv("INFERSCALE_TEST_MODEL");
    options.model =
        set != nullptr ? std::filesystem::path(set) : models / "SmolLM2-135M-Instruct.Q4_1.gguf";
    ASSERT_TRUE(std::filesystem::exists(options.model))
        << options.model << ": missing; ./run setup brings it";
    auto service = open_memory_service(options, llama_dependencies());
    ASSERT_TRUE(service.ok()) << service.status().to_string();
    const std::span<const FactInput> facts(data.facts.data(),
                                           std::min<std::size_t>(data.facts.size(), 60));
    auto added = (*service)->add({}, {}, facts, true, {});
    ASSERT_TRUE(added.ok());
    service->reset();

    auto core = ServiceCore::open(options, llama_dependencies());
    ASSERT_TRUE(core.ok()) << core.status().to_string();
    Encoder encoder(**core);
    Answerer answerer(**core, encoder);
    EngineParts& parts = **(*core)->engine();
    for (const std::string& question : data.questions) {
      PrepareOptions prepare;
      prepare.question = question;
      prepare.k = 20;
      prepare.budget_tokens = 4000;
      auto injected = answerer.prepare(parts, prepare);
      prepare.inject = false;
      auto text = answerer.prepare(parts, prepare);
      ASSERT_TRUE(injected.ok() && text.ok()) << injected.status().to_string();
      for (const PreparedPrompt::Line& line : injected->lines) {
        EXPECT_TRUE(line.lease.ready()) << question;
        facts_injected += line.lease.ready() ? 1 : 0;
      }
      EXPECT_EQ(prompt_tokens(parts, *injected), prompt_tokens(parts, *text)) << question;
      EXPECT_EQ(prompt_tokens(parts, *injected), whole_tokens(parts, *injected, question))
          << question;
      ++questions_checked;
    }
  }

  std::size_t questions_checked = 0;
  std::size_t facts_injected = 0;
};

TEST_F(RealQuestions, HaveTheSameTokensInEveryArm) {
  const char* wanted = std::getenv("INFERSCALE_LOCOMO_QUESTIONS");
  const std::size_t questions = wanted != nullptr ? std::strtoul(wanted, nullptr, 10) : 20;
  if (std::filesystem::exists(locomo_path())) {
    const std::size_t conversations = questions >= 200 ? 10 : 1;
    for (const RealData& data : load_locomo(conversations, questions / conversations)) {
      check(data);
    }
    EXPECT_EQ(questions_checked, questions);
  } else {
    std::cout << questions
              << " LoCoMo checks skipped: no data; the project's own questions are checked\n";
    check(load_demo());
  }
  EXPECT_GT(facts_injected, questions_checked);
  std::cout << questions_checked << " questions, " << facts_injected
            << " injected facts: same token ids\n";
}

}  // namespace
}  // namespace inferscale
