#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/hash.h"
#include "inferscale/transfer_types.h"

namespace inferscale {

/// Names and limits of docs/export.md, for the writer and the reader.
namespace export_format {
inline constexpr const char* kName = "inferscale";
inline constexpr std::uint32_t kVersion = 1;
/// A fact of 1 MiB with its metadata and source turns, every byte escaped, fits.
inline constexpr std::size_t kMaxLineBytes = std::size_t{16} << 20;
}  // namespace export_format

/// Writes an export line by line, each ending in a newline. Use in this order: header, turns, facts
/// (each gives the lines of its versions, too), end. One thread at a time.
class ExportWriter {
 public:
  /// `created` is RFC 3339; nothing else differs between two exports of the same content.
  [[nodiscard]] std::string header(const Scope& scope, const ExportCounts& counts,
                                   std::string_view created);
  [[nodiscard]] std::string turn(const TurnView& turn);
  [[nodiscard]] std::string fact(const ExportedFact& fact);
  [[nodiscard]] std::string end();

 private:
  std::string counted(std::string lines);

  Sha256Stream hash_;
  std::uint64_t lines_ = 0;
};

}  // namespace inferscale
