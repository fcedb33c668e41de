# The verbs transport by itself, in the guest.
foreach(name IN ITEMS verbs_smoke verbs_bench)
    add_executable(${name} ${name}.c verbs_bed.c)
    target_include_directories(${name}
        PRIVATE ${PROJECT_SOURCE_DIR}/transfer/fabric)
    target_link_libraries(${name} PRIVATE baton_flags bt_transfer
        bt_transfer_core bt_base ext_ev ext_ibverbs ext_rdmacm ext_cmocka)
endforeach()
