baton_test(agent_path_test LABELS unit SOURCES agent_path_test.c
    INCLUDES ${PROJECT_SOURCE_DIR}/transfer/shell
    LIBS bt_agent bt_planner bt_base m)
baton_test(agent_ring_test LABELS unit SOURCES agent_ring_test.c
    INCLUDES ${PROJECT_SOURCE_DIR}/transfer/shell
    LIBS bt_agent bt_base Threads::Threads)
if(TARGET bt_agent_service)
    baton_test(agent_pool_test LABELS unit SOURCES agent_pool_test.c
        INCLUDES ${PROJECT_SOURCE_DIR}/orchestrator/agent
        LIBS bt_agent_service bt_tier bt_base ext_ev)
endif()
