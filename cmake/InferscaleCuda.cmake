# Whether the CUDA kernels are built. INFERSCALE_CUDA: AUTO (when a CUDA compiler is found and no sanitizer is asked for),
# ON (an error when none is found), OFF. The compiler is looked for where CMake looks (CMAKE_CUDA_COMPILER, CUDACXX, PATH),
# then in INFERSCALE_CUDA_ROOT (a variable, else the environment's), the usual place and what scripts/provide_cuda.sh keeps.
set(INFERSCALE_CUDA AUTO CACHE STRING "Build the CUDA kernels: AUTO, ON or OFF")
set_property(CACHE INFERSCALE_CUDA PROPERTY STRINGS AUTO ON OFF)
set(INFERSCALE_CUDA_ARCHITECTURES "" CACHE STRING
    "Architectures as CMAKE_CUDA_ARCHITECTURES has them; empty: the environment variable of this name, else 80-real;90-real;90-virtual, the last for later ones")
set(INFERSCALE_CUDA_ROOT "" CACHE PATH "Prefix of a CUDA toolkit; empty: search for one")
set(INFERSCALE_HAS_CUDA OFF)

if(INFERSCALE_CUDA STREQUAL "AUTO" AND INFERSCALE_SANITIZE)
  return()
endif()
if(NOT INFERSCALE_CUDA)
  return()
endif()

if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
  execute_process(COMMAND sh "${PROJECT_SOURCE_DIR}/scripts/provide_cuda.sh" --print-root
                  OUTPUT_VARIABLE cuda_provided OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  find_program(INFERSCALE_NVCC nvcc HINTS "${INFERSCALE_CUDA_ROOT}" ENV INFERSCALE_CUDA_ROOT
               PATHS /usr/local/cuda "${cuda_provided}" PATH_SUFFIXES bin DOC "CUDA's compiler")
  if(INFERSCALE_NVCC)
    set(CMAKE_CUDA_COMPILER "${INFERSCALE_NVCC}" CACHE FILEPATH "CUDA's compiler")
  elseif(INFERSCALE_CUDA STREQUAL "AUTO")
    message(STATUS "CUDA: no compiler found, its kernels are not built")
    return()
  else()
    message(FATAL_ERROR "No CUDA compiler was found. Either run scripts/provide_cuda.sh, or pass "
                        "-DINFERSCALE_CUDA_ROOT=PREFIX of a toolkit, or build without: -DINFERSCALE_CUDA=OFF.")
  endif()
endif()

set(CMAKE_CUDA_ARCHITECTURES 80-real 90-real 90-virtual)
if(INFERSCALE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES ${INFERSCALE_CUDA_ARCHITECTURES})
elseif(NOT "$ENV{INFERSCALE_CUDA_ARCHITECTURES}" STREQUAL "")
  set(CMAKE_CUDA_ARCHITECTURES $ENV{INFERSCALE_CUDA_ARCHITECTURES})
endif()
set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
enable_language(CUDA)
if(CMAKE_CUDA_COMPILER_VERSION VERSION_LESS 12.0)
  if(INFERSCALE_CUDA STREQUAL "AUTO")
    message(STATUS "CUDA: ${CMAKE_CUDA_COMPILER_VERSION} is too old, its kernels are not built")
    return()
  endif()
  message(FATAL_ERROR "CUDA ${CMAKE_CUDA_COMPILER_VERSION} is too old: 12.0 is needed for C++20")
endif()
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25 does not know that this compiler has C++20
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
endif()
find_package(CUDAToolkit REQUIRED)
if(INFERSCALE_CCACHE AND NOT CMAKE_CUDA_COMPILER_LAUNCHER)
  set(CMAKE_CUDA_COMPILER_LAUNCHER "${INFERSCALE_CCACHE}")
endif()
set(INFERSCALE_HAS_CUDA ON)
message(STATUS "CUDA ${CMAKE_CUDA_COMPILER_VERSION}: ${CMAKE_CUDA_COMPILER}, for ${CMAKE_CUDA_ARCHITECTURES}")
