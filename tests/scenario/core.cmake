foreach(part IN ITEMS placing queue prefill decode hold prefetch
        parts learn total)
    baton_test(test_core_${part} LABELS scenario
        SOURCES ${CMAKE_CURRENT_LIST_DIR}/test_core_${part}.c
                ${CMAKE_CURRENT_LIST_DIR}/test_core_world.c
        LIBS bt_core)
endforeach()
