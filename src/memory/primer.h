#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace inferscale {

/// The first n of the fixed made-up fact lines (rendered, each with its newline), the same for
/// everyone: company for a fact while it is encoded. They name nobody real and say nothing that a
/// user could ask about. Repeats from the start beyond the list. Changing a line changes context
/// ids, so old records are encoded again.
[[nodiscard]] std::vector<std::string> primer_lines(std::size_t n);

/// The same lines with `names` for the two made-up people; with one name, one of them stays.
[[nodiscard]] std::vector<std::string> primer_lines(std::size_t n,
                                                    std::span<const std::string> names);

}  // namespace inferscale
