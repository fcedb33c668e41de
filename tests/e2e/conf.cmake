add_test(NAME e2e_check_cli
         COMMAND ${CMAKE_CURRENT_LIST_DIR}/check_cli.sh $<TARGET_FILE:baton>
                 ${PROJECT_SOURCE_DIR})
set_tests_properties(e2e_check_cli PROPERTIES LABELS e2e TIMEOUT 60)
