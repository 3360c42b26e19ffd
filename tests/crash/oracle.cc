#include "crash/oracle.h"

#include <fmt/format.h>

#include <algorithm>

namespace inferscale::testing {

std::string describe(const OracleState& state) {
  std::string text;
  for (const auto& [id, fact] : state.facts) {
    text += fmt::format("  {} {} v{} \"{}\" turn \"{}\"\n", id, fact.user, fact.version,
                        fact.texts.back(), fact.turn);
  }
  for (const auto& [user, turns] : state.turns) {
    text += fmt::format("  turns of {}:", user);
    for (const std::string& turn : turns) {
      text += " " + turn;
    }
    text += "\n";
  }
  return text;
}

void Oracle::begin(const Operation& operation) {
  pending_ = operation;
  for (const std::string& text : operation.texts) {
    if (const std::string marker = marker_of(text); !marker.empty()) {
      markers_.insert(marker);
    }
  }
}

void Oracle::acknowledge(const std::vector<std::string>& added) {
  apply(*pending_, added);
  pending_.reset();
}

void Oracle::apply(const Operation& operation, const std::vector<std::string>& added) {
  std::set<std::string>& turns = state_.turns[operation.user];
  const auto erase = [&](const std::string& id, bool keep_turns) {
    const auto fact = state_.facts.find(id);
    if (fact != state_.facts.end()) {
      if (!keep_turns) {
        turns.erase(fact->second.turn);
      }
      state_.facts.erase(fact);
    }
  };
  switch (operation.kind) {
    case OperationKind::kAdd:
      for (std::size_t i = 0; i < added.size(); ++i) {
        const std::string& text = operation.texts.at(i);
        const std::string turn = operation.with_turns ? turn_of(text) : "";
        state_.facts[added[i]] = {operation.user, {text}, turn, 1};
        if (operation.with_turns) {
          turns.insert(turn);
        }
      }
      break;
    case OperationKind::kUpdate: {
      OracleFact& fact = state_.facts.at(operation.ids.front());
      fact.texts.push_back(operation.texts.front());
      ++fact.version;
      break;
    }
    case OperationKind::kEraseOld: {
      std::vector<std::string>& texts = state_.facts.at(operation.ids.front()).texts;
      texts = {texts.back()};
      break;
    }
    case OperationKind::kDelete:
      for (const std::string& id : operation.ids) {
        erase(id, operation.keep_turns);
      }
      break;
    case OperationKind::kDeleteScope:
      std::erase_if(state_.facts,
                    [&](const auto& entry) { return entry.second.user == operation.user; });
      turns.clear();
      break;
    case OperationKind::kEncode:
    case OperationKind::kAsk:
    case OperationKind::kCompact:
    case OperationKind::kFlush:
      break;
  }
  if (turns.empty()) {
    state_.turns.erase(operation.user);
  }
}

// The ids of the facts that the cut-off operation added, if all of them are there.
std::optional<std::vector<std::string>> Oracle::find_added(const OracleState& found) const {
  std::vector<std::string> added;
  for (const std::string& text : pending_->texts) {
    const auto fact = std::find_if(found.facts.begin(), found.facts.end(), [&](const auto& entry) {
      return entry.second.texts == std::vector<std::string>{text};
    });
    if (fact == found.facts.end()) {
      return std::nullopt;
    }
    added.push_back(fact->first);
  }
  return added;
}

bool Oracle::settle(const OracleState& found) {
  if (pending_ && found != state_) {
    const OracleState before = state_;
    std::vector<std::string> added;
    bool whole = true;
    if (pending_->kind == OperationKind::kAdd) {
      const auto ids = find_added(found);
      whole = ids.has_value();
      added = ids.value_or(added);
    }
    if (whole) {
      apply(*pending_, added);
    } else if (pending_->with_turns) {  // turns are written before the facts that cite them
      for (const std::string& text : pending_->texts) {
        state_.turns[pending_->user].insert(turn_of(text));
      }
    }
    if (found != state_) {
      state_ = before;
    }
  }
  pending_.reset();
  return found == state_;
}

std::set<std::string> Oracle::forbidden_markers() const {
  std::set<std::string> forbidden = markers_;
  for (const auto& entry : state_.facts) {
    for (const std::string& text : entry.second.texts) {
      forbidden.erase(marker_of(text));
    }
  }
  for (const auto& entry : state_.turns) {  // a kept turn quotes its fact
    for (const std::string& turn : entry.second) {
      forbidden.erase(marker_of(turn));
    }
  }
  return forbidden;
}

}  // namespace inferscale::testing
