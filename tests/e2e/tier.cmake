foreach(part IN ITEMS crash full)
    baton_test(test_tier_${part} LABELS e2e
        SOURCES tier_${part}_test.c ${PROJECT_SOURCE_DIR}/tests/lib/tier_bed.c
        LIBS bt_tier bt_base ext_ev)
endforeach()
if(TARGET baton AND TARGET bt_micro)
    add_test(NAME e2e_bench_tier
             COMMAND ${CMAKE_CURRENT_LIST_DIR}/check_bench_tier.sh
                     $<TARGET_FILE:baton>)
    set_tests_properties(e2e_bench_tier PROPERTIES LABELS e2e TIMEOUT 180)
endif()
