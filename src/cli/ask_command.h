#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "inferscale/memory.h"

namespace inferscale::cli {

class Shell;

/// Prints an answer as it comes, until Ctrl-C.
[[nodiscard]] std::function<bool(std::string_view)> stream_to_stdout(const Shell& shell);

/// "[10 facts, 9 injected · 250 tokens injected, 58 prefilled · first token after 210 ms]"
[[nodiscard]] std::string trace_line(const AskReply& reply);

/// The arms of a comparison side by side, and what they say of the fast path.
[[nodiscard]] std::string compare_table(const CompareReply& reply, std::size_t width);

}  // namespace inferscale::cli
