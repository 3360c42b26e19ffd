#pragma once

#include <filesystem>
#include <memory>
#include <vector>

#include "engine/engine.h"
#include "engine/vllm/address.h"
#include "inferscale/kv_store.h"
#include "inferscale/status.h"

namespace inferscale {

struct VllmOptions {
  VllmAddress address;
  std::filesystem::path control_file;  ///< unless the address says another
  std::vector<std::byte> secret;       ///< the installation's; the connector's `secret_file`
};

/// An engine beside this process: a vLLM server with the InferScale connector (docs/vllm.md). A run
/// is one request for each branch, and what was injected and captured is what the connector says
/// afterwards, never what was asked for. A request whose records could not be loaded is sent once
/// more as text ("engine_load_failed"). Sessions are the server's prefix cache: what is cached of a
/// conversation is reused, in whole blocks, and a run that generates nothing captures the rest for
/// the next turn. A scored position behind the plan is a request
/// of its own, which tells the likeliest 1,024 tokens; what they leave of the probability is spread
/// evenly over the others. Errors of opening: kUnavailable (server or
/// control channel do not answer), kPermissionDenied (another secret), kConflict (the control
/// channel is another server's), kUnsupported.
[[nodiscard]] Result<std::unique_ptr<Engine>> open_vllm_engine(const VllmOptions& options);

/// The store that goes with it; `local` keeps the records of embedded engines. Reaches for the
/// server only when it is used.
[[nodiscard]] std::unique_ptr<KvStore> make_vllm_store(const VllmOptions& options,
                                                       std::unique_ptr<KvStore> local);

}  // namespace inferscale
