foreach(part IN ITEMS geometry transfer slot calibrate order)
    baton_test(unit_cost_${part} SOURCES cost_${part}_test.c
               LIBS bt_planner bt_base LABELS unit)
endforeach()
