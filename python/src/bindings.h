#pragma once

#include <nanobind/nanobind.h>

/// What `inferscale._core` consists of; each function adds one subject to the module. The bindings
/// translate and check types, everything else is the library's.
namespace inferscale::python {

namespace nb = nanobind;

void bind_errors(nb::module_& m);
void bind_spec(nb::module_& m);
void bind_request(nb::module_& m);
void bind_index(nb::module_& m);
void bind_record_store(nb::module_& m);

}  // namespace inferscale::python
