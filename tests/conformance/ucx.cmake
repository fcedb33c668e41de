baton_test(test_ucx_traps LABELS conformance TIMEOUT 120
    SOURCES test_ucx_traps.c ucx_traps_bed.c
    LIBS bt_transfer bt_base ext_ev
    INCLUDES ${PROJECT_SOURCE_DIR}/transfer/fabric)
