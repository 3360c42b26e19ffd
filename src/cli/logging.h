#pragma once

#include "inferscale/status.h"

namespace inferscale::cli {

/// Sends the library's log to stderr: warnings and errors, with one --verbose everything but
/// debugging, with two all. $INFERSCALE_LOG (debug, info, warning, error, off) is the default.
/// Errors: kInvalidArgument (another word in $INFERSCALE_LOG).
[[nodiscard]] Status start_logging(int verbose);

}  // namespace inferscale::cli
