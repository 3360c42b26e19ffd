#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "inferscale/status.h"
#include "inferscale/transfer_types.h"

namespace inferscale {

/// One line of the file: what it is, and its content.
struct ExportLine {
  std::string kind;          ///< "turn", "fact", "version", "end"
  std::string_view content;  ///< text of the value
};

/// A fact without the versions that follow it.
struct ExportedFactLine {
  ExportedFact fact;
  std::uint64_t versions = 0;  ///< lines that follow with its history
};

/// Whose the content was, and how much of it the file should hold.
struct ExportHeader {
  Scope scope;  ///< agent and run are those of each line
  std::optional<ExportCounts> counts;
};

/// The last line.
struct ExportEnd {
  std::uint64_t lines = 0;  ///< between header and end
  std::string sha256_128;   ///< of them
};

// What the lines of an export say (docs/export.md), each for itself. Errors: kInvalidArgument,
// which says what is wrong with the line.

[[nodiscard]] Result<ExportLine> split_export_line(std::string_view text);
/// Errors: also kUnsupported, for a later version of the format.
[[nodiscard]] Result<ExportHeader> read_export_header(std::string_view text);
/// `owner` gives tenant and user.
[[nodiscard]] Result<TurnView> read_exported_turn(std::string_view content, const Scope& owner);
[[nodiscard]] Result<ExportedFactLine> read_exported_fact(std::string_view content,
                                                          const Scope& owner);
[[nodiscard]] Result<FactHistoryRow> read_exported_version(std::string_view content);
[[nodiscard]] Result<ExportEnd> read_export_end(std::string_view content);

}  // namespace inferscale
