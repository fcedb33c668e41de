baton_test(test_kv_pace LABELS e2e
    SOURCES test_kv_pace.c ${PROJECT_SOURCE_DIR}/tests/conformance/kv_bed.c
    INCLUDES ${PROJECT_SOURCE_DIR}/tests/conformance
    LIBS bt_transfer bt_base ext_ev m)
