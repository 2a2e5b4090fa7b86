# Read by ctest before it runs: each suite of a GoogleTest program is a test of ctest, <component>.<suite>. One for each
# single test would begin 3,700 processes, which took a third of their time to begin and to end.
#   program    how the program is called, a list
#   component  the label, and what names begin with
#   folder     where the program runs
#   cache      the folder of caches
#   reports    the folder of what each suite reports, as XML
# The variable GTEST_FILTER of the environment is heeded.

list(GET program -1 file)
if(NOT EXISTS ${file})
  add_test(${component}.not_built ${file})
  set_tests_properties(${component}.not_built PROPERTIES LABELS ${component})
  return()
endif()
execute_process(COMMAND ${program} --gtest_list_tests
  OUTPUT_VARIABLE lines OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
string(REPLACE ";" "\\;" lines "${lines}")
string(REPLACE "\n" ";" lines "${lines}")

set(suites)
foreach(line IN LISTS lines)
  string(REGEX REPLACE " *#.*" "" line "${line}")  # the values of parameters
  if(line MATCHES "^([A-Za-z0-9_/]+)\\.$")
    set(suite ${CMAKE_MATCH_1})
    list(APPEND suites ${suite})
    set(tests_of_${suite})
  elseif(line MATCHES "^  (.+)")
    list(APPEND tests_of_${suite} ${suite}.${CMAKE_MATCH_1})
  endif()
endforeach()

foreach(suite IN LISTS suites)
  set(filter ${suite}.*)
  if(DEFINED ENV{GTEST_FILTER})
    list(JOIN tests_of_${suite} ":" filter)
  endif()
  string(REPLACE "/" "." report ${component}.${suite})
  list(LENGTH tests_of_${suite} count)
  add_test(${component}.${suite} ${program} --gtest_brief=1 "--gtest_filter=${filter}"
    "--gtest_output=xml:${reports}/${report}.xml")
  # Threads of OpenMP sleep between loops: beside other tests, those that spin take their time. Suites of many tests
  # begin early: at the end they would run alone.
  set_tests_properties(${component}.${suite} PROPERTIES LABELS ${component} TIMEOUT 1800 COST ${count}
    WORKING_DIRECTORY ${folder} ENVIRONMENT "OMP_WAIT_POLICY=passive;XDG_CACHE_HOME=${cache}")
endforeach()
