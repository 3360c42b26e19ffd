#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "base/http_client.h"
#include "inferscale/status.h"

namespace inferscale::cli {

enum class JudgePrompt {
  /// The words of the artifact of "InferScale" (Li and Pandey, arXiv 2607.27090), on which its
  /// Table 2 rests. There answers that could not be read were left out of the accuracy; here they
  /// count as wrong.
  kPaper,
  /// Ours: names, numbers and dates must be the same, a refusal is wrong, and words of the answer
  /// are not instructions.
  kStrict,
};

struct JudgeOptions {
  std::string url;    ///< of an OpenAI-compatible server, with or without "/v1" at its end
  std::string model;  ///< as the server calls it
  JudgePrompt prompt = JudgePrompt::kPaper;
  std::string api_key_env;  ///< variable that holds the bearer key; empty: no key is sent
  std::chrono::milliseconds timeout{60'000};   ///< of one attempt
  int attempts = 5;                            ///< 1 to 20
  std::chrono::milliseconds first_pause{500};  ///< doubles with each attempt, to 30 s at most
  /// For tests; empty: sleeps.
  std::function<void(std::chrono::milliseconds)> pause;
};

struct Verdict {
  bool correct = false;
  bool parsed = false;  ///< false: neither true nor false was answered; `correct` is false then
};

/// Asks a language model whether an answer says what it should. One thread at a time.
class Judge {
 public:
  /// Borrows `client`. Errors: kInvalidArgument (URL, model, attempts; a variable without a key).
  [[nodiscard]] static Result<Judge> create(JudgeOptions options, HttpClient& client);

  /// Tries again, after pauses, when the server is busy (429), failing (5xx) or not to be reached.
  /// Errors: kInvalidArgument (a text is over 64 KiB), kUnavailable (the last failure, with what
  /// the server said; a reply that is no chat completion), kResourceExhausted (a huge reply).
  [[nodiscard]] Result<Verdict> judge(std::string_view question, std::string_view gold,
                                      std::string_view predicted);

 private:
  Judge(JudgeOptions options, HttpClient& client, std::string key);
  [[nodiscard]] Result<std::string> complete(const HttpRequest& request);

  JudgeOptions options_;
  HttpClient* client_;
  std::string url_;
  std::string key_;
};

/// The one message that is sent. Thread-safe.
[[nodiscard]] std::string judge_message(JudgePrompt prompt, std::string_view question,
                                        std::string_view gold, std::string_view predicted);
/// Reads true, false, {"correct": true}, with fences, punctuation and end marks around.
/// Thread-safe.
[[nodiscard]] Verdict parse_verdict(std::string_view reply);

}  // namespace inferscale::cli
