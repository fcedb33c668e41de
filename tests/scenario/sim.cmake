# The simulator as a whole: faults, knowledge, fetches, truth by forks.
if(TARGET bt_sim)
    foreach(part IN ITEMS run faults knowledge fallback prefetch
            truth)
        baton_test(scenario_sim_${part} LABELS scenario
            SOURCES ${CMAKE_CURRENT_LIST_DIR}/sim_${part}_test.c
            LIBS bt_sim bt_journal bt_core bt_planner bt_base m)
    endforeach()
endif()
