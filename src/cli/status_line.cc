#include "cli/status_line.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdio>
#include <mutex>
#include <string>

namespace inferscale::cli {
namespace {

constexpr const char* kEraseLine = "\r\x1b[K";

std::mutex g_mutex;
bool g_drawn = false;

void clear_locked() {
  if (g_drawn) {
    std::fputs(kEraseLine, stderr);
    g_drawn = false;
  }
}

}  // namespace

bool stderr_is_terminal() {
  static const bool is_terminal = isatty(STDERR_FILENO) == 1;
  return is_terminal;
}

int terminal_columns() {
  winsize size = {};
  for (const int descriptor : {STDOUT_FILENO, STDERR_FILENO}) {
    if (ioctl(descriptor, TIOCGWINSZ, &size) == 0 && size.ws_col >= 20) {
      return size.ws_col;
    }
  }
  return 100;
}

void draw_status_line(std::string_view line) {
  const std::lock_guard lock(g_mutex);
  std::fputs(kEraseLine, stderr);
  std::fwrite(line.data(), 1, line.size(), stderr);
  std::fflush(stderr);
  g_drawn = true;
}

void clear_status_line() {
  const std::lock_guard lock(g_mutex);
  clear_locked();
}

void write_stderr_line(std::string_view line) {
  const std::lock_guard lock(g_mutex);
  clear_locked();
  const std::string whole = std::string(line) + "\n";
  std::fwrite(whole.data(), 1, whole.size(), stderr);
}

}  // namespace inferscale::cli
