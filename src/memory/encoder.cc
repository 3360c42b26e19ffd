#include "memory/encoder.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <set>

#include "base/log.h"
#include "memory/encode_retry.h"

namespace inferscale {
namespace {

// Facts that share one prefill of their context: large enough that it costs little per fact, small
// enough that a fact's window is close to it (measured at 16 and 32 in docs/performance.md).
constexpr std::size_t kGroupFacts = 16;
// What a job encodes before others get their turn, and before it looks for newer facts.
constexpr std::size_t kPageFacts = 64;
constexpr std::size_t kMaxWanted = 4096;
// So often a fact whose surroundings change under it is encoded again at once.
constexpr std::uint32_t kMaxConflicts = 3;
// An engine that fails so many groups in a row is left alone until the next call.
constexpr std::uint32_t kMaxFailedGroups = 3;

}  // namespace

// One call's state: what it works with and what it did.
struct Encoder::Job {
  EngineParts& parts;
  ContextSpec spec;  // as it was when the job began
  std::unique_ptr<EncodeContext> context;
  const WorkControl& control;
  EncodeReply reply = {};
  std::uint64_t total = 0;
  std::map<std::string, std::uint32_t> conflicts = {};  // by id
  std::set<std::string> given_up = {};                  // ids
  std::uint32_t failed_groups = 0;                      // in a row

  [[nodiscard]] bool ended() const { return is_cancelled(control) || reply.stopped_early; }
  void report() const {
    if (control.progress) {
      control.progress("encode", reply.encoded + reply.failed,
                       std::max(total, reply.encoded + reply.failed));
    }
  }
};

Encoder::Encoder(ServiceCore& core)
    : core_(core), random_(static_cast<std::minstd_rand::result_type>(now_us())) {}

void Encoder::want(const Scope& scope, const std::string& fact_id) {
  {
    const std::lock_guard lock(wanted_mutex_);
    const auto same = [&](const auto& entry) { return entry.second == fact_id; };
    if (wanted_.size() >= kMaxWanted || std::any_of(wanted_.begin(), wanted_.end(), same)) {
      return;
    }
    wanted_.emplace_back(scope, fact_id);
  }
  if (on_want_) {
    on_want_();
  }
}

Result<std::vector<Fact>> Encoder::take_wanted(const EngineParts& parts) {
  std::vector<std::pair<Scope, std::string>> taken;
  {
    const std::lock_guard lock(wanted_mutex_);
    taken.swap(wanted_);
  }
  std::vector<Fact> facts;
  for (const auto& [scope, id] : taken) {
    auto fact = core_.catalog().get_fact(scope, id);
    if (!fact.ok()) {
      continue;  // erased meanwhile
    }
    INFERSCALE_ASSIGN_OR_RETURN(
        const std::optional<EncodeFailure> failure,
        core_.catalog().encode_failure({fact->id, fact->version}, parts.fingerprint(),
                                       core_.context().spelling()));
    if (!failure || (failure->next_try && *failure->next_try <= core_.now())) {
      facts.push_back(std::move(fact).value());
    }
  }
  return facts;
}

Result<EngineParts*> Encoder::encoding_engine() {
  INFERSCALE_ASSIGN_OR_RETURN(EngineParts* const parts, core_.engine());
  if (!parts->engine->info().injection) {
    return unavailable("injection is off, so nothing is encoded: " +
                       parts->engine->info().injection_off_reason);
  }
  return parts;
}

Encoder::Job Encoder::make_job(EngineParts& parts, const WorkControl& control) const {
  const ContextSpec spec = core_.context();
  const ContextSources sources{core_.catalog(), *parts.prompt, parts.engine->tokenizer(),
                               parts.fingerprint()};
  return {parts, spec, make_encode_context(spec, sources), control};
}

Result<EncodeReply> Encoder::encode_facts(std::vector<Fact> facts, const WorkControl& control) {
  const Stopwatch watch;
  INFERSCALE_ASSIGN_OR_RETURN(EngineParts* const parts, encoding_engine());
  Job job = make_job(*parts, control);
  job.total = facts.size();
  const std::lock_guard turn(turn_);
  std::vector<FactRef> refs;
  for (const Fact& fact : facts) {
    refs.push_back({fact.id, fact.version});
  }
  INFERSCALE_ASSIGN_OR_RETURN(const std::vector<std::optional<RecordEntry>> entries,
                              core_.catalog().records_of(refs, parts->fingerprint()));
  std::vector<Fact> without;
  for (std::size_t i = 0; i < facts.size(); ++i) {
    if (!entries[i] || !core_.store().contains(entries[i]->key)) {
      without.push_back(std::move(facts[i]));
    }
  }
  job.reply.encoded = facts.size() - without.size();  // by another job, which came first
  INFERSCALE_RETURN_IF_ERROR(encode_page(job, std::move(without)));
  job.reply.elapsed_ms = watch.elapsed_ms();
  return job.reply;
}

Result<EncodeReply> Encoder::encode_wanted(const WorkControl& control) {
  {
    const std::lock_guard lock(wanted_mutex_);
    if (wanted_.empty()) {
      return EncodeReply();  // without loading a model for it
    }
  }
  INFERSCALE_ASSIGN_OR_RETURN(EngineParts* const parts, encoding_engine());
  INFERSCALE_ASSIGN_OR_RETURN(std::vector<Fact> wanted, take_wanted(*parts));
  return encode_facts(std::move(wanted), control);
}

Result<EncodeReply> Encoder::encode_pending(const WorkControl& control) {
  const Stopwatch watch;
  INFERSCALE_ASSIGN_OR_RETURN(EncodeReply wanted, encode_wanted(control));
  INFERSCALE_ASSIGN_OR_RETURN(EngineParts* const parts, core_.engine());
  Job job = make_job(*parts, control);
  job.reply = std::move(wanted);
  // What fails in this call is due later than this, so it is not tried twice.
  const EncodeQuery query{parts->fingerprint(), job.spec.spelling(), 0, core_.now()};
  while (!job.ended()) {
    const std::lock_guard turn(turn_);
    INFERSCALE_ASSIGN_OR_RETURN(EncodePage page,
                                core_.catalog().facts_to_encode(query, kPageFacts));
    if (page.facts.empty()) {
      break;
    }
    INFERSCALE_RETURN_IF_ERROR(encoding_engine().status());
    // New facts by themselves; and one group of the others only, so that a fact that is added
    // meanwhile does not wait for more.
    page.facts.resize(page.without_record > 0 ? page.without_record
                                              : std::min(page.facts.size(), kGroupFacts));
    if (control.progress && job.total == 0) {
      INFERSCALE_ASSIGN_OR_RETURN(
          const std::uint64_t pending,
          core_.catalog().count_to_encode(parts->fingerprint(), query.context));
      job.total = job.reply.encoded + job.reply.failed + pending;
    }
    INFERSCALE_RETURN_IF_ERROR(encode_page(job, std::move(page.facts)));
  }
  job.reply.elapsed_ms = watch.elapsed_ms();
  return job.reply;
}

Status Encoder::encode_page(Job& job, std::vector<Fact> facts) {
  std::stable_sort(facts.begin(), facts.end(), [](const Fact& a, const Fact& b) {
    return std::tie(a.scope, a.sequence) < std::tie(b.scope, b.sequence);
  });
  for (std::size_t begin = 0; begin < facts.size() && !job.ended();) {
    const auto other_scope =
        std::find_if(facts.begin() + static_cast<std::ptrdiff_t>(begin), facts.end(),
                     [&](const Fact& f) { return f.scope != facts[begin].scope; });
    const std::size_t end = static_cast<std::size_t>(std::distance(facts.begin(), other_scope));
    INFERSCALE_RETURN_IF_ERROR(encode_scope_run(job, std::span(facts).subspan(begin, end - begin)));
    begin = end;
  }
  return {};
}

Status Encoder::encode_scope_run(Job& job, std::span<const Fact> facts) {
  const std::size_t branches =
      std::min<std::size_t>(kGroupFacts, job.parts.engine->info().max_branches);
  INFERSCALE_ASSIGN_OR_RETURN(const std::vector<EncodeGroup> groups,
                              job.context->split(facts, branches));
  job.report();
  for (const EncodeGroup& group : groups) {
    if (job.ended()) {
      break;
    }
    INFERSCALE_RETURN_IF_ERROR(try_group(job, group));
    job.report();
  }
  return {};
}

// A group that cannot be encoded may hold one fact that cannot: then the others are not to wait for
// it. An engine that does not work does not work for any of them.
Status Encoder::try_group(Job& job, const EncodeGroup& group) {
  const Status status = encode_group(job, group);
  if (status.ok() || is_cancelled(job.control)) {
    job.failed_groups = 0;
    return {};
  }
  if (status.code() != StatusCode::kUnavailable && group.facts.size() > 1) {
    const auto middle = group.facts.begin() + static_cast<std::ptrdiff_t>(group.facts.size() / 2);
    EncodeGroup half = group;
    half.facts.assign(group.facts.begin(), middle);
    INFERSCALE_RETURN_IF_ERROR(try_group(job, half));
    half.facts.assign(middle, group.facts.end());
    return try_group(job, half);
  }
  if (status.code() == StatusCode::kUnavailable) {
    job.reply.stopped_early = ++job.failed_groups >= kMaxFailedGroups;
  }
  for (const Fact& fact : group.facts) {
    INFERSCALE_RETURN_IF_ERROR(fail(job, fact, status, false));
  }
  return {};
}

// Errors: those of the catalog. A job that could not write down what failed would try it for ever.
Status Encoder::fail(Job& job, const Fact& fact, const Status& status, bool for_ever) {
  const bool conflicts = status.code() == StatusCode::kConflict;
  if (conflicts && ++job.conflicts[fact.id] < kMaxConflicts) {
    return {};  // it, or what it saw, has changed or gone: what is left of it is still pending
  }
  ++job.reply.failed;
  log_message(LogLevel::kWarning,
              fmt::format("fact {} stays text: {}", fact.id, status.to_string()));
  EncodeFailure failure;
  failure.fact = {fact.id, fact.version};
  failure.model_fingerprint = job.parts.fingerprint();
  failure.context = job.spec.spelling();
  INFERSCALE_ASSIGN_OR_RETURN(
      const std::optional<EncodeFailure> before,
      core_.catalog().encode_failure(failure.fact, failure.model_fingerprint, failure.context));
  failure.attempts = before ? before->attempts + 1 : 1;
  failure.last_try = core_.now();
  if (!for_ever) {
    failure.next_try =
        failure.last_try +
        retry_delay_us(failure.attempts, static_cast<std::uint32_t>(random_()) << 1U);
  }
  failure.error = status.to_string();
  return core_.catalog().put_encode_failure(failure);
}

// Token ids of the group's facts. Those that cannot be encoded leave the group.
Result<std::vector<std::vector<TokenId>>> Encoder::fact_lines(Job& job, EncodeGroup& group) {
  std::vector<std::vector<TokenId>> lines;
  std::vector<Fact> kept;
  for (Fact& fact : group.facts) {
    if (job.given_up.contains(fact.id)) {
      continue;
    }
    auto line = job.parts.prompt->fact_line(fact.text, fact.event_time, fact.event_offset_minutes);
    if (line.ok() && line->size() > kMaxEncodedFactTokens) {
      line =
          resource_exhausted(fmt::format("{} tokens, more than the {} that are encoded as one "
                                         "fact; make it shorter, or several facts",
                                         line->size(), kMaxEncodedFactTokens));
    }
    if (!line.ok()) {  // the text's fault: it would fail again
      job.given_up.insert(fact.id);
      INFERSCALE_RETURN_IF_ERROR(fail(job, fact, line.status(), true));
      continue;
    }
    lines.push_back(std::move(line).value());
    kept.push_back(std::move(fact));
  }
  group.facts = std::move(kept);
  return lines;
}

Status Encoder::encode_group(Job& job, EncodeGroup group) {
  INFERSCALE_ASSIGN_OR_RETURN(const std::vector<std::vector<TokenId>> lines,
                              fact_lines(job, group));
  if (lines.empty()) {
    return {};
  }
  INFERSCALE_RETURN_IF_ERROR(job.context->fill(group));
  EncodeRun run;
  RunResult result;
  // Records that turn out to be unusable are text the second time.
  for (const bool allow_records : {true, false}) {
    run = make_encode_run(core_, job.parts, job.spec.kind, group, lines, allow_records);
    run.request.cancelled = job.control.cancelled;
    INFERSCALE_ASSIGN_OR_RETURN(run.request.run_for, core_.run_for(group.facts.front().scope));
    INFERSCALE_ASSIGN_OR_RETURN(result, job.parts.engine->run(std::move(run.request)));
    job.reply.tokens_prefilled += result.tokens_prefilled;
    if (run.as_planned(result)) {
      break;
    }
  }
  INFERSCALE_RETURN_IF_ERROR(
      keep_prefixes(core_, job.parts, group.facts.front().scope, run, result));
  for (std::size_t i = 0; i < group.facts.size(); ++i) {
    const EncodeRun::Place& place = run.facts[i];
    std::shared_ptr<const Record> record =
        std::move(result.branches[place.branch].records.at(place.capture));
    const Status status = record == nullptr
                              ? unavailable("the engine could not read the KV back from its cache")
                              : commit(job, group, run, i, std::move(record));
    if (status.ok()) {
      ++job.reply.encoded;
    } else {
      INFERSCALE_RETURN_IF_ERROR(fail(job, group.facts[i], status, false));
    }
  }
  return {};
}

// The commit rule: the entry is written only if the fact and all it attended to are still live, and
// no erase can pass between that check and the put.
Status Encoder::commit(Job& job, const EncodeGroup& group, const EncodeRun& run, std::size_t fact,
                       std::shared_ptr<const Record> record) {
  RecordEntry entry;
  entry.fact = {group.facts[fact].id, group.facts[fact].version};
  entry.model_fingerprint = job.parts.fingerprint();
  entry.context = job.spec.spelling();
  entry.key = make_record_key(core_.secret(), record->meta(), record->token_ids());
  entry.context_id = record->meta().context_id;
  entry.scope = record->meta().scope;
  entry.n_tokens = record->n_tokens();
  entry.attended_facts = run.attended_facts;
  for (std::size_t i = 0; group.joint && i < fact; ++i) {
    entry.attended_facts.push_back({group.facts[i].id, group.facts[i].version});
  }
  entry.attended_turns = group.attended_turns;
  entry.attended_records = run.injected;
  const std::lock_guard lock(core_.record_mutex());
  const Scope& scope = group.facts[fact].scope;
  const Result<std::optional<RecordKey>> replaced = core_.catalog().commit_record(entry);
  if (!replaced.ok()) {
    core_.erase_refused(scope, entry.key);
    return replaced.status();
  }
  if (*replaced) {
    const RecordKey old = **replaced;
    const auto erased = core_.erase_records(scope, std::span(&old, 1));
    if (!erased.ok()) {
      log_message(LogLevel::kWarning, erased.status().to_string());
    }
  }
  const Status stored = core_.store().put(entry.key, std::move(record));
  // Without its disk copy the record is usable all the same; the store reports the failing disk.
  return stored.code() == StatusCode::kUnavailable ? Status() : stored;
}

}  // namespace inferscale
