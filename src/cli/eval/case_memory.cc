#include "cli/eval/case_memory.h"

#include <fmt/format.h>

#include <array>

#include "memory/record_request.h"

namespace inferscale::cli {
namespace {

// A case's facts are its own: whatever the scope is called, it is alone in its directory.
const Scope kCaseScope{};

}  // namespace

Result<std::unique_ptr<CaseMemory>> CaseMemory::open(const MemoryOptions& options,
                                                     const ServiceDependencies& dependencies,
                                                     const EvalCase& data,
                                                     const std::filesystem::path& directory,
                                                     const std::string& context) {
  MemoryOptions mine = options;
  mine.directory = directory;
  mine.encode_context = context;
  mine.encode_in_background = false;
  std::unique_ptr<CaseMemory> memory(new CaseMemory());
  INFERSCALE_ASSIGN_OR_RETURN(std::unique_ptr<ServiceCore> core,
                              ServiceCore::open(mine, dependencies));
  memory->core_ = core.get();
  memory->service_ = std::make_unique<Service>(std::move(core));
  INFERSCALE_ASSIGN_OR_RETURN(memory->parts_, memory->core_->engine());
  INFERSCALE_RETURN_IF_ERROR(memory->take_in(data).with_context(fmt::format("case {}", data.id)));
  return memory;
}

Status CaseMemory::take_in(const EvalCase& data) {
  INFERSCALE_ASSIGN_OR_RETURN(const AddReply added,
                              service_->add(kCaseScope, data.turns, data.facts, false, {}));
  if (!added.errors.empty()) {
    return Status(added.errors[0].code, added.errors[0].message);
  }
  if (added.ids.size() != data.facts.size() || data.facts.empty()) {
    return invalid_argument(
        fmt::format("{} facts became {}: an evaluation needs facts of one line each",
                    data.facts.size(), added.ids.size()));
  }
  for (const std::string& id : added.ids) {
    INFERSCALE_ASSIGN_OR_RETURN(const Fact fact, core_->catalog().get_fact(kCaseScope, id));
    INFERSCALE_ASSIGN_OR_RETURN(
        std::vector<TokenId> line,
        parts_->prompt->fact_line(fact.text, fact.event_time, fact.event_offset_minutes));
    index_.emplace(fact.id, facts_.size());
    facts_.push_back({fact.id, fact.version});
    scopes_.push_back(scope_hash(fact.scope));
    lines_.push_back(std::move(line));
  }
  return {};
}

Result<EncodeCost> CaseMemory::encode(const WorkControl& control) {
  INFERSCALE_ASSIGN_OR_RETURN(const EncodeReply reply, service_->encode_pending(control));
  if (is_cancelled(control)) {
    return unavailable("cancelled");
  }
  if (reply.failed > 0 || reply.stopped_early) {
    return unavailable(fmt::format("{} facts could not be encoded", reply.failed));
  }
  EncodeCost cost;
  cost.facts = reply.encoded;
  cost.prefilled_tokens = reply.tokens_prefilled;
  cost.ms = reply.elapsed_ms;
  for (std::size_t i = 0; i < facts_.size(); ++i) {
    cost.own_tokens += lines_[i].size();
    INFERSCALE_ASSIGN_OR_RETURN(const std::vector<RecordEntry> dependants,
                                core_->catalog().dependants_of(facts_[i].id));
    for (const RecordEntry& entry : dependants) {
      cost.reach += entry.fact.id != facts_[i].id ? 1.0 / static_cast<double>(facts_.size()) : 0;
    }
  }
  return cost;
}

Result<std::vector<std::size_t>> CaseMemory::rank(const std::string& question) {
  INFERSCALE_ASSIGN_OR_RETURN(Retriever* const retriever, core_->retriever());
  RetrievalRequest request;
  request.scope = kCaseScope;
  request.query = question;
  request.k = std::min(index_.size(), kMaxRetrieved);
  INFERSCALE_ASSIGN_OR_RETURN(const RetrievalResult found, retriever->search(request));
  std::vector<std::size_t> ranked;
  for (const RetrievedFact& hit : found.facts) {
    ranked.push_back(index_.at(hit.fact.id));
  }
  return ranked;
}

Result<std::vector<Lease>> CaseMemory::lease(std::span<const std::size_t> facts) {
  std::vector<FactRef> refs;
  for (const std::size_t fact : facts) {
    refs.push_back(facts_.at(fact));
  }
  INFERSCALE_ASSIGN_OR_RETURN(const std::vector<std::optional<RecordEntry>> entries,
                              core_->catalog().records_of(refs, parts_->fingerprint()));
  std::vector<RecordRequest> requests;
  for (std::size_t i = 0; i < facts.size(); ++i) {
    if (!entries[i]) {
      return unavailable(fmt::format("fact {} has no record", facts[i]));
    }
    requests.push_back(record_request(*parts_, entries[i]->key, entries[i]->context_id,
                                      scopes_.at(facts[i]), lines_.at(facts[i])));
  }
  std::vector<Lease> leases = core_->store().acquire(requests);
  for (std::size_t i = 0; i < leases.size(); ++i) {
    if (!leases[i].ready()) {
      return unavailable(
          fmt::format("the record of fact {} is not at hand ({}); raise "
                      "--host-budget",
                      facts[i], miss_reason_name(leases[i].reason())));
    }
  }
  return leases;
}

Result<Segment> CaseMemory::header() {
  INFERSCALE_RETURN_IF_ERROR(warm_header(*core_, *parts_, kCaseScope));
  PrefixSegment header = lease_header(*core_, *parts_);
  if (header.cold) {
    return unavailable("the header's record is not at hand; raise --host-budget");
  }
  return std::move(header.segment);
}

}  // namespace inferscale::cli
