baton_test(unit_engine_hash SOURCES engine_hash_test.c
           LIBS bt_planner bt_base LABELS unit
           INCLUDES ${PROJECT_SOURCE_DIR}/planner)
