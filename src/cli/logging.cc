#include "cli/logging.h"

#include <fmt/format.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>

#include <array>
#include <cstdlib>
#include <mutex>
#include <string>
#include <string_view>

#include "base/log.h"
#include "base/utf8.h"
#include "cli/status_line.h"
#include "cli/terminal_text.h"

namespace inferscale::cli {
namespace {

/// Writes above the progress bar.
class StderrSink final : public spdlog::sinks::base_sink<std::mutex> {
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    std::string_view text(line.data(), line.size());
    while (!text.empty() && text.back() == '\n') {
      text.remove_suffix(1);
    }
    write_stderr_line(printable(text));
  }
  void flush_() override {}
};

spdlog::level::level_enum level_of(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    default:
      return spdlog::level::err;
  }
}

Result<spdlog::level::level_enum> chosen_level(int verbose) {
  if (verbose > 0) {
    return verbose > 1 ? spdlog::level::debug : spdlog::level::info;
  }
  const char* const set = std::getenv("INFERSCALE_LOG");
  const std::string_view word = set != nullptr ? set : "";
  static constexpr std::array<std::pair<std::string_view, spdlog::level::level_enum>, 6> kWords = {
      {{"", spdlog::level::warn},
       {"debug", spdlog::level::debug},
       {"info", spdlog::level::info},
       {"warning", spdlog::level::warn},
       {"error", spdlog::level::err},
       {"off", spdlog::level::off}}};
  for (const auto& [known, level] : kWords) {
    if (word == known) {
      return level;
    }
  }
  return invalid_argument(fmt::format(
      "INFERSCALE_LOG: \"{}\" is none of debug, info, warning, error, off", utf8_prefix(word, 32)));
}

}  // namespace

Status start_logging(int verbose) {
  INFERSCALE_ASSIGN_OR_RETURN(const spdlog::level::level_enum level, chosen_level(verbose));
  const auto logger =
      std::make_shared<spdlog::logger>("inferscale", std::make_shared<StderrSink>());
  logger->set_pattern("inferscale: %l: %v");
  logger->set_level(level);
  set_log_sink([logger](LogLevel at, std::string_view message) {
    logger->log(level_of(at), spdlog::string_view_t(message.data(), message.size()));
  });
  return {};
}

}  // namespace inferscale::cli
