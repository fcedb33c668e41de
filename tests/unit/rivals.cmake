foreach(part IN ITEMS common knobs rules vectors)
    baton_test(unit_rivals_${part} SOURCES rivals_${part}_test.c
               LIBS bt_planner bt_base LABELS unit)
endforeach()
