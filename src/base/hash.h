#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "inferscale/types.h"

namespace inferscale {

/// XXH3-128 in its canonical (big-endian) byte order. Against corruption only, never against an
/// adversary.
[[nodiscard]] Hash128 xxh3_128(std::span<const std::byte> data);

/// First 16 bytes of SHA-256.
[[nodiscard]] Hash128 sha256_128(std::span<const std::byte> data);

/// First 16 bytes of HMAC-SHA-256.
[[nodiscard]] Hash128 hmac_sha256_128(std::span<const std::byte> key,
                                      std::span<const std::byte> message);

/// All 32 bytes of HMAC-SHA-256.
[[nodiscard]] std::array<std::byte, 32> hmac_sha256(std::span<const std::byte> key,
                                                    std::span<const std::byte> message);

/// Whether two byte strings are equal, in a time that depends on their sizes alone: for what
/// somebody may try to guess.
[[nodiscard]] bool equal_in_constant_time(std::span<const std::byte> a,
                                          std::span<const std::byte> b);

/// Two lower-case hexadecimal digits a byte.
[[nodiscard]] std::string to_hex(std::span<const std::byte> data);

/// RFC 4648's base64url, without padding.
[[nodiscard]] std::string to_base64url(std::span<const std::byte> data);

/// SHA-256 of data that arrives in pieces. One thread at a time.
class Sha256Stream {
 public:
  Sha256Stream();
  ~Sha256Stream();
  Sha256Stream(const Sha256Stream&) = delete;
  Sha256Stream& operator=(const Sha256Stream&) = delete;
  void update(std::span<const std::byte> data);
  /// First 16 bytes of the digest; call once.
  [[nodiscard]] Hash128 finish_128();

 private:
  void* context_;  // EVP_MD_CTX, kept out of the header
};

/// Builds unambiguous messages for hashing: integers little endian, byte strings length-prefixed
/// (u64).
class HashMessage {
 public:
  HashMessage& add_u32(std::uint32_t value);
  HashMessage& add_u64(std::uint64_t value);
  HashMessage& add_bytes(std::span<const std::byte> value);
  HashMessage& add_text(std::string_view value);
  HashMessage& add_hash(const Hash128& value);
  HashMessage& add_tokens(std::span<const TokenId> value);
  [[nodiscard]] std::span<const std::byte> bytes() const { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

[[nodiscard]] inline std::span<const std::byte> as_byte_span(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

}  // namespace inferscale
