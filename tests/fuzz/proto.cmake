# Fuzz targets of orchestrator/proto. With BATON_FUZZ: libFuzzer programs
# (tests/fuzz/fuzz_json -max_total_time=60 CORPUS). Without: the same targets
# under fuzz_driver.c, which replays a seeded set of mutants as a test;
# `fuzz_json --dump DIR` writes the seeds as a corpus.
foreach(name IN ITEMS json openai sse kv_events)
    set(target fuzz_${name})
    if(BATON_FUZZ)
        add_executable(${target} ${CMAKE_CURRENT_LIST_DIR}/${target}.c)
        target_link_options(${target} PRIVATE -fsanitize=fuzzer)
        target_link_libraries(${target} PRIVATE baton_flags bt_proto ext_jansson)
        target_include_directories(${target} PRIVATE
                                   ${CMAKE_CURRENT_LIST_DIR}/../unit)
        add_test(NAME ${target} COMMAND ${target} -runs=20000 -seed=1)
        set_tests_properties(${target} PROPERTIES LABELS fuzz TIMEOUT 120)
    else()
        baton_test(${target} LABELS fuzz SOURCES ${target}.c fuzz_driver.c
                   LIBS bt_proto ext_jansson
                   INCLUDES ${CMAKE_CURRENT_LIST_DIR}/../unit)
    endif()
endforeach()
