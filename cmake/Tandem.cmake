# tandem_library(NAME SOURCES a.cc b.cc DEPENDS x y): one layer's library, includes rooted at src/.
function(tandem_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPENDS" ${ARGN})
  add_library(${name} STATIC ${ARG_SOURCES})
  target_include_directories(${name} PUBLIC ${PROJECT_SOURCE_DIR}/src)
  target_link_libraries(${name} PUBLIC ${ARG_DEPENDS})
endfunction()

# tandem_test(NAME SOURCES a_test.cc DEPENDS x [TIMEOUT s] [SANITIZE memory|thread...]): one test program, which is a
# suite of its own in ctest's summary of times. A sanitizer build holds only the tests marked for it: memory (address and
# undefined behaviour), thread, or both. Tests read the project's files below TANDEM_SOURCE_DIR.
function(tandem_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT" "SOURCES;DEPENDS;SANITIZE" ${ARGN})
  if(TANDEM_SANITIZE)
    set(kind memory)
    if(TANDEM_SANITIZE STREQUAL thread)
      set(kind thread)
    endif()
    if(NOT kind IN_LIST ARG_SANITIZE)
      return()
    endif()
  endif()
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE ${ARG_DEPENDS} GTest::gtest GTest::gtest_main)
  if(NOT TANDEM_SANITIZE)
    # What is tested is optimised; the tests themselves compile twice as fast this way.
    target_compile_options(${name} PRIVATE -O1)
  endif()
  target_compile_definitions(${name} PRIVATE TANDEM_SOURCE_DIR="${PROJECT_SOURCE_DIR}"
                                             TANDEM_BINARY_DIR="${PROJECT_BINARY_DIR}")
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES TIMEOUT ${ARG_TIMEOUT} LABELS ${name})
endfunction()
