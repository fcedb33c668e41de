if(TARGET bt_report)
    foreach(part IN ITEMS search matrix compare output staleness)
        baton_test(unit_report_${part} LABELS unit
            SOURCES ${CMAKE_CURRENT_LIST_DIR}/report_${part}_test.c
            LIBS bt_report bt_client bt_base ext_jansson m)
    endforeach()
endif()
