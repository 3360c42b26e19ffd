#include "connector/request_params.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/hash.h"

namespace inferscale {
namespace {

constexpr ContextKind kLastContextKind = ContextKind::kParked;

/// Parts of a message to sign: each is a byte string with its length before it, integers and counts
/// in eight bytes, little endian.
class Parts {
 public:
  Parts& text(std::string_view value) {
    message_.add_text(value);
    return *this;
  }
  Parts& number(std::uint64_t value) {
    message_.add_u64(sizeof(value)).add_u64(value);
    return *this;
  }
  Parts& hash(const Hash128& value) {
    message_.add_hash(value);
    return *this;
  }
  [[nodiscard]] std::span<const std::byte> bytes() const { return message_.bytes(); }

 private:
  HashMessage message_;
};

std::string salt_purpose(const RequestParams& params) {
  switch (params.purpose) {
    case RequestPurpose::kInject:
      return fmt::format("inject:{}", params.top_j);
    case RequestPurpose::kText:
      return "text";
    case RequestPurpose::kEncode:
      return "encode:" + params.context;
  }
  return "text";
}

}  // namespace

const char* request_purpose_name(RequestPurpose purpose) {
  switch (purpose) {
    case RequestPurpose::kInject:
      return "inject";
    case RequestPurpose::kText:
      return "text";
    case RequestPurpose::kEncode:
      return "encode";
  }
  return "unknown";
}

const char* record_owner_name(RecordOwner owner) {
  switch (owner) {
    case RecordOwner::kScope:
      return "scope";
    case RecordOwner::kTenant:
      return "tenant";
    case RecordOwner::kSystem:
      return "system";
  }
  return "unknown";
}

Scope owner_scope(const Scope& request, RecordOwner owner) {
  switch (owner) {
    case RecordOwner::kTenant:
      return Scope{request.tenant, "", "", ""};
    case RecordOwner::kSystem:
      return system_scope();
    case RecordOwner::kScope:
      break;
  }
  return request;
}

Result<ContextKind> parse_context_kind(std::string_view name) {
  std::string names;
  for (int i = 0; i <= static_cast<int>(kLastContextKind); ++i) {
    const char* known = context_kind_name(static_cast<ContextKind>(i));
    if (name == known) {
      return static_cast<ContextKind>(i);
    }
    names += (i == 0 ? "" : ", ") + std::string(known);
  }
  return invalid_argument("context_kind must be one of " + names);
}

std::array<std::byte, 32> sign_params(const RequestParams& params,
                                      std::span<const std::byte> secret) {
  Parts parts;
  parts.text("inferscale-request-v1").number(1).text(params.request);
  parts.text(params.scope.tenant).text(params.scope.user);
  parts.text(params.scope.agent).text(params.scope.run);
  parts.number(params.epoch).text(request_purpose_name(params.purpose)).number(params.top_j);
  parts.text(params.context).text(params.client_salt);
  parts.number(params.inject.size());
  for (const RecordKey& key : params.inject) {
    parts.hash(key.value);
  }
  parts.number(params.capture.size());
  for (const CaptureParams& capture : params.capture) {
    parts.hash(capture.key.value).number(capture.begin).number(capture.end);
    parts.text(context_kind_name(capture.context_kind)).hash(capture.context_id);
    parts.number(capture.context_tokens).text(record_owner_name(capture.owner));
  }
  return hmac_sha256(secret, parts.bytes());
}

std::string signed_params_json(const RequestParams& params, std::span<const std::byte> secret) {
  nlohmann::json inject = nlohmann::json::array();
  for (const RecordKey& key : params.inject) {
    inject.push_back(key.value.to_hex());
  }
  nlohmann::json captures = nlohmann::json::array();
  for (const CaptureParams& capture : params.capture) {
    captures.push_back({{"key", capture.key.value.to_hex()},
                        {"begin", capture.begin},
                        {"end", capture.end},
                        {"context_kind", context_kind_name(capture.context_kind)},
                        {"context_id", capture.context_id.to_hex()},
                        {"context_tokens", capture.context_tokens},
                        {"owner", record_owner_name(capture.owner)}});
  }
  const nlohmann::json object = {{"v", 1},
                                 {"request", params.request},
                                 {"scope",
                                  {{"tenant", params.scope.tenant},
                                   {"user", params.scope.user},
                                   {"agent", params.scope.agent},
                                   {"run", params.scope.run}}},
                                 {"epoch", params.epoch},
                                 {"purpose", request_purpose_name(params.purpose)},
                                 {"top_j", params.top_j},
                                 {"context", params.context},
                                 {"client_salt", params.client_salt},
                                 {"inject", std::move(inject)},
                                 {"capture", std::move(captures)},
                                 {"signature", to_hex(sign_params(params, secret))}};
  // Text that is not UTF-8 cannot be sent; replaced, it fails its signature.
  return object.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string cache_salt(std::span<const std::byte> secret, const RequestParams& params,
                       const Hash128& model_fingerprint) {
  Parts parts;
  parts.text("inferscale-salt-v1").text(params.scope.tenant).text(params.scope.user);
  parts.text(params.client_salt).hash(model_fingerprint).number(params.epoch);
  parts.text(salt_purpose(params));
  return to_base64url(hmac_sha256(secret, parts.bytes()));
}

std::string control_token(std::span<const std::byte> secret) {
  return to_hex(hmac_sha256(secret, as_byte_span("inferscale-control-v1")));
}

}  // namespace inferscale
