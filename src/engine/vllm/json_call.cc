#include "engine/vllm/json_call.h"

#include <fmt/format.h>

#include "base/utf8.h"

namespace inferscale::vllm {
namespace {

std::string said(const std::string& body) {
  const Json parsed = Json::parse(body, nullptr, false);
  std::string text = body;
  if (parsed.is_object()) {
    const Json& error = part_field(parsed, "error");
    const std::string message =
        error.is_object() ? text_field(error, "message") : text_field(parsed, "message");
    text = message.empty() ? text : message;
  }
  if (find_invalid_utf8(text) != std::string::npos) {
    return "";
  }
  return std::string(utf8_prefix(single_line(text), 300));
}

StatusCode code_of(int http_status) {
  for (const ErrorTableRow& row : error_table()) {
    if (row.http_status == http_status && row.code != StatusCode::kOk) {
      return row.code;
    }
  }
  return http_status >= 500 ? StatusCode::kUnavailable : StatusCode::kInvalidArgument;
}

}  // namespace

HttpRequest to_request(const JsonCall& call) {
  HttpRequest request;
  request.method = call.method;
  request.url = call.url;
  if (!call.body.is_null()) {
    request.headers.emplace_back("Content-Type", "application/json");
    // What is no UTF-8 cannot come so far; it would be replaced rather than throw.
    request.body = call.body.dump(-1, ' ', false, Json::error_handler_t::replace);
  }
  if (!call.token.empty()) {
    request.headers.emplace_back("Authorization", "Bearer " + call.token);
  }
  request.timeout = call.timeout;
  request.max_reply_bytes = call.max_reply_bytes;
  return request;
}

Status reply_error(const std::string& url, const HttpReply& reply) {
  return Status(code_of(reply.status),
                fmt::format("{}: HTTP {}: {}", url, reply.status, said(reply.body)));
}

Result<Json> reply_object(const std::string& url, const HttpReply& reply) {
  if (reply.status < 200 || reply.status > 299) {
    return reply_error(url, reply);
  }
  Json parsed = Json::parse(reply.body, nullptr, false);
  if (!parsed.is_object()) {
    return unavailable(url + ": the reply is no JSON object");
  }
  return parsed;
}

Result<Json> call_json(HttpClient& client, const JsonCall& call) {
  INFERSCALE_ASSIGN_OR_RETURN(const HttpReply reply, client.send(to_request(call)));
  return reply_object(call.url, reply);
}

std::string text_field(const Json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
}

std::uint64_t number_field(const Json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_number_unsigned() ? found->get<std::uint64_t>() : 0;
}

double real_field(const Json& object, const char* name, double otherwise) {
  const auto found = object.find(name);
  return found != object.end() && found->is_number() ? found->get<double>() : otherwise;
}

bool flag_field(const Json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_boolean() && found->get<bool>();
}

const Json& part_field(const Json& object, const char* name) {
  static const Json kNothing;
  const auto found = object.find(name);
  return found != object.end() ? *found : kNothing;
}

}  // namespace inferscale::vllm
