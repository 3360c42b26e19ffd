#pragma once

#include <chrono>
#include <cstddef>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "inferscale/status.h"

namespace inferscale {

struct HttpRequest {
  std::string method = "POST";
  std::string url;  ///< "http://host[:port]/path" or https; no user, no fragment
  std::vector<std::pair<std::string, std::string>> headers;
  std::string body;
  std::chrono::milliseconds timeout{60'000};  ///< for all of it, from the connection on
  std::size_t max_reply_bytes = 1U << 20;
};

struct HttpReply {
  int status = 0;  ///< as the server gave it: 404 is a reply, not an error
  std::string body;
  std::string retry_after;  ///< that header; empty when absent
};

/// A client of servers that may be slow, gone or hostile. Thread-safe.
class HttpClient {
 public:
  HttpClient() = default;
  virtual ~HttpClient() = default;
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  /// Errors: kInvalidArgument (URL, header), kUnavailable (no connection, certificate refused,
  /// timed out, closed early, not HTTP), kResourceExhausted (a reply over `max_reply_bytes`). No
  /// message repeats a header or a body.
  [[nodiscard]] virtual Result<HttpReply> send(const HttpRequest& request) = 0;
};

/// A connection for each request; redirects are not followed. Certificates are checked against
/// those in `ca_file` (PEM), or the system's when it is empty. A name server that does not answer
/// may hold a call for longer than its timeout, as long as the system's resolver waits.
[[nodiscard]] std::unique_ptr<HttpClient> make_http_client(std::filesystem::path ca_file = {});

struct HttpUrl {
  bool tls = false;
  std::string host;  ///< without the brackets of an IPv6 address
  std::string port;
  std::string target;  ///< path and query, at least "/"
};
/// Errors: kInvalidArgument that says what is wrong.
[[nodiscard]] Result<HttpUrl> parse_http_url(const std::string& url);

}  // namespace inferscale
