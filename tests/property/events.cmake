baton_test(property_stream_index LABELS property TIMEOUT 300
    SOURCES ${CMAKE_CURRENT_LIST_DIR}/stream_index_prop.c
    LIBS bt_events bt_proto bt_core bt_planner bt_base
    INCLUDES ${PROJECT_SOURCE_DIR}/orchestrator/events
             ${PROJECT_SOURCE_DIR}/tests/lib)
