baton_test(test_core_random LABELS property
    SOURCES ${CMAKE_CURRENT_LIST_DIR}/test_core_random.c
            ${CMAKE_CURRENT_LIST_DIR}/test_core_wild.c
    LIBS bt_core ext_xxhash TIMEOUT 120)
