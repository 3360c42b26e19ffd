#pragma once

#include "inferscale/memory.h"

namespace inferscale::cli {

class Shell;

/// What was erased where, on stdout: in words, or as the JSON document of docs/cli.md.
void print_receipt(const Shell& shell, const DeleteReceipt& receipt);

}  // namespace inferscale::cli
