baton_test(e2e_serve_identity LABELS e2e TIMEOUT 120
    SOURCES ${CMAKE_CURRENT_LIST_DIR}/test_serve_identity.c
    LIBS serve_bed bt_serve bt_planner)
target_include_directories(e2e_serve_identity PRIVATE
    ${PROJECT_SOURCE_DIR}/orchestrator/shell)
