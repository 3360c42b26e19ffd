#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "connector/request_params.h"
#include "engine/engine.h"
#include "engine/run_plan.h"
#include "engine/vllm/completion.h"
#include "engine/vllm/control_client.h"
#include "engine/vllm/server_text.h"

namespace inferscale::vllm {

/// What all requests to one server share; borrowed. Thread-safe.
struct ServerParts {
  HttpClient& client;
  ControlClient& control;
  const ServerTokenizer& tokenizer;
  const EngineInfo& info;
  std::string url;
  std::string model;
  std::span<const std::byte> secret;
};

/// The parameters of a branch's request. `before`: records to inject in front of the plan's own.
/// Errors: kInvalidArgument (a capture for nobody that the request may capture for).
[[nodiscard]] Result<RequestParams> make_params(const RunRequest& request, const RunPlan& plan,
                                                const Branch& branch,
                                                std::span<const RecordKey> before,
                                                std::span<const std::byte> secret);

/// What came of a branch's request.
struct BranchOutcome {
  std::vector<TokenId> generated;  ///< without the token that ends an answer
  bool stopped_by_limit = false;
  bool traced = false;  ///< the connector has said what it did; else `trace` is empty
  RequestTrace trace;
  std::vector<LikelyToken> likely;  ///< behind the branch's last token, where that is scored
  bool load_failed = false;         ///< sent once more as text
  double first_token_ms = 0;
  double total_ms = 0;
};

/// Sends a branch's request, as text once more when its records could not be loaded, and asks what
/// was done with it. `on_token` may be empty. Of the places that a branch scores, its last token is
/// asked for. Errors: those of `complete`, kUnavailable (the server broke it off; cancelled).
[[nodiscard]] Result<BranchOutcome> run_branch(const ServerParts& server, const RunRequest& request,
                                               const RunPlan& plan, const Branch& branch,
                                               std::span<const RecordKey> before);

}  // namespace inferscale::vllm
