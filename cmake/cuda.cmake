# REGARD_CUDA builds the CUDA backends; REGARD_WITH_CUDNN says whether CUDNN is one of them.
option(REGARD_CUDA "Build the CUDA backends" OFF)

# PTX of the newest architecture serves later ones; sm_90a's own instructions are no baseline for them.
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES 75-real 80-real 90a-real 90-virtual)
endif()

if(REGARD_CUDA)
  if(NOT CMAKE_CUDA_COMPILER)
    # The toolkit's installer puts nothing on the PATH.
    find_program(REGARD_NVCC nvcc HINTS ENV CUDACXX ENV CUDA_PATH PATHS /usr/local/cuda
      PATH_SUFFIXES bin)
    if(REGARD_NVCC)
      set(CMAKE_CUDA_COMPILER "${REGARD_NVCC}")
    endif()
  endif()
  if(NOT CMAKE_CUDA_COMPILER)
    message(FATAL_ERROR "REGARD_CUDA=${REGARD_CUDA}, but there is no nvcc on the PATH or in "
      "/usr/local/cuda/bin; name it with CMAKE_CUDA_COMPILER")
  endif()
  if(NOT CMAKE_CUDA_HOST_COMPILER AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    set(CMAKE_CUDA_HOST_COMPILER "${CMAKE_CXX_COMPILER}")
  endif()
  enable_language(CUDA)
  find_package(CUDAToolkit REQUIRED)

  # Tensor cores are for devices that have code of 80 or newer in this build; "native" and its like have.
  set(tensor_sm 1000000)
  foreach(architecture IN LISTS CMAKE_CUDA_ARCHITECTURES)
    if(NOT architecture MATCHES "^([0-9]+)")
      set(tensor_sm 80)
    elseif(CMAKE_MATCH_1 GREATER_EQUAL 80 AND CMAKE_MATCH_1 LESS tensor_sm)
      set(tensor_sm ${CMAKE_MATCH_1})
    endif()
  endforeach()
  if(NOT tensor_sm EQUAL 80)
    add_compile_definitions(REGARD_TENSOR_SM=${tensor_sm})
  endif()
endif()

# cuDNN is loaded at run time; a build needs its headers and the frontend's.
set(REGARD_WITH_CUDNN OFF)
set(REGARD_NO_CUDNN "configure with -DREGARD_CUDA=ON")
if(REGARD_CUDA)
  find_path(REGARD_CUDNN_INCLUDE cudnn.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
  find_path(REGARD_CUDNN_FRONTEND_INCLUDE cudnn_frontend.h)
  mark_as_advanced(REGARD_CUDNN_INCLUDE)
  if(NOT REGARD_CUDNN_INCLUDE)
    set(REGARD_NO_CUDNN "install cuDNN's headers and configure again")
  elseif(NOT REGARD_CUDNN_FRONTEND_INCLUDE)
    set(REGARD_NO_CUDNN "install nvidia-cudnn-frontend and configure again")
  else()
    set(REGARD_WITH_CUDNN ON)
  endif()
  if(NOT REGARD_WITH_CUDNN)
    message(STATUS "CUDNN is left out: ${REGARD_NO_CUDNN}")
  endif()
endif()

# FLASH's kernels for compute capability 9.0 alone. No device has run them: without this option FLASH has those for
# 8.0 there, too.
option(REGARD_WGMMA "Let FLASH run its forward by wgmma on compute capability 9.0" OFF)
set(REGARD_WITH_WGMMA OFF)
if(REGARD_CUDA AND REGARD_WGMMA)
  find_path(REGARD_CUTLASS_INCLUDE cute/arch/mma_sm90.hpp)
  mark_as_advanced(REGARD_CUTLASS_INCLUDE)
  if(REGARD_CUTLASS_INCLUDE)
    set(REGARD_WITH_WGMMA ON)
  else()
    message(STATUS "FLASH's wgmma kernels are left out: install nvidia-cutlass, or name the folder of cute in "
      "REGARD_CUTLASS_INCLUDE, and configure again")
  endif()
endif()
message(STATUS "CUDA: ${REGARD_CUDA}, cuDNN: ${REGARD_WITH_CUDNN}, wgmma: ${REGARD_WITH_WGMMA}")

# regard_cuda_sources(<list variable>): drops the files of backends and facts that this build lacks.
function(regard_cuda_sources list)
  set(lacking)
  if(REGARD_CUDA)
    list(APPEND lacking "/platform/no_cuda_[a-z]+\\.cc$")
  else()
    list(APPEND lacking "/src/cuda/" "/platform/(cuda_[a-z]+|cudnn_library)\\.cc$" "/backends/cuda_[a-z]+/")
  endif()
  if(NOT REGARD_WITH_CUDNN)
    list(APPEND lacking "/backends/cudnn/")
  endif()
  foreach(pattern IN LISTS lacking)
    list(FILTER ${list} EXCLUDE REGEX "${pattern}")
  endforeach()
  # backends/absent/<name>.cc stands in for backends/<name>/backend.cc.
  set_source_files_properties(backends/absent/cudnn.cc PROPERTIES
    COMPILE_DEFINITIONS "REGARD_NO_CUDNN=\"${REGARD_NO_CUDNN}\"")
  foreach(name cuda_math cuda_efficient cuda_flash cudnn)
    if("${CMAKE_CURRENT_SOURCE_DIR}/backends/${name}/backend.cc" IN_LIST ${list})
      list(FILTER ${list} EXCLUDE REGEX "/backends/absent/${name}\\.cc$")
    endif()
  endforeach()
  set(${list} ${${list}} PARENT_SCOPE)
endfunction()

# regard_cuda(<target>): compiles src/**/*.cu into the target. Whole programs alone, so that a consumer's
# linker needs no device link.
function(regard_cuda target)
  if(NOT REGARD_CUDA)
    return()
  endif()
  target_link_libraries(${target} PRIVATE CUDA::cudart_static ${CMAKE_DL_LIBS})
  if(REGARD_WITH_CUDNN)
    # What the frontend's headers call of cuDNN and CUDA is looked up at run time.
    target_include_directories(${target} SYSTEM PRIVATE
      ${REGARD_CUDNN_FRONTEND_INCLUDE} ${REGARD_CUDNN_INCLUDE})
    set_source_files_properties(backends/cudnn/graph.cc PROPERTIES COMPILE_DEFINITIONS
      "NV_CUDNN_FRONTEND_USE_DYNAMIC_LOADING;CUDNN_FRONTEND_SKIP_JSON_LIB")
  endif()
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS *.cu)
  # Of compute capability 9.0 alone, and with CUTLASS's headers: objects of their own.
  set(wgmma_sources ${sources})
  list(FILTER wgmma_sources INCLUDE REGEX "/wgmma_[a-z0-9]+\\.cu$")
  list(REMOVE_ITEM sources ${wgmma_sources})
  if(sources)
    regard_cuda_objects(${target} ${target}_cuda ${sources})
  endif()
  if(REGARD_WITH_WGMMA)
    regard_cuda_objects(${target} ${target}_wgmma ${wgmma_sources})
    set_target_properties(${target}_wgmma PROPERTIES CUDA_ARCHITECTURES 90a-real)
    target_include_directories(${target}_wgmma SYSTEM PRIVATE ${REGARD_CUTLASS_INCLUDE})
    # Of this file alone: ccache then serves the others to builds without the option.
    set_source_files_properties(backends/cuda_flash/launch.cu PROPERTIES COMPILE_DEFINITIONS REGARD_WGMMA)
    # With assertions its functions are calls, beside which no product runs on.
    target_compile_definitions(${target}_wgmma PRIVATE NDEBUG)
  endif()
endfunction()

# regard_cuda_objects(<target> <objects> <source>...): the sources as an object library, linked into the target.
function(regard_cuda_objects target objects)
  set(sources ${ARGN})
  add_library(${objects} OBJECT ${sources})
  set_target_properties(${objects} PROPERTIES
    CUDA_VISIBILITY_PRESET hidden
    VISIBILITY_INLINES_HIDDEN ON
    POSITION_INDEPENDENT_CODE ON)
  # What ptxas says of each kernel goes to <object>.log, which a test reads.
  set(launcher sh "${PROJECT_SOURCE_DIR}/cmake/nvcc_log.sh")
  if(CMAKE_CUDA_COMPILER_LAUNCHER)
    list(APPEND launcher ${CMAKE_CUDA_COMPILER_LAUNCHER})
  endif()
  set_target_properties(${objects} PROPERTIES CUDA_COMPILER_LAUNCHER "${launcher}")
  target_compile_options(${objects} PRIVATE
    -std=c++20  # CMake 3.25 does not know it for nvcc
    -Xptxas=-v -Xcompiler=-Wall,-Wextra,-Wshadow,-ffp-contract=off
    # 20208: long double in device code; none is written, but std headers mention it.
    --diag-suppress=20208
    $<$<BOOL:${REGARD_WARNINGS_AS_ERRORS}>:--Werror=all-warnings>)
  target_include_directories(${objects} PRIVATE
    ${PROJECT_SOURCE_DIR}/include ${CMAKE_CURRENT_SOURCE_DIR})
  target_compile_definitions(${objects} PRIVATE REGARD_STATIC_DEFINE)
  target_sources(${target} PRIVATE $<TARGET_OBJECTS:${objects}>)
endfunction()
