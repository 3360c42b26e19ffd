#pragma once

#include <string>
#include <string_view>

namespace inferscale::sqlite {

/// Lower case for Latin (with its common extensions), Greek, Cyrillic and Armenian, independent of
/// the locale; other characters, and bytes that are not UTF-8, stay as they are.
[[nodiscard]] std::string fold_case(std::string_view text);

}  // namespace inferscale::sqlite
