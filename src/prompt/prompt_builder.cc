#include "prompt/prompt_builder.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/day.h"
#include "base/utf8.h"

namespace inferscale {
namespace {

constexpr std::size_t kMaxQuestionBytes = 1U << 20;

// Placeholders that no template contains and no template trims away.
constexpr std::array<std::string_view, 4> kMarks = {"@@ifs-system@@", "@@ifs-first@@",
                                                    "@@ifs-reply@@", "@@ifs-second@@"};

bool starts_with(const std::vector<TokenId>& tokens, const std::vector<TokenId>& prefix) {
  return !prefix.empty() && tokens.size() >= prefix.size() &&
         std::equal(prefix.begin(), prefix.end(), tokens.begin());
}

// The literal text of the template before, between and after the marks.
Result<std::vector<std::string>> split_template(const ChatFormat& format) {
  const std::vector<ChatMessage> messages = {{"system", std::string(kMarks[0])},
                                             {"user", std::string(kMarks[1])},
                                             {"assistant", std::string(kMarks[2])},
                                             {"user", std::string(kMarks[3])}};
  INFERSCALE_ASSIGN_OR_RETURN(const std::string rendered, format.render(messages, true));
  std::vector<std::string> pieces;
  std::size_t from = 0;
  for (const std::string_view mark : kMarks) {
    const std::size_t at = rendered.find(mark, from);
    if (at == std::string::npos || rendered.find(mark, at + 1) != std::string::npos) {
      return unsupported(
          "the model's chat template drops, repeats or reorders messages; use a model whose "
          "template keeps "
          "a system, a user and an assistant message in order");
    }
    pieces.push_back(rendered.substr(from, at - from));
    from = at + mark.size();
  }
  pieces.push_back(rendered.substr(from));
  return pieces;
}

Status append_tokens(const Tokenizer& tokenizer, std::string_view text, bool parse_special,
                     std::vector<TokenId>& out) {
  if (text.empty()) {
    return {};
  }
  INFERSCALE_ASSIGN_OR_RETURN(const std::vector<TokenId> tokens,
                              tokenizer.encode(text, parse_special));
  out.insert(out.end(), tokens.begin(), tokens.end());
  return {};
}

// The sample on which `segments_join` is decided: a fact that begins with a digit, one that begins
// with a letter, a question, within the whole prompt as a client would send it.
struct JoinSample {
  std::vector<std::string> fact_lines = {"8 May 2023: Ana moved to Graz.\n",
                                         "Her cat is called \"Momo\".\n"};
  std::string question = "Where does Ana live?";
};

Result<bool> sample_joins(const Tokenizer& tokenizer, const ChatFormat& format,
                          const PromptOptions& options, const PromptBuilder& builder) {
  const JoinSample sample;
  std::vector<TokenId> apart = builder.header();
  std::string user = single_line(options.preamble) + "\n";
  for (const std::string& line : sample.fact_lines) {
    INFERSCALE_RETURN_IF_ERROR(append_tokens(tokenizer, line, false, apart));
    user += line;
  }
  INFERSCALE_ASSIGN_OR_RETURN(const std::vector<TokenId> tail, builder.tail(sample.question));
  apart.insert(apart.end(), tail.begin(), tail.end());
  user += options.question_label + sample.question;
  INFERSCALE_ASSIGN_OR_RETURN(
      const std::string whole,
      format.render({{"system", single_line(options.system_prompt)}, {"user", user}}, true));
  std::vector<TokenId> at_once = tokenizer.prompt_prefix();
  std::vector<TokenId> text;
  INFERSCALE_RETURN_IF_ERROR(append_tokens(tokenizer, whole, true, text));
  if (starts_with(text, at_once)) {
    at_once.clear();
  }
  at_once.insert(at_once.end(), text.begin(), text.end());
  return at_once == apart;
}

Status check_options(const PromptOptions& options) {
  INFERSCALE_RETURN_IF_ERROR(check_text("system prompt", options.system_prompt, 64U << 10));
  INFERSCALE_RETURN_IF_ERROR(check_text("preamble", options.preamble, 4096));
  INFERSCALE_RETURN_IF_ERROR(check_text("next preamble", options.next_preamble, 4096));
  return check_text("question label", options.question_label, 4096);
}

}  // namespace

Result<PromptBuilder> PromptBuilder::create(const Tokenizer& tokenizer, const ChatFormat& format,
                                            const PromptOptions& options) {
  INFERSCALE_RETURN_IF_ERROR(check_options(options));
  INFERSCALE_ASSIGN_OR_RETURN(const std::vector<std::string> pieces, split_template(format));
  PromptBuilder builder(tokenizer);
  builder.question_label_ = options.question_label;

  std::vector<TokenId>& header = builder.header_;
  header = tokenizer.prompt_prefix();
  std::vector<TokenId> opening;
  INFERSCALE_RETURN_IF_ERROR(append_tokens(tokenizer, pieces[0], true, opening));
  // Some templates write BOS themselves: one is enough.
  if (starts_with(opening, header)) {
    header.clear();
  }
  header.insert(header.end(), opening.begin(), opening.end());
  INFERSCALE_RETURN_IF_ERROR(
      append_tokens(tokenizer, single_line(options.system_prompt), false, header));
  INFERSCALE_RETURN_IF_ERROR(append_tokens(tokenizer, pieces[1], true, header));
  INFERSCALE_RETURN_IF_ERROR(
      append_tokens(tokenizer, single_line(options.preamble) + "\n", false, header));

  INFERSCALE_RETURN_IF_ERROR(append_tokens(tokenizer, pieces[3], true, builder.link_));
  INFERSCALE_RETURN_IF_ERROR(
      append_tokens(tokenizer, single_line(options.next_preamble) + "\n", false, builder.link_));
  INFERSCALE_RETURN_IF_ERROR(append_tokens(tokenizer, pieces[4], true, builder.tail_end_));
  if (builder.tail_end_.empty()) {
    return unsupported(
        "the model's chat template does not open a reply; use an instruction-tuned model");
  }
  INFERSCALE_ASSIGN_OR_RETURN(builder.segments_join_,
                              sample_joins(tokenizer, format, options, builder));
  return builder;
}

std::string PromptBuilder::fact_line_text(std::string_view text,
                                          std::optional<TimestampUs> event_time,
                                          int event_offset_minutes) {
  const std::string line = single_line(text);
  if (!event_time) {
    return line + "\n";
  }
  return format_day(*event_time, event_offset_minutes) + ": " + line + "\n";
}

Result<std::vector<TokenId>> PromptBuilder::fact_line(std::string_view text,
                                                      std::optional<TimestampUs> event_time,
                                                      int event_offset_minutes) const {
  const std::string line = fact_line_text(text, event_time, event_offset_minutes);
  if (single_line(text).empty()) {
    return invalid_argument("fact text: only white space; give at least one visible character");
  }
  return tokenizer_->encode(line, false);
}

Result<std::vector<TokenId>> PromptBuilder::tail(std::string_view question) const {
  INFERSCALE_RETURN_IF_ERROR(check_text("question", question, kMaxQuestionBytes));
  const std::size_t first = question.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos) {
    return invalid_argument("question: only white space; give at least one visible character");
  }
  const std::size_t last = question.find_last_not_of(" \t\r\n");
  const std::string words = question_label_ + std::string(question.substr(first, last - first + 1));
  std::vector<TokenId> tokens;
  INFERSCALE_RETURN_IF_ERROR(append_tokens(*tokenizer_, words, false, tokens));
  tokens.insert(tokens.end(), tail_end_.begin(), tail_end_.end());
  return tokens;
}

}  // namespace inferscale
