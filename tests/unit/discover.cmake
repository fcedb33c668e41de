if(TARGET bt_discover)
    baton_test(unit_discover LABELS unit SOURCES discover_test.c
               LIBS bt_discover bt_transfer_core bt_base)
endif()
