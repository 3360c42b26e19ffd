#pragma once

#include <optional>

#include "inferscale/kv_record.h"

namespace inferscale {

/// Two layers of one head: enough to tell layers, keys from values, and elements apart.
[[nodiscard]] KvShape fake_kv_shape();

/// Whether its values are exact in a codec: f16 and f32.
[[nodiscard]] bool can_fake_kv(KvCodec codec);

/// Writes the rows of `builder`'s tokens, whose keys and values are a function of the token ids
/// only. REQUIRES: can_fake_kv(builder.meta().codec).
void fill_fake_kv(std::span<const TokenId> tokens, RecordBuilder& builder);

/// Index of the first token whose rows are not those of its id, or nothing when all are; 0 of a
/// codec that they cannot be in.
[[nodiscard]] std::optional<std::size_t> find_wrong_kv(const Record& record);

}  // namespace inferscale
