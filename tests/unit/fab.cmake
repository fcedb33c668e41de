foreach(part IN ITEMS wire runs pacing)
    baton_test(test_transfer_${part} LABELS unit
        SOURCES test_transfer_${part}.c LIBS bt_transfer_core bt_base)
endforeach()
