#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "inferscale/kv_record.h"
#include "inferscale/status.h"
#include "inferscale/types.h"

/// What a client of a shared engine says about memory in one request: the object
/// `kv_transfer_params["inferscale"]`, version 1. docs/vllm.md describes it for client authors, and
/// docs/schema/inferscale-request-v1.json is its JSON schema. All functions are thread-safe.
namespace inferscale {

/// What a request is for: part of its cache salt, so that none of the three shares blocks with
/// another.
enum class RequestPurpose : std::uint8_t { kInject, kText, kEncode };
/// "inject", "text", "encode".
[[nodiscard]] const char* request_purpose_name(RequestPurpose purpose);

/// Whose a captured record becomes: the request's scope, its tenant as a whole, or the system.
enum class RecordOwner : std::uint8_t { kScope, kTenant, kSystem };
/// "scope", "tenant", "system".
[[nodiscard]] const char* record_owner_name(RecordOwner owner);
/// The scope whose hash stands in the record.
[[nodiscard]] Scope owner_scope(const Scope& request, RecordOwner owner);

/// Inverse of context_kind_name. Errors: kInvalidArgument that lists the names.
[[nodiscard]] Result<ContextKind> parse_context_kind(std::string_view name);

/// A range of the prompt's tokens whose KV is to be stored.
struct CaptureParams {
  RecordKey key;
  std::uint32_t begin = 0;  ///< first token of the prompt that belongs to it
  std::uint32_t end = 0;    ///< one past the last
  ContextKind context_kind = ContextKind::kHeader;
  Hash128 context_id;
  std::uint32_t context_tokens = 0;
  RecordOwner owner = RecordOwner::kScope;
  friend bool operator==(const CaptureParams&, const CaptureParams&) = default;
};

/// A request's parameters, each within its limits (`parse_params` checks them).
struct RequestParams {
  std::string request;  ///< the client's name of the request, for traces
  Scope scope;
  std::uint64_t epoch = 0;  ///< of (tenant, user), as the client knows it
  RequestPurpose purpose = RequestPurpose::kText;
  std::uint32_t top_j = 0;
  std::string context;  ///< the kind of encode context, e.g. "window:8"; empty unless kEncode
  std::string client_salt;
  std::vector<RecordKey> inject;  ///< in the order of the prompt
  std::vector<CaptureParams> capture;
  friend bool operator==(const RequestParams&, const RequestParams&) = default;
};

inline constexpr std::size_t kMaxParamsBytes = 1U << 20;
inline constexpr std::size_t kMaxInjectKeys = 4096;
inline constexpr std::size_t kMaxCaptures = 4096;
/// Shorter ones could be guessed.
inline constexpr std::size_t kMinSecretBytes = 16;

/// The JSON object with its signature. REQUIRES: params are what parse_params accepts.
[[nodiscard]] std::string signed_params_json(const RequestParams& params,
                                             std::span<const std::byte> secret);

/// Reads and verifies what a client sent. Errors: kInvalidArgument (malformed, a field unknown or
/// out of range; the message names it; or a secret below 16 bytes), kPermissionDenied (no or a
/// wrong signature), kResourceExhausted (memory).
[[nodiscard]] Result<RequestParams> parse_params(std::string_view json,
                                                 std::span<const std::byte> secret);

/// The same of an object that is still to be signed: it must have no signature.
[[nodiscard]] Result<RequestParams> parse_unsigned_params(std::string_view json);

/// HMAC-SHA-256 over every field; what `signature` holds.
[[nodiscard]] std::array<std::byte, 32> sign_params(const RequestParams& params,
                                                    std::span<const std::byte> secret);

/// The `cache_salt` of the request, 43 characters: requests with different ones never share blocks
/// of an engine's prefix cache.
[[nodiscard]] std::string cache_salt(std::span<const std::byte> secret, const RequestParams& params,
                                     const Hash128& model_fingerprint);

/// What the control channel's callers show, 64 hexadecimal digits.
[[nodiscard]] std::string control_token(std::span<const std::byte> secret);

}  // namespace inferscale
