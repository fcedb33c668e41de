foreach(part IN ITEMS jobs jobs_order lease plan_check rails seal window)
    baton_test(test_transfer_${part} LABELS unit
        SOURCES transfer_${part}_test.c LIBS bt_transfer_core bt_base m)
endforeach()
