baton_test(unit_place_model SOURCES place2_terms_test.c
           LIBS bt_planner bt_base m LABELS unit)
