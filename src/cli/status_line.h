#pragma once

#include <string_view>

namespace inferscale::cli {

/// The terminal's last line, which progress draws over and over and a message has to clear first.
/// All of stderr goes through here. Thread-safe.
[[nodiscard]] bool stderr_is_terminal();
[[nodiscard]] int terminal_columns();
void draw_status_line(std::string_view line);
void clear_status_line();
/// A whole line on stderr, above the status line.
void write_stderr_line(std::string_view line);

}  // namespace inferscale::cli
