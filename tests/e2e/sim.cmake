if(TARGET baton AND TARGET bt_report)
    baton_test(e2e_sim LABELS e2e TIMEOUT 240
        SOURCES ${CMAKE_CURRENT_LIST_DIR}/test_sim.c
        LIBS ext_jansson m
        ARGS $<TARGET_FILE:baton>)
endif()
