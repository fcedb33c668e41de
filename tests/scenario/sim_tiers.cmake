if(TARGET bt_sim)
    baton_test(scenario_sim_tiers LABELS scenario
        SOURCES ${CMAKE_CURRENT_LIST_DIR}/sim_tiers_test.c
        LIBS bt_sim bt_journal bt_core bt_planner bt_base m)
endif()
