# How a component (a folder of the repository) becomes a target. A file belongs to the component it lies in, so
# sources are globbed; CONFIGURE_DEPENDS makes the build notice new and deleted files.

# The flags every target of this repository is compiled with; none of them reaches a consumer.
function(regard_compile_options target)
  target_compile_features(${target} PUBLIC cxx_std_20)
  set_target_properties(${target} PROPERTIES
    CXX_EXTENSIONS OFF
    CXX_VISIBILITY_PRESET hidden
    VISIBILITY_INLINES_HIDDEN ON
    POSITION_INDEPENDENT_CODE ON
    COMPILE_WARNING_AS_ERROR ${REGARD_WARNINGS_AS_ERRORS})
  # Contraction would make bits depend on the compiler's mood: an FMA is written where one is meant.
  target_compile_options(${target} PRIVATE
    $<$<CXX_COMPILER_ID:GNU,Clang,AppleClang>:-Wall;-Wextra;-Wpedantic;-Wshadow;-ffp-contract=off>
    # GCC 12 sees overlaps in "literal" + std::string that are not there (its bug 105651).
    $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-restrict>)
endfunction()

# regard_optimise(<target>): most of the tests' time is spent in it.
function(regard_optimise target)
  target_compile_options(${target} PRIVATE ${REGARD_OPTIMISE})
endfunction()

# What a fuzzer runs carries coverage counters.
function(regard_fuzzed target)
  if(REGARD_BUILD_FUZZERS)
    target_compile_options(${target} PRIVATE -fsanitize=fuzzer-no-link)
  endif()
endfunction()

# regard_sources(<out> <glob>...): the files that match, relative to the current folder.
function(regard_sources out)
  file(GLOB found CONFIGURE_DEPENDS LIST_DIRECTORIES false ${ARGN})
  set(${out} ${found} PARENT_SCOPE)
endfunction()

# regard_companion(<name>): the static library regard_<name> of all *.cc in the current folder, over the
# public headers alone; includes are written from the repository's root, as "<name>/file.h".
function(regard_companion name)
  regard_sources(sources *.cc)
  if(NOT sources)
    return()
  endif()
  add_library(regard_${name} STATIC ${sources})
  add_library(regard::${name} ALIAS regard_${name})
  regard_compile_options(regard_${name})
  regard_optimise(regard_${name})
  set_target_properties(regard_${name} PROPERTIES EXPORT_NAME ${name})
  target_include_directories(regard_${name} PUBLIC
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>
    $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}/regard/companions>)
  target_link_libraries(regard_${name} PUBLIC regard)
  if(REGARD_INSTALL)
    install(TARGETS regard_${name} EXPORT regardTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
    install(DIRECTORY . DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/regard/companions/${name}
      FILES_MATCHING PATTERN "*.h")
  endif()
endfunction()

# regard_link_existing(<target> <library>...): links those of the libraries that this build has.
function(regard_link_existing target)
  foreach(library IN LISTS ARGN)
    if(TARGET ${library})
      target_link_libraries(${target} PRIVATE ${library})
    endif()
  endforeach()
endfunction()
