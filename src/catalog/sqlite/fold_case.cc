#include "catalog/sqlite/fold_case.h"

namespace inferscale::sqlite {
namespace {

unsigned fold_extended_latin(unsigned c) {
  const bool odd_is_upper = (c >= 0x139 && c <= 0x148) || (c >= 0x179 && c <= 0x17E);
  const bool unpaired = c == 0x130 || c == 0x131 || c == 0x138 || c == 0x149 || c == 0x17F;
  if (c == 0x178) return 0xFF;  // Y with diaeresis
  if (unpaired) return c;
  return (c % 2 == 1) == odd_is_upper ? c + 1 : c;
}

/// Of a two-byte code point (U+0080 to U+07FF).
unsigned fold(unsigned c) {
  if (c >= 0xC0 && c <= 0xDE && c != 0xD7) return c + 0x20;
  if (c >= 0x100 && c <= 0x17F) return fold_extended_latin(c);
  if (c >= 0x391 && c <= 0x3AB && c != 0x3A2) return c + 0x20;
  if (c == 0x3C2) return 0x3C3;  // final sigma
  if (c >= 0x410 && c <= 0x42F) return c + 0x20;
  if (c >= 0x400 && c <= 0x40F) return c + 0x50;
  if (c >= 0x460 && c <= 0x4BF && (c < 0x482 || c > 0x489)) return c | 1U;
  if (c >= 0x531 && c <= 0x556) return c + 0x30;
  return c;
}

}  // namespace

std::string fold_case(std::string_view text) {
  std::string folded(text);
  for (std::size_t i = 0; i < folded.size(); ++i) {
    const auto lead = static_cast<unsigned char>(folded[i]);
    if (lead >= 'A' && lead <= 'Z') {
      folded[i] = static_cast<char>(lead + ('a' - 'A'));
    } else if (lead >= 0xC2 && lead <= 0xDF && i + 1 < folded.size()) {
      const auto next = static_cast<unsigned char>(folded[i + 1]);
      if ((next & 0xC0U) == 0x80) {
        const unsigned point = fold((lead & 0x1FU) << 6 | (next & 0x3FU));
        folded[i] = static_cast<char>(0xC0U | point >> 6);
        folded[i + 1] = static_cast<char>(0x80U | (point & 0x3FU));
        ++i;
      }
    }
  }
  return folded;
}

}  // namespace inferscale::sqlite
