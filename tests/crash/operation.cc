#include "crash/operation.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace inferscale::testing {
namespace {

constexpr std::uint64_t kFirstMarker = 1'000'000;

constexpr std::size_t kMostFacts = 14;  // of a user; then more is deleted than added

FactInput fact_input(const Operation& operation, const std::string& text) {
  FactInput input;
  input.text = text;
  input.event_time = "2025-03-01T10:00:00Z";
  if (operation.with_turns) {
    input.source_turns = {turn_of(text)};
  }
  return input;
}

Result<std::vector<std::string>> add(MemoryService& service, const Operation& operation) {
  std::vector<TurnInput> turns;
  std::vector<FactInput> facts;
  for (const std::string& text : operation.texts) {
    facts.push_back(fact_input(operation, text));
    if (operation.with_turns) {
      TurnInput turn;
      turn.id = turn_of(text);
      turn.speaker = operation.user;
      turn.text = "as said: " + text;
      turns.push_back(std::move(turn));
    }
  }
  INFERSCALE_ASSIGN_OR_RETURN(const AddReply reply, service.add(scope_of(operation.user), turns,
                                                                facts, operation.wait, {}));
  if (!reply.errors.empty()) {
    return Status(reply.errors.front().code, reply.errors.front().message);
  }
  return reply.ids;
}

Status update(MemoryService& service, const Operation& operation) {
  UpdateRequest request;
  request.scope = scope_of(operation.user);
  request.id = operation.ids.front();
  request.text = operation.texts.front();
  return service.update(request, operation.wait, {}).status();
}

Status ask(MemoryService& service, const Operation& operation) {
  AskRequest request;
  request.scope = scope_of(operation.user);
  request.question = operation.texts.front();
  request.k = 5;
  request.max_tokens = 16;
  return service.ask(request).status();
}

}  // namespace

std::string to_line(const Operation& operation) {
  return nlohmann::json{{"kind", static_cast<int>(operation.kind)},
                        {"user", operation.user},
                        {"texts", operation.texts},
                        {"ids", operation.ids},
                        {"with_turns", operation.with_turns},
                        {"keep_turns", operation.keep_turns},
                        {"wait", operation.wait}}
      .dump();
}

Operation parse_operation(std::string_view line) {
  const nlohmann::json json = nlohmann::json::parse(line);
  Operation operation;
  operation.kind = static_cast<OperationKind>(json.at("kind").get<int>());
  json.at("user").get_to(operation.user);
  json.at("texts").get_to(operation.texts);
  json.at("ids").get_to(operation.ids);
  json.at("with_turns").get_to(operation.with_turns);
  json.at("keep_turns").get_to(operation.keep_turns);
  json.at("wait").get_to(operation.wait);
  return operation;
}

Result<std::vector<std::string>> perform(MemoryService& service, KvStore& store,
                                         const Operation& operation) {
  Status status;
  const Scope scope = scope_of(operation.user);
  switch (operation.kind) {
    case OperationKind::kAdd:
      return add(service, operation);
    case OperationKind::kUpdate:
      status = update(service, operation);
      break;
    case OperationKind::kDelete:
      status =
          service.remove(scope, operation.ids, operation.keep_turns, operation.wait, {}).status();
      break;
    case OperationKind::kDeleteScope:
      status = service.remove(scope, {}, false, operation.wait, {}).status();
      break;
    case OperationKind::kEraseOld: {
      DeleteRequest request;
      request.scope = scope;
      request.ids = operation.ids;
      request.old_versions = true;
      status = service.remove(request, operation.wait, {}).status();
      break;
    }
    case OperationKind::kEncode:
      status = service.encode_pending({}).status();
      break;
    case OperationKind::kAsk:
      status = ask(service, operation);
      break;
    case OperationKind::kCompact:
      status = store.compact();
      break;
    case OperationKind::kFlush:
      status = store.flush();
      break;
  }
  if (!status.ok()) {
    return status;
  }
  return std::vector<std::string>();
}

Scope scope_of(const std::string& user) {
  Scope scope;
  scope.user = user;
  return scope;
}

std::string turn_of(const std::string& text) { return "turn-" + marker_of(text); }

std::string marker_of(const std::string& text) {
  for (std::size_t begin = text.find('m'); begin != std::string::npos;
       begin = text.find('m', begin + 1)) {
    const std::size_t end = text.find_first_not_of("0123456789", begin + 1);
    if (end != std::string::npos && end > begin + 1 && text[end] == 'q') {
      return text.substr(begin, end + 1 - begin);
    }
  }
  return "";
}

const std::vector<std::string>& crash_users() {
  static const std::vector<std::string> kUsers = {"ana", "bob", "eve"};
  return kUsers;
}

std::string OperationSource::text(const std::string& user) {
  static constexpr const char* kVerbs[] = {"likes", "hides", "sells", "paints"};
  static constexpr const char* kThings[] = {"tea", "boats", "keys", "maps", "lamps", "birds"};
  static constexpr const char* kPlaces[] = {"in Rome", "at home", "by the sea", "on Mondays"};
  return fmt::format("{} {} {} {} m{}q", user, kVerbs[below(4)], kThings[below(6)],
                     kPlaces[below(4)], kFirstMarker + next_marker_++);
}

Operation OperationSource::next() {
  Operation operation;
  operation.user = crash_users()[below(crash_users().size())];
  operation.wait = below(3) == 0;
  operation.keep_turns = below(4) == 0;
  const std::vector<std::string>& live = live_[operation.user];
  const std::size_t choice = below(live.size() < kMostFacts ? 22 : 32);
  if (live.empty() || choice < 8) {
    operation.kind = OperationKind::kAdd;
    operation.with_turns = below(2) == 0;
    for (std::size_t count = 1 + below(3); count > 0; --count) {
      operation.texts.push_back(text(operation.user));
    }
  } else if (choice < 12) {
    operation.kind = OperationKind::kUpdate;
    operation.ids = {live[below(live.size())]};
    operation.texts = {text(operation.user)};
  } else if (choice < 15) {
    operation.kind = OperationKind::kEncode;
  } else if (choice < 17) {
    operation.kind = OperationKind::kAsk;
    operation.texts = {"what does " + operation.user + " do at home?"};
  } else if (choice < 18) {
    operation.kind = below(2) == 0 ? OperationKind::kFlush : OperationKind::kEraseOld;
    operation.ids = {live[below(live.size())]};
  } else if (choice < 20) {
    operation.kind = OperationKind::kCompact;
  } else if (choice < 31) {
    operation.kind = OperationKind::kDelete;
    operation.ids = {live[below(live.size())]};
    if (below(2) == 0 && live.back() != operation.ids.front()) {
      operation.ids.push_back(live.back());
    }
  } else {
    operation.kind = OperationKind::kDeleteScope;
  }
  return operation;
}

void OperationSource::done(const Operation& operation, const std::vector<std::string>& added) {
  std::vector<std::string>& live = live_[operation.user];
  if (operation.kind == OperationKind::kAdd) {
    live.insert(live.end(), added.begin(), added.end());
  } else if (operation.kind == OperationKind::kDelete) {
    std::erase_if(live, [&](const std::string& id) {
      return std::find(operation.ids.begin(), operation.ids.end(), id) != operation.ids.end();
    });
  } else if (operation.kind == OperationKind::kDeleteScope) {
    live.clear();
  }
}

std::vector<Operation> scripted_operations() {
  const auto add = [](const char* user, std::vector<std::string> texts, bool turns, bool wait) {
    return Operation{OperationKind::kAdd, user, std::move(texts), {}, turns, false, wait};
  };
  const auto update = [](const char* id, const char* text, bool wait) {
    return Operation{OperationKind::kUpdate, "ana", {text}, {id}, false, false, wait};
  };
  const auto other = [](OperationKind kind, const char* user, std::vector<std::string> ids) {
    return Operation{kind, user, {"what does ana like?"}, std::move(ids), false, false, true};
  };
  return {
      add("ana", {"ana likes tea m1000001q", "ana sells maps m1000002q"}, true, false),
      other(OperationKind::kEncode, "ana", {}),
      add("ana", {"ana hides keys m1000003q"}, false, true),
      update("{0}", "ana likes birds m1000004q", true),
      other(OperationKind::kAsk, "ana", {}),
      add("bob", {"bob paints boats m1000005q"}, true, true),
      other(OperationKind::kDelete, "ana", {"{1}"}),
      update("{2}", "ana hides lamps m1000006q", false),
      other(OperationKind::kCompact, "ana", {}),
      other(OperationKind::kEraseOld, "ana", {"{0}"}),
      other(OperationKind::kDeleteScope, "bob", {}),
      other(OperationKind::kFlush, "ana", {}),
      add("ana", {"ana paints boats m1000007q"}, false, true),
  };
}

Operation resolve(Operation operation, const std::vector<std::string>& added) {
  for (std::string& id : operation.ids) {
    id = added.at(std::stoul(id.substr(1)));
  }
  return operation;
}

}  // namespace inferscale::testing
