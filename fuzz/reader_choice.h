#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

/// For targets with several readers of the same bytes. A byte that no text begins with, 0x80 and
/// up, names the one that reads what follows it. An input without such a byte, like the seeds, goes
/// to all of them; whatever libFuzzer makes of it gets one, so that an execution costs one reader,
/// and what a reader finds new is tried on that reader again.
namespace reader_choice {

inline constexpr std::uint8_t kFirst = 0x80;

/// Calls `read(reader, bytes)` for the reader that the input names, or for all `count` of them.
template <typename Read>
void dispatch(const std::uint8_t* data, std::size_t size, std::uint8_t count, Read read) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  if (size > 0 && data[0] >= kFirst) {
    read(static_cast<std::uint8_t>((data[0] - kFirst) % count), bytes.substr(1));
    return;
  }
  for (std::uint8_t reader = 0; reader < count; ++reader) {
    read(reader, bytes);
  }
}

}  // namespace reader_choice

// libFuzzer's own; absent where a target only replays its seeds.
extern "C" __attribute__((weak)) std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size,
                                                              std::size_t max_size);

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size,
                                               std::size_t max_size, unsigned int seed) {
  size = LLVMFuzzerMutate(data, size, max_size);
  if (size > 0 && data[0] < reader_choice::kFirst && size < max_size) {
    std::memmove(data + 1, data, size);
    data[0] = static_cast<std::uint8_t>(reader_choice::kFirst + seed % 0x80);
    ++size;
  }
  return size;
}
