baton_test(test_kv_memory LABELS conformance TIMEOUT 60
    SOURCES test_kv_memory.c
    INCLUDES ${PROJECT_SOURCE_DIR}/transfer/fabric
    LIBS bt_transfer bt_base ext_ev)
