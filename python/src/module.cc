#include <nanobind/nanobind.h>

#include "inferscale/version.h"

NB_MODULE(_core, m) {
  m.doc() =
      "InferScale's core: records of keys and values, and what decides where they may be used.";
  m.attr("version") = INFERSCALE_VERSION;
}
