baton_test(unit_kv_stream LABELS unit
    SOURCES ${CMAKE_CURRENT_LIST_DIR}/test_kv_stream.c
    LIBS bt_serve bt_planner
    INCLUDES ${PROJECT_SOURCE_DIR}/orchestrator/shell)
