if(TARGET baton AND TARGET bt_ab)
    baton_test(torture_faults LABELS torture TIMEOUT 300
        SOURCES bench_torture.c
        LIBS bt_ab bt_client bt_engine bt_proto bt_planner bt_base ext_ev
        ARGS $<TARGET_FILE:baton>)
    # Open loop at a fixed rate: not beside another one that needs processors.
    set_tests_properties(torture_faults PROPERTIES PROCESSORS 3 COST 900)
endif()
