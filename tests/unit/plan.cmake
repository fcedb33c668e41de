baton_test(unit_base SOURCES plan_base_test.c LIBS bt_base LABELS unit)
foreach(part IN ITEMS block_hash cost prefix_index prefix_room ledger
                      place)
    baton_test(unit_${part} SOURCES plan_${part}_test.c
               LIBS bt_planner bt_base LABELS unit)
endforeach()
