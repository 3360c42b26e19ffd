#pragma once

namespace inferscale {

/// Sends what ggml and libllama would print to `log_message` instead. Thread-safe; later calls do
/// nothing, so a program that installs its own callback afterwards keeps it.
void route_ggml_log();

/// The callback behind it, in the shape that `ggml_log_set` and `llama_log_set` take (level is a
/// ggml_log_level).
void forward_ggml_log(int level, const char* text);

}  // namespace inferscale
