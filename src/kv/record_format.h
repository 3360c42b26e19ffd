#pragma once

#include <cstddef>
#include <cstdint>

/// Constants of the record format, version 1. docs/format.md is normative and gives their meaning.
/// Offsets are in bytes from the start of a record; integers are little endian.
namespace inferscale::record_format {

inline constexpr char kMagic[4] = {'I', 'S', 'K', 'V'};
inline constexpr std::uint32_t kVersion = 1;

inline constexpr std::size_t kMagicAt = 0;
inline constexpr std::size_t kVersionAt = 4;
inline constexpr std::size_t kCodecAt = 8;
inline constexpr std::size_t kContextKindAt = 12;
inline constexpr std::size_t kFingerprintAt = 16;
inline constexpr std::size_t kContextIdAt = 32;
inline constexpr std::size_t kScopeAt = 48;
inline constexpr std::size_t kTokenHashAt = 64;
inline constexpr std::size_t kTokenCountAt = 80;
inline constexpr std::size_t kLayerCountAt = 84;
inline constexpr std::size_t kHeadCountAt = 88;
inline constexpr std::size_t kHeadDimKAt = 92;
inline constexpr std::size_t kHeadDimVAt = 96;
inline constexpr std::size_t kShardIndexAt = 100;
inline constexpr std::size_t kShardCountAt = 104;
inline constexpr std::size_t kContextTokensAt = 108;
inline constexpr std::size_t kPayloadBytesAt = 112;
inline constexpr std::size_t kBodyChecksumAt = 120;    // over everything from kHeaderBytes on
inline constexpr std::size_t kHeaderChecksumAt = 136;  // over the header's bytes before it
inline constexpr std::size_t kHeaderBytes = 152;

inline constexpr std::size_t kLayerAlignment = 64;
inline constexpr std::size_t kScalesAlignment = 16;  // of a layer's scales, from its start
inline constexpr std::uint32_t kMaxTokens = 1U << 20;
inline constexpr std::uint32_t kMaxShards = 1024;
inline constexpr std::uint64_t kMaxRecordBytes = 1ULL << 40;

}  // namespace inferscale::record_format
