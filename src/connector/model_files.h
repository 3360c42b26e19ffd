#pragma once

#include <cstddef>
#include <filesystem>
#include <span>

#include "inferscale/status.h"
#include "inferscale/types.h"

namespace inferscale {

/// The fingerprint of a model that lies in several files, as HuggingFace directories do: a hash of
/// each file's name and whole content, in the order of the names, and of `canonical`, bytes that
/// say what else decides the model's KV. With a `cache_directory` files that have not changed are
/// not read again (model/content_hash.h). Errors: kInvalidArgument (no file, two of one name),
/// kNotFound, kUnavailable (I/O).
[[nodiscard]] Result<Hash128> model_files_fingerprint(std::span<const std::filesystem::path> files,
                                                      std::span<const std::byte> canonical,
                                                      const std::filesystem::path& cache_directory);

}  // namespace inferscale
