foreach(part IN ITEMS maxmin network ledger)
    baton_test(property_topo_${part} SOURCES topo_${part}_prop.c
               LIBS bt_planner bt_base m LABELS property TIMEOUT 240)
endforeach()
