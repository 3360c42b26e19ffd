#pragma once

#include <functional>
#include <string_view>

namespace inferscale {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

/// Receives every message of the library, from any thread; must not throw.
using LogSink = std::function<void(LogLevel, std::string_view)>;

/// Library code never prints: it logs here. Without a sink messages are dropped. Thread-safe.
void set_log_sink(LogSink sink);
void log_message(LogLevel level, std::string_view message);

}  // namespace inferscale
