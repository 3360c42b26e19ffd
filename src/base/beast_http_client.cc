#include <fmt/format.h>
#include <openssl/ssl.h>

#include <algorithm>
#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/address.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/host_name_verification.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http.hpp>
#include <boost/beast/ssl/ssl_stream.hpp>
#include <boost/optional/optional.hpp>
#include <exception>

#include "base/http_client.h"

namespace inferscale {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using Error = boost::system::error_code;
using Clock = std::chrono::steady_clock;

constexpr std::uint32_t kMaxHeaderBytes = 16U << 10;

/// Runs one asynchronous step to its end; the stream's own deadline ends it early. Asynchronous
/// steps only because deadlines need them: the caller waits.
template <typename Start>
Error run(asio::io_context& context, Clock::time_point deadline, const Start& start) {
  Error result = asio::error::timed_out;
  start([&result](Error error, auto&&...) { result = error; });
  context.restart();
  context.run_until(deadline);
  return result;
}

class Exchange {
 public:
  Exchange(const HttpRequest& request, HttpUrl url)
      : request_(request), url_(std::move(url)), deadline_(Clock::now() + request.timeout) {}

  Result<HttpReply> over_tcp() {
    beast::tcp_stream stream(context_);
    INFERSCALE_RETURN_IF_ERROR(connect(stream));
    return exchange(stream);
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
    beast::ssl_stream<beast::tcp_stream> stream(context_, tls);
    stream.set_verify_callback(asio::ssl::host_name_verification(url_.host));
    Error not_address;
    asio::ip::make_address(url_.host, not_address);
    if (not_address) {
      SSL_set_tlsext_host_name(stream.native_handle(), url_.host.c_str());
    }
    INFERSCALE_RETURN_IF_ERROR(connect(stream.next_layer()));
    error = run(context_, deadline_, [&](auto done) {
      stream.async_handshake(asio::ssl::stream_base::client, std::move(done));
    });
    if (error) {
      return failed("TLS", error);
    }
    return exchange(stream);
  }

 private:
  Status failed(std::string_view step, const Error& error) const {
    const bool late = error == beast::error::timeout || error == asio::error::timed_out;
    return unavailable(fmt::format(
        "{}:{}: {}: {}", url_.host, url_.port, step,
        late ? fmt::format("no end within {} ms", request_.timeout.count()) : error.message()));
  }

  Status connect(beast::tcp_stream& stream) {
    asio::ip::tcp::resolver resolver(context_);
    asio::ip::tcp::resolver::results_type found;
    Error error = run(context_, deadline_, [&](auto done) {
      resolver.async_resolve(url_.host, url_.port, [&found, done](Error why, auto results) mutable {
        found = std::move(results);
        done(why);
      });
    });
    if (error) {
      return failed("looking up the host", error);
    }
    stream.expires_at(deadline_);
    error = run(context_, Clock::time_point::max(),
                [&](auto done) { stream.async_connect(found, std::move(done)); });
    return error ? failed("connecting", error) : Status();
  }

  template <typename Stream>
  Result<HttpReply> exchange(Stream& stream) {
    http::request<http::string_body> out;
    out.method_string(request_.method);
    out.target(url_.target);
    out.version(11);
    const bool v6 = url_.host.find(':') != std::string::npos;
    const bool usual = url_.port == (url_.tls ? "443" : "80");
    out.set(http::field::host,
            (v6 ? "[" + url_.host + "]" : url_.host) + (usual ? std::string() : ":" + url_.port));
    out.set(http::field::connection, "close");
    for (const auto& [name, value] : request_.headers) {
      out.set(name, value);
    }
    out.body() = request_.body;
    out.prepare_payload();
    Error error = run(context_, Clock::time_point::max(),
                      [&](auto done) { http::async_write(stream, out, std::move(done)); });
    if (error) {
      return failed("sending", error);
    }
    beast::flat_buffer buffer(kMaxHeaderBytes + (64U << 10));
    http::response_parser<http::string_body> in;
    in.header_limit(kMaxHeaderBytes);
    in.body_limit(request_.max_reply_bytes);
    error = run(context_, Clock::time_point::max(),
                [&](auto done) { http::async_read(stream, buffer, in, std::move(done)); });
    if (error == http::error::body_limit || error == http::error::header_limit ||
        error == http::error::buffer_overflow) {
      return resource_exhausted(fmt::format("{}:{}: the reply is larger than {} bytes", url_.host,
                                            url_.port, request_.max_reply_bytes));
    }
    if (error) {
      return failed("reading the reply", error);
    }
    HttpReply reply;
    reply.status = static_cast<int>(in.get().result_int());
    reply.retry_after = std::string(in.get()[http::field::retry_after]);
    reply.body = std::move(in.get().body());
    return reply;
  }

  const HttpRequest& request_;
  const HttpUrl url_;
  const Clock::time_point deadline_;
  asio::io_context context_{1};
};

bool is_line(const std::string& text) {
  return std::none_of(text.begin(), text.end(),
                      [](char c) { return static_cast<unsigned char>(c) < ' ' || c == 0x7F; });
}

class BeastHttpClient : public HttpClient {
 public:
  explicit BeastHttpClient(std::filesystem::path ca_file) : ca_file_(std::move(ca_file)) {}

  Result<HttpReply> send(const HttpRequest& request) override {
    INFERSCALE_ASSIGN_OR_RETURN(HttpUrl url, parse_http_url(request.url));
    for (const auto& [name, value] : request.headers) {
      if (name.empty() || !is_line(name) || !is_line(value)) {
        return invalid_argument(
            fmt::format("HTTP header {}: not one line of text", is_line(name) ? name : "name"));
      }
    }
    const bool tls = url.tls;
    try {  // Asio's constructors throw when the system is out of descriptors or memory.
      Exchange exchange(request, std::move(url));
      return tls ? exchange.over_tls(ca_file_) : exchange.over_tcp();
    } catch (const std::exception& error) {
      return unavailable(fmt::format("HTTP: {}", error.what()));
    }
  }

 private:
  const std::filesystem::path ca_file_;
};

}  // namespace

std::unique_ptr<HttpClient> make_http_client(std::filesystem::path ca_file) {
  return std::make_unique<BeastHttpClient>(std::move(ca_file));
}

}  // namespace inferscale
