baton_test(unit_journal SOURCES journal_test.c
           LIBS bt_journal bt_core bt_planner bt_base ext_xxhash LABELS unit)
