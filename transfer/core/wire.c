/* The bytes of the control frames: what is in each type, how long it may be,
 * and what makes one malformed. Leaves to others when a frame is sent and what
 * it means. Invariants: a decoder never reads outside the given bytes, and a
 * frame that decodes used every one of them. */
#include "baton/transfer/wire.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#define MAGIC       0x4B42u
#define OPEN_WIDTH  8u
#define GRANT_WIDTH 12u

struct writer {
    uint8_t *bytes;
    size_t size, used;
    bool full;
};

struct reader {
    const uint8_t *bytes;
    size_t size, used;
    bool bad;
};

static void put(struct writer *w, uint64_t value, size_t width)
{
    if (w->size - w->used < width) {
        w->full = true;
        return;
    }
    for (size_t i = 0; i < width; i++)
        w->bytes[w->used + i] = (uint8_t)(value >> (8 * i));
    w->used += width;
}

static void put_bytes(struct writer *w, const void *data, size_t size)
{
    if (w->size - w->used < size) {
        w->full = true;
        return;
    }
    if (size > 0)
        memcpy(w->bytes + w->used, data, size);
    w->used += size;
}

static void put_text(struct writer *w, const char *text, size_t size)
{
    put(w, size, 1);
    put_bytes(w, text, size);
}

static void put_layout(struct writer *w, const struct bt_kv_layout *layout)
{
    put(w, layout->version, 4);
    put(w, layout->block_tokens, 4);
    put(w, layout->block_bytes, 8);
    put(w, layout->model_hash, 8);
}

static uint64_t load(const uint8_t *bytes, size_t width)
{
    uint64_t value = 0;

    for (size_t i = 0; i < width; i++)
        value |= (uint64_t)bytes[i] << (8 * i);
    return value;
}

static uint64_t take(struct reader *r, size_t width)
{
    uint64_t value;

    if (r->bad || r->size - r->used < width) {
        r->bad = true;
        return 0;
    }
    value = load(r->bytes + r->used, width);
    r->used += width;
    return value;
}

static const uint8_t *take_bytes(struct reader *r, size_t size)
{
    const uint8_t *at = r->bytes + r->used;

    if (r->bad || r->size - r->used < size) {
        r->bad = true;
        return NULL;
    }
    r->used += size;
    return at;
}

/* text_out holds size bytes, the closing NUL included. */
static void take_text(struct reader *r, char *text_out, size_t size)
{
    size_t length = (size_t)take(r, 1);
    const uint8_t *at;

    if (length >= size) {
        r->bad = true;
        return;
    }
    at = take_bytes(r, length);
    if (at == NULL)
        return;
    for (size_t i = 0; i < length; i++) {
        if (at[i] < ' ' || at[i] == 0x7f) { /* these end up in logs */
            r->bad = true;
            return;
        }
    }
    memcpy(text_out, at, length);
    text_out[length] = 0;
}

static void take_layout(struct reader *r, struct bt_kv_layout *layout)
{
    layout->version = (uint32_t)take(r, 4);
    layout->block_tokens = (uint32_t)take(r, 4);
    layout->block_bytes = take(r, 8);
    layout->model_hash = take(r, 8);
}

static void take_raw(struct reader *r, uint8_t *out, size_t size)
{
    const uint8_t *at = take_bytes(r, size);

    if (at != NULL)
        memcpy(out, at, size);
}

static uint32_t part_max(enum bt_wire_type type)
{
    return type == BT_WIRE_OPEN ? BT_WIRE_OPEN_PART : BT_WIRE_GRANT_PART;
}

static bool part_ok(const struct bt_wire_frame *f)
{
    return f->total <= BT_WIRE_LIST_MAX && f->count <= part_max(f->type) &&
           f->offset <= f->total && f->count <= f->total - f->offset;
}

static void put_part(struct writer *w, const struct bt_wire_frame *f)
{
    put(w, f->total, 4);
    put(w, f->offset, 4);
    put(w, f->count, 4);
    for (uint32_t i = 0; i < f->count && !w->full; i++) {
        if (f->type == BT_WIRE_OPEN) {
            put(w, f->refs[i], 8);
        } else {
            put(w, f->blocks[i], 4);
            put(w, f->hashes[i], 8);
        }
    }
}

static void take_part(struct reader *r, struct bt_wire_frame *f)
{
    size_t width = f->type == BT_WIRE_OPEN ? OPEN_WIDTH : GRANT_WIDTH;

    f->total = (uint32_t)take(r, 4);
    f->offset = (uint32_t)take(r, 4);
    f->count = (uint32_t)take(r, 4);
    if (!part_ok(f)) {
        r->bad = true;
        return;
    }
    f->list = take_bytes(r, f->count * width);
}

/* Length of a string field, or SIZE_MAX when it is over its limit. */
static size_t bounded(const char *text, size_t max)
{
    size_t length = strnlen(text, max + 1);

    return length > max ? SIZE_MAX : length;
}

static bool rails_ok(const struct bt_wire_frame *f)
{
    if (f->rail_count >= BT_RAILS_MAX || f->key_size > BT_WIRE_KEY_MAX)
        return false;
    for (size_t i = 0; i < f->rail_count; i++) {
        if (bounded(f->rails[i].address, BT_WIRE_ADDRESS - 1) == SIZE_MAX)
            return false;
    }
    return true;
}

static bool fields_ok(const struct bt_wire_frame *f)
{
    switch (f->type) {
    case BT_WIRE_HELLO:
        return bounded(f->name, BT_KV_NAME_MAX - 1) != SIZE_MAX &&
               bounded(f->region_name, BT_KV_NAME_MAX - 1) != SIZE_MAX &&
               f->rail < BT_RAILS_MAX;
    case BT_WIRE_WELCOME:
        return bounded(f->name, BT_KV_NAME_MAX - 1) != SIZE_MAX && rails_ok(f);
    case BT_WIRE_NO:
        return bounded(f->text, BT_WIRE_TEXT_MAX) != SIZE_MAX;
    case BT_WIRE_OPEN:
        return bounded(f->request, BT_KV_REQUEST_MAX) != SIZE_MAX && part_ok(f);
    case BT_WIRE_DONE:
    case BT_WIRE_BEAT:
        return bounded(f->request, BT_KV_REQUEST_MAX) != SIZE_MAX;
    case BT_WIRE_GRANT:
        return part_ok(f);
    case BT_WIRE_CHALLENGE:
    case BT_WIRE_PROVE:
    case BT_WIRE_PING:
    case BT_WIRE_PONG:
        return true;
    }
    return false;
}

static void put_hello(struct writer *w, const struct bt_wire_frame *f)
{
    put_text(w, f->name, strlen(f->name));
    put_text(w, f->region_name, strlen(f->region_name));
    put_layout(w, &f->layout);
    put(w, f->rail, 1);
    put(w, f->flags, 1);
    put(w, f->session, 8);
    put_bytes(w, f->nonce, sizeof(f->nonce));
}

static void put_welcome(struct writer *w, const struct bt_wire_frame *f)
{
    put_text(w, f->name, strlen(f->name));
    put_layout(w, &f->layout);
    put(w, f->region, 8);
    put(w, f->block_count, 4);
    put(w, f->key_size, 2);
    put_bytes(w, f->key, f->key_size);
    put(w, f->session, 8);
    put(w, f->rail_count, 1);
    for (size_t i = 0; i < f->rail_count; i++) {
        put_text(w, f->rails[i].address, strlen(f->rails[i].address));
        put(w, f->rails[i].port, 2);
    }
}

static void put_payload(struct writer *w, const struct bt_wire_frame *f)
{
    switch (f->type) {
    case BT_WIRE_HELLO:
        put_hello(w, f);
        break;
    case BT_WIRE_CHALLENGE:
        put_bytes(w, f->nonce, sizeof(f->nonce));
        put_bytes(w, f->proof, sizeof(f->proof));
        break;
    case BT_WIRE_PROVE:
        put_bytes(w, f->proof, sizeof(f->proof));
        break;
    case BT_WIRE_WELCOME:
        put_welcome(w, f);
        break;
    case BT_WIRE_NO:
        put(w, f->pull, 8);
        put(w, f->status, 4);
        put_text(w, f->text, strlen(f->text));
        break;
    case BT_WIRE_OPEN:
        put(w, f->pull, 8);
        put(w, f->flags, 1);
        put_text(w, f->request, strlen(f->request));
        put_part(w, f);
        break;
    case BT_WIRE_GRANT:
        put(w, f->pull, 8);
        put_part(w, f);
        break;
    case BT_WIRE_DONE:
        put(w, f->pull, 8);
        put(w, f->flags, 1);
        put_text(w, f->request, strlen(f->request));
        break;
    case BT_WIRE_BEAT:
        put_text(w, f->request, strlen(f->request));
        break;
    case BT_WIRE_PING:
    case BT_WIRE_PONG:
        put(w, f->token, 8);
        break;
    }
}

enum bt_status bt_wire_encode(const struct bt_wire_frame *frame, void *out,
                              size_t size, size_t *used_out)
{
    const size_t max = BT_WIRE_FRAME_MAX - BT_WIRE_TAIL;
    struct writer w = {.bytes = out, .size = size < max ? size : max};

    if (!fields_ok(frame))
        return BT_INVALID;
    put(&w, MAGIC, 2);
    put(&w, BT_WIRE_VERSION, 1);
    put(&w, frame->type, 1);
    put(&w, 0, 4);
    put_payload(&w, frame);
    if (w.full)
        return BT_TOO_LARGE;
    *used_out = w.used;
    w.used = 4;
    put(&w, *used_out, 4);
    return BT_OK;
}

static void take_hello(struct reader *r, struct bt_wire_frame *f)
{
    take_text(r, f->name, sizeof(f->name));
    take_text(r, f->region_name, sizeof(f->region_name));
    take_layout(r, &f->layout);
    f->rail = (uint8_t)take(r, 1);
    f->flags = (uint8_t)take(r, 1);
    f->session = take(r, 8);
    take_raw(r, f->nonce, sizeof(f->nonce));
    if (f->rail >= BT_RAILS_MAX)
        r->bad = true;
}

static void take_welcome(struct reader *r, struct bt_wire_frame *f)
{
    take_text(r, f->name, sizeof(f->name));
    take_layout(r, &f->layout);
    f->region = take(r, 8);
    f->block_count = (uint32_t)take(r, 4);
    f->key_size = (uint16_t)take(r, 2);
    if (f->key_size > BT_WIRE_KEY_MAX) {
        r->bad = true;
        return;
    }
    take_raw(r, f->key, f->key_size);
    f->session = take(r, 8);
    f->rail_count = (uint8_t)take(r, 1);
    if (f->rail_count >= BT_RAILS_MAX) {
        r->bad = true;
        return;
    }
    for (size_t i = 0; i < f->rail_count; i++) {
        take_text(r, f->rails[i].address, sizeof(f->rails[i].address));
        f->rails[i].port = (uint16_t)take(r, 2);
    }
}

static void take_payload(struct reader *r, struct bt_wire_frame *f)
{
    switch (f->type) {
    case BT_WIRE_HELLO:
        take_hello(r, f);
        break;
    case BT_WIRE_CHALLENGE:
        take_raw(r, f->nonce, sizeof(f->nonce));
        take_raw(r, f->proof, sizeof(f->proof));
        break;
    case BT_WIRE_PROVE:
        take_raw(r, f->proof, sizeof(f->proof));
        break;
    case BT_WIRE_WELCOME:
        take_welcome(r, f);
        break;
    case BT_WIRE_NO:
        f->pull = take(r, 8);
        f->status = (uint32_t)take(r, 4);
        take_text(r, f->text, sizeof(f->text));
        break;
    case BT_WIRE_OPEN:
        f->pull = take(r, 8);
        f->flags = (uint8_t)take(r, 1);
        take_text(r, f->request, sizeof(f->request));
        take_part(r, f);
        break;
    case BT_WIRE_GRANT:
        f->pull = take(r, 8);
        take_part(r, f);
        break;
    case BT_WIRE_DONE:
        f->pull = take(r, 8);
        f->flags = (uint8_t)take(r, 1);
        take_text(r, f->request, sizeof(f->request));
        break;
    case BT_WIRE_BEAT:
        take_text(r, f->request, sizeof(f->request));
        break;
    case BT_WIRE_PING:
    case BT_WIRE_PONG:
        f->token = take(r, 8);
        break;
    }
}

enum bt_status bt_wire_decode(const void *bytes, size_t size,
                              struct bt_wire_frame *frame_out)
{
    struct reader r = {.bytes = bytes, .size = size};
    uint64_t magic = take(&r, 2);
    uint64_t version = take(&r, 1);
    uint64_t type = take(&r, 1);
    uint64_t length = take(&r, 4);

    if (r.bad || size > BT_WIRE_FRAME_MAX || magic != MAGIC)
        return BT_INVALID;
    if (version != BT_WIRE_VERSION)
        return BT_INCOMPATIBLE;
    if (length != size || type < BT_WIRE_HELLO || type > BT_WIRE_PONG)
        return BT_INVALID;
    memset(frame_out, 0, sizeof(*frame_out));
    frame_out->type = (enum bt_wire_type)type;
    take_payload(&r, frame_out);
    return r.bad || r.used != size ? BT_INVALID : BT_OK;
}

uint64_t bt_wire_ref(const struct bt_wire_frame *frame, uint32_t i)
{
    return load(frame->list + (size_t)i * OPEN_WIDTH, 8);
}

uint32_t bt_wire_block(const struct bt_wire_frame *frame, uint32_t i)
{
    return (uint32_t)load(frame->list + (size_t)i * GRANT_WIDTH, 4);
}

uint64_t bt_wire_hash(const struct bt_wire_frame *frame, uint32_t i)
{
    return load(frame->list + (size_t)i * GRANT_WIDTH + 4, 8);
}

const char *bt_wire_type_name(enum bt_wire_type type)
{
    switch (type) {
    case BT_WIRE_HELLO:
        return "HELLO";
    case BT_WIRE_CHALLENGE:
        return "CHALLENGE";
    case BT_WIRE_PROVE:
        return "PROVE";
    case BT_WIRE_WELCOME:
        return "WELCOME";
    case BT_WIRE_NO:
        return "NO";
    case BT_WIRE_OPEN:
        return "OPEN";
    case BT_WIRE_GRANT:
        return "GRANT";
    case BT_WIRE_DONE:
        return "DONE";
    case BT_WIRE_BEAT:
        return "BEAT";
    case BT_WIRE_PING:
        return "PING";
    case BT_WIRE_PONG:
        return "PONG";
    }
    return "?";
}

enum bt_status bt_wire_layout_match(const struct bt_kv_layout *mine,
                                    const struct bt_kv_layout *theirs,
                                    char *text_out, size_t text_size)
{
    const struct {
        const char *what;
        uint64_t mine, theirs;
    } fields[] = {
        {"version", mine->version, theirs->version},
        {"block_tokens", mine->block_tokens, theirs->block_tokens},
        {"block_bytes", mine->block_bytes, theirs->block_bytes},
        {"model_hash", mine->model_hash, theirs->model_hash},
    };

    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
        if (fields[i].mine == fields[i].theirs)
            continue;
        snprintf(text_out, text_size, "%s differs: source %llu, sink %llu",
                 fields[i].what, (unsigned long long)fields[i].mine,
                 (unsigned long long)fields[i].theirs);
        return BT_INCOMPATIBLE;
    }
    return BT_OK;
}
