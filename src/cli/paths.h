#pragma once

#include <filesystem>
#include <string>

#include "inferscale/status.h"

namespace inferscale::cli {

/// --data, else $INFERSCALE_HOME, else $XDG_DATA_HOME/inferscale, else ~/.local/share/inferscale.
/// Errors: kInvalidArgument when none of them is set.
[[nodiscard]] Result<std::filesystem::path> data_directory(const std::string& option);

/// $INFERSCALE_CACHE, else $XDG_CACHE_HOME/inferscale, else ~/.cache/inferscale; empty without
/// HOME.
[[nodiscard]] std::filesystem::path cache_directory();

/// The served model: --model, else $INFERSCALE_MODEL, else what the models folder of the cache
/// directory holds. Errors: kNotFound (no such file; no model at all), kInvalidArgument (several
/// to choose from: lists them).
[[nodiscard]] Result<std::filesystem::path> find_model(const std::string& option);

/// Whether --model or $INFERSCALE_MODEL names a model, so that its absence is an error.
[[nodiscard]] bool names_model(const std::string& option);

/// The embedding model: --embedder, else $INFERSCALE_EMBEDDER, else the packaged one in the models
/// folder; empty for "none" or when it is not there. Errors: kNotFound (a named file is missing).
[[nodiscard]] Result<std::filesystem::path> find_embedder(const std::string& option);

/// Whether --embedder or $INFERSCALE_EMBEDDER says what is wanted.
[[nodiscard]] bool names_embedder(const std::string& option);

}  // namespace inferscale::cli
