#include "memory/contexts/context_lines.h"

#include <algorithm>
#include <iterator>

#include "memory/primer.h"

namespace inferscale {

Result<std::vector<EncodeGroup>> split_facts(
    std::span<const Fact> facts, std::size_t max_group,
    const std::function<Result<bool>(const Fact& previous, const Fact& next)>& together) {
  std::vector<EncodeGroup> groups;
  for (const Fact& fact : facts) {
    bool fits = !groups.empty() && groups.back().facts.size() < max_group;
    if (fits) {
      INFERSCALE_ASSIGN_OR_RETURN(fits, together(groups.back().facts.back(), fact));
    }
    if (!fits) {
      groups.emplace_back();
    }
    groups.back().facts.push_back(fact);
  }
  return groups;
}

Result<bool> are_neighbours(Catalog& catalog, const Fact& previous, const Fact& next) {
  INFERSCALE_ASSIGN_OR_RETURN(const std::vector<Fact> before,
                              catalog.facts_before(next.scope, next.sequence, 1));
  return !before.empty() && before.front().id == previous.id;
}

Result<std::vector<std::vector<TokenId>>> primer_tokens(const Tokenizer& tokenizer, std::size_t n,
                                                        std::span<const std::string> names) {
  std::vector<std::vector<TokenId>> lines;
  for (const std::string& line : primer_lines(n, names)) {
    INFERSCALE_ASSIGN_OR_RETURN(std::vector<TokenId> tokens, tokenizer.encode(line, false));
    lines.push_back(std::move(tokens));
  }
  return lines;
}

Result<std::vector<ContextRecord>> last_fact_lines(const ContextSources& sources,
                                                   std::span<const Fact> facts) {
  std::vector<ContextRecord> lines;  // newest first
  std::size_t used = 0;
  for (auto fact = facts.rbegin(); fact != facts.rend(); ++fact) {
    INFERSCALE_ASSIGN_OR_RETURN(
        std::vector<TokenId> line,
        sources.prompt.fact_line(fact->text, fact->event_time, fact->event_offset_minutes));
    used += line.size();
    if (used > kMaxListTokens) {
      break;
    }
    lines.push_back({{fact->id, fact->version}, std::move(line), {}});
  }
  std::reverse(lines.begin(), lines.end());
  return lines;
}

Status append_list(const ContextSources& sources, std::span<const Fact> facts, std::size_t n,
                   EncodeGroup& group) {
  INFERSCALE_ASSIGN_OR_RETURN(std::vector<ContextRecord> list, last_fact_lines(sources, facts));
  INFERSCALE_ASSIGN_OR_RETURN(std::vector<std::vector<TokenId>> primer,
                              primer_tokens(sources.tokenizer, n - std::min(n, list.size())));
  std::move(primer.begin(), primer.end(), std::back_inserter(group.lines));
  for (ContextRecord& fact : list) {
    group.attended_facts.push_back(fact.fact);
    group.lines.push_back(std::move(fact.line));
  }
  return {};
}

Status append_window(const ContextSources& sources, std::size_t n, EncodeGroup& group) {
  const Fact& first = group.facts.front();
  INFERSCALE_ASSIGN_OR_RETURN(const std::vector<Fact> before,
                              sources.catalog.facts_before(first.scope, first.sequence, n));
  return append_list(sources, before, n, group);
}

}  // namespace inferscale
