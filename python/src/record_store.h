#pragma once

#include <nanobind/nanobind.h>

#include <span>
#include <string>

#include "connector/rank_store.h"

/// What the bindings of RecordStore share.
namespace inferscale::python {

namespace nb = nanobind;

/// Runs `call`, which may read or write files or wait for a device, without the GIL.
template <typename Call>
auto unlocked(Call call) {
  nb::gil_scoped_release released;
  return call();
}

/// {"key", "scope_hash", "context_id", "context_kind", "context_tokens"}. Raises ValueError.
[[nodiscard]] CaptureMeta to_capture_meta(const nb::dict& meta);

/// A codec by its name, as "bf16". Raises ValueError that names the field.
[[nodiscard]] KvCodec to_codec(const char* field, const std::string& name);

/// (key, scope_hash, context_id or None, tokens, first_position). REQUIRES: five parts.
[[nodiscard]] LoadItem to_load_item(std::span<const nb::object> parts);

/// The methods that a store has for an engine's cache on a device.
void bind_device_cache(nb::module_& m, nb::class_<RankStore>& store);

}  // namespace inferscale::python
