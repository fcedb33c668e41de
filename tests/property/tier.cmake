foreach(part IN ITEMS model move power torn)
    baton_test(property_tier_${part} LABELS property
        SOURCES tier_${part}_prop.c ${PROJECT_SOURCE_DIR}/tests/lib/tier_bed.c
        INCLUDES ${PROJECT_SOURCE_DIR}/transfer/tier
        LIBS bt_tier bt_transfer_core bt_base ext_ev ext_uring
             ${CMAKE_DL_LIBS})
endforeach()
target_compile_definitions(property_tier_move PRIVATE
    FAKE_CUDA="$<TARGET_FILE:fake_cuda>")
add_dependencies(property_tier_move fake_cuda)
