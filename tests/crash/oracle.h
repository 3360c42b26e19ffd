#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "crash/operation.h"

namespace inferscale::testing {

/// A fact with every version of its text that was not erased, oldest first.
struct OracleFact {
  std::string user;
  std::vector<std::string> texts;
  std::string turn;           ///< the one it cites; empty: none
  std::uint32_t version = 1;  ///< the live one
  friend bool operator==(const OracleFact&, const OracleFact&) = default;
};

/// What a data directory holds, as users see it.
struct OracleState {
  std::map<std::string, OracleFact> facts;  ///< by id
  std::map<std::string, std::set<std::string>>
      turns;  ///< by user; users without turns are left out
  friend bool operator==(const OracleState&, const OracleState&) = default;
};
[[nodiscard]] std::string describe(const OracleState& state);

/// Replays the operations that were acknowledged.
class Oracle {
 public:
  /// An operation that is told before it begins.
  void begin(const Operation& operation);
  void acknowledge(const std::vector<std::string>& added);
  /// What began and was not acknowledged: it may be there whole or not at all.
  [[nodiscard]] const std::optional<Operation>& pending() const { return pending_; }

  /// Takes what a restarted service holds for the truth if it is what must be there, with the
  /// operation that was cut off done or not done. False: something acknowledged is missing, or
  /// something is half there.
  [[nodiscard]] bool settle(const OracleState& found);

  [[nodiscard]] const OracleState& state() const { return state_; }
  /// Markers of texts that some operation brought and that must be nowhere any more.
  [[nodiscard]] std::set<std::string> forbidden_markers() const;
  [[nodiscard]] const std::set<std::string>& markers() const { return markers_; }

 private:
  void apply(const Operation& operation, const std::vector<std::string>& added);
  [[nodiscard]] std::optional<std::vector<std::string>> find_added(const OracleState& found) const;

  OracleState state_;
  std::optional<Operation> pending_;
  std::set<std::string> markers_;  // of all texts ever
};

}  // namespace inferscale::testing
