if(TARGET bt_traces)
    add_test(NAME e2e_check_trace
             COMMAND ${CMAKE_CURRENT_LIST_DIR}/check_trace.sh
                     $<TARGET_FILE:baton> ${PROJECT_SOURCE_DIR})
    set_tests_properties(e2e_check_trace PROPERTIES LABELS e2e TIMEOUT 60)
endif()
