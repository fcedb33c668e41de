if(TARGET bt_traces)
    baton_test(unit_bench_workload LABELS unit SOURCES bench_workload.c
               LIBS bt_traces bt_base m)
    baton_test(unit_bench_mooncake LABELS unit SOURCES bench_mooncake.c
               LIBS bt_traces bt_base m)
endif()
if(TARGET bt_client AND TARGET bt_net AND TARGET bt_engine)
    baton_test(unit_bench_stats LABELS unit SOURCES bench_stats.c
               LIBS bt_client bt_base m)
    baton_test(unit_bench_client LABELS unit SOURCES bench_client.c
               LIBS bt_client bt_net ext_ev)
endif()
if(TARGET bt_ab AND TARGET bt_net AND TARGET bt_engine)
    baton_test(unit_bench_report LABELS unit SOURCES bench_report.c
               LIBS bt_ab bt_proto m)
endif()
if(TARGET bt_micro)
    baton_test(unit_bench_micro LABELS unit SOURCES bench_micro.c
               INCLUDES ${PROJECT_SOURCE_DIR}/bench/micro
               LIBS bt_micro bt_proto)
    baton_test(unit_bench_index LABELS unit SOURCES bench_index_test.c
               INCLUDES ${PROJECT_SOURCE_DIR}/bench/micro
               LIBS bt_micro bt_traces bt_planner bt_base ext_jansson)
endif()
