# How every target of this project is declared: one place for warnings, visibility and sanitizers.

function(inferscale_compile_options target)
  get_target_property(sources ${target} SOURCES)
  if("${sources}" MATCHES "\\.cu(;|$)")
    inferscale_cuda_compile_options(${target})
    return()
  endif()
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wshadow -Wconversion -Wno-sign-conversion -Wnon-virtual-dtor)
  if(INFERSCALE_WERROR)
    # An aggregate without its last fields is C++20 as it is meant.
    target_compile_options(${target} PRIVATE -Werror -Wno-error=missing-field-initializers)
    if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
      # g++ 12 follows the flow of values wrongly through std::string at -O3 (GCC bug 105651) and under the sanitizers.
      target_compile_options(${target} PRIVATE
        -Wno-error=restrict -Wno-error=array-bounds -Wno-error=stringop-overflow -Wno-error=maybe-uninitialized)
    endif()
  endif()
  if(INFERSCALE_SANITIZE)
    inferscale_sanitize(${target})
  endif()
  set_target_properties(${target} PROPERTIES
    CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON POSITION_INDEPENDENT_CODE ON)
endfunction()

# What is under test has every check. The sources of unit tests have those that a whole program must have (addresses,
# threads) and are not optimised: with everything they were two thirds of the time that a sanitizer build takes. Those of
# the kernels compute their references in double precision, and are.
function(inferscale_sanitize target)
  set(checks "${INFERSCALE_SANITIZE}")
  get_target_property(folder ${target} SOURCE_DIR)
  if(folder MATCHES "^${PROJECT_SOURCE_DIR}/tests/(unit|conformance)(/|$)")
    string(REPLACE ",undefined" "" checks "${checks}")
    if(NOT folder MATCHES "/unit/kernels$")
      target_compile_options(${target} PRIVATE -O0)
    endif()
  endif()
  target_compile_options(${target} PRIVATE -fsanitize=${checks} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_link_options(${target} PUBLIC -fsanitize=${INFERSCALE_SANITIZE})
endfunction()

# The same for a target with sources in CUDA. What nvcc makes of them for the host compiler is not ours to be warned about.
function(inferscale_cuda_compile_options target)
  set(cxx "$<COMPILE_LANGUAGE:CXX>")
  set(cuda "$<COMPILE_LANGUAGE:CUDA>")
  target_compile_options(${target} PRIVATE
    $<${cxx}:-Wall> $<${cxx}:-Wextra> $<${cxx}:-Wshadow> $<${cxx}:-Wconversion> $<${cxx}:-Wno-sign-conversion>
    $<${cuda}:-Xcompiler=-Wall>)
  if(INFERSCALE_WERROR)
    target_compile_options(${target} PRIVATE
      $<${cxx}:-Werror> $<${cxx}:-Wno-error=missing-field-initializers> $<${cuda}:-Werror=all-warnings>)
  endif()
  set_target_properties(${target} PROPERTIES
    CXX_VISIBILITY_PRESET hidden CUDA_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON
    POSITION_INDEPENDENT_CODE ON)
endfunction()

# inferscale_component(NAME SOURCES file... [DEPS target...] [PRIVATE_DEPS target...])
# One static library per folder of src/, named inferscale_NAME. DEPS are visible to its users.
function(inferscale_component name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS;PRIVATE_DEPS" ${ARGN})
  set(target inferscale_${name})
  add_library(${target} STATIC ${ARG_SOURCES})
  target_include_directories(${target} PUBLIC
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/src>
    $<BUILD_INTERFACE:${PROJECT_BINARY_DIR}/generated>)
  target_link_libraries(${target} PUBLIC ${ARG_DEPS} PRIVATE ${ARG_PRIVATE_DEPS})
  inferscale_compile_options(${target})
endfunction()

# inferscale_test(NAME SOURCES file... DEPS target... [LABELS label...] [TIMEOUT seconds] [ENVIRONMENT VAR=value...])
# A GoogleTest executable registered with ctest as one test. LABELS: unit (fast, no model), conformance,
# equivalence, model (needs the packaged models), cli, slow, tidy, install; one_thread: nothing in it runs on a second
# thread, so ThreadSanitizer leaves it out.
function(inferscale_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT" "SOURCES;DEPS;LABELS;ENVIRONMENT" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  add_executable(${name} ${ARG_SOURCES})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/tests)
  target_link_libraries(${name} PRIVATE ${ARG_DEPS} GTest::gtest GTest::gmock GTest::gtest_main)
  inferscale_compile_options(${name})
  target_compile_definitions(${name} PRIVATE INFERSCALE_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT ${ARG_TIMEOUT}
                                          ENVIRONMENT "${ARG_ENVIRONMENT}")
  inferscale_add_to_suites(${name} "${ARG_LABELS}")
  # libllama's threads spin while they wait for each other: two tests at once on two processors take far longer than one
  # after the other.
  if("${ARG_LABELS}" MATCHES "model|equivalence|cli")
    set_tests_properties(${name} PROPERTIES PROCESSORS 2)
  endif()
endfunction()

# What the presets of the sanitizers build: the tests that they run (testPresets in CMakePresets.json).
foreach(suites asan_suites tsan_suites)
  if(NOT TARGET ${suites})
    add_custom_target(${suites})
  endif()
endforeach()
function(inferscale_add_to_suites target labels)
  if("${labels}" MATCHES "unit|conformance|equivalence" AND NOT "${labels}" MATCHES "slow")
    add_dependencies(asan_suites ${target})
    if(NOT "${labels}" MATCHES "model|equivalence|one_thread")
      add_dependencies(tsan_suites ${target})
    endif()
  endif()
endfunction()

# inferscale_core_library(COMPONENT...): the one library that is installed, inferscale::core, made of the objects of
# these components. Static, or shared under BUILD_SHARED_LIBS; then it exports what INFERSCALE_API marks and no more.
function(inferscale_core_library)
  set(objects "")
  set(dependencies "")
  foreach(name ${ARGN})
    list(APPEND objects $<TARGET_OBJECTS:inferscale_${name}>)
    get_target_property(libraries inferscale_${name} LINK_LIBRARIES)
    list(APPEND dependencies ${libraries})
  endforeach()
  list(FILTER dependencies EXCLUDE REGEX "^(inferscale_.*|libraries-NOTFOUND)$")
  list(REMOVE_DUPLICATES dependencies)

  add_library(inferscale_core ${objects})
  add_library(inferscale::core ALIAS inferscale_core)
  target_compile_features(inferscale_core PUBLIC cxx_std_20)
  target_include_directories(inferscale_core PUBLIC
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<BUILD_INTERFACE:${PROJECT_BINARY_DIR}/generated>)
  target_link_libraries(inferscale_core PRIVATE ${dependencies})
  inferscale_compile_options(inferscale_core)
  set_target_properties(inferscale_core PROPERTIES
    EXPORT_NAME core LINKER_LANGUAGE CXX
    VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
  get_target_property(type inferscale_core TYPE)
  if(type STREQUAL "SHARED_LIBRARY")
    set(exports "${PROJECT_SOURCE_DIR}/cmake/inferscale_core.map")
    target_link_options(inferscale_core PRIVATE "LINKER:--version-script=${exports}" LINKER:--no-undefined)
    set_target_properties(inferscale_core PROPERTIES LINK_DEPENDS "${exports}")
  endif()
endfunction()
