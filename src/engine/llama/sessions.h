#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/llama/sequences.h"
#include "engine/run_plan.h"

namespace inferscale {

/// A named sequence that stays in the cache between runs.
struct Session {
  std::string name;
  std::int32_t sequence = 0;
  CachedSequence cached;
  std::uint64_t last_use = 0;
};

/// The sessions of one context: a fixed number of sequence ids, least recently used first out.
/// Sessions give way when a run needs their cells: what they hold can always be computed again.
class SessionTable {
 public:
  /// Uses sequence ids first .. first+count-1.
  SessionTable(LlamaSequences& sequences, std::int32_t first, std::uint32_t count);
  /// Null when there is none of that name. Valid until the next call that adds or drops.
  [[nodiscard]] Session* find(const std::string& name);
  /// The session of that name, new and empty if need be; another one may be dropped for it.
  [[nodiscard]] Session& open(const std::string& name);
  void drop(const std::string& name);
  /// Shortens what a session holds to its first `tokens` tokens.
  void truncate(Session& session, std::size_t tokens);
  /// Drops idle sessions, oldest first, until `cells` fit beside the others. `keep` (may be empty)
  /// stays.
  void make_room(std::size_t cells, std::size_t capacity, const std::string& keep);
  /// Forgets everything; the cache was cleared.
  void forget_all();

 private:
  [[nodiscard]] Session* oldest(const std::string& keep);

  LlamaSequences& sequences_;
  std::vector<std::int32_t> free_;
  std::vector<Session> sessions_;
  std::int32_t first_;
  std::uint32_t count_;
  std::uint64_t clock_ = 0;
};

}  // namespace inferscale
