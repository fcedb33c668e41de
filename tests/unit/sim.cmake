# The parts of the simulated world, against closed forms and plain models.
if(TARGET bt_sim)
    foreach(part IN ITEMS net station cache summary)
        baton_test(unit_sim_${part} LABELS unit
            SOURCES ${CMAKE_CURRENT_LIST_DIR}/sim_${part}_test.c
            LIBS bt_sim bt_core bt_planner bt_base m
            INCLUDES ${PROJECT_SOURCE_DIR}/bench/sim)
    endforeach()
    baton_test(unit_sim_times LABELS unit
        SOURCES ${CMAKE_CURRENT_LIST_DIR}/sim_times_test.c
        LIBS bt_sim bt_core bt_planner bt_base m)
endif()
