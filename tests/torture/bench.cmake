if(TARGET baton AND TARGET bt_ab)
    baton_test(torture_faults LABELS torture TIMEOUT 300
        SOURCES bench_torture.c
        LIBS bt_ab bt_client bt_engine bt_proto bt_planner bt_base ext_ev
        ARGS $<TARGET_FILE:baton>)
    set_tests_properties(torture_faults PROPERTIES RUN_SERIAL ON)
endif()
