// Moving a scope to another data directory.
#include <fmt/format.h>

#include "memory/service.h"

namespace inferscale {
namespace {

std::string time_text(const std::optional<TimestampUs>& time, int offset_minutes = 0) {
  return time ? format_rfc3339(*time, offset_minutes) : std::string();
}

TurnView turn_view(const Turn& turn) {
  // A turn without a time has the time 0.
  const bool timed = turn.event_time != 0 || turn.event_offset_minutes != 0;
  return {turn.scope,
          {turn.id, turn.speaker, turn.role, turn.text,
           timed ? format_rfc3339(turn.event_time, turn.event_offset_minutes) : std::string()}};
}

ExportedFact exported(const RestoredFact& fact) {
  ExportedFact out;
  out.fact = to_view(fact.fact);
  for (const FactVersion& version : fact.history) {
    out.history.push_back({version.version, version.version == 1 ? "ADD" : "UPDATE", version.text,
                           version.metadata,
                           time_text(version.event_time, version.event_offset_minutes),
                           time_text(version.valid_from), time_text(version.valid_to)});
  }
  return out;
}

/// A time of an export; "" is none.
struct GivenTime {
  std::optional<TimestampUs> time;
  int offset_minutes = 0;
};
Result<GivenTime> given_time(const char* field, const std::string& text) {
  GivenTime given;
  if (!text.empty()) {
    const Result<ParsedTime> parsed = parse_rfc3339(text);
    if (!parsed.ok()) {
      return parsed.status().with_context(field);
    }
    given = {parsed->time, parsed->offset_minutes};
  }
  return given;
}
Result<TimestampUs> needed_time(const char* field, const std::string& text) {
  INFERSCALE_ASSIGN_OR_RETURN(const GivenTime given, given_time(field, text));
  return given.time ? Result<TimestampUs>(*given.time)
                    : Result<TimestampUs>(invalid_argument(std::string(field) + ": missing"));
}

/// Whose an item becomes: the target names tenant and user, and may name agent and run.
Scope moved(const Scope& from, const Scope& target) {
  Scope scope = target;
  scope.agent = target.agent.empty() ? from.agent : target.agent;
  scope.run = target.run.empty() ? from.run : target.run;
  return scope;
}

Result<Turn> to_turn(const TurnView& view, const Scope& target) {
  const TurnInput& turn = view.turn;
  INFERSCALE_ASSIGN_OR_RETURN(const GivenTime event, given_time("event_time", turn.event_time));
  return Turn{turn.id,   moved(view.scope, target), turn.speaker,        turn.role,
              turn.text, event.time.value_or(0),    event.offset_minutes};
}

Result<RestoredFact> to_restored(const ExportedFact& item, const Scope& target) {
  RestoredFact out;
  const FactView& view = item.fact;
  INFERSCALE_ASSIGN_OR_RETURN(const GivenTime event, given_time("event_time", view.event_time));
  INFERSCALE_ASSIGN_OR_RETURN(const TimestampUs ingest,
                              needed_time("ingest_time", view.ingest_time));
  out.fact = {view.id,      moved(view.scope, target),
              view.version, 0,
              view.text,    view.metadata,
              event.time,   event.offset_minutes,
              ingest,       view.source_turns};
  for (const FactHistoryRow& row : item.history) {
    INFERSCALE_ASSIGN_OR_RETURN(const GivenTime when, given_time("event_time", row.event_time));
    INFERSCALE_ASSIGN_OR_RETURN(const TimestampUs from, needed_time("valid_from", row.valid_from));
    INFERSCALE_ASSIGN_OR_RETURN(const TimestampUs to, needed_time("valid_to", row.valid_to));
    out.history.push_back(
        {row.version, "", row.text, row.metadata, when.time, when.offset_minutes, from, to});
  }
  return out;
}

/// Items that can be converted, with the places of those in the caller's list.
template <typename Item>
struct Converted {
  std::vector<Item> items;
  std::vector<std::uint64_t> places;
};

template <typename Item, typename View, typename Convert>
Converted<Item> convert(std::span<const View> views, std::vector<ItemError>& errors,
                        const Convert& one) {
  Converted<Item> out;
  for (std::size_t i = 0; i < views.size(); ++i) {
    Result<Item> item = one(views[i]);
    if (item.ok()) {
      out.items.push_back(std::move(item).value());
      out.places.push_back(i);
    } else {
      errors.push_back({i, item.status().code(), item.status().message()});
    }
  }
  return out;
}

}  // namespace

Status Service::export_scope(const Scope& scope, const ExportSink& sink,
                             const WorkControl& control) {
  std::uint64_t total = 0;
  std::uint64_t done = 0;
  const auto step = [&]() -> Status {
    if (control.progress) {
      control.progress("export", done, total);
    }
    ++done;
    return is_cancelled(control) ? unavailable("stopped before everything was exported") : Status();
  };
  CatalogVisitor visitor;
  visitor.begin = [&](std::uint64_t turns, std::uint64_t facts, std::uint64_t versions) {
    total = turns + facts;
    return sink.begin({turns, facts, versions});
  };
  visitor.turn = [&](const Turn& turn) -> Status {
    INFERSCALE_RETURN_IF_ERROR(step());
    return sink.turn(turn_view(turn));
  };
  visitor.fact = [&](const RestoredFact& fact) -> Status {
    INFERSCALE_RETURN_IF_ERROR(step());
    return sink.fact(exported(fact));
  };
  return core_->catalog().export_scope(scope, visitor);
}

Result<RestoreReply> Service::restore(const Scope& target, std::span<const TurnView> turns,
                                      std::span<const ExportedFact> facts, bool dry_run) {
  RestoreReply reply;
  const auto taken_turns = convert<Turn>(
      turns, reply.turn_errors, [&](const TurnView& view) { return to_turn(view, target); });
  INFERSCALE_ASSIGN_OR_RETURN(const std::vector<RestoreOutcome> turn_outcomes,
                              core_->catalog().restore_turns(taken_turns.items, dry_run));
  for (std::size_t i = 0; i < turn_outcomes.size(); ++i) {
    const Status& status = turn_outcomes[i].status;
    if (!status.ok()) {
      reply.turn_errors.push_back({taken_turns.places[i], status.code(), status.message()});
    } else {
      ++(turn_outcomes[i].existed ? reply.turns_existing : reply.turns);
    }
  }
  const auto taken = convert<RestoredFact>(facts, reply.fact_errors, [&](const ExportedFact& item) {
    return to_restored(item, target);
  });
  INFERSCALE_ASSIGN_OR_RETURN(const std::vector<RestoreOutcome> outcomes,
                              core_->catalog().restore_facts(taken.items, dry_run));
  for (std::size_t i = 0; i < outcomes.size(); ++i) {
    const RestoreOutcome& outcome = outcomes[i];
    const RestoredFact& item = taken.items[i];
    if (!outcome.status.ok()) {
      reply.fact_errors.push_back(
          {taken.places[i], outcome.status.code(), outcome.status.message()});
    } else if (outcome.existed) {
      ++reply.facts_existing;
    } else {
      ++reply.facts_added;
      reply.facts_renamed += outcome.id != item.fact.id ? 1 : 0;
      reply.versions += item.history.size();
      if (!dry_run) {
        core_->notify_added(item.fact.scope, outcome.id, {});
      }
    }
  }
  return reply;
}

}  // namespace inferscale
