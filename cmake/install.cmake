# The CMake package and the pkg-config file. Both find everything relative to themselves, so an installed
# tree may be moved.
include(CMakePackageConfigHelpers)

# The static library leaves the CUDA runtime to its consumer's link.
set(REGARD_NEEDS_CUDART OFF)
if(REGARD_CUDA AND NOT BUILD_SHARED_LIBS)
  set(REGARD_NEEDS_CUDART ON)
endif()

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/regard)
configure_package_config_file(
  ${CMAKE_CURRENT_LIST_DIR}/regardConfig.cmake.in ${PROJECT_BINARY_DIR}/regardConfig.cmake
  INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(
  ${PROJECT_BINARY_DIR}/regardConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES
  ${PROJECT_BINARY_DIR}/regardConfig.cmake ${PROJECT_BINARY_DIR}/regardConfigVersion.cmake
  DESTINATION ${package_dir})
install(EXPORT regardTargets NAMESPACE regard:: DESTINATION ${package_dir})

if(TARGET regard_distributed_mpi)
  install(EXPORT regardMpiTargets NAMESPACE regard:: DESTINATION ${package_dir})
endif()

file(RELATIVE_PATH pc_prefix
  ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
set(pc_cflags)
set(pc_libs)
if(NOT BUILD_SHARED_LIBS)
  set(pc_cflags -DREGARD_STATIC_DEFINE)
  set(pc_libs -pthread)
  # A C program links the static library with the C++ runtime that it was built with.
  foreach(library IN LISTS CMAKE_CXX_IMPLICIT_LINK_LIBRARIES)
    if(library MATCHES "^(stdc\\+\\+|c\\+\\+|m)$")
      string(APPEND pc_libs " -l${library}")
    endif()
  endforeach()
  if(REGARD_CUDA)
    string(APPEND pc_libs " -L${CUDAToolkit_LIBRARY_DIR} -lcudart_static -ldl -lrt")
  endif()
endif()
configure_file(${CMAKE_CURRENT_LIST_DIR}/regard.pc.in ${PROJECT_BINARY_DIR}/regard.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/regard.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
