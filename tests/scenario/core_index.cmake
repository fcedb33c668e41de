baton_test(test_core_index LABELS scenario
    SOURCES ${CMAKE_CURRENT_LIST_DIR}/test_core_index.c
            ${CMAKE_CURRENT_LIST_DIR}/test_core_world.c
    LIBS bt_core)
