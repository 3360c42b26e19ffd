#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "inferscale/memory.h"
#include "inferscale/status.h"
#include "inferscale/transfer_types.h"

namespace inferscale {

/// Formats that `import` reads (docs/cli.md). Input is untrusted: bad items are reported one by
/// one, never dropped silently, and nothing here throws.
enum class ImportFormat { kAuto, kOpenAi, kMem0, kLocomo, kInferscale };

[[nodiscard]] const char* import_format_name(ImportFormat format);
/// Errors: kInvalidArgument that lists the names.
[[nodiscard]] Result<ImportFormat> parse_import_format(std::string_view name);

inline constexpr std::uint64_t kMaxImportBytes = 1ULL << 30;
/// Longest fact that is made out of a turn; longer turns become several facts.
inline constexpr std::size_t kTurnFactBytes = 600;

struct ImportOptions {
  ImportFormat format = ImportFormat::kAuto;
  std::string conversation;  ///< LoCoMo: `sample_id`; may be empty when there is only one
  std::string mem0_user;     ///< Mem0: takes the memories of this `user_id` only
  bool salvage =
      false;  ///< InferScale's own: takes what is whole of a file that is cut off or changed
  bool facts_from_turns = true;  ///< false when the facts come from a file of their own
};

/// What InferScale's own export holds (docs/export.md); `*_items` as below.
struct ExportedItems {
  std::vector<TurnView> turns;
  std::vector<std::uint64_t> turn_items;
  std::vector<ExportedFact> facts;
  std::vector<std::uint64_t> fact_items;
};

/// What a file holds. `*_items` give, for each entry, its index in the source: errors of the
/// service are reported under it.
struct ImportBatch {
  ImportFormat format = ImportFormat::kAuto;  ///< what was recognised
  std::vector<TurnInput> turns;
  std::vector<std::uint64_t> turn_items;
  std::vector<FactInput> facts;
  std::vector<std::uint64_t> fact_items;
  ExportedItems exported;         ///< kInferscale fills this and nothing above it
  std::vector<ItemError> errors;  ///< items that were not taken
  std::uint64_t skipped = 0;      ///< items without words (tool calls, pictures alone)
};

/// Reads a conversation or an export. Errors: kInvalidArgument (not one of the formats, several
/// conversations or users to choose from: the message lists them), kNotFound (no such conversation
/// or user), kDataLoss (an export that is cut off or changed), kResourceExhausted (over
/// kMaxImportBytes).
[[nodiscard]] Result<ImportBatch> parse_import(std::string_view bytes,
                                               const ImportOptions& options);

/// Reads ready facts, JSON Lines or an array of {"text", "event_time", "source_turns",
/// "metadata"}; only `facts`, `fact_items` and `errors` of the result are filled.
[[nodiscard]] Result<ImportBatch> parse_facts_file(std::string_view bytes);

}  // namespace inferscale
