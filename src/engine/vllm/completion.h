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

/// What one request to /v1/completions asks for.
struct CompletionRequest {
  std::string url;  ///< of the server
  std::string model;
  std::vector<TokenId> prompt;
  Sampling sampling;
  std::string params;  ///< kv_transfer_params["inferscale"], JSON; empty: none
  std::string cache_salt;
};

/// A piece of the answer.
struct CompletionPiece {
  std::vector<TokenId> tokens;
  std::string text;
  std::string finish_reason;  ///< of the last piece
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
