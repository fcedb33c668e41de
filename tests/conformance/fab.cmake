baton_test(test_kv_fabric LABELS conformance TIMEOUT 180
    SOURCES test_kv_fabric.c kv_bed.c
    LIBS bt_transfer bt_base ext_ev)
