if(TARGET baton AND TARGET bt_index_service)
    foreach(part IN ITEMS index serve_warm)
        baton_test(e2e_${part} LABELS e2e TIMEOUT 120
            SOURCES ${CMAKE_CURRENT_LIST_DIR}/test_${part}.c
                    ${CMAKE_CURRENT_LIST_DIR}/index_rig.c
                    ${CMAKE_CURRENT_LIST_DIR}/engine_rig.c
            LIBS bt_engine bt_proto bt_planner bt_base ext_ev ext_jansson
            ARGS $<TARGET_FILE:baton>)
    endforeach()
    baton_test(e2e_index_eagle LABELS e2e TIMEOUT 60
        SOURCES ${CMAKE_CURRENT_LIST_DIR}/test_index_eagle.c
        LIBS event_bed bt_index_service)
    baton_test(e2e_index_holes LABELS e2e TIMEOUT 60
        SOURCES ${CMAKE_CURRENT_LIST_DIR}/test_index_holes.c
        LIBS event_bed bt_index_service)
endif()
