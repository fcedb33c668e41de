baton_test(test_kv_window LABELS conformance TIMEOUT 120
    SOURCES test_kv_window.c kv_bed.c kv_tap.c
    INCLUDES ${PROJECT_SOURCE_DIR}/transfer/fabric
    LIBS bt_transfer bt_base ext_ev)
