# `cmake --install`: the core library with its public headers and package config, and the command line if it was built.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(core_headers export.h kv_kernels.h kv_record.h kv_store.h model_spec.h status.h types.h)
list(TRANSFORM core_headers PREPEND "${PROJECT_SOURCE_DIR}/include/inferscale/")
set(package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/inferscale")

install(TARGETS inferscale_core EXPORT inferscaleTargets
        INCLUDES DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
install(FILES ${core_headers} "${PROJECT_BINARY_DIR}/generated/inferscale/version.h"
        DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/inferscale")
install(EXPORT inferscaleTargets NAMESPACE inferscale:: DESTINATION "${package_dir}")

if(NOT DEFINED BUILD_SHARED_LIBS)
  set(BUILD_SHARED_LIBS OFF)
endif()
configure_package_config_file("${CMAKE_CURRENT_LIST_DIR}/inferscaleConfig.cmake.in"
  "${PROJECT_BINARY_DIR}/inferscaleConfig.cmake" INSTALL_DESTINATION "${package_dir}")
write_basic_package_version_file("${PROJECT_BINARY_DIR}/inferscaleConfigVersion.cmake"
  COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/inferscaleConfig.cmake" "${PROJECT_BINARY_DIR}/inferscaleConfigVersion.cmake"
        DESTINATION "${package_dir}")

if(EXISTS "${PROJECT_SOURCE_DIR}/LICENSE")
  install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" DESTINATION "${CMAKE_INSTALL_DOCDIR}")
endif()
if(TARGET inferscale_cli)
  install(TARGETS inferscale_cli RUNTIME)
endif()
