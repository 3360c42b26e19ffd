#include "cli/option_values.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "base/utf8.h"

namespace inferscale::cli {
namespace {

constexpr std::array<std::pair<std::string_view, double>, 9> kUnits = {{{"", 1.0},
                                                                        {"B", 1.0},
                                                                        {"KiB", 1024.0},
                                                                        {"MiB", 1048576.0},
                                                                        {"GiB", 1073741824.0},
                                                                        {"TiB", 1099511627776.0},
                                                                        {"KB", 1e3},
                                                                        {"MB", 1e6},
                                                                        {"GB", 1e9}}};
constexpr double kLargest = 1e18;
constexpr std::uint32_t kMaxTopJ = 1000;

std::optional<std::uint32_t> parse_number(std::string_view text) {
  std::uint32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) {
    return std::nullopt;
  }
  return value;
}

}  // namespace

Result<std::uint64_t> parse_size(std::string_view field, std::string_view text) {
  const std::size_t digits = std::min(text.find_first_not_of("0123456789."), text.size());
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + digits, value);
  const bool number = digits > 0 && error == std::errc() && end == text.data() + digits;
  for (const auto& [unit, factor] : kUnits) {
    if (number && text.substr(digits) == unit && value * factor <= kLargest) {
      return static_cast<std::uint64_t>(std::llround(value * factor));
    }
  }
  return invalid_argument(fmt::format(
      "{}: \"{}\" is not a size; write bytes, or a number with KiB, MiB, GiB, TiB, KB, MB or GB, "
      "such as 512MiB",
      field, utf8_prefix(text, 32)));
}

Result<std::optional<std::uint32_t>> parse_top_j(std::string_view text) {
  if (text == "auto") {
    return std::optional<std::uint32_t>();
  }
  const std::optional<std::uint32_t> value = parse_number(text);
  if (!value || *value > kMaxTopJ) {
    return invalid_argument(fmt::format("--top-j: \"{}\" is neither auto nor a number from 0 to {}",
                                        utf8_prefix(text, 32), kMaxTopJ));
  }
  return value;
}

std::vector<std::string_view> split_list(std::string_view text) {
  std::vector<std::string_view> parts;
  for (std::size_t from = 0; from <= text.size();) {
    const std::size_t comma = std::min(text.find(',', from), text.size());
    parts.push_back(text.substr(from, comma - from));
    from = comma + 1;
  }
  return parts;
}

Result<std::vector<std::uint32_t>> parse_numbers(std::string_view field, std::string_view text,
                                                 std::uint32_t lowest, std::uint32_t highest) {
  std::vector<std::uint32_t> numbers;
  for (const std::string_view part : split_list(text)) {
    const std::optional<std::uint32_t> value = parse_number(part);
    if (!value || *value < lowest || *value > highest) {
      return invalid_argument(
          fmt::format("{}: \"{}\" is not a list such as 0,5,10 of numbers from {} to {}", field,
                      utf8_prefix(text, 64), lowest, highest));
    }
    if (std::find(numbers.begin(), numbers.end(), *value) != numbers.end()) {
      return invalid_argument(fmt::format("{}: {} is named twice", field, *value));
    }
    numbers.push_back(*value);
  }
  return numbers;
}

std::string format_size(std::uint64_t bytes) {
  static constexpr std::array<const char*, 5> kNames = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= 1024 && unit + 1 < kNames.size()) {
    value /= 1024;
    ++unit;
  }
  return value < 10 && unit > 0 ? fmt::format("{:.1f} {}", value, kNames[unit])
                                : fmt::format("{:.0f} {}", value, kNames[unit]);
}

}  // namespace inferscale::cli
