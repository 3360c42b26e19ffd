#include "model/ggml_log.h"

#include <ggml.h>

#include <mutex>
#include <string_view>

#include "base/log.h"

namespace inferscale {
namespace {

thread_local const std::atomic<bool>* t_cancelled = nullptr;

bool work_is_cancelled() { return t_cancelled != nullptr && t_cancelled->load(); }

}  // namespace

CancelledWorkLog::CancelledWorkLog(const std::atomic<bool>* cancelled) { t_cancelled = cancelled; }
CancelledWorkLog::~CancelledWorkLog() { t_cancelled = nullptr; }

void forward_ggml_log(int level, const char* text) {
  std::string_view message = text == nullptr ? "" : text;
  while (!message.empty() && (message.back() == '\n' || message.back() == '\r')) {
    message.remove_suffix(1);
  }
  if (message.empty() || message == ".") {  // progress dots of a model that loads
    return;
  }
  switch (level) {
    case GGML_LOG_LEVEL_ERROR:
      return log_message(work_is_cancelled() ? LogLevel::kDebug : LogLevel::kError, message);
    case GGML_LOG_LEVEL_WARN:  // mostly quirks of a model file, which users can do nothing about
      return log_message(LogLevel::kInfo, message);
    default:  // what ggml calls information is detail to the users of this library
      return log_message(LogLevel::kDebug, message);
  }
}

void route_ggml_log() {
  static std::once_flag once;
  std::call_once(once, [] {
    ggml_log_set(
        [](ggml_log_level level, const char* text, void*) { forward_ggml_log(level, text); },
        nullptr);
  });
}

}  // namespace inferscale
