# Parts of the simulator alone: the test is their clock and their core.
if(TARGET bt_sim)
    foreach(part IN ITEMS events:kv_plane telemetry:telemetry)
        string(REGEX REPLACE ":.*" "" name ${part})
        string(REGEX REPLACE ".*:" "" source ${part})
        baton_test(unit_sim_${name} LABELS unit
            SOURCES ${CMAKE_CURRENT_LIST_DIR}/sim_${name}_test.c
                    ${PROJECT_SOURCE_DIR}/bench/sim/${source}.c
            LIBS bt_core bt_planner bt_base m
            INCLUDES ${PROJECT_SOURCE_DIR}/bench/sim)
    endforeach()
endif()
