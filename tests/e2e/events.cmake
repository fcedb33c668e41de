# The event plane over real sockets, with scripted publishers.
foreach(part IN ITEMS plane ranks)
    baton_test(e2e_events_${part} LABELS e2e TIMEOUT 120
        SOURCES ${CMAKE_CURRENT_LIST_DIR}/events_${part}_test.c
        LIBS bt_events bt_core bt_planner bt_base ext_ev ext_zmq
        INCLUDES ${PROJECT_SOURCE_DIR}/tests/lib)
endforeach()
