// Writes: add, update, and the encoding that follows them.
#include <fmt/format.h>

#include <algorithm>

#include "base/log.h"
#include "base/split_text.h"
#include "base/utf8.h"
#include "catalog/metadata.h"
#include "memory/calibration.h"
#include "memory/service.h"

namespace inferscale {
namespace {

// Facts that are embedded together and written in one transaction: a batch is a progress step, and
// what an interrupted import has at most to repeat.
constexpr std::size_t kBatchFacts = 64;
constexpr std::size_t kMaxTurnBytes = 1U << 20;

// A fact is a statement, not a document: longer text becomes several facts.
constexpr std::size_t kMaxFactChunkBytes = 2000;

struct EventTime {
  std::optional<TimestampUs> time;
  int offset_minutes = 0;
};

Result<EventTime> parse_event_time(const std::string& text) {
  EventTime event;
  if (!text.empty()) {
    INFERSCALE_ASSIGN_OR_RETURN(const ParsedTime parsed, parse_rfc3339(text));
    event = {parsed.time, parsed.offset_minutes};
  }
  return event;
}

// A fact ready to be written and the input that it came from.
struct PreparedFact {
  std::uint64_t item = 0;
  NewFact fact;
};

Status prepare_fact(const Scope& scope, const FactInput& input, std::uint64_t item,
                    std::vector<PreparedFact>& prepared) {
  INFERSCALE_RETURN_IF_ERROR(check_text("text", input.text, kMaxFactBytes));
  if (single_line(input.text).empty()) {
    return invalid_argument("text: only white space; give at least one visible character");
  }
  const std::string metadata = input.metadata.empty() ? "{}" : input.metadata;
  INFERSCALE_RETURN_IF_ERROR(check_metadata("metadata", metadata));
  INFERSCALE_ASSIGN_OR_RETURN(const EventTime event, parse_event_time(input.event_time));
  // A fact is one line in a prompt, so it is one here.
  for (std::string& part : split_text(single_line(input.text), kMaxFactChunkBytes)) {
    NewFact fact;
    fact.scope = scope;
    fact.text = std::move(part);
    fact.metadata = metadata;
    fact.event_time = event.time;
    fact.event_offset_minutes = event.offset_minutes;
    fact.source_turns = input.source_turns;
    prepared.push_back({item, std::move(fact)});
  }
  return {};
}

void note_outcome(ServiceCore& core, const PreparedFact& prepared, const AddOutcome& outcome,
                  AddReply& reply) {
  reply.ids.push_back(outcome.id);
  if (outcome.existed) {
    ++reply.facts_existing;
    return;
  }
  ++reply.facts_added;
  core.notify_added(prepared.fact.scope, outcome.id, prepared.fact.vectors);
}

// One transaction for the batch; when the catalog refuses an item, one per item, so that it costs
// only itself.
Status write_batch(ServiceCore& core, const std::vector<PreparedFact>& prepared, AddReply& reply) {
  std::vector<NewFact> facts;
  for (const PreparedFact& p : prepared) {
    facts.push_back(p.fact);
  }
  auto outcomes = core.catalog().add_facts(facts);
  if (outcomes.ok()) {
    for (std::size_t i = 0; i < prepared.size(); ++i) {
      note_outcome(core, prepared[i], (*outcomes)[i], reply);
    }
    return {};
  }
  if (outcomes.status().code() != StatusCode::kInvalidArgument) {
    return outcomes.status();
  }
  for (const PreparedFact& p : prepared) {
    auto outcome = core.catalog().add_facts(std::span(&p.fact, 1));
    if (outcome.ok()) {
      note_outcome(core, p, outcome->front(), reply);
    } else if (outcome.status().code() == StatusCode::kInvalidArgument) {
      reply.errors.push_back({p.item, outcome.status().code(), outcome.status().message()});
    } else {
      return outcome.status();
    }
  }
  return {};
}

}  // namespace

Status Service::add_turns(const Scope& scope, std::span<const TurnInput> turns, AddReply& reply) {
  std::vector<Turn> accepted;
  for (std::size_t i = 0; i < turns.size(); ++i) {
    const TurnInput& input = turns[i];
    Status status = check_text("turn id", input.id, 256);
    if (status.ok()) {
      status = check_text("turn text", input.text, kMaxTurnBytes);
    }
    const auto event = parse_event_time(input.event_time);
    if (status.ok()) {
      status = event.status();
    }
    if (!status.ok()) {
      reply.errors.push_back({i, status.code(), fmt::format("turn {}: {}", i, status.message())});
      continue;
    }
    accepted.push_back({input.id, scope, input.speaker, input.role, input.text,
                        event->time.value_or(0), event->offset_minutes});
  }
  INFERSCALE_ASSIGN_OR_RETURN(reply.turns, core_->catalog().add_turns(accepted));
  return {};
}

Status Service::add_facts(const Scope& scope, std::span<const FactInput> facts,
                          const WorkControl& control, AddReply& reply) {
  for (std::size_t begin = 0; begin < facts.size() && !is_cancelled(control);
       begin += kBatchFacts) {
    const std::size_t end = std::min(begin + kBatchFacts, facts.size());
    std::vector<PreparedFact> prepared;
    for (std::size_t i = begin; i < end; ++i) {
      if (const Status status = prepare_fact(scope, facts[i], i, prepared); !status.ok()) {
        reply.errors.push_back({i, status.code(), status.message()});
      }
    }
    std::vector<std::string> texts;
    for (const PreparedFact& p : prepared) {
      texts.push_back(p.fact.text);
    }
    if (texts.empty()) {
      continue;  // all refused, without loading a model for it
    }
    INFERSCALE_ASSIGN_OR_RETURN(Embedder* const embedder, core_->embedder());
    if (embedder != nullptr) {
      std::vector<Result<TextVectors>> vectors = embedder->embed(texts);
      for (std::size_t i = 0; i < vectors.size(); ++i) {
        if (vectors[i].ok()) {
          prepared[i].fact.vectors = std::move(vectors[i]).value();
        } else {
          reply.note = "some facts have no vector yet and are found by keywords: " +
                       vectors[i].status().to_string();
        }
      }
    }
    INFERSCALE_RETURN_IF_ERROR(write_batch(*core_, prepared, reply));
    if (control.progress) {
      control.progress("facts", end, facts.size());
    }
  }
  return {};
}

void Service::encode_after_write(const WorkControl& control, AddReply& reply) {
  const auto encoded = encode_pending(control);
  if (!encoded.ok()) {
    // The facts are durable and usable as text: this is no failure of the write.
    reply.note = "not encoded yet, facts are used as text: " + encoded.status().to_string();
    return;
  }
  reply.facts_encoded = encoded->encoded;
  if (encoded->stopped_early) {
    reply.note =
        "the engine failed again and again: facts that are not encoded are used as text "
        "(stats says why)";
  } else if (encoded->failed > 0) {
    reply.note = fmt::format(
        "{} facts could not be encoded and are used as text (stats says why, and when they are "
        "tried again)",
        encoded->failed);
  }
}

Result<AddReply> Service::add(const Scope& scope, std::span<const TurnInput> turns,
                              std::span<const FactInput> facts, bool wait,
                              const WorkControl& control) {
  const Stopwatch watch;
  AddReply reply;
  if (!turns.empty()) {
    INFERSCALE_RETURN_IF_ERROR(add_turns(scope, turns, reply));
  }
  if (!facts.empty()) {
    INFERSCALE_RETURN_IF_ERROR(add_facts(scope, facts, control, reply));
  }
  if (!wait) {
    leave_to_worker();
  } else if (!is_cancelled(control) && (facts.empty() || !reply.ids.empty())) {
    encode_after_write(control, reply);
  }
  reply.elapsed_ms = watch.elapsed_ms();
  return reply;
}

// Facts whose embedding failed or was deferred get their vectors now.
Status Service::embed_missing(const WorkControl& control) {
  INFERSCALE_ASSIGN_OR_RETURN(Embedder* const embedder, core_->embedder());
  if (embedder == nullptr) {
    return {};
  }
  std::size_t tried = 0;  // those that fail stay in the list
  while (!is_cancelled(control)) {
    INFERSCALE_ASSIGN_OR_RETURN(
        const std::vector<Fact> all,
        core_->catalog().facts_without_vectors(embedder->id(), tried + kBatchFacts));
    if (all.size() <= tried) {
      return {};
    }
    const std::span<const Fact> facts = std::span(all).subspan(tried);
    std::vector<std::string> texts;
    for (const Fact& fact : facts) {
      texts.push_back(fact.text);
    }
    const std::vector<Result<TextVectors>> vectors = embedder->embed(texts);
    for (std::size_t i = 0; i < facts.size(); ++i) {
      if (!vectors[i].ok()) {
        ++tried;
        continue;
      }
      INFERSCALE_RETURN_IF_ERROR(
          core_->catalog().put_vectors({facts[i].id, facts[i].version}, *vectors[i]));
      core_->notify_added(facts[i].scope, facts[i].id, *vectors[i]);
    }
  }
  return {};
}

Result<EncodeReply> Service::encode_pending(const WorkControl& control) {
  INFERSCALE_RETURN_IF_ERROR(embed_missing(control));
  INFERSCALE_ASSIGN_OR_RETURN(const EncodeReply reply, encoder_.encode_pending(control));
  // Long work is under way anyway: `top_j` is measured here, so that the first question need not.
  if (reply.encoded > 0 && !core_->options().top_j && !is_cancelled(control)) {
    if (const auto top_j = calibrated_top_j(*core_, control); !top_j.ok()) {
      log_message(LogLevel::kInfo, "top_j is not calibrated yet: " + top_j.status().to_string());
    }
  }
  return reply;
}

Result<EncodeReply> Service::encode_wanted(const WorkControl& control) {
  return encoder_.encode_wanted(control);
}

Result<EncodeReply> Service::reencode(const ReencodeRequest& request, const WorkControl& control) {
  if (!request.context.empty()) {
    INFERSCALE_ASSIGN_OR_RETURN(const ContextSpec spec, parse_context_spec(request.context));
    INFERSCALE_RETURN_IF_ERROR(core_->choose_context(spec));
  }
  if (request.all) {
    INFERSCALE_ASSIGN_OR_RETURN(EngineParts* const parts, core_->engine());
    INFERSCALE_RETURN_IF_ERROR(core_->catalog().outdate_records(parts->fingerprint()).status());
  }
  return encode_pending(control);
}

Result<FactView> Service::update(const UpdateRequest& request, bool wait,
                                 const WorkControl& control) {
  FactPatch patch;
  if (request.text) {
    INFERSCALE_RETURN_IF_ERROR(check_text("text", *request.text, kMaxFactBytes));
    patch.text = single_line(*request.text);
  }
  if (request.metadata) {
    INFERSCALE_RETURN_IF_ERROR(check_metadata("metadata", *request.metadata));
  }
  patch.metadata = request.metadata;
  patch.if_version = request.if_version;
  if (request.event_time) {
    INFERSCALE_ASSIGN_OR_RETURN(const EventTime event, parse_event_time(*request.event_time));
    patch.event_time = event.time;
    patch.event_offset_minutes = event.offset_minutes;
  }
  if (patch.text) {
    INFERSCALE_ASSIGN_OR_RETURN(Embedder* const embedder, core_->embedder());
    if (embedder != nullptr) {
      auto vectors = std::move(embedder->embed(std::span(&*patch.text, 1)).front());
      if (vectors.ok()) {
        patch.vectors = std::move(vectors).value();
      }
    }
  }
  INFERSCALE_ASSIGN_OR_RETURN(const Fact fact,
                              core_->catalog().update_fact(request.scope, request.id, patch));
  if (patch.text) {
    core_->notify_removed(fact.scope, fact.id);
    core_->notify_added(fact.scope, fact.id, patch.vectors);
  }
  if (!wait) {
    leave_to_worker();
  } else if (const auto encoded = encode_pending(control); !encoded.ok()) {
    log_message(LogLevel::kWarning, "not encoded yet: " + encoded.status().to_string());
  }
  return to_view(fact);
}

}  // namespace inferscale
