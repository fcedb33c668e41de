baton_test(unit_big_memory LABELS unit SOURCES big_memory_test.c
           LIBS bt_big_memory)
