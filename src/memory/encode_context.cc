#include "memory/encode_context.h"

#include <iterator>

#include "memory/primer.h"

namespace inferscale {
namespace {

// Facts further apart than this in ingest order do not share a window: it would no longer be
// theirs.
constexpr std::int64_t kMaxGroupSpan = 64;

// A window of very long facts is shortened from its far end, so that encoding stays bounded.
constexpr std::size_t kMaxContextTokens = 1024;

Result<std::vector<std::vector<TokenId>>> tokenize_primer(const Tokenizer& tokenizer,
                                                          std::size_t n) {
  std::vector<std::vector<TokenId>> lines;
  for (const std::string& line : primer_lines(n)) {
    INFERSCALE_ASSIGN_OR_RETURN(std::vector<TokenId> tokens, tokenizer.encode(line, false));
    lines.push_back(std::move(tokens));
  }
  return lines;
}

std::vector<EncodeGroup> split(std::span<const Fact> facts, std::size_t max_group,
                               std::int64_t max_span) {
  std::vector<EncodeGroup> groups;
  for (const Fact& fact : facts) {
    const bool fits = !groups.empty() && groups.back().facts.size() < max_group &&
                      fact.sequence - groups.back().facts.front().sequence < max_span;
    if (!fits) {
      groups.emplace_back();
    }
    groups.back().facts.push_back(fact);
  }
  return groups;
}

// header and primer:n: the same lines for everyone, so nothing is depended on.
class FixedContext final : public EncodeContext {
 public:
  FixedContext(std::size_t n, const Tokenizer& tokenizer) : n_(n), tokenizer_(tokenizer) {}

  Result<std::vector<EncodeGroup>> group(std::span<const Fact> facts,
                                         std::size_t max_group) const override {
    INFERSCALE_ASSIGN_OR_RETURN(const auto lines, tokenize_primer(tokenizer_, n_));
    std::vector<EncodeGroup> groups = split(facts, max_group, INT64_MAX);
    for (EncodeGroup& group : groups) {
      group.context_lines = lines;
    }
    return groups;
  }

 private:
  std::size_t n_;
  const Tokenizer& tokenizer_;
};

// window:n: the n live facts of the scope ingested before the group, behind primer lines where
// there are fewer. All facts of a group see the same n facts, and only those.
class WindowContext final : public EncodeContext {
 public:
  WindowContext(std::size_t n, Catalog& catalog, const PromptBuilder& prompt,
                const Tokenizer& tokenizer)
      : n_(n), catalog_(catalog), prompt_(prompt), tokenizer_(tokenizer) {}

  Result<std::vector<EncodeGroup>> group(std::span<const Fact> facts,
                                         std::size_t max_group) const override {
    std::vector<EncodeGroup> groups = split(facts, max_group, kMaxGroupSpan);
    for (EncodeGroup& group : groups) {
      INFERSCALE_RETURN_IF_ERROR(fill(group));
    }
    return groups;
  }

 private:
  Status fill(EncodeGroup& group) const {
    const Fact& first = group.facts.front();
    INFERSCALE_ASSIGN_OR_RETURN(const std::vector<Fact> before,
                                catalog_.facts_before(first.scope, first.sequence, n_));
    std::vector<std::vector<TokenId>> lines;  // newest first
    std::size_t used = 0;
    for (auto fact = before.rbegin(); fact != before.rend(); ++fact) {
      INFERSCALE_ASSIGN_OR_RETURN(
          std::vector<TokenId> line,
          prompt_.fact_line(fact->text, fact->event_time, fact->event_offset_minutes));
      used += line.size();
      if (used > kMaxContextTokens) {
        break;
      }
      lines.push_back(std::move(line));
      group.attended_facts.push_back({fact->id, fact->version});
    }
    INFERSCALE_ASSIGN_OR_RETURN(group.context_lines,
                                tokenize_primer(tokenizer_, n_ - lines.size()));
    group.context_lines.insert(group.context_lines.end(), std::make_move_iterator(lines.rbegin()),
                               std::make_move_iterator(lines.rend()));
    return {};
  }

  std::size_t n_;
  Catalog& catalog_;
  const PromptBuilder& prompt_;
  const Tokenizer& tokenizer_;
};

}  // namespace

std::unique_ptr<EncodeContext> make_encode_context(const ContextSpec& spec, Catalog& catalog,
                                                   const PromptBuilder& prompt,
                                                   const Tokenizer& tokenizer) {
  if (spec.kind == ContextKind::kWindow) {
    return std::make_unique<WindowContext>(spec.n, catalog, prompt, tokenizer);
  }
  return std::make_unique<FixedContext>(spec.kind == ContextKind::kPrimer ? spec.n : 0, tokenizer);
}

}  // namespace inferscale
