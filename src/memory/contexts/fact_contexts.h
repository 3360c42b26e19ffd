#pragma once

#include "memory/encode_context.h"

namespace inferscale {

/// window:n: the n live facts of the scope ingested before the group, as text, behind primer lines
/// where there are fewer. chain:n: the same, and each fact sees those before it in its group. Facts
/// of a group follow each other in the scope, so that their window is right for all of them.
class WindowContext final : public EncodeContext {
 public:
  WindowContext(std::size_t n, bool joint, const ContextSources& sources)
      : n_(n), joint_(joint), sources_(sources) {}
  Result<std::vector<EncodeGroup>> split(std::span<const Fact> facts,
                                         std::size_t max_group) const override;
  Status fill(EncodeGroup& group) const override;

 private:
  std::size_t n_;
  bool joint_;
  ContextSources sources_;
};

/// near:n: the n facts of the scope before the fact whose vectors are nearest to its own, as text
/// in ingest order, behind primer lines where there are fewer. A fact without vectors, or with none
/// to compare with, gets what window:n gives.
class NearContext final : public EncodeContext {
 public:
  NearContext(std::size_t n, const ContextSources& sources) : n_(n), sources_(sources) {}
  Result<std::vector<EncodeGroup>> split(std::span<const Fact> facts,
                                         std::size_t max_group) const override;
  Status fill(EncodeGroup& group) const override;

 private:
  std::size_t n_;
  ContextSources sources_;
};

/// log:n: the KV of the n facts before the fact, behind primer lines where there are fewer. From
/// the first on that has no record of this context, or only an outdated one, they are text.
class LogContext final : public EncodeContext {
 public:
  LogContext(const ContextSpec& spec, const ContextSources& sources)
      : spec_(spec), sources_(sources) {}
  Result<std::vector<EncodeGroup>> split(std::span<const Fact> facts,
                                         std::size_t max_group) const override;
  Status fill(EncodeGroup& group) const override;

 private:
  ContextSpec spec_;
  ContextSources sources_;
};

}  // namespace inferscale
