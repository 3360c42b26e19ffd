# Runs the example twice in one data directory: the second run adds nothing and injects what the first one encoded.
if(DEFINED ENV{INFERSCALE_CACHE})
  set(models "$ENV{INFERSCALE_CACHE}/models")
elseif(DEFINED ENV{XDG_CACHE_HOME})
  set(models "$ENV{XDG_CACHE_HOME}/inferscale/models")
else()
  set(models "$ENV{HOME}/.cache/inferscale/models")
endif()
file(REMOVE_RECURSE "${DATA}")
foreach(round 1 2)
  execute_process(
    COMMAND "${PROGRAM}" "${DATA}" "${models}/SmolLM2-135M-Instruct.Q4_1.gguf" "${models}/all-MiniLM-L6-v2-f16.gguf"
    OUTPUT_VARIABLE output COMMAND_ERROR_IS_FATAL ANY)
  message("${output}")
endforeach()
if(NOT output MATCHES "[Bb]iscuit" OR NOT output MATCHES "[1-9][0-9]+ tokens injected" OR output MATCHES ": [0-9]")
  message(FATAL_ERROR "the second run should answer from injected facts, without fallbacks")
endif()
