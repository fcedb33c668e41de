foreach(part IN ITEMS httpd_framing httpd_life httpd_stream upstream proxy)
    baton_test(test_net_${part} LABELS e2e TIMEOUT 120
        SOURCES ${CMAKE_CURRENT_LIST_DIR}/test_net_${part}.c
            ${PROJECT_SOURCE_DIR}/tests/lib/net_world.c
        LIBS bt_net bt_base ext_ev)
endforeach()
