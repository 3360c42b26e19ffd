#include "cli/bench/workload.h"

#include <fmt/format.h>

#include <array>
#include <functional>

#include "base/clock.h"

namespace inferscale::cli {
namespace {

constexpr std::array<const char*, 12> kNames = {"Nora", "Ivo",  "Lena", "Omar", "Ruth", "Tom",
                                                "Ana",  "Paul", "Mia",  "Karl", "Eva",  "Jan"};
constexpr std::array<const char*, 11> kThings = {
    "a green kettle", "an old map", "two chairs",  "a red bicycle", "a wool coat",   "a radio",
    "a clay bowl",    "some tea",   "a long desk", "a blue lamp",   "a small violin"};
constexpr std::array<const char*, 7> kPlaces = {"Tallinn", "Porto", "Graz", "Oslo",
                                                "Turin",   "Leeds", "Ghent"};
constexpr std::array<const char*, 8> kFiller = {"and",  "it",   "was",  "very",
                                                "good", "that", "they", "said"};

using CountTokens = std::function<Result<std::uint32_t>(const std::string&)>;

/// `text` with filler words behind it until it counts `target` tokens, or the longest such text
/// below it.
Result<std::string> pad_words(std::string text, std::uint32_t target, const CountTokens& count) {
  INFERSCALE_ASSIGN_OR_RETURN(std::uint32_t length, count(text));
  for (std::size_t i = 0; length < target; ++i) {
    const std::string longer = text + " " + kFiller[i % kFiller.size()];
    INFERSCALE_ASSIGN_OR_RETURN(length, count(longer));
    if (length > target) {
      break;
    }
    text = longer;
  }
  return text;
}

std::uint32_t size_of(const std::vector<TokenId>& tokens) {
  return static_cast<std::uint32_t>(tokens.size());
}

}  // namespace

Result<std::vector<TokenId>> Workload::fact_tokens(const BenchFact& fact) const {
  INFERSCALE_ASSIGN_OR_RETURN(const ParsedTime time, parse_rfc3339(fact.event_time));
  return prompt_->fact_line(fact.text, time.time, time.offset_minutes);
}

Result<Workload> Workload::create(const Engine& engine, std::uint32_t n_facts,
                                  const WorkloadShape& shape) {
  Workload work;
  const auto header_length = [&](const std::string& words) -> Result<std::uint32_t> {
    work.options_.system_prompt = words;
    INFERSCALE_ASSIGN_OR_RETURN(
        work.prompt_,
        PromptBuilder::create(engine.tokenizer(), engine.chat_format(), work.options_));
    return size_of(work.prompt_->header());
  };
  INFERSCALE_ASSIGN_OR_RETURN(
      const std::string system,
      pad_words("You answer from the facts you remember.", shape.header, header_length));
  INFERSCALE_RETURN_IF_ERROR(header_length(system).status());

  INFERSCALE_ASSIGN_OR_RETURN(
      work.question_, pad_words("Which of them bought something at the market", shape.question,
                                [&](const std::string& words) -> Result<std::uint32_t> {
                                  INFERSCALE_ASSIGN_OR_RETURN(const auto tokens,
                                                              work.prompt_->tail(words));
                                  return size_of(tokens);
                                }));

  for (std::uint32_t i = 0; i < n_facts; ++i) {
    BenchFact fact;
    fact.event_time = fmt::format("2025-{:02}-{:02}", i % 12 + 1, i / 12 % 28 + 1);
    const std::string words =
        fmt::format("{} bought {} at the market in {}", kNames[i % kNames.size()],
                    kThings[i % kThings.size()], kPlaces[i % kPlaces.size()]);
    INFERSCALE_ASSIGN_OR_RETURN(
        fact.text,
        pad_words(words, shape.fact, [&](const std::string& text) -> Result<std::uint32_t> {
          INFERSCALE_ASSIGN_OR_RETURN(const auto tokens, work.fact_tokens({text, fact.event_time}));
          return size_of(tokens);
        }));
    work.facts_.push_back(std::move(fact));
  }
  return work;
}

}  // namespace inferscale::cli
