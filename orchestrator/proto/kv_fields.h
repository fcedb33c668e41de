/* Private to orchestrator/proto: the named fields of one KV event, whichever
 * encoding it came in. */
#ifndef BATON_PROTO_KV_FIELDS_H
#define BATON_PROTO_KV_FIELDS_H

#include "baton/orchestrator/kv_events.h"
#include "msgpack.h"

enum kv_field {
    KV_TAG,
    KV_EVENT_TYPE, /* standard events (2.10) */
    KV_HASHES,
    KV_SEQ_HASHES, /* standard */
    KV_PARENT,
    KV_PARENT_HASH, /* standard */
    KV_TOKENS,
    KV_BLOCK_SIZE,
    KV_MEDIUM,
    KV_LORA,
    KV_EXTRA,
    KV_MM_INFOS,
    KV_GROUP,
    KV_KIND,
    KV_LOCALITY,
    KV_SALT,
    KV_REMAINING,
    KV_MORE_SALT, /* standard: additional_salt */
    KV_BASE,      /* standard: position of the first block */
    KV_RANK,      /* standard: dp_rank */
    KV_OBJECT,    /* standard, the master's: object_key */
    KV_FIELDS
};

struct kv_fields {
    struct msgpack_item item[KV_FIELDS]; /* NIL: absent or nil */
    struct msgpack rest[KV_FIELDS];      /* items of an array follow here */
    bool positional;                     /* encoding A */
    bool plain_tokens; /* all of token_ids is in the scratch already */
};

/* Find the fields of the event at m and pass it. False when it is no tagged
 * array or map, or nests too deep; m is then somewhere inside. */
bool bt_kv_fields_read(struct msgpack *m, struct bt_kv_scratch *scratch,
                       struct kv_fields *out);

#endif
