#pragma once

#include <chrono>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "base/http_client.h"
#include "inferscale/status.h"

/// JSON over HTTP, as vLLM and the connector in it speak.
namespace inferscale::vllm {

using Json = nlohmann::json;

struct JsonCall {
  std::string method = "POST";
  std::string url;
  Json body;          ///< null: none
  std::string token;  ///< of an Authorization header; empty: none
  std::chrono::milliseconds timeout{30'000};
  std::size_t max_reply_bytes = 8U << 20;
};

[[nodiscard]] HttpRequest to_request(const JsonCall& call);

/// The error of a reply that is no 2xx: its status by the error table, what the server says in one
/// line of at most 300 bytes.
[[nodiscard]] Status reply_error(const std::string& url, const HttpReply& reply);

/// The JSON object of a 2xx reply. Errors: those of `reply_error`, kUnavailable (no JSON object).
[[nodiscard]] Result<Json> reply_object(const std::string& url, const HttpReply& reply);

/// Sends `call` and reads its reply. Errors: those of HttpClient and of `reply_object`.
[[nodiscard]] Result<Json> call_json(HttpClient& client, const JsonCall& call);

/// Fields of an object that somebody else wrote; nothing where they are missing or of another kind.
[[nodiscard]] std::string text_field(const Json& object, const char* name);
[[nodiscard]] std::uint64_t number_field(const Json& object, const char* name);
[[nodiscard]] double real_field(const Json& object, const char* name, double otherwise);
[[nodiscard]] bool flag_field(const Json& object, const char* name);
/// The array or object of that name, or an empty one of null.
[[nodiscard]] const Json& part_field(const Json& object, const char* name);

}  // namespace inferscale::vllm
