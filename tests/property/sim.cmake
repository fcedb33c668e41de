if(TARGET bt_sim)
    baton_test(property_sim_worlds LABELS property
        SOURCES ${CMAKE_CURRENT_LIST_DIR}/sim_worlds_prop.c
        LIBS bt_sim bt_core bt_planner bt_base m
        INCLUDES ${CMAKE_CURRENT_LIST_DIR}/../scenario)
endif()
