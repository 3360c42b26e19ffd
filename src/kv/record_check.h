#pragma once

#include <algorithm>
#include <span>

#include "inferscale/kv_record.h"
#include "inferscale/kv_store.h"

namespace inferscale {

/// Every field of a request against the record found under its key: a key is a name, not a proof.
[[nodiscard]] inline MissReason mismatch(const RecordRequest& request, const RecordMeta& meta,
                                         std::span<const TokenId> token_ids) {
  if (meta.model_fingerprint != request.model_fingerprint || meta.shape != request.shape) {
    return MissReason::kWrongModel;
  }
  if (meta.scope != request.scope) {
    return MissReason::kWrongScope;
  }
  if (!std::equal(request.token_ids.begin(), request.token_ids.end(), token_ids.begin(),
                  token_ids.end())) {
    return MissReason::kWrongTokens;
  }
  return request.any_context || meta.context_id == request.context_id ? MissReason::kNone
                                                                      : MissReason::kWrongContext;
}

}  // namespace inferscale
