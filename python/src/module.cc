#include "bindings.h"
#include "inferscale/version.h"

NB_MODULE(_core, m) {
  using namespace inferscale::python;  // NOLINT: the module's own
  m.doc() =
      "InferScale's core: records of keys and values, and what decides where they may be used.";
  m.attr("version") = INFERSCALE_VERSION;
  bind_errors(m);
  bind_spec(m);
  bind_request(m);
  bind_index(m);
  bind_record_store(m);
}
