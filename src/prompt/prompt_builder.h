#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "inferscale/status.h"
#include "inferscale/types.h"
#include "prompt/tokenizer.h"

namespace inferscale {

/// The fixed words of a prompt. A line here is one line: white space is folded.
struct PromptOptions {
  std::string system_prompt =
      "You are a helpful assistant with a memory. Answer the question from the facts you remember. "
      "Be brief.";
  std::string preamble = "Facts that you remember:";            ///< before a turn's first fact
  std::string next_preamble = "More facts that you remember:";  ///< before the facts of later turns
  std::string question_label = "Question: ";  ///< directly before the user's words
};

/// Turns words into the segments of a plan. One prompt is, as token ids,
///   header · fact line · fact line · … · tail
/// where the header is everything before the first fact (BOS, system prompt, opening of the user
/// message, preamble) and the tail is the question and the opening of the reply. In a chat the next
/// turn goes on with
///   link · fact line · … · tail
/// where the link closes the reply and opens the next user message, up to its preamble.
/// Every segment starts with a character that is not white space and ends in exactly one newline,
/// so that segments tokenised apart are the tokens of the whole text (tests/unit/prompt).
/// Immutable, thread-safe; borrows the tokenizer.
class PromptBuilder {
 public:
  /// Errors: kUnsupported (no usable chat template), kInvalidArgument (options not UTF-8).
  [[nodiscard]] static Result<PromptBuilder> create(const Tokenizer& tokenizer,
                                                    const ChatFormat& format,
                                                    const PromptOptions& options);

  [[nodiscard]] const std::vector<TokenId>& header() const { return header_; }
  [[nodiscard]] const std::vector<TokenId>& link() const { return link_; }

  /// "8 May 2023: text\n", or "text\n" without a time. The date is that of the event's own offset.
  [[nodiscard]] Result<std::vector<TokenId>> fact_line(std::string_view text,
                                                       std::optional<TimestampUs> event_time,
                                                       int event_offset_minutes) const;
  /// "Question: …", the end of the user message and the opening of the reply. Errors:
  /// kInvalidArgument (empty, not UTF-8, over 1 MiB).
  [[nodiscard]] Result<std::vector<TokenId>> tail(std::string_view question) const;

  /// Whether segments tokenised apart are the tokens of the whole prompt tokenised at once, found
  /// out on a sample. False for tokenizers that mark the start of a text (SentencePiece): such
  /// prompts must be passed on as token ids, as the embedded engine always does.
  [[nodiscard]] bool segments_join() const { return segments_join_; }

  /// The text of a fact line, for people and tests.
  [[nodiscard]] static std::string fact_line_text(std::string_view text,
                                                  std::optional<TimestampUs> event_time,
                                                  int event_offset_minutes);

 private:
  explicit PromptBuilder(const Tokenizer& tokenizer) : tokenizer_(&tokenizer) {}
  const Tokenizer* tokenizer_;
  std::string question_label_;
  std::vector<TokenId> header_;
  std::vector<TokenId> link_;
  std::vector<TokenId> tail_end_;
  bool segments_join_ = false;
};

}  // namespace inferscale
