# KV events against what engines hold and answer.
baton_test(test_engine_event_truth LABELS e2e TIMEOUT 120
    SOURCES test_engine_event_truth.c engine_rig.c
    LIBS ${ENGINE_E2E_LIBS} ext_xxhash)
if(TARGET baton)
    baton_test(e2e_serve_estimate LABELS e2e TIMEOUT 120
        SOURCES test_serve_estimate.c truth_rig.c engine_rig.c
        LIBS ${ENGINE_E2E_LIBS} ARGS $<TARGET_FILE:baton>)
    # Half a minute alone: once, not under the sanitizers as well.
    baton_test(e2e_event_truth LABELS e2e slow TIMEOUT 300
        SOURCES test_event_truth.c truth_rig.c engine_rig.c
        LIBS ${ENGINE_E2E_LIBS} ARGS $<TARGET_FILE:baton>)
    set_tests_properties(e2e_event_truth PROPERTIES COST 400)
endif()
