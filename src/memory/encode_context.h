#pragma once

#include <memory>
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

/// Facts that are encoded behind one context, each in a sequence of its own, and what stands before
/// them.
struct EncodeGroup {
  std::vector<Fact> facts;  ///< of one scope, in ingest order
  std::vector<std::vector<TokenId>>
      context_lines;                ///< between the header and the fact, prefilled as text
  std::vector<RecordKey> injected;  ///< records between the lines' end and the fact (log:n)
  std::vector<FactRef> attended_facts;
  std::vector<std::string> attended_turns;
};

/// Decides what facts attend to while they are encoded (architecture §4). One implementation per
/// kind; stateless.
class EncodeContext {
 public:
  virtual ~EncodeContext() = default;
  /// Splits `facts` (one scope, in ingest order) into groups of at most `max_group` facts.
  [[nodiscard]] virtual Result<std::vector<EncodeGroup>> group(std::span<const Fact> facts,
                                                               std::size_t max_group) const = 0;
};

/// Borrows catalog and prompt.
[[nodiscard]] std::unique_ptr<EncodeContext> make_encode_context(const ContextSpec& spec,
                                                                 Catalog& catalog,
                                                                 const PromptBuilder& prompt,
                                                                 const Tokenizer& tokenizer);

}  // namespace inferscale
