#include "memory/answerer.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/utf8.h"
#include "memory/calibration.h"
#include "memory/record_request.h"
#include "memory/text_stream.h"
#include "prompt/plan_order.h"

namespace inferscale {
namespace {

// Kept free beyond what a request counts, for the engine's own rounding of its context.
constexpr std::size_t kContextReserve = 16;
constexpr std::uint32_t kMaxFactsPerQuestion = 1000;
constexpr std::size_t kMaxQuestionBytes = 1U << 20;
constexpr int kMaxPrepares = 10;

}  // namespace

Status check_ask(const AskRequest& request) {
  INFERSCALE_RETURN_IF_ERROR(check_text("question", request.question, kMaxQuestionBytes));
  if (request.k > kMaxFactsPerQuestion) {
    return invalid_argument(fmt::format("k: {} is over {}", request.k, kMaxFactsPerQuestion));
  }
  if (request.max_tokens < 1 || request.max_tokens > (1U << 16)) {
    return invalid_argument(
        fmt::format("max_tokens: {} is outside 1 .. 65536", request.max_tokens));
  }
  if (!(request.temperature >= 0 && request.temperature <= 10)) {
    return invalid_argument(fmt::format("temperature: {} is outside 0 .. 10", request.temperature));
  }
  return {};
}

void FallbackCounter::add(const std::string& reason, std::uint32_t count) {
  if (count == 0) {
    return;
  }
  const auto same = [&](const FallbackCount& entry) { return entry.reason == reason; };
  if (const auto found = std::find_if(counts_.begin(), counts_.end(), same);
      found != counts_.end()) {
    found->count += count;
  } else {
    counts_.push_back({reason, count});
  }
}

Result<PreparedPrompt> prepare_noted(AnswerRegistry::Use& use,
                                     const std::function<Result<PreparedPrompt>()>& prepare) {
  for (int i = 0; i < kMaxPrepares; ++i) {
    use.begin();
    Result<PreparedPrompt> prompt = prepare();
    if (!prompt.ok()) {
      return prompt;
    }
    std::vector<FactRef> facts;
    std::vector<RecordKey> records;
    for (const PreparedPrompt::Line& line : prompt->lines) {
      facts.push_back({line.fact.id, line.fact.version});
      if (line.lease.ready()) {
        records.push_back(line.record);
      }
    }
    if (use.add(facts, records)) {
      return prompt;
    }
  }
  return unavailable("facts were erased faster than an answer could be prepared; ask again");
}

std::uint32_t PreparedPrompt::line_tokens() const {
  std::size_t sum = 0;
  for (const Line& line : lines) {
    sum += line.tokens.size();
  }
  return static_cast<std::uint32_t>(sum);
}

std::size_t Answerer::facts_budget(const EngineParts& parts, std::size_t other_tokens,
                                   std::uint32_t max_tokens) {
  const std::size_t taken = other_tokens + max_tokens + kContextReserve;
  const std::size_t context = parts.engine->info().context_tokens;
  return context > taken ? context - taken : 0;
}

Result<std::uint32_t> Answerer::effective_top_j(const PrepareOptions& options) {
  if (options.top_j) {
    return *options.top_j;
  }
  if (core_.options().top_j) {
    return *core_.options().top_j;
  }
  WorkControl control;
  control.cancelled = options.cancelled;
  return calibrated_top_j(core_, control);
}

Result<PreparedPrompt> Answerer::prepare(const EngineParts& parts, const PrepareOptions& options) {
  PreparedPrompt prompt;
  INFERSCALE_ASSIGN_OR_RETURN(prompt.tail, parts.prompt->tail(options.question));
  std::vector<RetrievedFact> found;
  if (options.k > 0) {
    RetrievalRequest retrieval{
        options.scope, options.question, options.k, {}, RetrievalMode::kFused};
    if (!options.filter.empty()) {
      INFERSCALE_ASSIGN_OR_RETURN(retrieval.filter, parse_filter(options.filter));
    }
    INFERSCALE_ASSIGN_OR_RETURN(Retriever* const retriever, core_.retriever());
    INFERSCALE_ASSIGN_OR_RETURN(RetrievalResult result, retriever->search(retrieval));
    prompt.timings.embed = result.embed_ms;
    prompt.timings.retrieve = result.retrieve_ms;
    found = std::move(result.facts);
    if (!result.vector_used) {
      prompt.fallbacks.add("keywords_only");
    }
  }

  Stopwatch watch;
  std::vector<PreparedPrompt::Line> lines;  // best first
  for (std::size_t i = 0; i < found.size(); ++i) {
    Fact& fact = found[i].fact;
    if (options.already_in_context != nullptr && options.already_in_context->contains(fact.id)) {
      continue;
    }
    PreparedPrompt::Line line;
    line.rank = static_cast<std::uint32_t>(i + 1);
    INFERSCALE_ASSIGN_OR_RETURN(line.tokens, parts.prompt->fact_line(fact.text, fact.event_time,
                                                                     fact.event_offset_minutes));
    line.fact = std::move(fact);
    lines.push_back(std::move(line));
  }
  const double tokenize_ms = watch.elapsed_ms();
  watch.restart();
  if (options.inject) {
    lease_lines(parts, options.scope, lines, prompt.fallbacks);
  } else if (!lines.empty()) {
    prompt.fallbacks.add("injection_not_wanted", static_cast<std::uint32_t>(lines.size()));
  }
  prompt.timings.lease = watch.elapsed_ms();
  const bool injects =
      std::any_of(lines.begin(), lines.end(), [](const auto& line) { return line.lease.ready(); });
  if (injects) {
    INFERSCALE_ASSIGN_OR_RETURN(prompt.top_j, effective_top_j(options));
  }

  watch.restart();
  std::vector<PlanCandidate> candidates;
  candidates.reserve(lines.size());
  for (const PreparedPrompt::Line& line : lines) {
    candidates.push_back({static_cast<std::uint32_t>(line.tokens.size()), line.lease.ready()});
  }
  const PlanOrder order = order_plan(candidates, prompt.top_j, options.budget_tokens);
  prompt.fallbacks.add("context_full", static_cast<std::uint32_t>(order.dropped));
  for (const std::size_t i : order.injected) {
    prompt.lines.push_back(std::move(lines[i]));
  }
  for (const std::size_t i : order.as_text) {
    lines[i].lease = Lease();  // among the text tail: its KV would stand behind a gap
    prompt.lines.push_back(std::move(lines[i]));
  }
  prompt.timings.plan = tokenize_ms + watch.elapsed_ms();
  return prompt;
}

void Answerer::lease_lines(const EngineParts& parts, const Scope& scope,
                           std::vector<PreparedPrompt::Line>& lines, FallbackCounter& fallbacks) {
  if (lines.empty()) {
    return;
  }
  if (!parts.engine->info().injection) {
    fallbacks.add("injection_off", static_cast<std::uint32_t>(lines.size()));
    return;
  }
  std::vector<FactRef> refs;
  for (const PreparedPrompt::Line& line : lines) {
    refs.push_back({line.fact.id, line.fact.version});
  }
  const auto entries = core_.catalog().records_of(refs, parts.fingerprint());
  if (!entries.ok()) {
    fallbacks.add("catalog_unavailable", static_cast<std::uint32_t>(lines.size()));
    return;
  }
  std::vector<RecordRequest> requests;
  std::vector<std::size_t> requested;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const std::optional<RecordEntry>& entry = (*entries)[i];
    if (!entry) {
      fallbacks.add("record_missing");
      encoder_.want(scope, lines[i].fact.id);
      continue;
    }
    RecordRequest request = record_request(parts, entry->key, entry->context_id,
                                           scope_hash(lines[i].fact.scope), lines[i].tokens);
    request.prefill_us = core_.prefill_rate().us_for(lines[i].tokens.size());
    requests.push_back(request);
    requested.push_back(i);
  }
  std::vector<Lease> leases = core_.store().acquire(requests);
  for (std::size_t r = 0; r < requests.size(); ++r) {
    const std::size_t i = requested[r];
    if (!leases[r].ready()) {
      fallbacks.add(miss_reason_name(leases[r].reason()));
      encoder_.want(scope, lines[i].fact.id);
    }
    lines[i].lease = std::move(leases[r]);
    lines[i].record = requests[r].key;
  }
}

void append_lines(const std::vector<PreparedPrompt::Line>& lines, bool with_kv,
                  std::vector<Segment>& plan) {
  for (const PreparedPrompt::Line& line : lines) {
    plan.push_back({line.tokens, with_kv ? line.lease : Lease()});
  }
}

void fill_reply(const PreparedPrompt& prompt, const RunResult& result,
                std::size_t first_line_segment, AskReply& reply) {
  reply.facts.clear();
  for (std::size_t i = 0; i < prompt.lines.size(); ++i) {
    const PreparedPrompt::Line& line = prompt.lines[i];
    reply.facts.push_back({line.fact.id, line.fact.text,
                           result.segment_injected.at(first_line_segment + i), line.rank});
  }
  reply.tokens.injected = result.tokens_injected;
  reply.tokens.prefilled = result.tokens_prefilled;
  reply.tokens.reused = result.tokens_reused;
  reply.tokens.prompt = result.tokens_injected + result.tokens_prefilled + result.tokens_reused;
  reply.tokens.generated = static_cast<std::uint32_t>(result.tokens.size());
  FallbackCounter fallbacks = prompt.fallbacks;
  for (const Fallback& fallback : result.fallbacks) {
    fallbacks.add(fallback.reason, fallback.count);
  }
  reply.fallbacks = fallbacks.counts();
  AskTimings& t = reply.timings;
  t = prompt.timings;
  t.compose = result.timings.compose_ms;
  t.inject = result.timings.inject_ms;
  t.prefill = result.timings.prefill_ms;
  t.ttft = t.plan + t.lease + result.timings.queue_ms + result.timings.first_token_ms;
  t.qtft = t.embed + t.retrieve + t.ttft;
  t.total = t.embed + t.retrieve + t.plan + t.lease + result.timings.total_ms;
  reply.truncated = result.stopped_by_limit;
}

Result<PreparedPrompt> Answerer::prepare_ask(EngineParts& parts, const AskRequest& request) {
  PrepareOptions options;
  options.scope = request.scope;
  options.question = request.question;
  options.k = request.k;
  options.inject = request.inject;
  options.filter = request.filter;
  options.top_j = request.top_j;
  options.cancelled = request.cancelled;
  INFERSCALE_ASSIGN_OR_RETURN(const std::vector<TokenId> tail,
                              parts.prompt->tail(request.question));
  const std::size_t other = parts.prompt->header().size() + tail.size();
  if (other + request.max_tokens > parts.engine->info().context_tokens) {
    return resource_exhausted(
        fmt::format("question: {} tokens with the header, and {} for the answer, do not fit the "
                    "model's context of {}; "
                    "shorten the question or lower --max-tokens",
                    other, request.max_tokens, parts.engine->info().context_tokens));
  }
  options.budget_tokens = facts_budget(parts, other, request.max_tokens);
  return prepare(parts, options);
}

Result<AskReply> Answerer::ask(const AskRequest& request) {
  INFERSCALE_RETURN_IF_ERROR(check_ask(request));
  INFERSCALE_ASSIGN_OR_RETURN(EngineParts* const parts, core_.engine());
  AnswerRegistry::Use use(core_.answers(), false);
  INFERSCALE_ASSIGN_OR_RETURN(PreparedPrompt prompt,
                              prepare_noted(use, [&] { return prepare_ask(*parts, request); }));
  PrefixSegment header = lease_header(core_, *parts);
  RunRequest run;
  INFERSCALE_ASSIGN_OR_RETURN(run.run_for, core_.run_for(request.scope, prompt.top_j));
  run.cancelled = request.cancelled;
  run.allow_injection = request.inject;
  run.sampling = {request.max_tokens, request.temperature, 1.0F, 0, request.seed};
  Branch branch;
  branch.tokens = prompt.tail;
  if (header.cold) {
    prompt.fallbacks.add("header_cold");
    branch.captures.push_back(
        {0, static_cast<std::uint32_t>(header.segment.tokens.size()), header.meta});
  } else if (header.no_room) {
    prompt.fallbacks.add(miss_reason_name(MissReason::kNoRoom));
  }
  run.plan.push_back(std::move(header.segment));
  append_lines(prompt.lines, true, run.plan);
  run.branches.push_back(std::move(branch));
  TextStream stream(parts->engine->tokenizer(), request.on_text);
  run.on_token = [&stream](TokenId token) { return stream.push(token); };
  INFERSCALE_ASSIGN_OR_RETURN(const RunResult result, parts->engine->run(std::move(run)));
  core_.prefill_rate().note(result.tokens_prefilled, result.timings.prefill_ms);
  if (header.cold) {
    keep_prefix(core_, *parts, header, result.branches.front().records.at(0));
  }
  AskReply reply;
  reply.answer = stream.finish();
  fill_reply(prompt, result, 1, reply);
  return reply;
}

}  // namespace inferscale
