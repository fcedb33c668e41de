baton_test(unit_prefetch_ledger SOURCES prefetch_ledger_test.c
           LIBS bt_planner bt_base LABELS unit)
