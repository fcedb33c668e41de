baton_test(property_approx SOURCES approx_prop.c
           LIBS bt_planner bt_base LABELS property TIMEOUT 240)
