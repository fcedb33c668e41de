# Fuzz targets of orchestrator/proto. With BATON_FUZZ: libFuzzer programs
# (tests/fuzz/fuzz_json -max_total_time=60 CORPUS). Without: the same targets
# under fuzz_driver.c, which replays a seeded set of mutants as a test;
# `fuzz_json --dump DIR` writes the seeds as a corpus, `fuzz_json --runs N` makes
# N inputs (fuzz_kv_make.c: whole batches for fuzz_kv_events).
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
        set(make)
        if(name STREQUAL kv_events)
            set(make fuzz_kv_make.c)
        endif()
        baton_test(${target} LABELS fuzz SOURCES ${target}.c fuzz_driver.c ${make}
                   LIBS bt_proto ext_jansson
                   INCLUDES ${CMAKE_CURRENT_LIST_DIR}/../unit)
    endif()
endforeach()
if(BATON_TESTS AND NOT BATON_FUZZ)
    add_test(NAME fuzz_kv_made COMMAND fuzz_kv_events --runs 30000)
    set_tests_properties(fuzz_kv_made PROPERTIES LABELS fuzz TIMEOUT 60)
endif()
