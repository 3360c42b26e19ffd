#pragma once

#include <string>
#include <string_view>

namespace inferscale {

/// For `RunFor::client_salt` of a run that is to find nothing of any other in an engine's cache,
/// such as one that is measured. `what` says what the run is for. Thread-safe.
[[nodiscard]] std::string fresh_client_salt(std::string_view what);

}  // namespace inferscale
