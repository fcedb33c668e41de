foreach(part IN ITEMS faults values)
    baton_test(test_config_${part} LABELS unit
        SOURCES ${CMAKE_CURRENT_LIST_DIR}/test_config_${part}.c
        LIBS bt_config bt_planner bt_base)
endforeach()
baton_test(test_options LABELS unit
    SOURCES ${CMAKE_CURRENT_LIST_DIR}/test_options.c
            ${PROJECT_SOURCE_DIR}/orchestrator/cli/options.c
    INCLUDES ${PROJECT_SOURCE_DIR}/orchestrator/cli
    LIBS bt_config bt_planner bt_base m)
baton_test(transfer_rails_option_test LABELS unit
    SOURCES ${CMAKE_CURRENT_LIST_DIR}/transfer_rails_option_test.c
            ${PROJECT_SOURCE_DIR}/orchestrator/cli/transfer_rails.c
    INCLUDES ${PROJECT_SOURCE_DIR}/orchestrator/cli
    LIBS bt_config bt_planner bt_base m)
