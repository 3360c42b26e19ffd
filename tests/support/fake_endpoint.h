#pragma once

#include <openssl/ssl.h>

#include <atomic>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

namespace inferscale {

/// An HTTP server in a thread of its own that answers each connection with the next bytes of a
/// list; "" keeps silent until the client goes. With `certificate`, a file that it writes a fresh
/// self-signed certificate for 127.0.0.1 to, it speaks TLS.
class FakeEndpoint {
 public:
  explicit FakeEndpoint(std::vector<std::string> replies, std::filesystem::path certificate = {});
  ~FakeEndpoint();
  FakeEndpoint(const FakeEndpoint&) = delete;
  FakeEndpoint& operator=(const FakeEndpoint&) = delete;

  [[nodiscard]] int port() const { return port_; }
  [[nodiscard]] std::string url() const;
  /// What came, whole requests; ends the server.
  [[nodiscard]] const std::vector<std::string>& requests();

 private:
  void serve();
  void answer(int connection, const std::string& reply);
  void stop();

  const std::vector<std::string> replies_;
  SSL_CTX* tls_ = nullptr;
  int listener_ = -1;
  int port_ = 0;
  std::atomic<bool> stopping_ = false;
  std::vector<std::string> requests_;
  std::thread thread_;
};

/// "HTTP/1.1 200 OK" and so on, with the length of `body`.
[[nodiscard]] std::string http_reply(int status, const std::string& body,
                                     const std::string& header = "");

}  // namespace inferscale
