baton_test(unit_tier_host LABELS unit SOURCES tier_host_test.c
           LIBS bt_tier bt_base)
baton_test(unit_tier_nvme LABELS unit
    SOURCES tier_nvme_test.c ${PROJECT_SOURCE_DIR}/tests/lib/tier_bed.c
    INCLUDES ${PROJECT_SOURCE_DIR}/transfer/tier
    LIBS bt_tier bt_transfer_core bt_base ext_ev ext_uring)
baton_test(unit_tier_device LABELS unit SOURCES tier_device_test.c
    INCLUDES ${PROJECT_SOURCE_DIR}/transfer/tier
    LIBS bt_tier bt_base ${CMAKE_DL_LIBS})

# A driver library for tests of device code without a GPU.
add_library(fake_cuda MODULE ${PROJECT_SOURCE_DIR}/tests/lib/fake_cuda.c)
target_link_libraries(fake_cuda PRIVATE baton_flags)
target_compile_definitions(unit_tier_device PRIVATE
    FAKE_CUDA="$<TARGET_FILE:fake_cuda>")
add_dependencies(unit_tier_device fake_cuda)
