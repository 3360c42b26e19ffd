#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "catalog/catalog.h"
#include "inferscale/kv_record.h"
#include "inferscale/status.h"
#include "inferscale/types.h"
#include "memory/context_spec.h"
#include "prompt/prompt_builder.h"

namespace inferscale {

/// A fact that is to be put in place as KV, with what it is prefilled from where that is not at
/// hand.
struct ContextRecord {
  FactRef fact;
  std::vector<TokenId> line;
  RecordEntry entry;
};

/// Facts that are encoded behind one context, and what stands there: the header, then the lines of
/// the members below in their order. Each fact has a sequence of its own, unless `joint`.
struct EncodeGroup {
  std::vector<Fact> facts;  ///< of one scope, in ingest order

  bool header = true;  ///< false: nothing stands before the facts, not even BOS
  bool joint = false;  ///< the facts follow each other in one sequence: each sees those before it
  /// The same for many groups: their KV, with the header's, is kept and injected.
  std::vector<std::vector<TokenId>> fixed_lines;
  bool fixed_of_scope = false;              ///< they tell of the facts' scope; else of nobody
  std::vector<ContextRecord> injected;      ///< as KV, from the first as far as it is at hand
  std::vector<std::vector<TokenId>> lines;  ///< as text

  std::vector<FactRef> attended_facts;      ///< those of `injected` not included
  std::vector<std::string> attended_turns;  ///< ids in the facts' scope
};

/// Decides what facts attend to while they are encoded (architecture §4). One implementation per
/// family of kinds, in memory/contexts; stateless.
class EncodeContext {
 public:
  virtual ~EncodeContext() = default;
  /// Splits `facts` (one scope, in ingest order) into groups of at most `max_group` facts that may
  /// share a context; nothing but the groups' facts is filled in.
  [[nodiscard]] virtual Result<std::vector<EncodeGroup>> split(std::span<const Fact> facts,
                                                               std::size_t max_group) const = 0;
  /// Fills in what the facts of a group are encoded behind, as the catalog is now.
  [[nodiscard]] virtual Status fill(EncodeGroup& group) const = 0;
};

/// What contexts are made from; all borrowed.
struct ContextSources {
  Catalog& catalog;
  const PromptBuilder& prompt;
  const Tokenizer& tokenizer;
  Hash128 model_fingerprint;
};

[[nodiscard]] std::unique_ptr<EncodeContext> make_encode_context(const ContextSpec& spec,
                                                                 const ContextSources& sources);

}  // namespace inferscale
