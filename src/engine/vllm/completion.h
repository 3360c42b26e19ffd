#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/http_client.h"
#include "engine/engine.h"

namespace inferscale::vllm {

/// Splits a stream of server-sent events into what their `data` lines hold. Lines are at most 1 MiB
/// long. One thread at a time.
class EventReader {
 public:
  /// Calls `on_data` for each whole line, until it returns false. False when it did, or when a line
  /// is too long.
  bool push(std::string_view piece, const std::function<bool(std::string_view)>& on_data);
  [[nodiscard]] bool overlong() const { return overlong_; }

 private:
  std::string line_;
  bool overlong_ = false;
};

/// A token that may come next, and its log-probability in nats.
struct LikelyToken {
  TokenId token = 0;
  float log_prob = 0;
};

/// What one request to /v1/completions asks for.
struct CompletionRequest {
  std::string url;  ///< of the server
  std::string model;
  std::vector<TokenId> prompt;
  Sampling sampling;
  std::string params;  ///< kv_transfer_params["inferscale"], JSON; empty: none
  std::string cache_salt;
  std::uint32_t likely = 0;  ///< how many of the likeliest tokens are wanted with each piece
};

/// A piece of the answer.
struct CompletionPiece {
  std::vector<TokenId> tokens;
  std::string text;
  std::string finish_reason;        ///< of the last piece
  std::vector<LikelyToken> likely;  ///< in place of the piece's first token, in no order
};

struct CompletionEnd {
  std::string finish_reason;  ///< "stop", "length"; empty where the caller had enough
  /// The server broke the request off ("error", HTTP 500), and what it said; it may be sent again.
  bool server_error = false;
  std::string message;
};

/// Streams an answer; `on_piece` returning false ends it. Errors: those of HttpClient,
/// kUnavailable (the stream ends early or is malformed), kUnsupported (the server names no token
/// ids), what the server answers with other than 500.
[[nodiscard]] Result<CompletionEnd> complete(
    HttpClient& client, const CompletionRequest& request,
    const std::function<bool(const CompletionPiece&)>& on_piece,
    const std::function<bool()>& go_on);

}  // namespace inferscale::vllm
