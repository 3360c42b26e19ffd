// docs/errors.md is read by people and by client authors: its table must be the one that the
// library uses.
#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <vector>

#include "inferscale/status.h"

namespace inferscale {
namespace {

constexpr const char* kDocument = INFERSCALE_SOURCE_DIR "/docs/errors.md";

std::string trim(const std::string& text) {
  const auto first = text.find_first_not_of(" `");
  const auto last = text.find_last_not_of(" `");
  return first == std::string::npos ? "" : text.substr(first, last - first + 1);
}

/// The cells of the rows "| `kName` | ... |" of the document, in order.
std::vector<std::vector<std::string>> rows_of_document() {
  std::ifstream file(kDocument);
  std::vector<std::vector<std::string>> rows;
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("| `k", 0) != 0) {
      continue;
    }
    std::vector<std::string>& cells = rows.emplace_back();
    for (std::size_t begin = 1; begin < line.size();) {
      const std::size_t end = line.find('|', begin);
      cells.push_back(trim(line.substr(begin, end - begin)));
      begin = end == std::string::npos ? line.size() : end + 1;
    }
  }
  return rows;
}

TEST(ErrorsDocument, HasTheRowsOfTheErrorTable) {
  const auto rows = rows_of_document();
  ASSERT_EQ(rows.size(), error_table().size()) << "see " << kDocument;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const ErrorTableRow& expected = error_table()[i];
    ASSERT_EQ(rows[i].size(), 6u) << "row " << i << ": name, number, HTTP, exit code, Python, when";
    EXPECT_EQ(rows[i][0], expected.name);
    EXPECT_EQ(rows[i][1], std::to_string(static_cast<int>(expected.code))) << expected.name;
    EXPECT_EQ(rows[i][2], std::to_string(expected.http_status)) << expected.name;
    EXPECT_EQ(rows[i][3], std::to_string(expected.exit_code)) << expected.name;
    EXPECT_EQ(rows[i][4], expected.python_exception) << expected.name;
    EXPECT_FALSE(rows[i][5].empty()) << expected.name << " says when it is used";
  }
}

}  // namespace
}  // namespace inferscale
