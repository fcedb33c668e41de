baton_test(unit_index_answer LABELS unit
    SOURCES ${CMAKE_CURRENT_LIST_DIR}/index_answer_test.c
    LIBS bt_index_query bt_planner bt_base)
baton_test(unit_snapshot LABELS unit
    SOURCES ${CMAKE_CURRENT_LIST_DIR}/snapshot_test.c
    LIBS bt_snapshot bt_planner bt_base ext_ev ext_xxhash)
