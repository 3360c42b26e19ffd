#pragma once

#include <cstdint>

#include "model/gguf_file.h"

namespace inferscale {

/// The number of tokens, after looking for what makes libllama abort rather than fail when it loads
/// or uses the tokenizer. Errors: kUnsupported (tokenizer other than SentencePiece and byte-pair),
/// kDataLoss.
[[nodiscard]] Result<std::uint32_t> check_vocabulary(const GgufFile& file);

}  // namespace inferscale
