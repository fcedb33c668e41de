# Control frames of the KV protocol and the ends that hear them; see proto.cmake
# for how fuzz targets are built and run.
if(BATON_FUZZ)
    add_executable(fuzz_wire ${CMAKE_CURRENT_LIST_DIR}/fuzz_wire.c)
    target_link_options(fuzz_wire PRIVATE -fsanitize=fuzzer)
    target_link_libraries(fuzz_wire PRIVATE baton_flags bt_transfer bt_base
                          ext_ev)
    target_include_directories(fuzz_wire PRIVATE
                               ${PROJECT_SOURCE_DIR}/transfer/fabric)
    add_test(NAME fuzz_wire COMMAND fuzz_wire -runs=3000 -seed=1)
    set_tests_properties(fuzz_wire PROPERTIES LABELS fuzz TIMEOUT 120)
else()
    baton_test(fuzz_wire LABELS fuzz SOURCES fuzz_wire.c fuzz_driver.c
               LIBS bt_transfer bt_base ext_ev TIMEOUT 120
               INCLUDES ${PROJECT_SOURCE_DIR}/transfer/fabric)
endif()
