#include "base/hash.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <xxhash.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "base/log.h"

namespace inferscale {
namespace {

using Digest = std::array<unsigned char, EVP_MAX_MD_SIZE>;

// These calls fail only without memory or without a working OpenSSL. Going on with some constant
// instead of a digest would make unlike things equal, so there is nothing left but to stop.
[[noreturn]] void stop_without_digest() {
  log_message(LogLevel::kError, "OpenSSL could not compute SHA-256");
  std::abort();
}

Hash128 first_half(const Digest& digest) {
  Hash128 hash;
  std::memcpy(hash.bytes.data(), digest.data(), hash.bytes.size());
  return hash;
}

Digest hmac_digest(std::span<const std::byte> key, std::span<const std::byte> message) {
  static constexpr std::byte kNothing{};  // OpenSSL refuses null pointers even for empty input
  const std::byte* key_data = key.empty() ? &kNothing : key.data();
  const std::byte* message_data = message.empty() ? &kNothing : message.data();
  Digest digest{};
  const unsigned char* result = HMAC(EVP_sha256(), key_data, static_cast<int>(key.size()),
                                     reinterpret_cast<const unsigned char*>(message_data),
                                     message.size(), digest.data(), nullptr);
  if (result == nullptr) {
    stop_without_digest();
  }
  return digest;
}

EVP_MD_CTX* as_context(void* context) { return static_cast<EVP_MD_CTX*>(context); }

}  // namespace

Hash128 xxh3_128(std::span<const std::byte> data) {
  const XXH128_hash_t value = XXH3_128bits(data.data(), data.size());
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, value);
  Hash128 hash;
  static_assert(sizeof(canonical.digest) == sizeof(hash.bytes));
  std::memcpy(hash.bytes.data(), canonical.digest, sizeof(canonical.digest));
  return hash;
}

Hash128 sha256_128(std::span<const std::byte> data) {
  Digest digest{};
  if (EVP_Digest(data.data(), data.size(), digest.data(), nullptr, EVP_sha256(), nullptr) != 1) {
    stop_without_digest();
  }
  return first_half(digest);
}

Hash128 hmac_sha256_128(std::span<const std::byte> key, std::span<const std::byte> message) {
  return first_half(hmac_digest(key, message));
}

std::array<std::byte, 32> hmac_sha256(std::span<const std::byte> key,
                                      std::span<const std::byte> message) {
  const Digest digest = hmac_digest(key, message);
  std::array<std::byte, 32> whole;
  std::memcpy(whole.data(), digest.data(), whole.size());
  return whole;
}

bool equal_in_constant_time(std::span<const std::byte> a, std::span<const std::byte> b) {
  return a.size() == b.size() && (a.empty() || CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0);
}

std::string to_hex(std::span<const std::byte> data) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  text.reserve(2 * data.size());
  for (const std::byte b : data) {
    text.push_back(kDigits[std::to_integer<unsigned>(b) >> 4]);
    text.push_back(kDigits[std::to_integer<unsigned>(b) & 15]);
  }
  return text;
}

std::string to_base64url(std::span<const std::byte> data) {
  static constexpr char kDigits[] =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
  std::string text;
  unsigned bits = 0;
  int waiting = 0;
  for (const std::byte b : data) {
    bits = bits << 8 | std::to_integer<unsigned>(b);
    for (waiting += 8; waiting >= 6; waiting -= 6) {
      text.push_back(kDigits[bits >> (waiting - 6) & 63]);
    }
  }
  if (waiting > 0) {
    text.push_back(kDigits[bits << (6 - waiting) & 63]);
  }
  return text;
}

Sha256Stream::Sha256Stream() : context_(EVP_MD_CTX_new()) {
  if (context_ == nullptr || EVP_DigestInit_ex(as_context(context_), EVP_sha256(), nullptr) != 1) {
    stop_without_digest();
  }
}

Sha256Stream::~Sha256Stream() { EVP_MD_CTX_free(as_context(context_)); }

void Sha256Stream::update(std::span<const std::byte> data) {
  if (EVP_DigestUpdate(as_context(context_), data.data(), data.size()) != 1) {
    stop_without_digest();
  }
}

Hash128 Sha256Stream::finish_128() {
  Digest digest{};
  if (EVP_DigestFinal_ex(as_context(context_), digest.data(), nullptr) != 1) {
    stop_without_digest();
  }
  return first_half(digest);
}

HashMessage& HashMessage::add_u32(std::uint32_t value) {
  for (int shift = 0; shift < 32; shift += 8) {
    bytes_.push_back(static_cast<std::byte>(value >> shift & 0xFF));
  }
  return *this;
}

HashMessage& HashMessage::add_u64(std::uint64_t value) {
  return add_u32(static_cast<std::uint32_t>(value))
      .add_u32(static_cast<std::uint32_t>(value >> 32));
}

HashMessage& HashMessage::add_bytes(std::span<const std::byte> value) {
  add_u64(value.size());
  bytes_.insert(bytes_.end(), value.begin(), value.end());
  return *this;
}

HashMessage& HashMessage::add_text(std::string_view value) {
  return add_bytes(as_byte_span(value));
}

HashMessage& HashMessage::add_hash(const Hash128& value) { return add_bytes(value.bytes); }

HashMessage& HashMessage::add_tokens(std::span<const TokenId> value) {
  add_u64(value.size());
  bytes_.reserve(bytes_.size() + 4 * value.size());
  for (const TokenId token : value) {
    add_u32(static_cast<std::uint32_t>(token));
  }
  return *this;
}

}  // namespace inferscale
