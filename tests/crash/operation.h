#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "inferscale/kv_store.h"
#include "inferscale/memory.h"

namespace inferscale::testing {

enum class OperationKind {
  kAdd,
  kUpdate,
  kDelete,
  kDeleteScope,
  kEraseOld,
  kEncode,
  kAsk,
  kCompact,
  kFlush
};

/// One call of a memory service, as it is told to the process that checks it.
struct Operation {
  OperationKind kind = OperationKind::kEncode;
  std::string user;
  std::vector<std::string> texts;  ///< of the facts to add, the new text, or the question
  std::vector<std::string> ids;    ///< of the facts to update or to delete
  bool with_turns = false;         ///< each added fact cites a turn of its own
  bool keep_turns = false;
  bool wait = false;  ///< encodes before it returns
};

/// On one line.
[[nodiscard]] std::string to_line(const Operation& operation);
/// REQUIRES: made by `to_line`.
[[nodiscard]] Operation parse_operation(std::string_view line);

/// Does it, with `store` the service's own. Returns the ids of added facts.
[[nodiscard]] Result<std::vector<std::string>> perform(MemoryService& service, KvStore& store,
                                                       const Operation& operation);

[[nodiscard]] Scope scope_of(const std::string& user);
/// The turn that a fact with this text cites under Operation::with_turns.
[[nodiscard]] std::string turn_of(const std::string& text);
/// The word of a text made by OperationSource that no other text has: m<number>q, of so many digits
/// that keys and values do not spell it by chance. It is found in files wherever the text left a
/// trace.
[[nodiscard]] std::string marker_of(const std::string& text);

[[nodiscard]] const std::vector<std::string>& crash_users();

/// Live facts by user, oldest first.
using LiveIds = std::map<std::string, std::vector<std::string>>;

/// Random operations on what is live: the same for equal seeds and outcomes.
class OperationSource {
 public:
  /// Markers count from `first_marker`.
  OperationSource(std::uint64_t seed, std::uint64_t first_marker, LiveIds live)
      : random_(seed), next_marker_(first_marker), live_(std::move(live)) {}

  [[nodiscard]] Operation next();
  /// What came of the operation that `next` gave.
  void done(const Operation& operation, const std::vector<std::string>& added);

 private:
  std::string text(const std::string& user);
  std::size_t below(std::size_t limit) { return static_cast<std::size_t>(random_() % limit); }

  std::mt19937_64 random_;
  std::uint64_t next_marker_;
  LiveIds live_;
};

/// A short history with every kind of operation in it, for a fresh directory. `{i}` in `ids` stands
/// for the i-th id that was added.
[[nodiscard]] std::vector<Operation> scripted_operations();
/// With the ids that `{i}` stands for.
[[nodiscard]] Operation resolve(Operation operation, const std::vector<std::string>& added);

}  // namespace inferscale::testing
