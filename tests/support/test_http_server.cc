#include "support/test_http_server.h"

#include <sys/socket.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <set>

namespace inferscale {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using Error = boost::system::error_code;
using Socket = asio::ip::tcp::socket;

class SocketResponder final : public TestHttpServer::Responder {
 public:
  explicit SocketResponder(Socket& socket) : socket_(socket) {}

  void reply(int status, const std::string& body) override {
    http::response<http::string_body> out(static_cast<http::status>(status), 11);
    out.set(http::field::content_type, "application/json");
    out.keep_alive(true);
    out.body() = body;
    out.prepare_payload();
    Error error;
    http::write(socket_, out, error);
    whole_ = !error;
  }
  void begin(const std::string& content_type) override {
    send("HTTP/1.1 200 OK\r\nContent-Type: " + content_type +
         "\r\nTransfer-Encoding: chunked\r\n\r\n");
  }
  bool piece(const std::string& bytes) override {
    Error error;
    asio::write(socket_, http::make_chunk(asio::buffer(bytes)), error);
    return !error;
  }
  void end() override { whole_ = send("0\r\n\r\n"); }
  [[nodiscard]] bool whole() const { return whole_; }

 private:
  bool send(const std::string& bytes) {
    Error error;
    asio::write(socket_, asio::buffer(bytes), error);
    return !error;
  }
  Socket& socket_;
  bool whole_ = false;
};

}  // namespace

struct TestHttpServer::Impl {
  asio::io_context context{1};
  asio::ip::tcp::acceptor acceptor{context};
  std::mutex mutex;
  std::set<Socket*> open;
  std::vector<std::thread> threads;
  bool stopped = false;

  void serve(Socket& socket, const Handler& handler) {
    beast::flat_buffer buffer;
    while (true) {
      http::request_parser<http::string_body> parser;
      parser.body_limit(64U << 20);
      Error error;
      http::read(socket, buffer, parser, error);
      if (error) {
        return;
      }
      const auto& in = parser.get();
      const Request request{std::string(in.method_string()), std::string(in.target()),
                            std::string(in[http::field::authorization]), in.body()};
      SocketResponder responder(socket);
      handler(request, responder);
      if (!responder.whole() || !in.keep_alive()) {
        return;
      }
    }
  }
};

TestHttpServer::TestHttpServer(Handler handler)
    : handler_(std::move(handler)), impl_(std::make_unique<Impl>()) {
  const asio::ip::tcp::endpoint any(asio::ip::address_v4::loopback(), 0);
  impl_->acceptor.open(any.protocol());
  impl_->acceptor.bind(any);
  impl_->acceptor.listen();
  url_ = "http://127.0.0.1:" + std::to_string(impl_->acceptor.local_endpoint().port());
  acceptor_ = std::thread([this] { accept_all(); });
}

TestHttpServer::~TestHttpServer() { stop(); }

void TestHttpServer::accept_all() {
  while (true) {
    auto socket = std::make_shared<Socket>(impl_->context);
    Error error;
    impl_->acceptor.accept(*socket, error);
    const std::lock_guard lock(impl_->mutex);
    if (error || impl_->stopped) {
      return;
    }
    socket->set_option(asio::ip::tcp::no_delay(true), error);  // answers come in small pieces
    ++connections_;
    impl_->open.insert(socket.get());
    impl_->threads.emplace_back([this, socket] {
      impl_->serve(*socket, handler_);
      const std::lock_guard closing(impl_->mutex);
      impl_->open.erase(socket.get());
      Error ignored;
      socket->shutdown(Socket::shutdown_both, ignored);
      socket->close(ignored);
    });
  }
}

void TestHttpServer::close_connections() {
  const std::lock_guard lock(impl_->mutex);
  for (Socket* socket : impl_->open) {
    ::shutdown(socket->native_handle(), SHUT_RDWR);
  }
}

void TestHttpServer::stop() {
  std::vector<std::thread> threads;
  {
    const std::lock_guard lock(impl_->mutex);
    if (impl_->stopped) {
      return;
    }
    impl_->stopped = true;
    ::shutdown(impl_->acceptor.native_handle(), SHUT_RDWR);  // wakes the accept
    for (Socket* socket : impl_->open) {
      ::shutdown(socket->native_handle(), SHUT_RDWR);
    }
    threads.swap(impl_->threads);
  }
  acceptor_.join();
  for (std::thread& thread : threads) {
    thread.join();
  }
  Error ignored;
  impl_->acceptor.close(ignored);
}

}  // namespace inferscale
