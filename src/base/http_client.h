#pragma once

#include <chrono>
#include <cstddef>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
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
  std::chrono::milliseconds idle_timeout{
      0};  ///< between two pieces of the reply; 0: `timeout` alone
  std::size_t max_reply_bytes = 1U << 20;
};

struct HttpReply {
  int status = 0;  ///< as the server gave it: 404 is a reply, not an error
  std::string body;
  std::string retry_after;  ///< that header; empty when absent
};

/// Takes a reply as it comes. Both are called on the caller's thread and must not throw.
struct HttpSink {
  /// A piece of the body of a 2xx reply; false: enough, the connection is closed.
  std::function<bool(std::string_view)> on_body;
  /// Asked while waiting, at least every 50 ms; false ends the request. May be empty.
  std::function<bool()> go_on;
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

  /// The same, but the body of a 2xx reply goes to the sink; that of any other stands in the reply.
  /// Errors: besides, kUnavailable ("cancelled") when `go_on` ended it.
  [[nodiscard]] virtual Result<HttpReply> stream(const HttpRequest& request,
                                                 const HttpSink& sink) = 0;
};

struct HttpClientOptions {
  std::filesystem::path ca_file;
  /// How many connections without TLS are kept open between requests; 0: none. A request over a
  /// kept one that the server has closed meanwhile is sent once more over a new one.
  std::size_t kept_connections = 0;
};

/// Redirects are not followed. Certificates are checked against
/// those in `ca_file` (PEM), or the system's when it is empty. A name server that does not answer
/// may hold a call for longer than its timeout, as long as the system's resolver waits.
[[nodiscard]] std::unique_ptr<HttpClient> make_http_client(HttpClientOptions options = {});

struct HttpUrl {
  bool tls = false;
  std::string host;  ///< without the brackets of an IPv6 address
  std::string port;
  std::string target;  ///< path and query, at least "/"
};
/// Errors: kInvalidArgument that says what is wrong.
[[nodiscard]] Result<HttpUrl> parse_http_url(const std::string& url);

}  // namespace inferscale
