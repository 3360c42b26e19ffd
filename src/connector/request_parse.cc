#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <new>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/hash.h"
#include "base/scope_check.h"
#include "base/strict_json.h"
#include "base/utf8.h"
#include "connector/request_params.h"

namespace inferscale {
namespace {

using nlohmann::json;

constexpr int kMaxDepth = 3;  // the object, its list of captures, a capture
constexpr std::size_t kMaxRequestBytes = 128;
constexpr std::size_t kMaxScopeBytes = 256;
constexpr std::size_t kMaxContextBytes = 64;
constexpr std::size_t kMaxSaltBytes = 256;
constexpr std::size_t kMaxQuoted = 64;  // of a name that is not known, in a message
constexpr std::uint64_t kMaxEpoch = (std::uint64_t{1} << 53) - 1;  // exact in every JSON reader
constexpr std::uint64_t kMaxTopJ = 64;
constexpr std::uint64_t kMaxPosition = 1U << 24;
constexpr std::uint64_t kMaxRecordTokens = 1U << 20;
constexpr std::size_t kSignatureDigits = 64;

/// Hands out the fields of one object and remembers which there may be.
class Fields {
 public:
  Fields(std::string prefix, const json& object) : prefix_(std::move(prefix)), object_(object) {}

  [[nodiscard]] std::string name(const char* field) const { return prefix_ + field; }

  [[nodiscard]] const json* find(const char* field) {
    known_.emplace_back(field);
    const auto found = object_.find(field);
    return found == object_.end() ? nullptr : &*found;
  }

  /// Leaves `*out` as it is when an optional field is absent.
  Status text(const char* field, bool required, std::size_t max_bytes, std::string* out) {
    const json* value = find(field);
    if (value == nullptr) {
      return required ? missing(field) : Status();
    }
    const auto* content = value->get_ptr<const std::string*>();
    if (content == nullptr || content->size() > max_bytes) {
      return invalid_argument(
          fmt::format("{} must be a string of at most {} bytes", name(field), max_bytes));
    }
    *out = *content;
    return Status();
  }

  template <typename Number>
  Status number(const char* field, bool required, std::uint64_t most, Number* out) {
    const json* value = find(field);
    if (value == nullptr) {
      return required ? missing(field) : Status();
    }
    const auto* content = value->get_ptr<const json::number_unsigned_t*>();
    if (content == nullptr || *content > most) {
      return invalid_argument(fmt::format("{} must be an integer in 0..{}", name(field), most));
    }
    *out = static_cast<Number>(*content);
    return Status();
  }

  Status hash(const char* field, Hash128* out) {
    const json* value = find(field);
    return value == nullptr ? missing(field) : read_hash(name(field), *value, out);
  }

  /// An array of at most `most` elements; null when absent.
  Status list(const char* field, std::size_t most, const json** out) {
    *out = find(field);
    if (*out != nullptr && (!(*out)->is_array() || (*out)->size() > most)) {
      return invalid_argument(
          fmt::format("{} must be an array of at most {} elements", name(field), most));
    }
    return Status();
  }

  /// After all fields have been asked for: what else is there is not understood.
  [[nodiscard]] Status finish() const {
    for (const auto& [field, value] : object_.items()) {
      if (std::find(known_.begin(), known_.end(), field) == known_.end()) {
        return invalid_argument(
            fmt::format("{}{} is not a known field", prefix_, utf8_prefix(field, kMaxQuoted)));
      }
    }
    return Status();
  }

  [[nodiscard]] Status missing(const char* field) const {
    return invalid_argument(name(field) + " is missing");
  }

  static Status read_hash(const std::string& name, const json& value, Hash128* out) {
    const auto* digits = value.get_ptr<const std::string*>();
    const Result<Hash128> hash =
        digits != nullptr ? Hash128::from_hex(*digits) : invalid_argument("not a string");
    if (!hash.ok()) {
      return invalid_argument(name + " must be a string of 32 hexadecimal digits");
    }
    *out = *hash;
    return Status();
  }

 private:
  std::string prefix_;
  const json& object_;
  std::vector<std::string_view> known_;
};

Status read_request_name(Fields& fields, std::string* out) {
  INFERSCALE_RETURN_IF_ERROR(fields.text("request", true, kMaxRequestBytes, out));
  static constexpr std::string_view kOthers = "_.:-";
  const bool plain = std::all_of(out->begin(), out->end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           kOthers.find(c) != std::string_view::npos;
  });
  if (out->empty() || !plain) {
    return invalid_argument(
        fmt::format("request must be 1..{} characters of A-Z a-z 0-9 _ . : -", kMaxRequestBytes));
  }
  return Status();
}

Status read_scope(Fields& fields, Scope* out) {
  const json* value = fields.find("scope");
  if (value == nullptr) {
    return fields.missing("scope");
  }
  if (!value->is_object()) {
    return invalid_argument("scope must be an object with tenant, user, agent and run");
  }
  Fields parts("scope.", *value);
  INFERSCALE_RETURN_IF_ERROR(parts.text("tenant", true, kMaxScopeBytes, &out->tenant));
  INFERSCALE_RETURN_IF_ERROR(parts.text("user", true, kMaxScopeBytes, &out->user));
  INFERSCALE_RETURN_IF_ERROR(parts.text("agent", false, kMaxScopeBytes, &out->agent));
  INFERSCALE_RETURN_IF_ERROR(parts.text("run", false, kMaxScopeBytes, &out->run));
  INFERSCALE_RETURN_IF_ERROR(parts.finish());
  if (out->tenant.empty() || out->user.empty()) {
    return invalid_argument("scope.tenant and scope.user must not be empty in a request");
  }
  return check_scope("", *out);
}

Status read_purpose(Fields& fields, RequestParams* out) {
  std::string name;
  INFERSCALE_RETURN_IF_ERROR(fields.text("purpose", true, kMaxContextBytes, &name));
  bool known = false;
  for (const RequestPurpose purpose :
       {RequestPurpose::kInject, RequestPurpose::kText, RequestPurpose::kEncode}) {
    if (name == request_purpose_name(purpose)) {
      out->purpose = purpose;
      known = true;
    }
  }
  if (!known) {
    return invalid_argument("purpose must be inject, text or encode");
  }
  INFERSCALE_RETURN_IF_ERROR(fields.number("top_j", false, kMaxTopJ, &out->top_j));
  INFERSCALE_RETURN_IF_ERROR(fields.text("context", false, kMaxContextBytes, &out->context));
  if ((out->purpose == RequestPurpose::kEncode) == out->context.empty()) {
    return invalid_argument(
        "context must name the encode context where purpose is encode, and be empty elsewhere");
  }
  return fields.text("client_salt", false, kMaxSaltBytes, &out->client_salt);
}

Status read_inject(Fields& fields, RequestParams* out) {
  const json* keys = nullptr;
  INFERSCALE_RETURN_IF_ERROR(fields.list("inject", kMaxInjectKeys, &keys));
  if (keys == nullptr) {
    return Status();
  }
  if (out->purpose == RequestPurpose::kText && !keys->empty()) {
    return invalid_argument("inject must be empty where purpose is text");
  }
  out->inject.reserve(keys->size());
  for (const json& key : *keys) {
    Hash128* const hash = &out->inject.emplace_back().value;
    if (!Fields::read_hash("", key, hash).ok()) {  // only then it needs a name
      return Fields::read_hash(fmt::format("inject[{}]", out->inject.size() - 1), key, hash);
    }
  }
  return Status();
}

Status read_owner(Fields& fields, CaptureParams* out) {
  std::string name;
  INFERSCALE_RETURN_IF_ERROR(fields.text("owner", true, kMaxContextBytes, &name));
  for (const RecordOwner owner :
       {RecordOwner::kScope, RecordOwner::kTenant, RecordOwner::kSystem}) {
    if (name == record_owner_name(owner)) {
      out->owner = owner;
      if (owner != RecordOwner::kScope && out->context_kind != ContextKind::kPrefix) {
        break;
      }
      return Status();
    }
  }
  return invalid_argument(fields.name("owner") +
                          " must be scope, or for the context_kind prefix tenant or system");
}

Status read_capture(const std::string& prefix, const json& value, CaptureParams* out) {
  if (!value.is_object()) {
    return invalid_argument(prefix + " must be an object");
  }
  Fields fields(prefix + ".", value);
  INFERSCALE_RETURN_IF_ERROR(fields.hash("key", &out->key.value));
  INFERSCALE_RETURN_IF_ERROR(fields.number("begin", true, kMaxPosition, &out->begin));
  INFERSCALE_RETURN_IF_ERROR(fields.number("end", true, kMaxPosition, &out->end));
  std::string kind;
  INFERSCALE_RETURN_IF_ERROR(fields.text("context_kind", true, kMaxContextBytes, &kind));
  const Result<ContextKind> parsed = parse_context_kind(kind);
  INFERSCALE_RETURN_IF_ERROR(parsed.status().with_context(prefix));
  out->context_kind = *parsed;
  INFERSCALE_RETURN_IF_ERROR(fields.hash("context_id", &out->context_id));
  INFERSCALE_RETURN_IF_ERROR(
      fields.number("context_tokens", true, kMaxPosition, &out->context_tokens));
  INFERSCALE_RETURN_IF_ERROR(read_owner(fields, out));
  INFERSCALE_RETURN_IF_ERROR(fields.finish());
  if (out->end <= out->begin || out->end - out->begin > kMaxRecordTokens) {
    return invalid_argument(
        fmt::format("{} must have 1..{} tokens: begin < end", prefix, kMaxRecordTokens));
  }
  if (out->context_kind == ContextKind::kPrefix && out->begin != 0) {
    return invalid_argument(prefix + ".begin must be 0 where context_kind is prefix");
  }
  return Status();
}

Status read_captures(Fields& fields, std::vector<CaptureParams>* out) {
  const json* captures = nullptr;
  INFERSCALE_RETURN_IF_ERROR(fields.list("capture", kMaxCaptures, &captures));
  if (captures == nullptr) {
    return Status();
  }
  out->reserve(captures->size());
  for (const json& capture : *captures) {
    const std::string name = fmt::format("capture[{}]", out->size());
    INFERSCALE_RETURN_IF_ERROR(read_capture(name, capture, &out->emplace_back()));
  }
  return Status();
}

int hex_value(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

/// Null unless it is a string of 64 hexadecimal digits.
std::optional<std::array<std::byte, 32>> read_signature(const json& value) {
  const auto* digits = value.get_ptr<const std::string*>();
  if (digits == nullptr || digits->size() != kSignatureDigits) {
    return std::nullopt;
  }
  std::array<std::byte, 32> signature{};
  for (std::size_t i = 0; i < signature.size(); ++i) {
    const int high = hex_value((*digits)[2 * i]);
    const int low = hex_value((*digits)[2 * i + 1]);
    if (high < 0 || low < 0) {
      return std::nullopt;
    }
    signature[i] = static_cast<std::byte>(high << 4 | low);
  }
  return signature;
}

Status read_all(Fields& fields, RequestParams* out) {
  std::uint32_t version = 0;
  INFERSCALE_RETURN_IF_ERROR(
      fields.number("v", true, std::numeric_limits<std::uint32_t>::max(), &version));
  if (version != 1) {
    return invalid_argument(fmt::format("v must be 1, not {}", version));
  }
  INFERSCALE_RETURN_IF_ERROR(read_request_name(fields, &out->request));
  INFERSCALE_RETURN_IF_ERROR(read_scope(fields, &out->scope));
  INFERSCALE_RETURN_IF_ERROR(fields.number("epoch", true, kMaxEpoch, &out->epoch));
  INFERSCALE_RETURN_IF_ERROR(read_purpose(fields, out));
  INFERSCALE_RETURN_IF_ERROR(read_inject(fields, out));
  return read_captures(fields, &out->capture);
}

Status verify(const json* signature, const RequestParams& params,
              std::span<const std::byte> secret) {
  if (signature == nullptr) {
    return permission_denied("parameters are not signed");
  }
  const std::optional<std::array<std::byte, 32>> given = read_signature(*signature);
  if (!given) {
    return invalid_argument("signature must be a string of 64 hexadecimal digits");
  }
  if (!equal_in_constant_time(*given, sign_params(params, secret))) {
    return permission_denied("the signature does not belong to these parameters and secret");
  }
  return Status();
}

/// Without a secret a signature is a field that is not known.
Result<RequestParams> read_params(std::string_view json_text,
                                  std::optional<std::span<const std::byte>> secret) {
  try {
    INFERSCALE_ASSIGN_OR_RETURN(
        const json object, parse_json_object("parameters", json_text, kMaxParamsBytes, kMaxDepth));
    Fields fields("", object);
    RequestParams params;
    INFERSCALE_RETURN_IF_ERROR(read_all(fields, &params));
    const json* signature = secret ? fields.find("signature") : nullptr;
    INFERSCALE_RETURN_IF_ERROR(fields.finish());
    if (secret) {
      INFERSCALE_RETURN_IF_ERROR(verify(signature, params, *secret));
    }
    return params;
  } catch (const std::bad_alloc&) {
    return resource_exhausted("not enough memory to read the parameters");
  }
}

}  // namespace

Result<RequestParams> parse_params(std::string_view json_text, std::span<const std::byte> secret) {
  if (secret.size() < kMinSecretBytes) {
    return invalid_argument(
        fmt::format("secret must have at least {} bytes, not {}", kMinSecretBytes, secret.size()));
  }
  return read_params(json_text, secret);
}

Result<RequestParams> parse_unsigned_params(std::string_view json_text) {
  return read_params(json_text, std::nullopt);
}

}  // namespace inferscale
