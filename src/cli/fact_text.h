#pragma once

#include "cli/shell.h"

namespace inferscale::cli {

/// One fact on stdout, as JSON or as lines for people.
void print_fact(const Shell& shell, const FactView& fact);

}  // namespace inferscale::cli
