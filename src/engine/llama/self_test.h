#pragma once

#include <optional>

#include "engine/llama/sequences.h"
#include "engine/llama/state_buffer.h"
#include "inferscale/model_spec.h"

namespace inferscale {

/// Checks, on the loaded model itself, what injection relies on and what no file says:
/// - the layout of a sequence's state: one form fits a real state exactly, and a state that is
/// written to another
///   sequence reads back the same;
/// - the RopeSpec: one token at many positions, near and far, has one layer-0 key before rotation.
/// A wrong base,
///   pairing or factor shows there and nowhere else. (A wrong mscale does not show and does not
///   matter: it is divided out and multiplied in by the same table.)
/// Returns the form. Uses the first sequences and leaves the cache dirty. `only` restricts the
/// forms that are tried. Errors: any Status; its message says why injection must stay off.
[[nodiscard]] Result<StateForm> self_test(LlamaSequences& sequences, StateSpec spec,
                                          const RopeTable& rope, std::optional<StateForm> only);

}  // namespace inferscale
