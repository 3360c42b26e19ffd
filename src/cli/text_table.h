#pragma once

#include <string>
#include <vector>

namespace inferscale::cli {

enum class Align { kLeft, kRight };

struct TableColumn {
  std::string title;
  Align align = Align::kLeft;
  bool wraps = false;  ///< gets the columns that the others leave
};

/// A table for people: one line of titles, a rule, the rows. Cells may hold any text.
class TextTable {
 public:
  explicit TextTable(std::vector<TableColumn> columns) : columns_(std::move(columns)) {}
  /// REQUIRES: as many cells as columns.
  void add_row(std::vector<std::string> cells);
  [[nodiscard]] std::string render(std::size_t max_width) const;

 private:
  std::vector<TableColumn> columns_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace inferscale::cli
