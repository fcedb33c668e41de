baton_test(verbs_absent_test LABELS unit
    SOURCES verbs_absent_test.c LIBS bt_transfer bt_base ext_ev
    INCLUDES ${PROJECT_SOURCE_DIR}/transfer/fabric)
