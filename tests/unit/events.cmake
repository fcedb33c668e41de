# orchestrator/events: sequence rules, parking, groups, events to the sink
set(EVENTS_DIR ${PROJECT_SOURCE_DIR}/orchestrator/events)
baton_test(unit_kv_stream LABELS unit
    SOURCES ${CMAKE_CURRENT_LIST_DIR}/test_kv_stream.c
    LIBS bt_events bt_core bt_planner bt_base INCLUDES ${EVENTS_DIR})
baton_test(unit_events_lag LABELS unit
    SOURCES ${CMAKE_CURRENT_LIST_DIR}/events_lag_test.c
    LIBS bt_base INCLUDES ${EVENTS_DIR})
baton_test(unit_events_apply LABELS unit
    SOURCES ${CMAKE_CURRENT_LIST_DIR}/events_apply_test.c
    LIBS bt_events bt_proto bt_core bt_planner bt_base
    INCLUDES ${EVENTS_DIR} ${PROJECT_SOURCE_DIR}/tests/lib)
baton_test(unit_events_replay LABELS unit
    SOURCES ${CMAKE_CURRENT_LIST_DIR}/events_replay_test.c
    LIBS bt_events bt_core bt_planner bt_base INCLUDES ${EVENTS_DIR})
baton_test(unit_events_later LABELS unit
    SOURCES ${CMAKE_CURRENT_LIST_DIR}/events_later_test.c
    LIBS bt_events bt_core bt_planner bt_base ext_ev ext_zmq)
