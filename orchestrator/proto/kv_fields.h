/* Private to orchestrator/proto: the named fields of one KV event, whichever
 * encoding it came in. */
#ifndef BATON_PROTO_KV_FIELDS_H
#define BATON_PROTO_KV_FIELDS_H

#include "msgpack.h"

enum kv_field {
    KV_TAG,
    KV_HASHES,
    KV_PARENT,
    KV_TOKENS,
    KV_BLOCK_SIZE,
    KV_MEDIUM,
    KV_LORA,
    KV_EXTRA,
    KV_GROUP,
    KV_KIND,
    KV_LOCALITY,
    KV_SALT,
    KV_REMAINING,
    KV_FIELDS
};

struct kv_fields {
    struct msgpack_item item[KV_FIELDS]; /* NIL: absent or nil */
    struct msgpack rest[KV_FIELDS];      /* items of an array follow here */
    bool positional;                     /* encoding A */
};

/* Find the fields of the event in `m` (exactly one value). False when it is no
 * tagged array or map, or nests too deep. */
bool bt_kv_fields_read(struct msgpack m, struct kv_fields *out);

#endif
