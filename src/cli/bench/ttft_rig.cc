#include "cli/bench/ttft_rig.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "catalog/sqlite/sqlite_catalog.h"
#include "engine/client_salt.h"
#include "memory/service_core.h"
#include "prompt/plan_order.h"

namespace inferscale::cli {
namespace {

constexpr std::size_t kSecretBytes = 32;
constexpr std::uint32_t kExtraFacts = 14;
/// A server's cache is found in whole blocks of at most so many tokens.
constexpr std::size_t kLargestBlock = 256;

}  // namespace

/// What a run is given, in prompt order.
struct TtftRig::Prompt {
  std::vector<Segment> plan;
  std::vector<TokenId> tail;
  std::uint32_t injectable = 0;  // tokens that should come from records
  std::string warm;              // the session and salt of what is in the engine's cache
};

Result<std::unique_ptr<TtftRig>> TtftRig::open(const MemoryOptions& options,
                                               const ServiceDependencies& dependencies,
                                               std::uint32_t most, const WorkControl& control) {
  std::unique_ptr<TtftRig> rig(new TtftRig());
  rig->cancelled_ = control.cancelled;
  INFERSCALE_RETURN_IF_ERROR(rig->open_parts(options, dependencies));
  INFERSCALE_ASSIGN_OR_RETURN(rig->workload_,
                              Workload::create(*rig->engine_, most + kExtraFacts, {}));
  INFERSCALE_RETURN_IF_ERROR(rig->store_facts());
  INFERSCALE_RETURN_IF_ERROR(rig->check_room(most));
  INFERSCALE_RETURN_IF_ERROR(rig->encode_header());
  INFERSCALE_RETURN_IF_ERROR(rig->encode_facts(control));
  return rig;
}

Status TtftRig::open_parts(const MemoryOptions& options, const ServiceDependencies& dependencies) {
  INFERSCALE_ASSIGN_OR_RETURN(directory_, TempDirectory::create());
  scope_.user = fresh_client_salt("bench");
  // A server believes what is signed with the secret of its data directory.
  INFERSCALE_ASSIGN_OR_RETURN(secret_, options.engine.empty() ? random_bytes(kSecretBytes)
                                                              : read_secret(options.directory));
  INFERSCALE_ASSIGN_OR_RETURN(engine_, dependencies.open_engine(options));
  const EngineInfo& info = engine_->info();
  if (!info.injection) {
    return unavailable("injection is off, there is nothing to compare: " +
                       info.injection_off_reason);
  }
  INFERSCALE_ASSIGN_OR_RETURN(embedder_, dependencies.open_embedder(options));
  INFERSCALE_ASSIGN_OR_RETURN(catalog_, open_sqlite_catalog({directory_->path()}));
  KvStoreOptions store;
  store.host_budget_bytes = options.host_budget_bytes;
  store.disk_budget_bytes = 0;
  INFERSCALE_ASSIGN_OR_RETURN(store_, KvStore::open(store));
  if (dependencies.wrap_store) {
    INFERSCALE_ASSIGN_OR_RETURN(store_, dependencies.wrap_store(options, std::move(store_)));
  }
  retriever_ = std::make_unique<Retriever>(*catalog_, embedder_.get());
  return Status();
}

TtftRig::~TtftRig() {
  std::vector<RecordKey> keys;
  for (const auto& [id, fact] : facts_) {
    keys.push_back(fact.key);
  }
  if (store_ == nullptr || keys.empty()) {
    return;
  }
  const Result<EraseCounts> erased = store_->erase_owned({scope_.tenant, scope_.user, 1}, keys);
  const std::string problem = erased.ok() ? erased->unreached : erased.status().to_string();
  if (!problem.empty()) {
    log_message(LogLevel::kWarning, "records of the benchmark were not erased: " + problem);
  }
}

RunFor TtftRig::run_for() const {
  RunFor run_for;
  run_for.scope = scope_;
  run_for.client_salt = fresh_client_salt("bench");
  return run_for;
}

RecordMeta TtftRig::meta(ContextKind kind) const {
  const EngineInfo& info = engine_->info();
  RecordMeta meta;
  meta.model_fingerprint = info.model.fingerprint;
  meta.context_kind = kind;
  meta.codec = info.cache_dtype;
  meta.shape = info.model.shape;
  const bool header = kind == ContextKind::kPrefix;
  meta.context_id = header ? make_context_id(kind, {}, {})
                           : make_context_id(kind, workload_->prompt().header(), {});
  meta.scope = scope_hash(header ? system_scope() : scope_);
  return meta;
}

RecordRequest TtftRig::request_for(const RecordMeta& meta, const RecordKey& key,
                                   const std::vector<TokenId>& tokens) const {
  return {key, meta.model_fingerprint, meta.shape, meta.scope, tokens, meta.context_id};
}

Status TtftRig::store_facts() {
  std::vector<std::string> texts;
  for (const BenchFact& fact : workload_->facts()) {
    texts.push_back(fact.text);
  }
  std::vector<Result<TextVectors>> vectors;
  if (embedder_ != nullptr) {
    vectors = embedder_->embed(texts);
  }
  std::vector<NewFact> facts;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    NewFact fact;
    fact.scope = scope_;
    fact.text = texts[i];
    INFERSCALE_ASSIGN_OR_RETURN(const ParsedTime time,
                                parse_rfc3339(workload_->facts()[i].event_time));
    fact.event_time = time.time;
    if (embedder_ != nullptr) {
      INFERSCALE_ASSIGN_OR_RETURN(fact.vectors, std::move(vectors[i]));
    }
    facts.push_back(std::move(fact));
  }
  INFERSCALE_ASSIGN_OR_RETURN(const std::vector<AddOutcome> outcomes, catalog_->add_facts(facts));
  for (std::size_t i = 0; i < outcomes.size(); ++i) {
    StoredFact stored;
    INFERSCALE_ASSIGN_OR_RETURN(stored.tokens, workload_->fact_tokens(workload_->facts()[i]));
    stored.key = make_record_key(secret_, meta(ContextKind::kHeader), stored.tokens);
    facts_.emplace(outcomes[i].id, std::move(stored));
  }
  INFERSCALE_ASSIGN_OR_RETURN(const std::vector<TokenId> tail,
                              workload_->prompt().tail(workload_->question()));
  question_tokens_ = static_cast<std::uint32_t>(tail.size());
  return {};
}

Status TtftRig::encode_header() {
  const std::vector<TokenId>& header = workload_->prompt().header();
  const RecordMeta header_meta = meta(ContextKind::kPrefix);
  RunRequest run;
  run.run_for = run_for();
  run.cancelled = cancelled_;
  run.branches.push_back(
      {header, {{0, static_cast<std::uint32_t>(header.size()), header_meta}}, {}});
  INFERSCALE_ASSIGN_OR_RETURN(RunResult result, engine_->run(std::move(run)));
  header_key_ = make_record_key(secret_, header_meta, header);
  if (result.branches.at(0).records.at(0) == nullptr) {
    return unavailable(
        "the engine captured nothing; with --engine: is it the server whose control channel "
        "answers?");
  }
  return store_->put(header_key_, result.branches.at(0).records.at(0));
}

Status TtftRig::check_room(std::uint32_t most) const {
  const std::uint64_t tokens = workload_->prompt().header().size() +
                               std::uint64_t{most} * fact_token_range().second + question_tokens_ +
                               1;
  const std::uint32_t room = engine_->info().context_tokens;
  return tokens <= room
             ? Status()
             : resource_exhausted(fmt::format("a prompt with {} facts takes {} tokens, the context "
                                              "holds {}; ask for fewer (--k)",
                                              most, tokens, room));
}

Status TtftRig::encode_facts(const WorkControl& control) {
  std::vector<StoredFact*> all;
  for (auto& [id, fact] : facts_) {
    all.push_back(&fact);
  }
  const std::size_t step = std::max(1U, engine_->info().max_branches);
  for (std::size_t from = 0; from < all.size(); from += step) {
    INFERSCALE_RETURN_IF_ERROR(encode_batch(
        std::span<StoredFact* const>(all).subspan(from, std::min(step, all.size() - from))));
    if (control.progress) {
      control.progress("encode", std::min(from + step, all.size()), all.size());
    }
  }
  return {};
}

Status TtftRig::encode_batch(std::span<StoredFact* const> batch) {
  const std::vector<TokenId>& header = workload_->prompt().header();
  const auto begin = static_cast<std::uint32_t>(header.size());
  const RecordMeta fact_meta = meta(ContextKind::kHeader);
  RunRequest run;
  run.run_for = run_for();
  run.cancelled = cancelled_;
  run.plan.push_back({header, {}});
  for (const StoredFact* const fact : batch) {
    const auto end = begin + static_cast<std::uint32_t>(fact->tokens.size());
    run.branches.push_back({fact->tokens, {{begin, end, fact_meta}}, {}});
  }
  INFERSCALE_ASSIGN_OR_RETURN(RunResult result, engine_->run(std::move(run)));
  for (std::size_t i = 0; i < batch.size(); ++i) {
    INFERSCALE_RETURN_IF_ERROR(store_->put(batch[i]->key, result.branches.at(i).records.at(0)));
  }
  return {};
}

Result<std::vector<Fact>> TtftRig::retrieve(std::uint32_t k, TtftSample& sample) {
  std::vector<Fact> facts;
  if (k == 0) {
    return facts;
  }
  RetrievalRequest request;
  request.scope = scope_;
  request.query = workload_->question();
  request.k = k;
  INFERSCALE_ASSIGN_OR_RETURN(RetrievalResult found, retriever_->search(request));
  if (found.facts.size() != k) {
    return internal_error(
        fmt::format("{} facts were retrieved, {} were asked for", found.facts.size(), k));
  }
  sample.embed = found.embed_ms;
  sample.retrieve = found.retrieve_ms;
  for (RetrievedFact& hit : found.facts) {
    facts.push_back(std::move(hit.fact));
  }
  return facts;
}

Result<TtftRig::Prompt> TtftRig::prepare(Arm arm, const std::vector<Fact>& facts,
                                         std::uint32_t top_j, TtftSample& sample) {
  Stopwatch watch;
  Prompt prompt;
  const PromptBuilder& builder = workload_->prompt();
  std::vector<std::vector<TokenId>> lines;
  std::vector<PlanCandidate> candidates;
  for (const Fact& fact : facts) {
    INFERSCALE_ASSIGN_OR_RETURN(
        std::vector<TokenId> line,
        builder.fact_line(fact.text, fact.event_time, fact.event_offset_minutes));
    sample.facts_tokens += static_cast<std::uint32_t>(line.size());
    candidates.push_back({static_cast<std::uint32_t>(line.size()), true});
    lines.push_back(std::move(line));
  }
  INFERSCALE_ASSIGN_OR_RETURN(prompt.tail, builder.tail(workload_->question()));
  const PlanOrder order = order_plan(candidates, top_j, engine_->info().context_tokens);
  sample.plan = watch.elapsed_ms();

  watch.restart();
  std::vector<RecordRequest> requests;
  if (arm != Arm::kWarm) {
    requests.push_back(request_for(meta(ContextKind::kPrefix), header_key_, builder.header()));
  }
  for (const std::size_t i : order.injected) {
    if (arm == Arm::kInject) {
      requests.push_back(
          request_for(meta(ContextKind::kHeader), facts_.at(facts[i].id).key, lines[i]));
    }
  }
  std::vector<Lease> leases = store_->acquire(requests);
  sample.lease = watch.elapsed_ms();
  const auto missing = std::find_if_not(leases.begin(), leases.end(),
                                        [](const Lease& lease) { return lease.ready(); });
  if (missing != leases.end()) {
    return resource_exhausted(fmt::format("a record is missing ({}); raise --host-budget",
                                          miss_reason_name(missing->reason())));
  }

  std::size_t next = 0;
  const auto lease_if = [&](bool leased) { return leased ? std::move(leases[next++]) : Lease(); };
  prompt.plan.push_back({builder.header(), lease_if(arm != Arm::kWarm)});
  for (const std::size_t i : order.injected) {
    prompt.plan.push_back({std::move(lines[i]), lease_if(arm == Arm::kInject)});
  }
  for (const std::size_t i : order.as_text) {
    prompt.plan.push_back({std::move(lines[i]), {}});
  }
  for (const Segment& segment : prompt.plan) {
    prompt.injectable +=
        segment.lease.ready() ? static_cast<std::uint32_t>(segment.tokens.size()) : 0;
  }
  return prompt;
}

/// Leaves header and facts, as text, in the engine's cache; gives the session and salt they are
/// found under.
Result<std::string> TtftRig::warm_up(const std::vector<Fact>& facts, std::uint32_t top_j) {
  TtftSample unused;
  INFERSCALE_ASSIGN_OR_RETURN(Prompt prompt, prepare(Arm::kWarm, facts, top_j, unused));
  RunRequest run;
  run.run_for = run_for();
  run.session = run.run_for.client_salt;
  run.allow_injection = false;
  run.cancelled = cancelled_;
  run.plan = std::move(prompt.plan);
  run.branches.push_back({{prompt.tail.back()}, {}, {}});  // the question begins otherwise
  const std::string session = run.session;
  INFERSCALE_RETURN_IF_ERROR(engine_->run(std::move(run)).status());
  return session;
}

Status TtftRig::run_prompt(Prompt prompt, const Stopwatch& watch, TtftSample& sample) {
  RunRequest run;
  run.run_for = run_for();
  if (!prompt.warm.empty()) {
    run.run_for.client_salt = run.session = prompt.warm;
    run.allow_injection = false;
  }
  run.cancelled = cancelled_;
  run.plan = std::move(prompt.plan);
  run.branches.push_back({std::move(prompt.tail), {}, {}});
  run.sampling.max_tokens = 1;
  run.on_token = [&](TokenId) {
    sample.ttft = watch.elapsed_ms();
    return true;
  };
  INFERSCALE_ASSIGN_OR_RETURN(const RunResult result, engine_->run(std::move(run)));
  if (sample.ttft == 0) {  // the model answered with its end token, which is not handed out
    sample.ttft =
        sample.plan + sample.lease + result.timings.queue_ms + result.timings.first_token_ms;
  }
  sample.compose = result.timings.compose_ms;
  sample.state_write = result.timings.inject_ms;
  sample.prefill = result.timings.prefill_ms;
  sample.injected = result.tokens_injected;
  sample.prefilled = result.tokens_prefilled;
  sample.reused = result.tokens_reused;
  if (result.tokens_injected != prompt.injectable) {
    return internal_error(fmt::format("{} tokens were injected where {} have records",
                                      result.tokens_injected, prompt.injectable));
  }
  return {};
}

Result<TtftSample> TtftRig::measure(Arm arm, std::uint32_t k, std::uint32_t top_j) {
  TtftSample sample;
  INFERSCALE_ASSIGN_OR_RETURN(const std::vector<Fact> facts,
                              retrieve(arm == Arm::kNone ? 0 : k, sample));
  std::string warm;
  if (arm == Arm::kWarm) {
    INFERSCALE_ASSIGN_OR_RETURN(warm, warm_up(facts, top_j));
  }
  const Stopwatch watch;
  INFERSCALE_ASSIGN_OR_RETURN(Prompt prompt, prepare(arm, facts, top_j, sample));
  prompt.warm = warm;
  INFERSCALE_RETURN_IF_ERROR(run_prompt(std::move(prompt), watch, sample));
  const std::size_t header = workload_->prompt().header().size();
  if (arm != Arm::kWarm && sample.injected < header) {
    return internal_error("the header was not injected");
  }
  if (arm == Arm::kWarm) {
    INFERSCALE_RETURN_IF_ERROR(engine_->drop_session(warm));
    if (sample.reused + kLargestBlock < header + sample.facts_tokens) {
      return internal_error(fmt::format("the engine's cache had {} of {} tokens; is it too small?",
                                        sample.reused, header + sample.facts_tokens));
    }
  }
  return sample;
}

std::pair<std::uint32_t, std::uint32_t> TtftRig::fact_token_range() const {
  std::uint32_t least = UINT32_MAX;
  std::uint32_t most = 0;
  for (const auto& [id, fact] : facts_) {
    const auto length = static_cast<std::uint32_t>(fact.tokens.size());
    least = std::min(least, length);
    most = std::max(most, length);
  }
  return {least, most};
}

}  // namespace inferscale::cli
