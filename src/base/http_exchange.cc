#include "base/http_exchange.h"

namespace inferscale::http {

namespace beast = boost::beast;

beast::http::request<beast::http::string_body> to_message(const HttpRequest& request,
                                                          const HttpUrl& url, bool keep_alive) {
  beast::http::request<beast::http::string_body> out;
  out.method_string(request.method);
  out.target(url.target);
  out.version(11);
  const bool v6 = url.host.find(':') != std::string::npos;
  const bool usual = url.port == (url.tls ? "443" : "80");
  out.set(beast::http::field::host,
          (v6 ? "[" + url.host + "]" : url.host) + (usual ? std::string() : ":" + url.port));
  out.set(beast::http::field::connection, keep_alive ? "keep-alive" : "close");
  for (const auto& [name, value] : request.headers) {
    out.set(name, value);
  }
  out.body() = request.body;
  out.prepare_payload();
  return out;
}

bool Exchange::hand_out() {
  const bool good =
      beast::http::to_status_class(parser_.get().result()) == beast::http::status_class::successful;
  std::string& body = parser_.get().body();
  if (sink_ == nullptr || !sink_->on_body || !good || body.empty()) {
    return true;
  }
  const bool more = sink_->on_body(body);
  body.clear();
  return more;
}

HttpReply Exchange::take_reply() {
  HttpReply reply;
  reply.status = static_cast<int>(parser_.get().result_int());
  reply.retry_after = std::string(parser_.get()[beast::http::field::retry_after]);
  reply.body = std::move(parser_.get().body());
  return reply;
}

}  // namespace inferscale::http
