# Finds libllama, in this order: CMAKE_PREFIX_PATH or llama_DIR; INFERSCALE_LLAMA_ROOT (a variable, else the
# environment's); the build that scripts/provide_libllama.sh keeps; a system package.
set(INFERSCALE_LLAMA_ROOT "" CACHE PATH "Prefix of a libllama installation; empty: search for one")

set(llama_hint "${INFERSCALE_LLAMA_ROOT}")
if(NOT llama_hint)
  set(llama_hint "$ENV{INFERSCALE_LLAMA_ROOT}")
endif()
if(NOT llama_hint)
  execute_process(COMMAND sh "${PROJECT_SOURCE_DIR}/scripts/provide_libllama.sh" --print-root
                  OUTPUT_VARIABLE llama_hint OUTPUT_STRIP_TRAILING_WHITESPACE
                  RESULT_VARIABLE llama_hint_result ERROR_QUIET)
  if(NOT llama_hint_result EQUAL 0)
    set(llama_hint "")
  endif()
endif()

# A build folder outlives the libllama that it was configured with: forget what was found under another hint.
if(INFERSCALE_LLAMA_HINT AND NOT llama_hint STREQUAL INFERSCALE_LLAMA_HINT)
  foreach(found llama_DIR llama_LIBRARY ggml_DIR GGML_LIBRARY GGML_BASE_LIBRARY ggml-cpu_LIBRARY GGML_CPU_LIBRARY)
    if("${${found}}" MATCHES "^${INFERSCALE_LLAMA_HINT}")
      unset(${found} CACHE)
    endif()
  endforeach()
endif()
set(INFERSCALE_LLAMA_HINT "${llama_hint}" CACHE INTERNAL "Where libllama was looked for")

find_package(llama CONFIG QUIET HINTS "${llama_hint}")
if(NOT llama_FOUND)
  message(FATAL_ERROR
    "libllama was not found. Either run `./run setup` (it builds libllama once, outside the build folder), or pass "
    "-DINFERSCALE_LLAMA_ROOT=PREFIX of an installation, or build the core alone with -DINFERSCALE_BUILD_APP=OFF.")
endif()
message(STATUS "libllama ${LLAMA_VERSION}: ${llama_DIR}")
