/* Decides what the next msgpack value is; what it means is left to
 * kv_events.c. Not the msgpack library: the pure layers allocate nothing, and
 * the input is hostile. Invariants: `at` never passes `end`; every array or
 * map item takes at least one byte, so counts are checked against the rest.
 */
#include "msgpack.h"

#include <string.h>

/* Big-endian number of `width` bytes at *p, which has them. */
static uint64_t big_endian(const unsigned char *p, size_t width)
{
    uint64_t v = 0;
    for (size_t i = 0; i < width; i++)
        v = v << 8 | p[i];
    return v;
}

static bool number_take(struct msgpack *m, size_t width, uint64_t *out)
{
    if ((size_t)(m->end - m->at) < width)
        return false;
    *out = big_endian(m->at, width);
    m->at += width;
    return true;
}

static bool bytes_take(struct msgpack *m, enum msgpack_type type,
                       uint64_t count, struct msgpack_item *out)
{
    if (count > (size_t)(m->end - m->at))
        return false;
    out->type = type;
    out->u = count;
    out->s = (const char *)m->at;
    m->at += count;
    return true;
}

static bool items_take(struct msgpack *m, enum msgpack_type type,
                       uint64_t count, struct msgpack_item *out)
{
    uint64_t least = type == MSGPACK_MAP ? count * 2 : count;
    out->type = type;
    out->u = count;
    return least <= (size_t)(m->end - m->at);
}

static bool signed_take(struct msgpack *m, size_t width,
                        struct msgpack_item *out)
{
    uint64_t v;
    if (!number_take(m, width, &v))
        return false;
    bool negative = v >> (width * 8 - 1) & 1;
    if (negative && width < 8)
        v |= UINT64_MAX << (width * 8);
    out->type = negative ? MSGPACK_NEGATIVE : MSGPACK_UINT;
    out->u = v;
    return true;
}

static bool float_take(struct msgpack *m, size_t width,
                       struct msgpack_item *out)
{
    uint64_t bits;
    if (!number_take(m, width, &bits))
        return false;
    out->type = MSGPACK_FLOAT;
    if (width == 8) {
        memcpy(&out->f, &bits, sizeof out->f);
    } else {
        uint32_t half = (uint32_t)bits;
        float f;
        memcpy(&f, &half, sizeof f);
        out->f = (double)f;
    }
    return true;
}

/* 0xc4..0xc9, 0xd9..0xdf: a length of `width` bytes, then the contents. */
static bool sized_take(struct msgpack *m, enum msgpack_type type, size_t width,
                       struct msgpack_item *out)
{
    uint64_t count;
    if (!number_take(m, width, &count))
        return false;
    if (type == MSGPACK_ARRAY || type == MSGPACK_MAP)
        return items_take(m, type, count, out);
    /* an extension has a type byte in front */
    return bytes_take(m, type, count + (type == MSGPACK_EXT), out);
}

static bool simple_set(enum msgpack_type type, uint64_t u,
                       struct msgpack_item *out)
{
    out->type = type;
    out->u = u;
    return true;
}

static bool marked_read(struct msgpack *m, unsigned c, struct msgpack_item *out)
{
    switch (c) {
    case 0xc0:
        return simple_set(MSGPACK_NIL, 0, out);
    case 0xc2:
    case 0xc3:
        return simple_set(MSGPACK_BOOL, c & 1, out);
    case 0xc4:
    case 0xc5:
    case 0xc6:
        return sized_take(m, MSGPACK_BIN, (size_t)1 << (c - 0xc4), out);
    case 0xc7:
    case 0xc8:
    case 0xc9:
        return sized_take(m, MSGPACK_EXT, (size_t)1 << (c - 0xc7), out);
    case 0xca:
    case 0xcb:
        return float_take(m, c == 0xca ? 4 : 8, out);
    case 0xcc:
    case 0xcd:
    case 0xce:
    case 0xcf:
        out->type = MSGPACK_UINT;
        return number_take(m, (size_t)1 << (c - 0xcc), &out->u);
    case 0xd0:
    case 0xd1:
    case 0xd2:
    case 0xd3:
        return signed_take(m, (size_t)1 << (c - 0xd0), out);
    case 0xd4:
    case 0xd5:
    case 0xd6:
    case 0xd7:
    case 0xd8:
        return bytes_take(m, MSGPACK_EXT, 1 + ((uint64_t)1 << (c - 0xd4)), out);
    case 0xd9:
    case 0xda:
    case 0xdb:
        return sized_take(m, MSGPACK_STR, (size_t)1 << (c - 0xd9), out);
    case 0xdc:
    case 0xdd:
        return sized_take(m, MSGPACK_ARRAY, c == 0xdc ? 2 : 4, out);
    case 0xde:
    case 0xdf:
        return sized_take(m, MSGPACK_MAP, c == 0xde ? 2 : 4, out);
    default: /* 0xc1 is never used */
        return false;
    }
}

static bool item_read(struct msgpack *m, struct msgpack_item *out)
{
    unsigned c = *m->at++;
    if (c < 0x80)
        return simple_set(MSGPACK_UINT, c, out);
    if (c < 0x90)
        return items_take(m, MSGPACK_MAP, c & 0x0f, out);
    if (c < 0xa0)
        return items_take(m, MSGPACK_ARRAY, c & 0x0f, out);
    if (c < 0xc0)
        return bytes_take(m, MSGPACK_STR, c & 0x1f, out);
    if (c >= 0xe0)
        return simple_set(MSGPACK_NEGATIVE, UINT64_MAX << 8 | c, out);
    return marked_read(m, c, out);
}

bool bt_msgpack_read(struct msgpack *m, struct msgpack_item *out)
{
    struct msgpack ahead = *m;
    struct msgpack_item item = {.type = MSGPACK_NIL};
    if (ahead.at == ahead.end || !item_read(&ahead, &item))
        return false;
    *m = ahead;
    *out = item;
    return true;
}

/* Bytes of a value that holds no other and no length field of its own, 0 for
 * the rest: what a skip passes without reading it. */
static size_t plain_size(unsigned c)
{
    static const unsigned char sizes[] = {
        1, 0, 1, 1, /* c0: nil, never used, bool */
        0, 0, 0, 0, /* c4: bin */
        0, 0, 5, 9, /* c8: ext, float */
        2, 3, 5, 9, /* cc: unsigned */
        2, 3, 5, 9, /* d0: signed */
    };
    if (c < 0x80 || c >= 0xe0)
        return 1;
    if (c >= 0xa0 && c < 0xc0)
        return 1 + (c & 0x1f);
    return c >= 0xc0 && c < 0xc0 + sizeof sizes ? sizes[c - 0xc0] : 0;
}

/* Pass up to `count` plain values; how many are left. */
static uint64_t plain_pass(struct msgpack *m, uint64_t count)
{
    while (count > 0 && m->at < m->end) {
        size_t size = plain_size(*m->at);
        if (size == 0 || size > (size_t)(m->end - m->at))
            break;
        m->at += size;
        count--;
    }
    return count;
}

/* Pass a value that may hold others. */
static bool nested_skip(struct msgpack *m, bool *too_deep)
{
    uint64_t left[MSGPACK_DEPTH_MAX + 1] = {1};
    size_t depth = 0;
    struct msgpack ahead = *m;
    struct msgpack_item item;
    while (depth > 0 || left[0] > 0) {
        if (!bt_msgpack_read(&ahead, &item))
            return false;
        left[depth]--;
        if (item.type == MSGPACK_ARRAY || item.type == MSGPACK_MAP) {
            uint64_t inner = item.type == MSGPACK_MAP ? item.u * 2 : item.u;
            if (depth < MSGPACK_DEPTH_MAX)
                left[++depth] = inner;
            else { /* deeper ones are counted flat */
                left[depth] += inner;
                if (too_deep != NULL)
                    *too_deep = true;
            }
        }
        left[depth] = plain_pass(&ahead, left[depth]);
        while (depth > 0 && left[depth] == 0)
            depth--;
    }
    *m = ahead;
    return true;
}

bool bt_msgpack_skip(struct msgpack *m, bool *too_deep)
{
    return plain_pass(m, 1) == 0 || nested_skip(m, too_deep);
}

size_t bt_msgpack_u32s(struct msgpack *m, uint32_t *out, size_t count)
{
    const unsigned char *p = m->at;
    size_t n = 0;
    while (n < count && m->end - p >= 5) { /* the widest of them */
        if (*p == 0xcd) {
            out[n++] = (uint32_t)p[1] << 8 | p[2];
            p += 3;
        } else if (*p == 0xce) {
            out[n++] = (uint32_t)p[1] << 24 | (uint32_t)p[2] << 16 |
                       (uint32_t)p[3] << 8 | p[4];
            p += 5;
        } else if (*p < 0x80) {
            out[n++] = *p++;
        } else if (*p == 0xcc) {
            out[n++] = p[1];
            p += 2;
        } else {
            break;
        }
    }
    m->at = p;
    return n;
}

size_t bt_msgpack_u64s(struct msgpack *m, uint64_t *out, size_t count)
{
    const unsigned char *p = m->at;
    size_t n = 0;
    while (n < count && m->end - p >= 9 && (*p == 0xcf || *p == 0xd3)) {
        out[n++] = (uint64_t)p[1] << 56 | (uint64_t)p[2] << 48 |
                   (uint64_t)p[3] << 40 | (uint64_t)p[4] << 32 |
                   (uint64_t)p[5] << 24 | (uint64_t)p[6] << 16 |
                   (uint64_t)p[7] << 8 | p[8];
        p += 9;
    }
    m->at = p;
    return n;
}
