baton_test(test_engine_names LABELS unit
    SOURCES test_engine_names.c LIBS bt_engine bt_planner
    INCLUDES ${PROJECT_SOURCE_DIR}/bench/engine)
