#pragma once

#include <span>

namespace inferscale::sqlite {

/// What must hold between rows, as SQL.
struct RowRule {
  const char* check;   ///< the check that it belongs to
  const char* kind;    ///< of its problems
  const char* table;   ///< whose rows break it
  const char* why;     ///< what is wrong with them
  const char* repair;  ///< what mending does, or what the operator has to do
  const char* find;    ///< selects the keys of the rows that break it
  /// Mends them when "(find)" follows; null: they cannot be mended. Entries to be dropped are put
  /// into temp.doomed_records, so that what was encoded behind their KV goes with them.
  const char* fix;
};

[[nodiscard]] std::span<const RowRule> row_rules();

}  // namespace inferscale::sqlite
