#pragma once

#include "inferscale/memory.h"

namespace inferscale::cli {

class Shell;

/// What was erased where, on stdout: in words, or as the JSON document of docs/cli.md.
void print_receipt(const Shell& shell, const DeleteReceipt& receipt);

/// 0 for a delete that was verified; what the error table says of an engine that was away, or of a
/// fault of ours.
[[nodiscard]] int receipt_exit_code(const DeleteReceipt& receipt);

}  // namespace inferscale::cli
