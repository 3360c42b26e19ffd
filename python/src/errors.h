#pragma once

#include <nanobind/nanobind.h>

#include <utility>

#include "inferscale/kv_record.h"
#include "inferscale/status.h"

namespace inferscale::python {

/// Throws the exception that the error table (docs/errors.md) gives this code; with a key, its
/// attribute `key` holds it in hexadecimal. REQUIRES: an error; the GIL.
[[noreturn]] void raise(const Status& status, const RecordKey* key = nullptr);

/// REQUIRES: the GIL.
inline void check(const Status& status) {
  if (!status.ok()) {
    raise(status);
  }
}

/// REQUIRES: the GIL.
template <typename T>
T take(Result<T> result) {
  check(result.status());
  return std::move(result).value();
}

}  // namespace inferscale::python
