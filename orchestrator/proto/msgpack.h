/* Private to orchestrator/proto: a reader of msgpack over somebody else's
 * bytes. Bounded before use: a declared length beyond the bytes left is an
 * error, so nothing is ever sized by the input alone.
 */
#ifndef BATON_PROTO_MSGPACK_H
#define BATON_PROTO_MSGPACK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define MSGPACK_DEPTH_MAX 16

enum msgpack_type {
    MSGPACK_NIL,
    MSGPACK_BOOL,
    MSGPACK_UINT,
    MSGPACK_NEGATIVE, /* u: two's complement */
    MSGPACK_FLOAT,
    MSGPACK_STR,
    MSGPACK_BIN,
    MSGPACK_EXT,
    MSGPACK_ARRAY,
    MSGPACK_MAP
};

struct msgpack {
    const unsigned char *at, *end;
};

struct msgpack_item {
    enum msgpack_type type;
    uint64_t u;    /* integer, bool, bytes of str/bin/ext, items, pairs */
    double f;      /* FLOAT */
    const char *s; /* STR, BIN, EXT: first byte */
};

/* Read one header; the bytes of str/bin/ext are passed, the items of an array
 * or map are left to be read. False: malformed or cut; the reader stays. */
bool bt_msgpack_read(struct msgpack *m, struct msgpack_item *out);
/* Pass one whole value, however deep (linear time, no stack beyond the
 * limit). *too_deep (not NULL) is set when it nests deeper than the limit. */
bool bt_msgpack_skip(struct msgpack *m, bool *too_deep);
/* Read leading items as long as they are what long lists are made of, at most
 * `count`; how many. u32s: unsigned in 1, 2, 3 or 5 bytes. u64s: 64-bit ones,
 * signed as two's complement. They stop early near the end of the bytes: the
 * reader above goes on with the rest. */
size_t bt_msgpack_u32s(struct msgpack *m, uint32_t *out, size_t count);
size_t bt_msgpack_u64s(struct msgpack *m, uint64_t *out, size_t count);
/* Is it this text? Inline: the length of a literal is known then. */
static inline bool bt_msgpack_is(const struct msgpack_item *item,
                                 const char *text)
{
    return item->type == MSGPACK_STR && item->u == strlen(text) &&
           memcmp(item->s, text, item->u) == 0;
}

#endif
