baton_test(agent_library_test LABELS e2e TIMEOUT 120
    SOURCES agent_library_test.c LIBS bt_agent bt_base Threads::Threads)
if(TARGET agent_library_test)
    add_test(NAME agent_library_test_sim COMMAND agent_library_test sim)
    set_tests_properties(agent_library_test_sim PROPERTIES LABELS e2e
                         TIMEOUT 120)
    # UCX's hook of madvise takes a lock when a thread is over for TSan, which
    # then crashes. Read when libucm is loaded: too early for setenv().
    if(BATON_SANITIZE MATCHES thread)
        set_tests_properties(agent_library_test agent_library_test_sim
                             PROPERTIES ENVIRONMENT UCX_MEM_EVENTS=n)
    endif()
endif()
if(TARGET baton AND TARGET bt_agent_service)
    baton_test(agent_daemon_test LABELS e2e TIMEOUT 240
        SOURCES agent_daemon_test.c engine_rig.c
        LIBS bt_engine bt_agent bt_transfer bt_net bt_proto bt_planner bt_base
             ext_ev ext_jansson ext_zmq
        ARGS $<TARGET_FILE:baton>)
    baton_test(agent_descriptors_test LABELS e2e TIMEOUT 120
        SOURCES agent_descriptors_test.c engine_rig.c
        LIBS bt_engine bt_transfer bt_net bt_proto bt_planner bt_base ext_ev
             ext_jansson ext_zmq
        ARGS $<TARGET_FILE:baton>)
endif()
baton_test(agent_dlopen_test LABELS e2e SOURCES agent_dlopen_test.c
    INCLUDES ${PROJECT_SOURCE_DIR}/include LIBS ${CMAKE_DL_LIBS}
    ARGS $<TARGET_FILE:baton_agent>)
baton_test(agent_engine_test LABELS e2e TIMEOUT 120
    SOURCES agent_engine_test.c engine_rig.c
    LIBS bt_engine bt_transfer bt_net bt_proto bt_planner bt_base ext_ev
         ext_jansson ext_zmq)
