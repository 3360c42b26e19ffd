#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace inferscale {

/// An HTTP/1.1 server for tests: keeps connections open, a thread for each. Replies may be streamed
/// in chunks and cut off.
class TestHttpServer {
 public:
  struct Request {
    std::string method;
    std::string target;
    std::string authorization;
    std::string body;
  };
  /// What a handler answers with: `reply` once; or `begin`, pieces, and `end` unless the
  /// connection is to break.
  class Responder {
   public:
    virtual ~Responder() = default;
    virtual void reply(int status, const std::string& body) = 0;
    virtual void begin(const std::string& content_type) = 0;
    /// False when the client has gone.
    virtual bool piece(const std::string& bytes) = 0;
    virtual void end() = 0;
  };
  using Handler = std::function<void(const Request&, Responder&)>;

  explicit TestHttpServer(Handler handler);
  ~TestHttpServer();
  TestHttpServer(const TestHttpServer&) = delete;
  TestHttpServer& operator=(const TestHttpServer&) = delete;

  [[nodiscard]] const std::string& url() const { return url_; }
  /// Closes the listener and every connection.
  void stop();
  /// Closes the connections that wait for a request, as servers do after a while.
  void close_connections();
  [[nodiscard]] int connections() const { return connections_.load(); }

 private:
  struct Impl;
  void accept_all();

  const Handler handler_;
  std::unique_ptr<Impl> impl_;
  std::string url_;
  std::atomic<int> connections_{0};  // accepted so far
  std::thread acceptor_;
};

}  // namespace inferscale
