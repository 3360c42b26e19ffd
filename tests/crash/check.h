#pragma once

#include <cstdint>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "crash/crash_service.h"
#include "crash/oracle.h"

namespace inferscale::testing {

/// What a check of a restarted service saw.
struct CheckReport {
  std::vector<std::string> problems;
  std::uint64_t facts = 0;
  std::uint64_t records = 0;  ///< of live facts, in the store, each read and compared
  /// Facts (with versions) whose records the catalog names and the store does not have.
  std::set<std::string> records_missing;
  std::uint64_t questions = 0;
};

/// Asks a service that was opened after a kill or a fault for everything that is promised:
/// acknowledged operations are there and none is half there (settles `oracle`), catalog and store
/// agree, and 20 questions get the answers of a service made afresh from the oracle's facts. Then
/// encodes what is pending and asks again. `fresh` is an empty directory for that service.
[[nodiscard]] CheckReport check_service(CrashService& service, Oracle& oracle,
                                        const std::filesystem::path& fresh, std::uint64_t seed);

/// Deleted texts, as text or as token ids, that some file of the directory still holds. Of a
/// closed service.
[[nodiscard]] std::vector<std::string> find_traces(const std::filesystem::path& directory,
                                                   const Oracle& oracle);

/// Copies the directory that `options` names, opens the copy and does both.
[[nodiscard]] CheckReport check_copy(CrashServiceOptions options, Oracle& oracle,
                                     std::uint64_t seed);

}  // namespace inferscale::testing
