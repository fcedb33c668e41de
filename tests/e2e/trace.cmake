if(TARGET bt_traces)
    add_test(NAME e2e_check_trace
             COMMAND ${CMAKE_CURRENT_LIST_DIR}/check_trace.sh
                     $<TARGET_FILE:baton> ${PROJECT_SOURCE_DIR})
    set_tests_properties(e2e_check_trace PROPERTIES LABELS e2e TIMEOUT 60)
endif()
if(TARGET bt_traces AND TARGET bt_report)
    add_test(NAME e2e_check_unknowns
             COMMAND ${CMAKE_CURRENT_LIST_DIR}/check_unknowns.sh
                     $<TARGET_FILE:baton> ${PROJECT_SOURCE_DIR})
    set_tests_properties(e2e_check_unknowns PROPERTIES LABELS e2e TIMEOUT 120)
endif()
