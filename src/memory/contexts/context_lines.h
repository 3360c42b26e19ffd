#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "memory/encode_context.h"

namespace inferscale {

/// A list of very long facts is shortened from its far end, so that encoding stays bounded.
inline constexpr std::size_t kMaxListTokens = 1024;

/// Consecutive facts, as long as `together(previous, next)` and fewer than `max_group`.
[[nodiscard]] Result<std::vector<EncodeGroup>> split_facts(
    std::span<const Fact> facts, std::size_t max_group,
    const std::function<Result<bool>(const Fact& previous, const Fact& next)>& together);

/// Whether no live fact of their scope stands between the two.
[[nodiscard]] Result<bool> are_neighbours(Catalog& catalog, const Fact& previous, const Fact& next);

/// The first n primer lines, with `names` for the made-up people.
[[nodiscard]] Result<std::vector<std::vector<TokenId>>> primer_tokens(
    const Tokenizer& tokenizer, std::size_t n, std::span<const std::string> names = {});

/// The lines of as many of the last `facts` as kMaxListTokens allow, in their order.
[[nodiscard]] Result<std::vector<ContextRecord>> last_fact_lines(const ContextSources& sources,
                                                                 std::span<const Fact> facts);

/// Puts `facts` behind the group's lines as text, as many of the last ones as kMaxListTokens allow,
/// in front of them primer lines up to n in all.
[[nodiscard]] Status append_list(const ContextSources& sources, std::span<const Fact> facts,
                                 std::size_t n, EncodeGroup& group);

/// `append_list` with the n facts of the scope before the group's first.
[[nodiscard]] Status append_window(const ContextSources& sources, std::size_t n,
                                   EncodeGroup& group);

}  // namespace inferscale
