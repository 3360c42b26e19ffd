#include "memory/encode_context.h"

#include "memory/contexts/fact_contexts.h"
#include "memory/contexts/fixed_contexts.h"
#include "memory/contexts/turn_contexts.h"

namespace inferscale {

std::unique_ptr<EncodeContext> make_encode_context(const ContextSpec& spec,
                                                   const ContextSources& sources) {
  switch (spec.kind) {
    case ContextKind::kPrefix:  // never configured
    case ContextKind::kParked:
    case ContextKind::kSource:
    case ContextKind::kNearAny:
    case ContextKind::kHeader:
    case ContextKind::kPrimer:
      return std::make_unique<PrimerContext>(spec.n, sources);
    case ContextKind::kAlone:
      return std::make_unique<AloneContext>();
    case ContextKind::kNames:
      return std::make_unique<NamesContext>(spec.n, sources);
    case ContextKind::kTurns:
      return std::make_unique<TurnsContext>(spec.n, sources);
    case ContextKind::kWindow:
    case ContextKind::kChain:
      return std::make_unique<WindowContext>(spec.n, spec.kind == ContextKind::kChain, sources);
    case ContextKind::kNear:
      return std::make_unique<NearContext>(spec.n, sources);
    case ContextKind::kLog:
      return std::make_unique<LogContext>(spec, sources);
  }
  return nullptr;
}

}  // namespace inferscale
