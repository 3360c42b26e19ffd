#pragma once

#include "memory/encode_context.h"

namespace inferscale {

/// turns:w: the w turns of the scope before the fact's first source turn, one line each. Facts
/// without a source turn that is there get primer:8. Facts of a group cite the same turns.
class TurnsContext final : public EncodeContext {
 public:
  TurnsContext(std::size_t w, const ContextSources& sources) : w_(w), sources_(sources) {}
  Result<std::vector<EncodeGroup>> split(std::span<const Fact> facts,
                                         std::size_t max_group) const override;
  Status fill(EncodeGroup& group) const override;

 private:
  std::size_t w_;
  ContextSources sources_;
};

}  // namespace inferscale
