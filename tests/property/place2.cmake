baton_test(property_place_brute SOURCES place2_brute_prop.c
           LIBS bt_planner bt_base m LABELS property)
