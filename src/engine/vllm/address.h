#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "inferscale/status.h"

namespace inferscale {

/// Where a vLLM server is, and the control channel of the connector in it.
struct VllmAddress {
  std::string url;      ///< of the server, without a path: "http://127.0.0.1:8000"
  std::string control;  ///< of the control channel; empty: `control_file` says it
  /// What the connector writes; empty: `vllm/control.json` of the data directory, which is the
  /// connector's default too.
  std::filesystem::path control_file;
};

/// Reads "vllm=URL[,control=URL][,control-file=PATH]". Errors: kInvalidArgument that says the form.
[[nodiscard]] Result<VllmAddress> parse_vllm_address(std::string_view text);

}  // namespace inferscale
