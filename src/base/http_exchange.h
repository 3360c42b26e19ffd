#pragma once

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "base/http_client.h"

/// How one request goes over a connection that stands; inner to the HTTP client.
namespace inferscale::http {

using Error = boost::system::error_code;
using Clock = std::chrono::steady_clock;

inline constexpr std::uint32_t kMaxHeaderBytes = 16U << 10;
inline constexpr std::chrono::milliseconds kPollInterval{50};

[[nodiscard]] boost::beast::http::request<boost::beast::http::string_body> to_message(
    const HttpRequest& request, const HttpUrl& url, bool keep_alive);

/// What a step of a request came to: an error of the connection, or a Status that ends it.
struct Outcome {
  Error error;
  Status status;
  [[nodiscard]] bool ok() const { return !error && status.ok(); }
};

/// Sends a request and reads its reply. One use.
class Exchange {
 public:
  Exchange(boost::asio::io_context& context, const HttpRequest& request, const HttpSink* sink,
           Clock::time_point deadline)
      : context_(context), request_(request), sink_(sink), deadline_(deadline) {
    parser_.header_limit(kMaxHeaderBytes);
    parser_.body_limit(request.max_reply_bytes);
  }

  template <typename Stream>
  Outcome run(Stream& stream, const HttpUrl& url, bool keep_alive) {
    const auto message = to_message(request_, url, keep_alive);
    Outcome outcome = step(stream, [&](auto done) {
      boost::beast::http::async_write(stream, message, std::move(done));
    });
    if (outcome.ok()) {
      outcome = step(stream, [&](auto done) {
        boost::beast::http::async_read_header(stream, buffer_, parser_, std::move(done));
      });
    }
    while (outcome.ok() && !parser_.is_done()) {
      heard_ = true;
      outcome = step(stream, [&](auto done) {
        boost::beast::http::async_read_some(stream, buffer_, parser_, std::move(done));
      });
      if (outcome.ok() && !hand_out()) {
        enough_ = true;
        return outcome;
      }
    }
    return outcome;
  }

  /// Whether anything of a reply has come.
  [[nodiscard]] bool heard() const { return heard_ || parser_.is_header_done(); }
  /// Whether the connection may serve another request.
  [[nodiscard]] bool reusable() const {
    return !enough_ && parser_.is_done() && parser_.keep_alive();
  }
  [[nodiscard]] HttpReply take_reply();

 private:
  /// Runs one asynchronous step to its end. Asynchronous only because deadlines need it: the caller
  /// waits.
  template <typename Stream, typename Start>
  Outcome step(Stream& stream, const Start& start) {
    auto& socket = boost::beast::get_lowest_layer(stream);
    const bool bounded = request_.idle_timeout.count() > 0;
    socket.expires_at(bounded ? std::min(deadline_, Clock::now() + request_.idle_timeout)
                              : deadline_);
    std::optional<Error> result;
    start([&result](Error error, auto&&...) { result = error; });
    bool cancelled = false;
    context_.restart();
    while (!result) {
      context_.run_one_for(kPollInterval);
      if (!result && !cancelled && sink_ != nullptr && sink_->go_on && !sink_->go_on()) {
        cancelled = true;
        socket.cancel();
      }
    }
    return {*result, cancelled ? unavailable("cancelled") : Status()};
  }

  bool hand_out();

  boost::asio::io_context& context_;
  const HttpRequest& request_;
  const HttpSink* sink_;
  const Clock::time_point deadline_;
  boost::beast::flat_buffer buffer_{kMaxHeaderBytes + (64U << 10)};
  boost::beast::http::response_parser<boost::beast::http::string_body> parser_;
  bool heard_ = false;
  bool enough_ = false;
};

}  // namespace inferscale::http
