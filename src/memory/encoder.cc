#include "memory/encoder.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <unordered_set>

#include "base/log.h"
#include "memory/header_record.h"

namespace inferscale {
namespace {

// Facts that share one prefill of their context: large enough that it costs little per fact, small
// enough that a fact's window is close to it (measured at 16 and 32 in docs/performance.md).
constexpr std::size_t kGroupFacts = 16;
constexpr std::size_t kPageFacts = 256;
constexpr std::size_t kMaxWanted = 4096;

bool is_cancelled(const WorkControl& control) {
  return control.cancelled != nullptr && control.cancelled->load();
}

}  // namespace

// One call's state: what it works with and what it did.
struct Encoder::Job {
  EngineParts& parts;
  std::unique_ptr<EncodeContext> context;
  const WorkControl& control;
  EncodeReply reply;
  std::uint64_t total = 0;
  std::unordered_set<std::string>
      failed;  // ids, so that one bad fact does not stop or loop the job

  void report() const {
    if (control.progress) {
      control.progress("encode", reply.encoded + reply.failed,
                       std::max(total, reply.encoded + reply.failed));
    }
  }
  void fail(const Fact& fact, const Status& status) {
    ++reply.failed;
    failed.insert(fact.id);
    log_message(LogLevel::kWarning,
                fmt::format("fact {} stays text: {}", fact.id, status.to_string()));
  }
};

void Encoder::want(const Scope& scope, const std::string& fact_id) {
  const std::lock_guard lock(wanted_mutex_);
  const auto same = [&](const auto& entry) { return entry.second == fact_id; };
  if (wanted_.size() < kMaxWanted && std::none_of(wanted_.begin(), wanted_.end(), same)) {
    wanted_.emplace_back(scope, fact_id);
  }
}

std::vector<Fact> Encoder::take_wanted() {
  std::vector<std::pair<Scope, std::string>> taken;
  {
    const std::lock_guard lock(wanted_mutex_);
    taken.swap(wanted_);
  }
  std::vector<Fact> facts;
  for (const auto& [scope, id] : taken) {
    if (auto fact = core_.catalog().get_fact(scope, id); fact.ok()) {
      facts.push_back(std::move(fact).value());
    }
  }
  return facts;
}

Result<EncodeReply> Encoder::encode_facts(std::vector<Fact> facts, const WorkControl& control) {
  const Stopwatch watch;
  INFERSCALE_ASSIGN_OR_RETURN(EngineParts* const parts, core_.engine());
  if (!parts->engine->info().injection) {
    return unavailable("injection is off, so nothing is encoded: " +
                       parts->engine->info().injection_off_reason);
  }
  Job job{*parts,
          make_encode_context(core_.context(), core_.catalog(), *parts->prompt,
                              parts->engine->tokenizer()),
          control,
          {},
          facts.size(),
          {}};
  std::stable_sort(facts.begin(), facts.end(), [](const Fact& a, const Fact& b) {
    return std::tie(a.scope, a.sequence) < std::tie(b.scope, b.sequence);
  });
  for (std::size_t begin = 0; begin < facts.size();) {
    const auto other_scope =
        std::find_if(facts.begin() + static_cast<std::ptrdiff_t>(begin), facts.end(),
                     [&](const Fact& f) { return f.scope != facts[begin].scope; });
    const std::size_t end = static_cast<std::size_t>(std::distance(facts.begin(), other_scope));
    INFERSCALE_RETURN_IF_ERROR(encode_scope_run(job, std::span(facts).subspan(begin, end - begin)));
    begin = end;
  }
  job.reply.elapsed_ms = watch.elapsed_ms();
  return job.reply;
}

Result<EncodeReply> Encoder::encode_wanted(const WorkControl& control) {
  std::vector<Fact> wanted = take_wanted();
  return wanted.empty() ? EncodeReply() : encode_facts(std::move(wanted), control);
}

Result<EncodeReply> Encoder::encode_pending(const WorkControl& control) {
  const Stopwatch watch;
  INFERSCALE_ASSIGN_OR_RETURN(EncodeReply reply, encode_wanted(control));
  INFERSCALE_ASSIGN_OR_RETURN(EngineParts* const parts, core_.engine());
  const std::string context = core_.context().spelling();
  std::unordered_set<std::string> seen;
  while (!is_cancelled(control)) {
    // Facts that failed stay pending, so the page grows past them.
    INFERSCALE_ASSIGN_OR_RETURN(std::vector<Fact> page,
                                core_.catalog().facts_to_encode(parts->fingerprint(), context, 0,
                                                                kPageFacts + seen.size()));
    std::erase_if(page, [&](const Fact& fact) {
      return seen.contains(fact.id + "/" + std::to_string(fact.version));
    });
    if (page.empty()) {
      break;
    }
    for (const Fact& fact : page) {
      seen.insert(fact.id + "/" + std::to_string(fact.version));
    }
    INFERSCALE_ASSIGN_OR_RETURN(const std::uint64_t pending,
                                core_.catalog().count_to_encode(parts->fingerprint(), context));
    WorkControl step = control;
    const std::uint64_t before = reply.encoded + reply.failed;
    if (control.progress) {
      step.progress = [&](const std::string& stage, std::uint64_t done, std::uint64_t) {
        control.progress(stage, before + done, before + pending);
      };
    }
    INFERSCALE_ASSIGN_OR_RETURN(const EncodeReply part, encode_facts(std::move(page), step));
    reply.encoded += part.encoded;
    reply.failed += part.failed;
    reply.tokens_prefilled += part.tokens_prefilled;
  }
  reply.elapsed_ms = watch.elapsed_ms();
  return reply;
}

Status Encoder::encode_scope_run(Job& job, std::span<const Fact> facts) {
  const std::size_t branches =
      std::min<std::size_t>(kGroupFacts, job.parts.engine->info().max_branches);
  INFERSCALE_ASSIGN_OR_RETURN(const std::vector<EncodeGroup> groups,
                              job.context->group(facts, branches));
  job.report();
  for (const EncodeGroup& group : groups) {
    if (is_cancelled(job.control)) {
      return {};
    }
    if (Status status = encode_group(job, group); !status.ok()) {
      if (status.code() == StatusCode::kUnavailable && is_cancelled(job.control)) {
        return {};
      }
      for (const Fact& fact : group.facts) {
        job.fail(fact, status);
      }
    }
    job.report();
  }
  return {};
}

Status Encoder::encode_group(Job& job, const EncodeGroup& group) {
  HeaderSegment header = lease_header(core_, job.parts);
  RunRequest request;
  request.cancelled = job.control.cancelled;
  std::vector<TokenId> attended = header.segment.tokens;
  Segment context;
  for (const std::vector<TokenId>& line : group.context_lines) {
    context.tokens.insert(context.tokens.end(), line.begin(), line.end());
  }
  attended.insert(attended.end(), context.tokens.begin(), context.tokens.end());
  RecordMeta meta = core_.record_meta(job.parts);
  meta.context_id = make_context_id(meta.context_kind, attended, group.injected);
  meta.context_tokens = static_cast<std::uint32_t>(attended.size());
  meta.scope = scope_hash(group.facts.front().scope);

  const auto header_tokens = static_cast<std::uint32_t>(header.segment.tokens.size());
  const auto prefix = static_cast<std::uint32_t>(attended.size());
  request.plan.push_back(std::move(header.segment));
  if (!context.tokens.empty()) {
    request.plan.push_back(std::move(context));
  }
  std::vector<const Fact*> encoded;
  for (const Fact& fact : group.facts) {
    auto line = job.parts.prompt->fact_line(fact.text, fact.event_time, fact.event_offset_minutes);
    if (!line.ok()) {
      job.fail(fact, line.status());
      continue;
    }
    if (line->size() > kMaxEncodedFactTokens) {
      job.fail(fact, resource_exhausted(
                         fmt::format("{} tokens, more than the {} that are encoded as one fact",
                                     line->size(), kMaxEncodedFactTokens)));
      continue;
    }
    Branch branch;
    branch.captures.push_back({prefix, prefix + static_cast<std::uint32_t>(line->size()), meta});
    branch.tokens = std::move(line).value();
    request.branches.push_back(std::move(branch));
    encoded.push_back(&fact);
  }
  if (request.branches.empty()) {
    return {};
  }
  if (header.cold) {
    request.branches.front().captures.push_back({0, header_tokens, header.meta});
  }
  INFERSCALE_ASSIGN_OR_RETURN(RunResult result, job.parts.engine->run(std::move(request)));
  job.reply.tokens_prefilled += result.tokens_prefilled;
  if (header.cold) {
    keep_header(core_, job.parts, std::move(result.branches.front().records.at(1)));
  }
  for (std::size_t i = 0; i < encoded.size(); ++i) {
    std::shared_ptr<const Record> record = std::move(result.branches[i].records.at(0));
    const Status status = record == nullptr
                              ? unavailable("the engine could not read the KV back from its cache")
                              : commit(job, group, *encoded[i], std::move(record));
    if (status.ok()) {
      ++job.reply.encoded;
    } else {
      job.fail(*encoded[i], status);
    }
  }
  return {};
}

// The commit rule: the entry is written only if the fact and all it attended to are still live, and
// no erase can pass between that check and the put.
Status Encoder::commit(Job& job, const EncodeGroup& group, const Fact& fact,
                       std::shared_ptr<const Record> record) {
  RecordEntry entry;
  entry.fact = {fact.id, fact.version};
  entry.model_fingerprint = job.parts.fingerprint();
  entry.context = core_.context().spelling();
  entry.key = make_record_key(core_.secret(), record->meta(), record->token_ids());
  entry.context_id = record->meta().context_id;
  entry.scope = record->meta().scope;
  entry.n_tokens = record->n_tokens();
  entry.attended_facts = group.attended_facts;
  entry.attended_turns = group.attended_turns;
  const std::lock_guard lock(core_.record_mutex());
  INFERSCALE_ASSIGN_OR_RETURN(const std::optional<RecordKey> replaced,
                              core_.catalog().commit_record(entry));
  if (replaced) {
    const RecordKey old = *replaced;
    if (auto erased = core_.store().erase(std::span(&old, 1)); !erased.ok()) {
      log_message(LogLevel::kWarning, erased.status().to_string());
    }
  }
  const Status stored = core_.store().put(entry.key, std::move(record));
  // Without its disk copy the record is usable all the same; the store reports the failing disk.
  return stored.code() == StatusCode::kUnavailable ? Status() : stored;
}

}  // namespace inferscale
