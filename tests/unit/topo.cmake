foreach(part IN ITEMS topology maxmin network ledger)
    baton_test(unit_topo_${part} SOURCES topo_${part}_test.c
               LIBS bt_planner bt_base m LABELS unit)
endforeach()
baton_test(unit_topo_file SOURCES topo_file_test.c
           LIBS bt_config bt_planner bt_base LABELS unit)
