#include "support/fake_endpoint.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <utility>

namespace inferscale {
namespace {

SSL_CTX* make_tls(const std::filesystem::path& certificate) {
  EVP_PKEY* key = EVP_EC_gen("P-256");
  X509* x509 = X509_new();
  X509_set_version(x509, 2);
  ASN1_INTEGER_set(X509_get_serialNumber(x509), 1);
  X509_gmtime_adj(X509_getm_notBefore(x509), -3600);
  X509_gmtime_adj(X509_getm_notAfter(x509), 86400);
  X509_set_pubkey(x509, key);
  X509_NAME* name = X509_get_subject_name(x509);
  X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC,
                             reinterpret_cast<const unsigned char*>("fake"), -1, -1, 0);
  X509_set_issuer_name(x509, name);
  X509_EXTENSION* extension =
      X509V3_EXT_conf_nid(nullptr, nullptr, NID_subject_alt_name, "IP:127.0.0.1");
  X509_add_ext(x509, extension, -1);
  X509_EXTENSION_free(extension);
  X509_sign(x509, key, EVP_sha256());
  if (std::FILE* file = std::fopen(certificate.c_str(), "w"); file != nullptr) {
    PEM_write_X509(file, x509);
    std::fclose(file);
  }
  SSL_CTX* tls = SSL_CTX_new(TLS_server_method());
  SSL_CTX_use_certificate(tls, x509);
  SSL_CTX_use_PrivateKey(tls, key);
  X509_free(x509);
  EVP_PKEY_free(key);
  return tls;
}

bool is_whole(const std::string& request) {
  const std::size_t end = request.find("\r\n\r\n");
  if (end == std::string::npos) {
    return false;
  }
  const std::size_t length = request.find("Content-Length: ");
  return length == std::string::npos ||
         request.size() >= end + 4 + std::strtoul(request.c_str() + length + 16, nullptr, 10);
}

}  // namespace

FakeEndpoint::FakeEndpoint(std::vector<std::string> replies, std::filesystem::path certificate)
    : replies_(std::move(replies)),
      tls_(certificate.empty() ? nullptr : make_tls(certificate)),
      listener_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  if (bind(listener_, reinterpret_cast<sockaddr*>(&address), size) == 0 &&
      listen(listener_, 8) == 0 &&
      getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size) == 0) {
    port_ = ntohs(address.sin_port);
  }
  thread_ = std::thread([this] { serve(); });
}

FakeEndpoint::~FakeEndpoint() {
  stop();
  SSL_CTX_free(tls_);
}

std::string FakeEndpoint::url() const {
  return (tls_ == nullptr ? "http://127.0.0.1:" : "https://127.0.0.1:") + std::to_string(port_);
}

const std::vector<std::string>& FakeEndpoint::requests() {
  stop();
  return requests_;
}

void FakeEndpoint::stop() {
  stopping_ = true;
  if (thread_.joinable()) {
    thread_.join();
    close(listener_);
  }
}

void FakeEndpoint::serve() {
  for (std::size_t next = 0; !stopping_ && next < replies_.size();) {
    pollfd wait{listener_, POLLIN, 0};
    if (poll(&wait, 1, 20) != 1) {
      continue;
    }
    const int connection = accept(listener_, nullptr, nullptr);
    if (connection >= 0) {
      answer(connection, replies_[next++]);
      close(connection);
    }
  }
}

void FakeEndpoint::answer(int connection, const std::string& reply) {
  SSL* tls = nullptr;
  if (tls_ != nullptr) {
    tls = SSL_new(tls_);
    SSL_set_fd(tls, connection);
    if (SSL_accept(tls) != 1) {
      SSL_free(tls);
      return;
    }
  }
  const auto read_some = [&](std::array<char, 4096>& into) -> ssize_t {
    return tls != nullptr ? SSL_read(tls, into.data(), static_cast<int>(into.size()))
                          : recv(connection, into.data(), into.size(), 0);
  };
  std::array<char, 4096> some{};
  std::string request;
  while (!is_whole(request)) {
    const ssize_t count = read_some(some);
    if (count <= 0) {
      break;
    }
    request.append(some.data(), static_cast<std::size_t>(count));
  }
  requests_.push_back(request);
  if (tls != nullptr) {
    SSL_write(tls, reply.data(), static_cast<int>(reply.size()));
    SSL_shutdown(tls);
  } else {
    for (std::size_t sent = 0; sent < reply.size();) {
      const ssize_t count =
          send(connection, reply.data() + sent, reply.size() - sent, MSG_NOSIGNAL);
      if (count <= 0) {
        break;
      }
      sent += static_cast<std::size_t>(count);
    }
    if (!reply.empty()) {
      shutdown(connection, SHUT_WR);
    }
  }
  // Until the client goes: closing with something unread would take the reply from it.
  if (reply.empty()) {
    pollfd gone{connection, POLLRDHUP, 0};
    while (!stopping_ && poll(&gone, 1, 20) == 0) {
    }
  } else {
    while (read_some(some) > 0) {
    }
  }
  SSL_free(tls);
}

std::string http_reply(int status, const std::string& body, const std::string& header) {
  return "HTTP/1.1 " + std::to_string(status) + " Said\r\n" + header +
         "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
}

}  // namespace inferscale
