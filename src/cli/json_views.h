#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "inferscale/memory.h"

namespace inferscale::cli {

/// What an import did.
struct ImportReport {
  std::uint64_t turns = 0;
  std::uint64_t facts_added = 0;
  std::uint64_t facts_existing = 0;
  std::uint64_t facts_encoded = 0;
  std::uint64_t facts_failed = 0;  ///< not encoded: used as text
  std::uint64_t skipped = 0;       ///< items without words
  std::uint64_t versions = 0;      ///< superseded versions of new facts (format inferscale)
  std::uint64_t renamed = 0;       ///< new facts whose id was taken by another scope
  bool dry_run = false;            ///< nothing was written
  std::string format;
  bool interrupted = false;
  std::vector<ItemError> errors;
  std::string note;  ///< set when facts were taken but not embedded or encoded yet, and why
  double elapsed_ms = 0;
};

/// Replies as one line of JSON: the contracts of docs/cli.md. Bytes that are not UTF-8 are
/// replaced.
[[nodiscard]] std::string json_text(const FactView& fact);
[[nodiscard]] std::string json_text(const FactList& list);
[[nodiscard]] std::string json_text(const std::string& id, const std::vector<FactHistoryRow>& rows);
[[nodiscard]] std::string json_text(const SearchReply& reply);
[[nodiscard]] std::string json_text(const AskReply& reply);
[[nodiscard]] std::string json_text(const std::string& question, const CompareReply& reply);
[[nodiscard]] std::string json_text(const AddReply& reply);
/// What `reencode` did, and what it left.
[[nodiscard]] std::string json_text(const EncodeReply& reply, const std::string& context,
                                    std::uint64_t pending, bool interrupted);
[[nodiscard]] std::string json_text(const ImportReport& report);
[[nodiscard]] std::string json_text(const DeleteReceipt& receipt);
/// An update that erased the old versions.
[[nodiscard]] std::string json_text(const FactView& fact, const DeleteReceipt& erased);
[[nodiscard]] std::string json_text(const StatsReply& stats);
[[nodiscard]] std::string json_text(const std::vector<DoctorCheck>& checks, bool all_ok);
[[nodiscard]] std::string json_text(const std::string& output, const ExportCounts& counts);
[[nodiscard]] std::string json_text(const VerifyReport& report);
[[nodiscard]] std::string json_text(const RepairReport& report);
[[nodiscard]] std::string json_error(const Status& status);

}  // namespace inferscale::cli
