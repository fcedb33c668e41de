# Block identity on the request side: what names a block, and in which words.
baton_test(test_openai_hidden LABELS unit SOURCES test_openai_hidden.c
    LIBS bt_proto)
baton_test(test_kv_request_keys LABELS unit SOURCES test_kv_request_keys.c
    LIBS bt_proto bt_planner ext_xxhash)
