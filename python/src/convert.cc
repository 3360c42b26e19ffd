#include "convert.h"

#include <algorithm>
#include <cstring>
#include <memory>

#include "base/hash.h"
#include "base/scope_check.h"
#include "connector/request_params.h"
#include "errors.h"

namespace inferscale::python {
namespace {

std::string name_of(std::string_view field) { return std::string(field); }

[[noreturn]] void raise_type(std::string_view field, const char* wanted) {
  throw nb::type_error((name_of(field) + " must be " + wanted).c_str());
}

[[noreturn]] void raise_value(const std::string& message) {
  throw nb::value_error(message.c_str());
}

/// Of a list or tuple of anything that is a number; says what is wrong otherwise.
std::vector<TokenId> slow_tokens(std::string_view field, nb::handle value) {
  std::vector<TokenId> tokens;
  for (const nb::object& item : to_items(field, value)) {
    tokens.push_back(static_cast<TokenId>(to_number(field, item, 0x7FFFFFFF)));
  }
  return tokens;
}

}  // namespace

std::string to_text(std::string_view field, nb::handle value) {
  if (!PyUnicode_Check(value.ptr())) {
    raise_type(field, "a str");
  }
  Py_ssize_t size = 0;
  const char* text = PyUnicode_AsUTF8AndSize(value.ptr(), &size);
  if (text == nullptr) {  // lone surrogates: UnicodeEncodeError, a ValueError
    throw nb::python_error();
  }
  return {text, static_cast<std::size_t>(size)};
}

std::vector<nb::object> to_items(std::string_view field, nb::handle value) {
  if (!PyList_Check(value.ptr()) && !PyTuple_Check(value.ptr())) {
    raise_type(field, "a list or a tuple");
  }
  std::vector<nb::object> items;
  for (nb::handle item : nb::borrow<nb::sequence>(value)) {
    items.push_back(nb::borrow(item));
  }
  return items;
}

std::span<const std::byte> as_bytes(const nb::bytes& value) {
  return {static_cast<const std::byte*>(value.data()), value.size()};
}

Hash128 to_hash(std::string_view field, nb::handle value) {
  return take([&]() -> Result<Hash128> {
    const Result<Hash128> hash = Hash128::from_hex(to_text(field, value));
    return hash.ok() ? hash : Result<Hash128>(hash.status().with_context(field));
  }());
}

RecordKey to_key(std::string_view field, nb::handle value) {
  return RecordKey{to_hash(field, value)};
}

std::vector<RecordKey> to_keys(std::string_view field, nb::handle value) {
  std::vector<RecordKey> keys;
  for (const nb::object& item : to_items(field, value)) {
    keys.push_back(to_key(field, item));
  }
  return keys;
}

std::vector<std::string> from_keys(std::span<const RecordKey> keys) {
  std::vector<std::string> texts;
  for (const RecordKey& key : keys) {
    texts.push_back(key.value.to_hex());
  }
  return texts;
}

ContextKind to_context_kind(nb::handle value) {
  return take(parse_context_kind(to_text("context kind", value)));
}

std::vector<TokenId> to_tokens(std::string_view field, nb::handle value) {
  using Array = nb::ndarray<const TokenId, nb::ndim<1>, nb::device::cpu>;
  Array array;
  if (nb::try_cast<Array>(nb::borrow(value), array, false)) {
    std::vector<TokenId> tokens(array.shape(0));
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      tokens[i] = array.data()[static_cast<std::int64_t>(i) * array.stride(0)];
    }
    return tokens;
  }
  if (!PyList_Check(value.ptr()) && !PyTuple_Check(value.ptr())) {
    raise_type(field, "a one-dimensional int32 array or a list of int");
  }
  std::vector<TokenId> tokens(static_cast<std::size_t>(PySequence_Fast_GET_SIZE(value.ptr())));
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    // An int's conversion runs no code that could change the list; what else is there may.
    PyObject* const item = PySequence_Fast_GET_ITEM(value.ptr(), static_cast<Py_ssize_t>(i));
    int overflow = 0;
    const long number = PyLong_CheckExact(item) ? PyLong_AsLongAndOverflow(item, &overflow) : -1;
    if (number < 0 || number > 0x7FFFFFFF) {
      return slow_tokens(field, value);
    }
    tokens[i] = static_cast<TokenId>(number);
  }
  return tokens;
}

nb::object from_tokens(std::span<const TokenId> tokens) {
  auto* copy = new TokenId[std::max<std::size_t>(tokens.size(), 1)];
  std::copy(tokens.begin(), tokens.end(), copy);
  nb::capsule owner(copy, [](void* data) noexcept { delete[] static_cast<TokenId*>(data); });
  const std::size_t shape[] = {tokens.size()};
  return nb::cast(nb::ndarray<nb::numpy, TokenId, nb::ndim<1>>(copy, 1, shape, owner));
}

Scope to_scope(nb::handle value) {
  if (PyUnicode_Check(value.ptr()) && to_text("scope", value) == "system") {
    return system_scope();
  }
  if (!PyDict_Check(value.ptr())) {
    raise_type("scope", "a dict with tenant, user, agent and run, or \"system\"");
  }
  const auto dict = nb::borrow<nb::dict>(value);
  static constexpr const char* kFields[] = {"tenant", "user", "agent", "run"};
  check_fields("scope", dict, kFields);
  Scope scope;
  scope.tenant = to_text("scope.tenant", field_of(dict, "tenant"));
  scope.user = to_text("scope.user", field_of(dict, "user"));
  if (dict.contains("agent")) {
    scope.agent = to_text("scope.agent", dict["agent"]);
  }
  if (dict.contains("run")) {
    scope.run = to_text("scope.run", dict["run"]);
  }
  check(check_scope("", scope));
  return scope;
}

nb::dict from_scope(const Scope& scope) {
  nb::dict dict;
  dict["tenant"] = scope.tenant;
  dict["user"] = scope.user;
  dict["agent"] = scope.agent;
  dict["run"] = scope.run;
  return dict;
}

nb::object field_of(const nb::dict& dict, const char* field) {
  if (!dict.contains(field)) {
    raise_value(std::string(field) + " is missing");
  }
  return nb::borrow(nb::object(dict[field]));
}

void check_fields(std::string_view what, const nb::dict& dict, std::span<const char* const> known) {
  for (const auto& entry : dict) {
    const std::string field = to_text(what, entry.first);
    if (std::find(known.begin(), known.end(), field) == known.end()) {
      raise_value(name_of(what) + " has no field " + field.substr(0, 64));
    }
  }
}

std::uint64_t to_number(std::string_view field, nb::handle value, std::uint64_t most) {
  if (PyBool_Check(value.ptr()) || !PyIndex_Check(value.ptr())) {
    raise_type(field, "an int");
  }
  const nb::object whole = nb::steal(PyNumber_Index(value.ptr()));
  const unsigned long long number =
      whole.is_valid() ? PyLong_AsUnsignedLongLong(whole.ptr()) : ~0ULL;
  if (PyErr_Occurred() != nullptr || number > most) {
    PyErr_Clear();
    raise_value(name_of(field) + " must be in 0.." + std::to_string(most));
  }
  return number;
}

double to_double(std::string_view field, nb::handle value) {
  const double number = PyFloat_AsDouble(value.ptr());
  if (PyErr_Occurred() != nullptr) {
    PyErr_Clear();
    raise_type(field, "a number");
  }
  return number;
}

}  // namespace inferscale::python
