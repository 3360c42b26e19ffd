#pragma once

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace inferscale {

/// Finds any of many byte strings in the files of a folder, in one pass over each file.
class ByteSearch {
 public:
  /// `needle` has at least 8 bytes; `what` is said of it when it is found.
  void add(std::string needle, std::string what) {
    const std::uint64_t head = head_of(needle.data());
    needles_.emplace(head, Needle{std::move(needle), std::move(what)});
  }
  void add_all(const ByteSearch& other) {
    needles_.insert(other.needles_.begin(), other.needles_.end());
  }
  [[nodiscard]] std::size_t size() const { return needles_.size(); }

  /// "file: what" for each needle in each file.
  [[nodiscard]] std::vector<std::string> find_in(const std::filesystem::path& folder) const {
    std::vector<std::string> found;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
      if (!entry.is_regular_file()) {
        continue;
      }
      std::ifstream stream(entry.path(), std::ios::binary);
      const std::string bytes((std::istreambuf_iterator<char>(stream)), {});
      for (std::size_t at = 0; at + sizeof(std::uint64_t) <= bytes.size(); ++at) {
        const auto [first, last] = needles_.equal_range(head_of(bytes.data() + at));
        for (auto needle = first; needle != last; ++needle) {
          if (std::string_view(bytes).substr(at).starts_with(needle->second.bytes)) {
            found.push_back(entry.path().filename().string() + ": " + needle->second.what);
          }
        }
      }
    }
    return found;
  }

 private:
  struct Needle {
    std::string bytes;
    std::string what;
  };
  static std::uint64_t head_of(const char* bytes) {
    std::uint64_t head = 0;
    std::memcpy(&head, bytes, sizeof(head));
    return head;
  }

  std::unordered_multimap<std::uint64_t, Needle> needles_;
};

}  // namespace inferscale
