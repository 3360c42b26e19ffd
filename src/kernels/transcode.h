#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "inferscale/kv_record.h"
#include "inferscale/status.h"

namespace inferscale {

/// The same record with its keys and values in another codec, each rounded once; to the codec that
/// it has: the same bytes. Nothing else of it changes, so it stands under the same key. From a
/// wider codec to a scaled one it is what a capture in that codec would have given of keys and
/// values that were rounded to the wider one. Errors: kInvalidArgument (a description, an unknown
/// codec, a head that a scaled codec cannot hold), kResourceExhausted.
[[nodiscard]] Result<std::shared_ptr<const Record>> transcode_record(const Record& record,
                                                                     KvCodec codec);

/// The keys of a layer that was filled, in fp32: [n_tokens][n_kv_heads][head_dim_k].
[[nodiscard]] std::vector<float> layer_keys_as_floats(RecordBuilder& builder, std::uint32_t layer);

}  // namespace inferscale
