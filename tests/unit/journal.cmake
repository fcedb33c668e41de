foreach(part IN ITEMS journal journal_ranks)
    baton_test(unit_${part} LABELS unit
        SOURCES ${CMAKE_CURRENT_LIST_DIR}/${part}_test.c
                ${CMAKE_CURRENT_LIST_DIR}/journal_fleet.c
        LIBS bt_journal bt_core bt_planner bt_base ext_xxhash)
endforeach()
