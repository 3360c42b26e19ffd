#include "memory/contexts/fact_contexts.h"

#include <algorithm>

#include "memory/contexts/context_lines.h"

namespace inferscale {
namespace {

Result<bool> never(const Fact&, const Fact&) { return false; }

}  // namespace

Result<std::vector<EncodeGroup>> WindowContext::split(std::span<const Fact> facts,
                                                      std::size_t max_group) const {
  return split_facts(facts, max_group, [this](const Fact& previous, const Fact& next) {
    return are_neighbours(sources_.catalog, previous, next);
  });
}

Status WindowContext::fill(EncodeGroup& group) const {
  group.joint = joint_;
  return append_window(sources_, n_, group);
}

Result<std::vector<EncodeGroup>> NearContext::split(std::span<const Fact> facts,
                                                    std::size_t max_group) const {
  return split_facts(facts, max_group, never);
}

Status NearContext::fill(EncodeGroup& group) const {
  const Fact& fact = group.facts.front();
  INFERSCALE_ASSIGN_OR_RETURN(const std::vector<Fact> nearest,
                              sources_.catalog.nearest_facts({fact.id, fact.version}, n_));
  return nearest.empty() ? append_window(sources_, n_, group)
                         : append_list(sources_, nearest, n_, group);
}

Result<std::vector<EncodeGroup>> LogContext::split(std::span<const Fact> facts,
                                                   std::size_t max_group) const {
  return split_facts(facts, max_group, never);
}

Status LogContext::fill(EncodeGroup& group) const {
  const Fact& fact = group.facts.front();
  INFERSCALE_ASSIGN_OR_RETURN(const std::vector<Fact> before,
                              sources_.catalog.facts_before(fact.scope, fact.sequence, spec_.n));
  INFERSCALE_ASSIGN_OR_RETURN(std::vector<ContextRecord> log, last_fact_lines(sources_, before));
  INFERSCALE_ASSIGN_OR_RETURN(group.fixed_lines,
                              primer_tokens(sources_.tokenizer, spec_.n - log.size()));
  std::vector<FactRef> refs;
  for (const ContextRecord& past : log) {
    refs.push_back(past.fact);
  }
  INFERSCALE_ASSIGN_OR_RETURN(std::vector<std::optional<RecordEntry>> entries,
                              sources_.catalog.records_of(refs, sources_.model_fingerprint));
  // The KV of an outdated record would make this one outdated at birth.
  const std::string context = spec_.spelling();
  bool as_kv = true;
  for (std::size_t i = 0; i < log.size(); ++i) {
    as_kv = as_kv && entries[i] && entries[i]->context == context && !entries[i]->stale;
    if (as_kv) {
      log[i].entry = *std::move(entries[i]);
      group.injected.push_back(std::move(log[i]));
    } else {
      group.attended_facts.push_back(log[i].fact);
      group.lines.push_back(std::move(log[i].line));
    }
  }
  return {};
}

}  // namespace inferscale
