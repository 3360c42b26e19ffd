#include "errors.h"

#include <nanobind/stl/string.h>

#include <string>
#include <string_view>

#include "bindings.h"

namespace inferscale::python {
namespace {

constexpr std::string_view kOwn = "inferscale.";

/// An exception of the package's own, by its name in the error table.
struct OwnError {
  const char* name;
  const char* doc;
  PyObject* type = nullptr;  // lives as long as the process
};

OwnError own_errors[] = {
    {"inferscale.ConflictError", "The expected state differs, or another process has the store."},
    {"inferscale.CorruptionError", "Bytes do not match their checksum; what they were is dropped."},
    {"inferscale.RetryError", "Something that is needed is down; trying again may help."},
};

/// Borrowed; null with a Python error when there is none.
PyObject* exception_type(std::string_view name) {
  for (const OwnError& error : own_errors) {
    if (name == error.name) {
      return error.type;
    }
  }
  PyObject* found = PyDict_GetItemString(PyEval_GetBuiltins(), std::string(name).c_str());
  return found != nullptr ? found : PyExc_RuntimeError;
}

}  // namespace

void bind_errors(nb::module_& m) {
  for (OwnError& error : own_errors) {
    // Its home is this module, for the type stubs; the package shows it under its short name.
    const std::string home = nb::cast<std::string>(m.attr("__name__"));
    const std::string name = home + "." + (error.name + kOwn.size());
    error.type = PyErr_NewExceptionWithDoc(name.c_str(), error.doc, PyExc_Exception, nullptr);
    if (error.type == nullptr) {
      throw nb::python_error();
    }
    m.attr(error.name + kOwn.size()) = nb::borrow(error.type);
  }
}

void raise(const Status& status, const RecordKey* key) {
  nb::object type = nb::borrow(exception_type(error_row(status.code()).python_exception));
  nb::object error = type(nb::str(status.message().c_str()));
  if (key != nullptr) {
    error.attr("key") = key->value.to_hex();
  }
  PyErr_SetObject(type.ptr(), error.ptr());
  throw nb::python_error();
}

}  // namespace inferscale::python
