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

/// Puts the device that `name` means into the options: "" none, "plain" plain memory, "cuda:N".
/// Raises ValueError, or NotImplementedError when this build has no such device.
void set_device(const std::string& name, RankStoreOptions* options);

/// (key, scope_hash, context_id or None, tokens, first_position). REQUIRES: five parts.
[[nodiscard]] LoadItem to_load_item(std::span<const nb::object> parts);

/// What makes the device of the name, and its number. Errors: as set_device.
[[nodiscard]] DeviceFactory to_device(const std::string& name, int* index);

/// The methods that a store has for its device.
void bind_device(nb::module_& m, nb::class_<RankStore>& store);
/// Those for an engine that shows its cache late and looks at each capture.
void bind_device_cache(nb::module_& m, nb::class_<RankStore>& store);

}  // namespace inferscale::python
