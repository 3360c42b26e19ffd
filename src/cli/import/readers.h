#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cli/import/import_formats.h"
#include "cli/import/json_slices.h"

namespace inferscale {

/// A file cut into its records: the elements of an array, the lines of JSON Lines, or one object.
struct ImportDocument {
  enum class Kind { kArray, kLines, kObject };
  Kind kind = Kind::kArray;
  std::vector<std::string_view> records;
  std::vector<std::uint64_t> lines;  ///< kLines: the line number of each record, from 1
  /// "item 3" or "line 4", for messages.
  [[nodiscard]] std::string place(std::size_t record) const;
};

[[nodiscard]] Result<ImportDocument> open_document(std::string_view bytes);
/// The records under one of `keys` when the document is one object that has it, else the document
/// itself: {"messages": [...]} and [...] are read alike.
[[nodiscard]] Result<ImportDocument> unwrap(const ImportDocument& document,
                                            std::span<const std::string_view> keys);

/// Calls `read` with each record, built; a record that cannot be built, or that `read` refuses,
/// becomes an error of the batch.
using RecordReader = std::function<Status(std::size_t index, const nlohmann::ordered_json& record)>;
void read_records(const ImportDocument& document, ImportBatch& batch, const RecordReader& read);

void add_error(ImportBatch& batch, std::uint64_t item, const Status& status);

/// A string member, "" when absent or null. Errors: kInvalidArgument when it is something else.
[[nodiscard]] Result<std::string> string_member(const nlohmann::ordered_json& object,
                                                const char* key);
/// The first of `keys` that is there: RFC 3339, or a unix time in seconds or milliseconds. Gives
/// RFC 3339, "" when none is there.
[[nodiscard]] Result<std::string> time_member(const nlohmann::ordered_json& object,
                                              std::span<const char* const> keys);

/// Errors: kInvalidArgument when a name is too long to stand before each piece of a turn.
[[nodiscard]] Status check_speaker(std::string_view speaker);

/// Makes facts of the turns that speak for a person: those of users, and, where turns carry names,
/// every named one that is not from the system or a tool.
void add_turn_facts(ImportBatch& batch, const std::vector<bool>& named);

[[nodiscard]] Result<ImportBatch> read_openai(const ImportDocument& document,
                                              const ImportOptions& options);
[[nodiscard]] Result<ImportBatch> read_mem0(const ImportDocument& document,
                                            const ImportOptions& options);
[[nodiscard]] Result<ImportBatch> read_locomo(const ImportDocument& document,
                                              const ImportOptions& options);

/// The turn ids of LoCoMo in "D8:6; D9:17", or in each string of a list, of whatever depth that a
/// parsed file may have.
void collect_locomo_turn_ids(const nlohmann::ordered_json& source, std::vector<std::string>& ids);

/// Whether the first line says that this is InferScale's own export.
[[nodiscard]] bool is_export(std::string_view bytes);
[[nodiscard]] Result<ImportBatch> read_export(std::string_view bytes, const ImportOptions& options);

}  // namespace inferscale
