#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "inferscale/kv_record.h"
#include "inferscale/model_spec.h"
#include "inferscale/status.h"

namespace inferscale {

/// The same record with its keys and values in another codec, each rounded once; to the codec that
/// it has: the same bytes. Nothing else of it changes, so it stands under the same key. From a
/// wider codec to a scaled one it is what a capture in that codec would have given of keys and
/// values that were rounded to the wider one; to kQ4 there is no other way. From kQ4 and back gives
/// other bytes: the means are then those of what was rounded. Errors: kInvalidArgument (a
/// description, an unknown codec, a head that a scaled codec cannot hold), kResourceExhausted.
[[nodiscard]] Result<std::shared_ptr<const Record>> transcode_record(const Record& record,
                                                                     KvCodec codec);

/// The codec in which a record that is to have `codec` is captured from a cache of elements of
/// `cache`: the same, but of kQ4, which needs all tokens at once, the cache's own.
[[nodiscard]] KvCodec capture_codec(KvCodec codec, KvCodec cache);

/// The record that was captured in capture_codec(codec, …), in `codec`. Errors: as
/// transcode_record.
[[nodiscard]] Result<std::shared_ptr<const Record>> seal_as(RecordBuilder builder, KvCodec codec);

/// The keys of a layer that was filled, in fp32: [n_tokens][n_kv_heads][head_dim_k]; with the bias
/// that the table says the model adds, so that they are as exact, for their size, as the cache was.
[[nodiscard]] std::vector<float> layer_keys_as_floats(RecordBuilder& builder, std::uint32_t layer,
                                                      const RopeTable& table);

}  // namespace inferscale
