#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "inferscale/status.h"

namespace inferscale {

/// What some editors write before UTF-8.
inline constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

/// Deepest nesting that an imported document may have.
inline constexpr std::size_t kMaxJsonDepth = 64;

struct JsonMember {
  std::string_view key;    ///< as written, between its quotes
  std::string_view value;  ///< text of the value
};

/// These cut a document into the texts of its parts without building it in memory, so that one bad
/// item does not spoil the others and a large file costs little more than its own bytes. Views
/// point into `text`; offsets in messages count from its start. Errors: kInvalidArgument (not
/// JSON, cut off, nested deeper than kMaxJsonDepth).

/// Where the value that starts at `from` ends (one past its last byte).
[[nodiscard]] Result<std::size_t> json_value_end(std::string_view text, std::size_t from);
/// The elements of the array that `text` is, white space around it allowed.
[[nodiscard]] Result<std::vector<std::string_view>> json_elements(std::string_view text);
/// The members of the object that `text` is, in order.
[[nodiscard]] Result<std::vector<JsonMember>> json_members(std::string_view text);

/// Builds one item. Errors: kInvalidArgument (not UTF-8, with the byte offset; not JSON; too deep).
[[nodiscard]] Result<nlohmann::ordered_json> parse_json_item(std::string_view text);

/// `text` without JSON's white space at both ends, and without a byte order mark.
[[nodiscard]] std::string_view trim_json(std::string_view text);

}  // namespace inferscale
