# Instruction sets by file name: isa_<isa>.cc is compiled with the flags of <isa>, and left out where the
# processor family has no such instructions. Every other file is compiled for the baseline.
# Loops begin where a line of the processor's decoded instructions does: at other multiples of 32 bytes the
# products lost 5 % to a neighbour on the same core.
set(REGARD_ISA_FLAGS_avx2 -mavx2 -mfma -mf16c -falign-loops=64)
set(REGARD_ISA_FLAGS_avx512
  ${REGARD_ISA_FLAGS_avx2} -mavx512f -mavx512bw -mavx512dq -mavx512vl -mprefer-vector-width=512)
set(REGARD_ISA_FLAGS_avx512_bf16 ${REGARD_ISA_FLAGS_avx512} -mavx512bf16 -mavx512vnni -mavx512vbmi)
set(REGARD_ISA_FLAGS_amx_bf16 ${REGARD_ISA_FLAGS_avx512_bf16} -mamx-tile -mamx-bf16)
set(REGARD_ISA_FLAGS_neon -march=armv8-a)
set(REGARD_ISA_FLAGS_neon_bf16 -march=armv8.2-a+bf16)
# For tests on machines without AVX-512: the same kernels with its functions in portable notation, for AVX2.
# At -O1 they compile in 0.4 of the time, and run ten times as long.
option(REGARD_EMULATE_AVX512 "AVX-512 kernels run on AVX2, slowly" OFF)
if(REGARD_EMULATE_AVX512)
  set(REGARD_ISA_FLAGS_avx512 ${REGARD_ISA_FLAGS_avx2} -Wno-psabi)
  set(REGARD_ISA_FLAGS_avx512_bf16 ${REGARD_ISA_FLAGS_avx512})
endif()

# Products of bf16 pairs are built only where the compiler has them: Clang 14 does, Clang 16 crashes. Emulated
# elsewhere they would be slower and less exact than f32.
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64|amd64" AND NOT REGARD_EMULATE_AVX512)
  if(NOT DEFINED REGARD_AVX512_BF16_COMPILES)
    set(CMAKE_TRY_COMPILE_TARGET_TYPE STATIC_LIBRARY)
    try_compile(REGARD_AVX512_BF16_COMPILES ${PROJECT_BINARY_DIR}/avx512_bf16
      SOURCES ${PROJECT_SOURCE_DIR}/cmake/avx512_bf16.cc
      COMPILE_DEFINITIONS -O2 ${REGARD_ISA_FLAGS_avx512_bf16}
      CMAKE_FLAGS "-DINCLUDE_DIRECTORIES=${PROJECT_SOURCE_DIR}/src;${PROJECT_SOURCE_DIR}/include"
      CXX_STANDARD 20
      CXX_STANDARD_REQUIRED ON)
    unset(CMAKE_TRY_COMPILE_TARGET_TYPE)
    if(NOT REGARD_AVX512_BF16_COMPILES AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
      unset(REGARD_AVX512_BF16_COMPILES CACHE)
      message(FATAL_ERROR "cmake/avx512_bf16.cc does not compile, which GCC can; see CMakeFiles/CMakeError.log")
    endif()
    message(STATUS "Products of bf16 pairs compile: ${REGARD_AVX512_BF16_COMPILES}")
  endif()
  if(REGARD_AVX512_BF16_COMPILES)
    add_compile_definitions(REGARD_HAS_AMX)
  else()
    add_compile_definitions(REGARD_NO_AVX512_BF16)
  endif()
endif()

# regard_apply_isa_flags(<list variable>): sets the flags, drops what this processor family cannot run.
function(regard_apply_isa_flags list)
  set(kept)
  foreach(source IN LISTS ${list})
    set(flags)
    if(source MATCHES "/isa_((avx|amx|neon)[a-z0-9_]*)\\.cc$")
      set(isa ${CMAKE_MATCH_1})
      set(processors_avx "x86_64|AMD64|amd64")
      set(processors_amx ${processors_avx})
      set(processors_neon "aarch64|arm64|ARM64")
      if(NOT CMAKE_SYSTEM_PROCESSOR MATCHES "${processors_${CMAKE_MATCH_2}}")
        continue()
      endif()
      if(NOT DEFINED REGARD_ISA_FLAGS_${isa})
        message(FATAL_ERROR "${source}: cmake/isa.cmake knows no flags for ${isa}")
      endif()
      if(isa STREQUAL "avx512_bf16" AND NOT REGARD_EMULATE_AVX512 AND NOT REGARD_AVX512_BF16_COMPILES)
        continue()
      endif()
      if(isa STREQUAL "amx_bf16" AND (REGARD_EMULATE_AVX512 OR NOT REGARD_AVX512_BF16_COMPILES))
        continue()
      endif()
      set(flags ${REGARD_ISA_FLAGS_${isa}})
    endif()
    if(REGARD_BUILD_FUZZERS AND flags)
      # Clang takes minutes to instrument one that takes seconds without. The scalar units, which are the
      # same loops, are instrumented.
      list(APPEND flags -fno-sanitize=all)
    endif()
    if(flags)
      # Headers that were compiled with other flags serve no source with these.
      set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS "${flags}" SKIP_PRECOMPILE_HEADERS ON)
    endif()
    if(source MATCHES "/isa_[a-z0-9_]*\\.cc$")
      # The units of all instruction sets have the same names.
      set_source_files_properties(${source} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
    endif()
    list(APPEND kept ${source})
  endforeach()
  set(${list} ${kept} PARENT_SCOPE)
endfunction()
