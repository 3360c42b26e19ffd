#pragma once

#include <span>

#include "inferscale/kv_store.h"
#include "memory/service_core.h"

namespace inferscale {

/// What must hold of the record under `key` before it is leased: that it is of the engine's model,
/// of this owner and context, and of these token ids, which are borrowed.
[[nodiscard]] inline RecordRequest record_request(const EngineParts& parts, const RecordKey& key,
                                                  const Hash128& context_id, const Hash128& scope,
                                                  std::span<const TokenId> token_ids) {
  RecordRequest request;
  request.key = key;
  request.model_fingerprint = parts.fingerprint();
  request.shape = parts.engine->info().model.shape;
  request.scope = scope;
  request.token_ids = token_ids;
  request.context_id = context_id;
  return request;
}

}  // namespace inferscale
