#pragma once

#include <atomic>

namespace inferscale {

/// While it lives, and once `*cancelled` is set, what libllama reports as an error on this thread
/// is logged as detail: the work was ended on purpose, and its caller says so. `cancelled` may be
/// null.
class CancelledWorkLog {
 public:
  explicit CancelledWorkLog(const std::atomic<bool>* cancelled);
  ~CancelledWorkLog();
  CancelledWorkLog(const CancelledWorkLog&) = delete;
  CancelledWorkLog& operator=(const CancelledWorkLog&) = delete;
};

/// Sends what ggml and libllama would print to `log_message` instead. Thread-safe; later calls do
/// nothing, so a program that installs its own callback afterwards keeps it.
void route_ggml_log();

/// The callback behind it, in the shape that `ggml_log_set` and `llama_log_set` take (level is a
/// ggml_log_level).
void forward_ggml_log(int level, const char* text);

}  // namespace inferscale
