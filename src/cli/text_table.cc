#include "cli/text_table.h"

#include <algorithm>

#include "base/utf8.h"
#include "cli/terminal_text.h"

namespace inferscale::cli {
namespace {

constexpr std::size_t kGap = 2;
constexpr std::size_t kLeastWrapWidth = 20;

std::string pad(const std::string& text, std::size_t width, Align align) {
  const std::string space(width - std::min(width, display_width(text)), ' ');
  return align == Align::kRight ? space + text : text + space;
}

void append_line(std::string& out, std::string line) {
  while (!line.empty() && line.back() == ' ') {
    line.pop_back();
  }
  out += line + "\n";
}

}  // namespace

void TextTable::add_row(std::vector<std::string> cells) {
  for (std::string& cell : cells) {
    cell = single_line(printable(cell));
  }
  rows_.push_back(std::move(cells));
}

std::string TextTable::render(std::size_t max_width) const {
  std::vector<std::size_t> widths;
  std::size_t fixed = kGap * (columns_.size() - 1);
  for (std::size_t c = 0; c < columns_.size(); ++c) {
    std::size_t width = display_width(columns_[c].title);
    for (const auto& row : rows_) {
      width = std::max(width, display_width(row[c]));
    }
    widths.push_back(width);
    fixed += columns_[c].wraps ? 0 : width;
  }
  const auto n_wrapping = static_cast<std::size_t>(std::count_if(
      columns_.begin(), columns_.end(), [](const TableColumn& column) { return column.wraps; }));
  for (std::size_t c = 0; c < columns_.size(); ++c) {
    if (columns_[c].wraps) {
      const std::size_t room = max_width > fixed ? (max_width - fixed) / n_wrapping : 0;
      widths[c] = std::min(widths[c], std::max(room, kLeastWrapWidth));
    }
  }

  const std::string gap(kGap, ' ');
  std::string out;
  const auto add_cells = [&](const std::vector<std::vector<std::string>>& cells) {
    std::size_t height = 0;
    for (const auto& lines : cells) {
      height = std::max(height, lines.size());
    }
    for (std::size_t i = 0; i < height; ++i) {
      std::string line;
      for (std::size_t c = 0; c < columns_.size(); ++c) {
        line += (c == 0 ? "" : gap) +
                pad(i < cells[c].size() ? cells[c][i] : "", widths[c], columns_[c].align);
      }
      append_line(out, std::move(line));
    }
  };
  std::vector<std::vector<std::string>> titles, rules;
  for (std::size_t c = 0; c < columns_.size(); ++c) {
    titles.push_back({columns_[c].title});
    rules.push_back({std::string(widths[c], '-')});
  }
  add_cells(titles);
  add_cells(rules);
  for (const auto& row : rows_) {
    std::vector<std::vector<std::string>> cells;
    for (std::size_t c = 0; c < columns_.size(); ++c) {
      cells.push_back(wrap_text(row[c], widths[c]));
    }
    add_cells(cells);
  }
  return out;
}

}  // namespace inferscale::cli
