foreach(part IN ITEMS prefix_index ledger place)
    baton_test(property_${part} SOURCES plan_${part}_prop.c
               LIBS bt_planner bt_base LABELS property TIMEOUT 240)
endforeach()
