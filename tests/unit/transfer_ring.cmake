baton_test(unit_transfer_ring LABELS unit TIMEOUT 60
    SOURCES transfer_ring_test.c
    LIBS bt_transfer bt_base Threads::Threads
    INCLUDES ${PROJECT_SOURCE_DIR}/transfer/fabric)
