# Compiles through ccache when it is installed and no other launcher was asked for.
find_program(INFERSCALE_CCACHE ccache DOC "Compiler cache; empty or NOTFOUND: none")
if(INFERSCALE_CCACHE)
  foreach(language C CXX)
    if(NOT CMAKE_${language}_COMPILER_LAUNCHER)
      set(CMAKE_${language}_COMPILER_LAUNCHER "${INFERSCALE_CCACHE}")
    endif()
  endforeach()
endif()
