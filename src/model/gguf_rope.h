#pragma once

#include <string>

#include "inferscale/model_spec.h"
#include "model/gguf_file.h"

namespace inferscale {

/// The rotary embedding that libllama applies to a model of the families `architecture` is one of
/// (llama, qwen2, qwen3, granite, olmo2), all of whose heads have `head_dim` elements. Errors:
/// kUnsupported with the reason, kDataLoss, kInvalidArgument (values out of range).
[[nodiscard]] Result<RopeSpec> read_rope_spec(const GgufFile& file, const std::string& architecture,
                                              std::uint32_t head_dim,
                                              std::uint32_t trained_positions);

}  // namespace inferscale
