foreach(part IN ITEMS cost cost_order)
    baton_test(property_${part} SOURCES ${part}_prop.c
               LIBS bt_planner bt_base LABELS property TIMEOUT 240)
endforeach()
