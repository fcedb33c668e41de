# Parts of the emulated engine: bench/engine.
set(ENGINE_DIR ${PROJECT_SOURCE_DIR}/bench/engine)
baton_test(test_engine_oracle LABELS unit
    SOURCES test_engine_oracle.c LIBS bt_engine bt_base ext_xxhash)
baton_test(test_engine_pool LABELS unit
    SOURCES test_engine_pool.c LIBS bt_engine bt_base INCLUDES ${ENGINE_DIR})
baton_test(test_engine_scheduler LABELS unit
    SOURCES test_engine_scheduler.c LIBS bt_engine bt_planner
    INCLUDES ${ENGINE_DIR})
baton_test(test_engine_events LABELS unit
    SOURCES test_engine_events.c LIBS bt_engine bt_proto ext_msgpack
    INCLUDES ${ENGINE_DIR})
baton_test(test_engine_faults LABELS unit
    SOURCES test_engine_faults.c LIBS bt_engine INCLUDES ${ENGINE_DIR})
