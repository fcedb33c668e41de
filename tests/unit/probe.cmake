baton_test(transfer_probe_test LABELS unit SOURCES transfer_probe_test.c
    LIBS bt_transfer_core bt_planner bt_base m)
if(TARGET bt_agent)
    baton_test(probe_start_test LABELS unit SOURCES probe_start_test.c
        INCLUDES ${PROJECT_SOURCE_DIR}/transfer/shell
        LIBS bt_agent bt_planner bt_base m)
endif()
if(TARGET bt_config)
    baton_test(probe_write_test LABELS unit
        SOURCES probe_write_test.c
                ${PROJECT_SOURCE_DIR}/orchestrator/cli/cmd_probe_write.c
        INCLUDES ${PROJECT_SOURCE_DIR}/orchestrator/cli
        LIBS bt_config bt_planner bt_base m)
endif()
