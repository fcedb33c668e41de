baton_test(property_place_brute SOURCES place2_brute_prop.c
           LIBS bt_planner bt_base m LABELS property TIMEOUT 240)
set_tests_properties(property_place_brute PROPERTIES COST 160)
