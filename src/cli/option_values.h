#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "inferscale/status.h"

namespace inferscale::cli {

/// "512MiB", "1.5GiB", "8GB", "4096": bytes. Errors: kInvalidArgument that names `field` and the
/// units.
[[nodiscard]] Result<std::uint64_t> parse_size(std::string_view field, std::string_view text);

/// "auto" (unset) or 0 .. 1000. Errors: kInvalidArgument.
[[nodiscard]] Result<std::optional<std::uint32_t>> parse_top_j(std::string_view text);

/// The parts between commas, empty ones too; never an empty list.
[[nodiscard]] std::vector<std::string_view> split_list(std::string_view text);

/// "0,5,10": a list of different numbers within lowest .. highest. Errors: kInvalidArgument.
[[nodiscard]] Result<std::vector<std::uint32_t>> parse_numbers(std::string_view field,
                                                               std::string_view text,
                                                               std::uint32_t lowest,
                                                               std::uint32_t highest);

/// 645120 is "630 KiB".
[[nodiscard]] std::string format_size(std::uint64_t bytes);

}  // namespace inferscale::cli
