#pragma once

#include <array>
#include <vector>

#include "cli/eval/record_edit.h"

namespace inferscale::cli {

/// Distances of many facts' rows by layer and position in the fact. Positions from kPositions on
/// share the last column.
class RowProfile {
 public:
  static constexpr std::size_t kPositions = 16;

  /// REQUIRES: the same number of layers each time.
  void add(const RowDistances& fact);
  /// [n_layers][kPositions + 1]; where no fact has such a position, 0.
  [[nodiscard]] RowDistances mean() const;

 private:
  RowDistances sum_;
  std::array<double, kPositions + 1> count_{};  // facts' tokens, by column
};

}  // namespace inferscale::cli
