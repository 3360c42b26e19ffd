# Sources of the module _core.
set(core_module_sources
  src/arrays.cc
  src/convert.cc
  src/errors.cc
  src/index.cc
  src/module.cc
  src/record_store.cc
  src/request.cc
  src/spec.cc)
