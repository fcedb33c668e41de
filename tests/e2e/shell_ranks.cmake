baton_test(e2e_serve_ranks LABELS e2e TIMEOUT 60
    SOURCES ${CMAKE_CURRENT_LIST_DIR}/test_serve_ranks.c LIBS serve_bed ext_zmq)
