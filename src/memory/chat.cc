#include "memory/chat.h"

#include "base/log.h"
#include "memory/header_record.h"
#include "memory/text_stream.h"

namespace inferscale {

ServiceChat::ServiceChat(ServiceCore& core, Answerer& answerer, const ChatOptions& options,
                         std::string session)
    : core_(core),
      answerer_(answerer),
      options_(options),
      session_(std::move(session)),
      use_(core.answers(), true) {}

ServiceChat::~ServiceChat() { restart(); }

void ServiceChat::restart() {
  history_.clear();
  in_context_.clear();
  use_.clear();
  if (auto parts = core_.engine(); parts.ok()) {
    if (const Status status = (*parts)->engine->drop_session(session_); !status.ok()) {
      log_message(LogLevel::kWarning, status.to_string());
    }
  }
}

// What was erased (facts, or old versions of facts that were said before an update) must not be
// served from this conversation's cache: the conversation starts over.
Status ServiceChat::drop_erased_facts(FallbackCounter& fallbacks) {
  if (use_.holds_erased()) {
    restart();
    fallbacks.add("chat_restarted_after_delete");
  }
  return drop_updated_facts();
}

// An updated fact stays (its old version was said), and its new version may join as a new line.
Status ServiceChat::drop_updated_facts() {
  std::vector<std::string> ids;
  for (const auto& [id, version] : in_context_) {
    ids.push_back(id);
  }
  if (ids.empty()) {
    return {};
  }
  INFERSCALE_ASSIGN_OR_RETURN(const std::vector<Fact> live,
                              core_.catalog().get_facts(options_.scope, ids));
  for (const Fact& fact : live) {
    if (in_context_[fact.id] != fact.version) {
      in_context_.erase(fact.id);
    }
  }
  return {};
}

Result<PreparedPrompt> ServiceChat::prepare(EngineParts& parts, const std::string& message,
                                            FallbackCounter& erased) {
  INFERSCALE_RETURN_IF_ERROR(drop_erased_facts(erased));
  PrepareOptions prepare;
  prepare.scope = options_.scope;
  prepare.question = message;
  prepare.k = options_.k;
  prepare.inject = options_.inject;
  prepare.already_in_context = &in_context_;
  prepare.top_j = options_.top_j;
  INFERSCALE_ASSIGN_OR_RETURN(const std::vector<TokenId> tail, parts.prompt->tail(message));
  FallbackCounter fallbacks;
  std::size_t other = (history_.empty() ? parts.prompt->header().size() : history_.size()) +
                      tail.size() + parts.prompt->link().size();
  if (!history_.empty() && other + options_.max_tokens > parts.engine->info().context_tokens) {
    restart();
    fallbacks.add("chat_restarted_context_full");
    other = parts.prompt->header().size() + tail.size() + parts.prompt->link().size();
  }
  if (other + options_.max_tokens > parts.engine->info().context_tokens) {
    return resource_exhausted(
        "message: longer than the model's context together with the answer; shorten it");
  }
  prepare.budget_tokens = Answerer::facts_budget(parts, other, options_.max_tokens);
  INFERSCALE_ASSIGN_OR_RETURN(PreparedPrompt prompt, answerer_.prepare(parts, prepare));
  for (const FallbackCount& fallback : fallbacks.counts()) {
    prompt.fallbacks.add(fallback.reason, fallback.count);
  }
  return prompt;
}

RunRequest ServiceChat::make_run(EngineParts& parts, PreparedPrompt& prompt,
                                 PrefixSegment& header) const {
  RunRequest run;
  run.session = session_;
  run.allow_injection = options_.inject;
  run.sampling.max_tokens = options_.max_tokens;
  run.sampling.temperature = options_.temperature;
  Branch branch;
  branch.tokens = prompt.tail;
  if (history_.empty()) {
    header = lease_header(core_, parts);
    if (header.cold) {
      prompt.fallbacks.add("header_cold");
      branch.captures.push_back(
          {0, static_cast<std::uint32_t>(header.segment.tokens.size()), header.meta});
    } else if (header.no_room) {
      prompt.fallbacks.add(miss_reason_name(MissReason::kNoRoom));
    }
    run.plan.push_back(header.segment);
  } else {
    run.plan.push_back({history_, Lease()});
  }
  append_lines(prompt.lines, true, run.plan);
  run.branches.push_back(std::move(branch));
  return run;
}

Result<AskReply> ServiceChat::say(const std::string& message,
                                  const std::function<bool(std::string_view)>& on_text,
                                  const std::atomic<bool>* cancelled) {
  INFERSCALE_ASSIGN_OR_RETURN(EngineParts* const parts, core_.engine());
  Result<AskReply> reply = answer(*parts, message, on_text, cancelled);
  use_.end();
  return reply;
}

Result<AskReply> ServiceChat::answer(EngineParts& parts, const std::string& message,
                                     const std::function<bool(std::string_view)>& on_text,
                                     const std::atomic<bool>* cancelled) {
  FallbackCounter erased;
  INFERSCALE_ASSIGN_OR_RETURN(PreparedPrompt prompt,
                              prepare_noted(use_, [&] { return prepare(parts, message, erased); }));
  for (const FallbackCount& fallback : erased.counts()) {
    prompt.fallbacks.add(fallback.reason, fallback.count);
  }
  PrefixSegment header;
  RunRequest run = make_run(parts, prompt, header);
  INFERSCALE_ASSIGN_OR_RETURN(run.run_for,
                              core_.run_for(options_.scope, options_.top_j.value_or(0)));
  run.cancelled = cancelled;
  TextStream stream(parts.engine->tokenizer(), on_text);
  run.on_token = [&stream](TokenId token) { return stream.push(token); };
  std::vector<TokenId> sequence;
  for (const Segment& segment : run.plan) {
    sequence.insert(sequence.end(), segment.tokens.begin(), segment.tokens.end());
  }
  sequence.insert(sequence.end(), prompt.tail.begin(), prompt.tail.end());
  auto result = parts.engine->run(std::move(run));
  if (!result.ok()) {
    restart();  // what of the turn reached the cache is unknown
    return result.status();
  }
  core_.prefill_rate().note(result->tokens_prefilled, result->timings.prefill_ms);
  if (header.cold) {
    keep_prefix(core_, parts, header, result->branches.front().records.at(0));
  }
  sequence.insert(sequence.end(), result->tokens.begin(), result->tokens.end());
  history_ = std::move(sequence);
  for (const PreparedPrompt::Line& line : prompt.lines) {
    in_context_[line.fact.id] = line.fact.version;
  }
  AskReply reply;
  reply.answer = stream.finish();
  fill_reply(prompt, *result, 1, reply);
  if (const Status parked = park(parts); !parked.ok()) {
    reply.fallbacks.push_back({"chat_not_parked", 1});
  }
  return reply;
}

Status ServiceChat::park(EngineParts& parts) {
  RunRequest run;
  INFERSCALE_ASSIGN_OR_RETURN(run.run_for,
                              core_.run_for(options_.scope, options_.top_j.value_or(0)));
  run.session = session_;
  run.allow_injection = options_.inject;
  run.plan.push_back({history_, Lease()});
  Branch branch;
  branch.tokens = parts.prompt->link();
  run.branches.push_back(std::move(branch));
  // Even unparked the link belongs to the conversation: the next turn then prefills it as text.
  history_.insert(history_.end(), parts.prompt->link().begin(), parts.prompt->link().end());
  return parts.engine->run(std::move(run)).status();
}

}  // namespace inferscale
