#include "engine/llama/sessions.h"

#include <algorithm>

namespace inferscale {

SessionTable::SessionTable(LlamaSequences& sequences, std::int32_t first, std::uint32_t count)
    : sequences_(sequences), first_(first), count_(count) {
  forget_all();
}

void SessionTable::forget_all() {
  sessions_.clear();
  free_.clear();
  for (std::uint32_t i = count_; i > 0; --i) {
    free_.push_back(first_ + static_cast<std::int32_t>(i) - 1);
  }
}

Session* SessionTable::find(const std::string& name) {
  const auto at = std::find_if(sessions_.begin(), sessions_.end(),
                               [&](const Session& session) { return session.name == name; });
  return at == sessions_.end() ? nullptr : &*at;
}

Session* SessionTable::oldest(const std::string& keep) {
  Session* found = nullptr;
  for (Session& session : sessions_) {
    if (session.name != keep && (found == nullptr || session.last_use < found->last_use)) {
      found = &session;
    }
  }
  return found;
}

Session& SessionTable::open(const std::string& name) {
  Session* session = find(name);
  if (session == nullptr) {
    if (free_.empty()) {
      drop(oldest(name)->name);
    }
    session = &sessions_.emplace_back();
    session->name = name;
    session->sequence = free_.back();
    free_.pop_back();
  }
  session->last_use = ++clock_;
  return *session;
}

void SessionTable::drop(const std::string& name) {
  const auto at = std::find_if(sessions_.begin(), sessions_.end(),
                               [&](const Session& session) { return session.name == name; });
  if (at == sessions_.end()) {
    return;
  }
  sequences_.remove(at->sequence, 0, -1);
  free_.push_back(at->sequence);
  sessions_.erase(at);
}

void SessionTable::truncate(Session& session, std::size_t tokens) {
  sequences_.remove(session.sequence, static_cast<std::int32_t>(tokens), -1);
  session.cached.tokens.resize(std::min(tokens, session.cached.tokens.size()));
  if (session.cached.first_injected >= tokens) {
    session.cached.first_injected = SIZE_MAX;
  }
}

void SessionTable::make_room(std::size_t cells, std::size_t capacity, const std::string& keep) {
  const auto held = [&] {
    std::size_t sum = 0;
    for (const Session& session : sessions_) {
      sum += session.name == keep ? 0 : session.cached.tokens.size();
    }
    return sum;
  };
  while (held() + cells > capacity) {
    Session* session = oldest(keep);
    if (session == nullptr) {
      return;
    }
    drop(std::string(session->name));
  }
}

}  // namespace inferscale
