foreach(part IN ITEMS fabric life rails auth limits)
    baton_test(test_kv_${part} LABELS conformance TIMEOUT 300
        SOURCES test_kv_${part}.c kv_bed.c kv_tap.c
        INCLUDES ${PROJECT_SOURCE_DIR}/transfer/fabric
        LIBS bt_transfer bt_base ext_ev)
endforeach()
# They mostly wait, for beats: the longest first, beside others.
set_tests_properties(test_kv_rails PROPERTIES COST 150)
set_tests_properties(test_kv_auth test_kv_life PROPERTIES COST 140)
# Ends that lie speak frames by hand.
baton_test(test_kv_liars LABELS conformance TIMEOUT 300
    SOURCES test_kv_liars.c kv_bed.c kv_tap.c kv_liar.c
    INCLUDES ${PROJECT_SOURCE_DIR}/transfer/fabric
    LIBS bt_transfer bt_base ext_ev)
