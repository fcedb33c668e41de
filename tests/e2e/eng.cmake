# The emulated engine: real processes, HTTP, ZMQ and KV transfers.
set(ENGINE_E2E_LIBS bt_engine bt_transfer bt_net bt_proto bt_planner bt_base
    ext_ev ext_jansson ext_zmq)
baton_test(test_engine_handoff LABELS e2e TIMEOUT 120
    SOURCES test_engine_handoff.c engine_rig.c LIBS ${ENGINE_E2E_LIBS})
baton_test(test_engine_api LABELS e2e TIMEOUT 120
    SOURCES test_engine_api.c engine_rig.c LIBS ${ENGINE_E2E_LIBS})
baton_test(test_engine_stream LABELS e2e TIMEOUT 120
    SOURCES test_engine_stream.c engine_rig.c LIBS ${ENGINE_E2E_LIBS})
baton_test(test_engine_chaos LABELS e2e TIMEOUT 120
    SOURCES test_engine_chaos.c engine_rig.c LIBS ${ENGINE_E2E_LIBS})
baton_test(test_engine_event_faults LABELS e2e TIMEOUT 120
    SOURCES test_engine_event_faults.c engine_rig.c LIBS ${ENGINE_E2E_LIBS})
baton_test(test_engine_event_plane LABELS e2e TIMEOUT 120
    SOURCES test_engine_event_plane.c LIBS bt_engine bt_base ext_ev ext_zmq
    INCLUDES ${PROJECT_SOURCE_DIR}/bench/engine)
if(TARGET baton)
    baton_test(test_engine_cli LABELS e2e
        SOURCES test_engine_cli.c engine_rig.c LIBS ${ENGINE_E2E_LIBS}
        ARGS $<TARGET_FILE:baton>)
endif()
