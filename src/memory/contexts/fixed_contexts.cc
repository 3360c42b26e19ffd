#include "memory/contexts/fixed_contexts.h"

#include "memory/contexts/context_lines.h"
#include "memory/contexts/scope_names.h"

namespace inferscale {
namespace {

Result<bool> always(const Fact&, const Fact&) { return true; }

}  // namespace

Result<std::vector<EncodeGroup>> PrimerContext::split(std::span<const Fact> facts,
                                                      std::size_t max_group) const {
  return split_facts(facts, max_group, always);
}

Status PrimerContext::fill(EncodeGroup& group) const {
  INFERSCALE_ASSIGN_OR_RETURN(group.fixed_lines, primer_tokens(sources_.tokenizer, n_));
  return {};
}

Result<std::vector<EncodeGroup>> AloneContext::split(std::span<const Fact> facts,
                                                     std::size_t max_group) const {
  return split_facts(facts, max_group, always);
}

Status AloneContext::fill(EncodeGroup& group) const {
  group.header = false;
  return {};
}

Result<std::vector<EncodeGroup>> NamesContext::split(std::span<const Fact> facts,
                                                     std::size_t max_group) const {
  return split_facts(facts, max_group, always);
}

Status NamesContext::fill(EncodeGroup& group) const {
  INFERSCALE_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                              scope_names(sources_.catalog, group.facts.front().scope));
  group.fixed_of_scope = !names.empty();
  INFERSCALE_ASSIGN_OR_RETURN(group.fixed_lines, primer_tokens(sources_.tokenizer, n_, names));
  return {};
}

}  // namespace inferscale
