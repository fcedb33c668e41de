baton_test(test_config_mutations LABELS property
    SOURCES ${CMAKE_CURRENT_LIST_DIR}/test_config_mutations.c
    LIBS bt_config bt_planner bt_base)
