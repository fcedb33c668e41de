add_library(serve_bed STATIC EXCLUDE_FROM_ALL
    ${CMAKE_SOURCE_DIR}/tests/lib/serve_bed.c)
target_include_directories(serve_bed PUBLIC ${CMAKE_SOURCE_DIR}/tests/lib)
target_link_libraries(serve_bed PUBLIC bt_serve bt_config bt_net ext_ev
                      PRIVATE baton_flags ext_cmocka)
add_library(event_bed STATIC EXCLUDE_FROM_ALL
    ${CMAKE_SOURCE_DIR}/tests/lib/event_bed.c)
target_include_directories(event_bed PUBLIC ${CMAKE_SOURCE_DIR}/tests/lib)
target_link_libraries(event_bed PUBLIC serve_bed bt_core ext_ev
                      PRIVATE baton_flags ext_cmocka ext_zmq)
baton_test(e2e_serve_basic LABELS e2e TIMEOUT 120
    SOURCES ${CMAKE_CURRENT_LIST_DIR}/test_serve_basic.c LIBS serve_bed)
baton_test(e2e_serve_bodies LABELS e2e TIMEOUT 120
    SOURCES ${CMAKE_CURRENT_LIST_DIR}/test_serve_bodies.c LIBS serve_bed)
baton_test(e2e_serve_faults LABELS e2e TIMEOUT 180
    SOURCES ${CMAKE_CURRENT_LIST_DIR}/test_serve_faults.c LIBS serve_bed)
baton_test(e2e_serve_ops LABELS e2e TIMEOUT 120
    SOURCES ${CMAKE_CURRENT_LIST_DIR}/test_serve_ops.c LIBS serve_bed)
baton_test(e2e_serve_load LABELS e2e TIMEOUT 120
    SOURCES ${CMAKE_CURRENT_LIST_DIR}/test_serve_load.c LIBS serve_bed bt_base)
baton_test(e2e_serve_kv LABELS e2e TIMEOUT 120
    SOURCES ${CMAKE_CURRENT_LIST_DIR}/test_serve_kv.c LIBS event_bed ext_zmq)
baton_test(e2e_serve_watch LABELS e2e TIMEOUT 120
    SOURCES ${CMAKE_CURRENT_LIST_DIR}/test_serve_watch.c LIBS event_bed)
baton_test(e2e_serve_said LABELS e2e TIMEOUT 30
    SOURCES ${CMAKE_CURRENT_LIST_DIR}/test_serve_said.c LIBS bt_serve bt_base)
target_include_directories(e2e_serve_said PRIVATE
    ${PROJECT_SOURCE_DIR}/orchestrator/shell)
if(TARGET baton)
    baton_test(e2e_explain LABELS e2e TIMEOUT 60
        SOURCES ${CMAKE_CURRENT_LIST_DIR}/test_explain.c
        LIBS serve_bed ext_jansson m ARGS $<TARGET_FILE:baton>)
    baton_test(e2e_serve_journal LABELS e2e TIMEOUT 120
        SOURCES ${CMAKE_CURRENT_LIST_DIR}/test_serve_journal.c
        LIBS serve_bed bt_journal ext_jansson ext_zmq
        ARGS $<TARGET_FILE:baton>)
endif()
