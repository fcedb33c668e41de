baton_test(unit_approx SOURCES approx_test.c
           LIBS bt_planner bt_base LABELS unit)
