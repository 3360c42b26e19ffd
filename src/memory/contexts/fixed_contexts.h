#pragma once

#include "memory/encode_context.h"

namespace inferscale {

/// header and primer:n (header: n = 0): the same lines for everyone, so nothing is depended on.
class PrimerContext final : public EncodeContext {
 public:
  PrimerContext(std::size_t n, const ContextSources& sources) : n_(n), sources_(sources) {}
  Result<std::vector<EncodeGroup>> split(std::span<const Fact> facts,
                                         std::size_t max_group) const override;
  Status fill(EncodeGroup& group) const override;

 private:
  std::size_t n_;
  ContextSources sources_;
};

/// alone: nothing at all, neither BOS nor header. Facts that are encoded so and served side by side
/// lose what they say: it is there to show that.
class AloneContext final : public EncodeContext {
 public:
  Result<std::vector<EncodeGroup>> split(std::span<const Fact> facts,
                                         std::size_t max_group) const override;
  Status fill(EncodeGroup& group) const override;
};

/// names:n: the primer's lines with the scope's own names in them (memory/contexts/scope_names.h);
/// without any, the primer itself. No fact and no turn is depended on.
class NamesContext final : public EncodeContext {
 public:
  NamesContext(std::size_t n, const ContextSources& sources) : n_(n), sources_(sources) {}
  Result<std::vector<EncodeGroup>> split(std::span<const Fact> facts,
                                         std::size_t max_group) const override;
  Status fill(EncodeGroup& group) const override;

 private:
  std::size_t n_;
  ContextSources sources_;
};

}  // namespace inferscale
