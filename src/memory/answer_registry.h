#pragma once

#include <cstdint>
#include <list>
#include <mutex>
#include <span>
#include <vector>

#include "catalog/catalog.h"

namespace inferscale {

/// Which answers run and which conversations are open, and what they use. A delete counts them
/// here, and an answer learns here that something was erased while it was being prepared.
/// Thread-safe. Must outlive its uses.
class AnswerRegistry {
  struct State {
    std::vector<FactRef> facts;
    std::vector<RecordKey> records;
    std::uint64_t erases_at_begin = 0;
    bool running = false;
    bool conversation = false;
    bool erased = false;
  };

 public:
  /// What one question, or one conversation turn after turn, uses. One thread at a time.
  class Use {
   public:
    Use(AnswerRegistry& registry, bool conversation);
    ~Use();
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;

    /// An answer begins to be prepared.
    void begin();
    /// What the answer uses, besides what the conversation holds. False when something was erased
    /// since `begin`: what was read since then may be gone, so it has to be prepared again.
    [[nodiscard]] bool add(std::span<const FactRef> facts, std::span<const RecordKey> records);
    /// The answer is done; a conversation goes on holding what it used.
    void end();
    /// Whether something that the conversation holds was erased.
    [[nodiscard]] bool holds_erased() const;
    /// The conversation starts over.
    void clear();

   private:
    AnswerRegistry& registry_;
    std::list<State>::iterator state_;
  };

  struct Users {
    std::uint64_t answers = 0;        ///< that run now
    std::uint64_t conversations = 0;  ///< that are open; they start over at their next turn
  };
  /// Finds who uses what was erased: these facts (with `old_versions` only their versions before
  /// the live one) or these records. To be called after the erase has been committed.
  Users note_erased(std::span<const ErasedFact> facts, bool old_versions,
                    std::span<const RecordKey> records);

 private:
  std::mutex mutex_;
  std::list<State> uses_;
  std::uint64_t erases_ = 0;
};

}  // namespace inferscale
