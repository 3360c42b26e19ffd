#include <fmt/format.h>
#include <openssl/ssl.h>

#include <algorithm>
#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/address.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/host_name_verification.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/ssl/ssl_stream.hpp>
#include <exception>
#include <mutex>
#include <vector>

#include "base/http_client.h"
#include "base/http_exchange.h"

namespace inferscale {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
using http::Clock;
using http::Error;

/// A connection and what runs its steps. One thread at a time.
struct Connection {
  asio::io_context context{1};
  beast::tcp_stream stream{context};
  std::string place;  // host:port
};

/// Connections that wait for their next request. Thread-safe.
class ConnectionPool {
 public:
  explicit ConnectionPool(std::size_t capacity) : capacity_(capacity) {}
  [[nodiscard]] std::size_t capacity() const { return capacity_; }

  std::unique_ptr<Connection> take(const std::string& place) {
    const std::lock_guard lock(mutex_);
    const auto found = std::find_if(idle_.rbegin(), idle_.rend(),
                                    [&](const auto& idle) { return idle->place == place; });
    if (found == idle_.rend()) {
      return nullptr;
    }
    std::unique_ptr<Connection> taken = std::move(*found);
    idle_.erase(std::next(found).base());
    return taken;
  }

  void give(std::unique_ptr<Connection> connection) {
    connection->stream.expires_never();
    const std::lock_guard lock(mutex_);
    if (idle_.size() >= capacity_) {
      idle_.erase(idle_.begin());
    }
    idle_.push_back(std::move(connection));
  }

 private:
  const std::size_t capacity_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Connection>> idle_;
};

/// One request over a connection of its own or a kept one.
class Call {
 public:
  Call(const HttpRequest& request, const HttpSink* sink, HttpUrl url, ConnectionPool& pool)
      : request_(request),
        sink_(sink),
        url_(std::move(url)),
        pool_(pool),
        deadline_(Clock::now() + request.timeout) {}

  Result<HttpReply> over_tcp() {
    const std::string place = url_.host + ":" + url_.port;
    std::unique_ptr<Connection> connection = pool_.take(place);
    if (connection != nullptr) {
      http::Exchange exchange(connection->context, request_, sink_, deadline_);
      const http::Outcome outcome = exchange.run(connection->stream, url_, true);
      // A server closes what waits too long: then nothing of this request was read, or answered.
      if (outcome.ok() || exchange.heard() || !outcome.status.ok() || is_late(outcome.error)) {
        return finish(exchange, outcome, std::move(connection));
      }
    }
    connection = std::make_unique<Connection>();
    connection->place = place;
    INFERSCALE_RETURN_IF_ERROR(connect(connection->context, connection->stream));
    http::Exchange exchange(connection->context, request_, sink_, deadline_);
    const http::Outcome outcome = exchange.run(connection->stream, url_, pool_.capacity() > 0);
    return finish(exchange, outcome, std::move(connection));
  }

  Result<HttpReply> over_tls(const std::filesystem::path& ca_file) {
    asio::ssl::context tls(asio::ssl::context::tls_client);
    Error error;
    if (ca_file.empty()) {
      tls.set_default_verify_paths(error);
    } else {
      tls.load_verify_file(ca_file.string(), error);
    }
    if (error) {
      return unavailable(fmt::format("certificates of authorities: {}", error.message()));
    }
    tls.set_verify_mode(asio::ssl::verify_peer);
    SSL_CTX_set_min_proto_version(tls.native_handle(), TLS1_2_VERSION);
    asio::io_context context{1};
    beast::ssl_stream<beast::tcp_stream> stream(context, tls);
    stream.set_verify_callback(asio::ssl::host_name_verification(url_.host));
    Error not_address;
    asio::ip::make_address(url_.host, not_address);
    if (not_address) {
      SSL_set_tlsext_host_name(stream.native_handle(), url_.host.c_str());
    }
    INFERSCALE_RETURN_IF_ERROR(connect(context, stream.next_layer()));
    error = run(context, deadline_, [&](auto done) {
      stream.async_handshake(asio::ssl::stream_base::client, std::move(done));
    });
    if (error) {
      return failed("TLS", error);
    }
    http::Exchange exchange(context, request_, sink_, deadline_);
    return finish(exchange, exchange.run(stream, url_, false), nullptr);
  }

 private:
  template <typename Start>
  static Error run(asio::io_context& context, Clock::time_point deadline, const Start& start) {
    Error result = asio::error::timed_out;
    start([&result](Error error, auto&&...) { result = error; });
    context.restart();
    context.run_until(deadline);
    return result;
  }

  static bool is_late(const Error& error) {
    return error == beast::error::timeout || error == asio::error::timed_out;
  }

  Status failed(std::string_view step, const Error& error) const {
    const bool idle =
        is_late(error) && request_.idle_timeout.count() > 0 && Clock::now() < deadline_;
    const auto waited = idle ? request_.idle_timeout : request_.timeout;
    return unavailable(fmt::format(
        "{}:{}: {}: {}", url_.host, url_.port, step,
        is_late(error)
            ? fmt::format("{} within {} ms", idle ? "nothing more" : "no end", waited.count())
            : error.message()));
  }

  Status connect(asio::io_context& context, beast::tcp_stream& stream) {
    asio::ip::tcp::resolver resolver(context);
    asio::ip::tcp::resolver::results_type found;
    Error error = run(context, deadline_, [&](auto done) {
      resolver.async_resolve(url_.host, url_.port, [&found, done](Error why, auto results) mutable {
        found = std::move(results);
        done(why);
      });
    });
    if (error) {
      return failed("looking up the host", error);
    }
    stream.expires_at(deadline_);
    error = run(context, Clock::time_point::max(),
                [&](auto done) { stream.async_connect(found, std::move(done)); });
    if (error) {
      return failed("connecting", error);
    }
    Error ignored;  // it is slower with the delay, and no more
    stream.socket().set_option(asio::ip::tcp::no_delay(true), ignored);
    return Status();
  }

  Result<HttpReply> finish(http::Exchange& exchange, const http::Outcome& outcome,
                           std::unique_ptr<Connection> connection) {
    using Refusal = beast::http::error;
    INFERSCALE_RETURN_IF_ERROR(outcome.status);
    if (outcome.error == Refusal::body_limit || outcome.error == Refusal::header_limit ||
        outcome.error == Refusal::buffer_overflow) {
      return resource_exhausted(fmt::format("{}:{}: the reply is larger than {} bytes", url_.host,
                                            url_.port, request_.max_reply_bytes));
    }
    if (outcome.error) {
      return failed(exchange.heard() ? "reading the reply" : "sending, or waiting for the reply",
                    outcome.error);
    }
    if (connection != nullptr && pool_.capacity() > 0 && exchange.reusable()) {
      pool_.give(std::move(connection));
    }
    return exchange.take_reply();
  }

  const HttpRequest& request_;
  const HttpSink* sink_;
  const HttpUrl url_;
  ConnectionPool& pool_;
  const Clock::time_point deadline_;
};

bool is_line(const std::string& text) {
  return std::none_of(text.begin(), text.end(),
                      [](char c) { return static_cast<unsigned char>(c) < ' ' || c == 0x7F; });
}

class BeastHttpClient : public HttpClient {
 public:
  explicit BeastHttpClient(HttpClientOptions options)
      : ca_file_(std::move(options.ca_file)), pool_(options.kept_connections) {}

  Result<HttpReply> send(const HttpRequest& request) override { return call(request, nullptr); }
  Result<HttpReply> stream(const HttpRequest& request, const HttpSink& sink) override {
    return call(request, &sink);
  }

 private:
  Result<HttpReply> call(const HttpRequest& request, const HttpSink* sink) {
    INFERSCALE_ASSIGN_OR_RETURN(HttpUrl url, parse_http_url(request.url));
    for (const auto& [name, value] : request.headers) {
      if (name.empty() || !is_line(name) || !is_line(value)) {
        return invalid_argument(
            fmt::format("HTTP header {}: not one line of text", is_line(name) ? name : "name"));
      }
    }
    const bool tls = url.tls;
    try {  // Asio's constructors throw when the system is out of descriptors or memory.
      Call one(request, sink, std::move(url), pool_);
      return tls ? one.over_tls(ca_file_) : one.over_tcp();
    } catch (const std::exception& error) {
      return unavailable(fmt::format("HTTP: {}", error.what()));
    }
  }

  const std::filesystem::path ca_file_;
  ConnectionPool pool_;
};

}  // namespace

std::unique_ptr<HttpClient> make_http_client(HttpClientOptions options) {
  return std::make_unique<BeastHttpClient>(std::move(options));
}

}  // namespace inferscale
