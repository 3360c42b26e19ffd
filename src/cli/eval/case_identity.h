#pragma once

#include <string>
#include <string_view>

#include "cli/eval/dataset.h"

namespace inferscale::cli {

/// Pins what is asked about: turns, facts, questions and their answers.
[[nodiscard]] std::string case_digest(const EvalCase& data);

/// A name for a folder: ASCII letters, digits, "-" and "_" stay, anything else is "_".
[[nodiscard]] std::string folder_name(std::string_view text);

}  // namespace inferscale::cli
