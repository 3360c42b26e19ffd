#include <gtest/gtest.h>

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "unit/kv/sample_records.h"

namespace inferscale::testing {
namespace {

/// The bytes of the first block fenced as ```hex: lines of "offset  bytes  # comment", in order of
/// offset.
std::vector<std::byte> documented_record(const std::filesystem::path& path) {
  std::ifstream in(path);
  std::string line;
  while (std::getline(in, line) && line != "```hex") {
  }
  std::vector<std::byte> bytes;
  while (std::getline(in, line) && line != "```") {
    std::istringstream words(line.substr(0, line.find('#')));
    std::string word;
    words >> word;
    EXPECT_EQ(std::stoul(word, nullptr, 16), bytes.size()) << line;
    while (words >> word) {
      bytes.push_back(static_cast<std::byte>(std::stoul(word, nullptr, 16)));
    }
  }
  return bytes;
}

TEST(FormatDocument, ExampleIsWhatTheEncoderMakes) {
  const std::filesystem::path root = INFERSCALE_SOURCE_DIR;
  EXPECT_EQ(documented_record(root / "docs/format.md"), copy_bytes(*make_tiny_record()));
}

}  // namespace
}  // namespace inferscale::testing
