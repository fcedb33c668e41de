if(TARGET baton AND TARGET bt_ab)
    baton_test(e2e_demo LABELS e2e slow TIMEOUT 180
        SOURCES ${CMAKE_CURRENT_LIST_DIR}/bench_demo.c
        LIBS bt_ab bt_proto bt_base ext_ev
        ARGS $<TARGET_FILE:baton>)
    set_tests_properties(e2e_demo PROPERTIES RUN_SERIAL ON)
    foreach(name IN ITEMS demo uniform)
        add_test(NAME e2e_cluster_${name} COMMAND $<TARGET_FILE:baton> check
                 ${PROJECT_SOURCE_DIR}/bench/clusters/${name}.yaml)
        set_tests_properties(e2e_cluster_${name} PROPERTIES LABELS e2e)
    endforeach()
endif()
if(TARGET baton AND TARGET bt_micro)
    add_test(NAME e2e_bench_index
             COMMAND ${CMAKE_CURRENT_LIST_DIR}/check_bench_index.sh
                     $<TARGET_FILE:baton> ${PROJECT_SOURCE_DIR})
    set_tests_properties(e2e_bench_index PROPERTIES LABELS e2e TIMEOUT 120)
    add_test(NAME e2e_bench_transfer
             COMMAND ${CMAKE_CURRENT_LIST_DIR}/check_bench_transfer.sh
                     $<TARGET_FILE:baton>)
    # Of figures, too: once, not under the sanitizers as well.
    set_tests_properties(e2e_bench_transfer PROPERTIES LABELS "e2e;slow"
                         TIMEOUT 600 COST 120)
endif()
