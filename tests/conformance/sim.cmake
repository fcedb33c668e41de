# The port of transports: one suite for all kinds, random calls against a
# model, the decorators fault and trace, and many threads.
foreach(name IN ITEMS test_transport test_transport_random)
    baton_test(${name} LABELS conformance TIMEOUT 300
        SOURCES ${name}.c transport_bed.c
        LIBS bt_transfer bt_base ext_ev Threads::Threads
        INCLUDES ${PROJECT_SOURCE_DIR}/transfer/fabric)
endforeach()
baton_test(test_transport_fault LABELS conformance TIMEOUT 60
    SOURCES test_transport_fault.c transport_bed.c
    LIBS bt_transfer bt_base ext_ev Threads::Threads
    INCLUDES ${PROJECT_SOURCE_DIR}/transfer/fabric)
baton_test(test_transport_torture LABELS conformance TIMEOUT 120
    SOURCES test_transport_torture.c
    LIBS bt_transfer bt_base ext_ev Threads::Threads
    INCLUDES ${PROJECT_SOURCE_DIR}/transfer/fabric)

# Not a test: prints round trips of the ring beside those of a locked queue.
add_executable(ring_speed EXCLUDE_FROM_ALL ring_speed.c)
target_include_directories(ring_speed
    PRIVATE ${PROJECT_SOURCE_DIR}/transfer/fabric)
target_link_libraries(ring_speed
    PRIVATE baton_flags bt_transfer Threads::Threads)
