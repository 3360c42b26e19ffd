#include "memory/answer_registry.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

namespace inferscale {

AnswerRegistry::Use::Use(AnswerRegistry& registry, bool conversation) : registry_(registry) {
  const std::lock_guard lock(registry_.mutex_);
  state_ = registry_.uses_.emplace(registry_.uses_.end());
  state_->conversation = conversation;
}

AnswerRegistry::Use::~Use() {
  const std::lock_guard lock(registry_.mutex_);
  registry_.uses_.erase(state_);
}

void AnswerRegistry::Use::begin() {
  const std::lock_guard lock(registry_.mutex_);
  state_->erases_at_begin = registry_.erases_;
  state_->running = true;
}

bool AnswerRegistry::Use::add(std::span<const FactRef> facts, std::span<const RecordKey> records) {
  const std::lock_guard lock(registry_.mutex_);
  if (state_->erases_at_begin != registry_.erases_) {
    return false;
  }
  state_->facts.insert(state_->facts.end(), facts.begin(), facts.end());
  state_->records.insert(state_->records.end(), records.begin(), records.end());
  return true;
}

void AnswerRegistry::Use::end() {
  const std::lock_guard lock(registry_.mutex_);
  state_->running = false;
}

bool AnswerRegistry::Use::holds_erased() const {
  const std::lock_guard lock(registry_.mutex_);
  return state_->erased;
}

void AnswerRegistry::Use::clear() {
  const std::lock_guard lock(registry_.mutex_);
  state_->facts.clear();
  state_->records.clear();
  state_->erased = false;
}

AnswerRegistry::Users AnswerRegistry::note_erased(std::span<const ErasedFact> facts,
                                                  bool old_versions,
                                                  std::span<const RecordKey> records) {
  std::unordered_map<std::string_view, std::uint32_t> versions;
  for (const ErasedFact& fact : facts) {
    versions.emplace(fact.id, fact.version);
  }
  const std::unordered_set<RecordKey> keys(records.begin(), records.end());
  const auto fact_erased = [&](const FactRef& ref) {
    const auto found = versions.find(ref.id);
    return found != versions.end() && (!old_versions || ref.version < found->second);
  };
  Users users;
  const std::lock_guard lock(mutex_);
  ++erases_;
  for (State& use : uses_) {
    if (std::none_of(use.facts.begin(), use.facts.end(), fact_erased) &&
        std::none_of(use.records.begin(), use.records.end(),
                     [&](const RecordKey& key) { return keys.contains(key); })) {
      continue;
    }
    use.erased = true;
    users.answers += use.running ? 1 : 0;
    users.conversations += use.conversation ? 1 : 0;
  }
  return users;
}

}  // namespace inferscale
