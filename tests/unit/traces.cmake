if(TARGET bt_traces)
    foreach(part IN ITEMS read stats generate unknowns workload)
        baton_test(unit_traces_${part} LABELS unit
            SOURCES ${CMAKE_CURRENT_LIST_DIR}/traces_${part}_test.c
            LIBS bt_traces bt_base m)
    endforeach()
endif()
if(TARGET bt_sim_cluster)
    baton_test(unit_sim_cluster_file LABELS unit
        SOURCES ${CMAKE_CURRENT_LIST_DIR}/sim_cluster_file_test.c
        LIBS bt_sim_cluster bt_planner bt_base m)
endif()
