#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "cli/eval/dataset.h"

namespace inferscale::cli {

/// In which order the retrieved facts stand in the prompt, for every arm.
enum class FactOrder { kBestLast, kBestFirst, kShuffled };
[[nodiscard]] const char* fact_order_name(FactOrder order);

/// The k facts that a prompt gets, as indices, best first: the best-ranked, and the question's
/// evidence in any case, which takes the place of the lowest-ranked. All facts when there are
/// fewer.
[[nodiscard]] std::vector<std::size_t> choose_facts(std::span<const std::size_t> ranked,
                                                    const EvalQuestion& question, std::size_t k);

/// In the order of the prompt. `seed` decides kShuffled.
[[nodiscard]] std::vector<std::size_t> order_facts(std::vector<std::size_t> best_first,
                                                   FactOrder order, std::uint64_t seed);

/// Share of the question's evidence among the first k of plain retrieval, for k = 5, 10, 20, 50.
/// Empty without evidence.
[[nodiscard]] std::map<std::string, double> evidence_recall(std::span<const std::size_t> ranked,
                                                            const EvalQuestion& question);

}  // namespace inferscale::cli
