# orchestrator/proto: bytes of the engines' and the clients' dialects
foreach(name IN ITEMS json openai openai_legs sse kv_events kv_events_index
                      kv_events_standard kv_events_failures promtext promtext_write)
    baton_test(test_${name} LABELS unit SOURCES test_${name}.c LIBS bt_proto)
endforeach()
