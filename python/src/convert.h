#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "inferscale/kv_record.h"
#include "inferscale/types.h"

/// Between Python's objects and the library's types. What does not fit raises ValueError or, where
/// the kind of object is wrong, TypeError, and names the field. All functions need the GIL.
namespace inferscale::python {

namespace nb = nanobind;

/// The text of a `str`.
[[nodiscard]] std::string to_text(std::string_view field, nb::handle value);
/// The items of a list or tuple.
[[nodiscard]] std::vector<nb::object> to_items(std::string_view field, nb::handle value);
[[nodiscard]] std::span<const std::byte> as_bytes(const nb::bytes& value);

[[nodiscard]] Hash128 to_hash(std::string_view field, nb::handle value);
[[nodiscard]] RecordKey to_key(std::string_view field, nb::handle value);
[[nodiscard]] std::vector<RecordKey> to_keys(std::string_view field, nb::handle value);
[[nodiscard]] std::vector<std::string> from_keys(std::span<const RecordKey> keys);
[[nodiscard]] ContextKind to_context_kind(nb::handle value);

/// Token ids: a one-dimensional int32 array, or a list of int.
[[nodiscard]] std::vector<TokenId> to_tokens(std::string_view field, nb::handle value);
/// A new int32 array.
[[nodiscard]] nb::object from_tokens(std::span<const TokenId> tokens);

/// {"tenant", "user", "agent", "run"}; agent and run may be missing. "system" for that scope.
[[nodiscard]] Scope to_scope(nb::handle value);
[[nodiscard]] nb::dict from_scope(const Scope& scope);

/// The value of a dict's field. Raises ValueError when it is missing.
[[nodiscard]] nb::object field_of(const nb::dict& dict, const char* field);
/// Raises ValueError when the dict has a field that is not on the list.
void check_fields(std::string_view what, const nb::dict& dict, std::span<const char* const> known);
[[nodiscard]] std::uint64_t to_number(std::string_view field, nb::handle value, std::uint64_t most);
[[nodiscard]] double to_double(std::string_view field, nb::handle value);

}  // namespace inferscale::python
