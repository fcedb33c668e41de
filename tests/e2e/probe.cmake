if(TARGET baton AND TARGET bt_agent_service)
    add_test(NAME e2e_probe
             COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/check_probe.sh
                     $<TARGET_FILE:baton>)
    set_tests_properties(e2e_probe PROPERTIES LABELS e2e TIMEOUT 240)
endif()
