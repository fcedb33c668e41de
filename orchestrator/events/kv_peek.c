/* Looks into a batch without decoding it. Decides nothing: a batch that is not
 * understood here has no time and no label, and the decoder will count it.
 * Invariant: reads inside the payload only, each item once; what an array or
 * map declares is only a count that the payload has to pay for.
 */
#include "kv_peek.h"

#include <string.h>

struct cursor {
    const unsigned char *at, *end;
};

struct item {
    unsigned char head;
    uint64_t count; /* of bytes, or of items that follow */
    const unsigned char *data;
    bool container;
};

static bool take(struct cursor *c, size_t bytes, uint64_t *out)
{
    uint64_t v = 0;

    if ((size_t)(c->end - c->at) < bytes)
        return false;
    for (size_t i = 0; i < bytes; i++)
        v = v << 8 | *c->at++;
    *out = v;
    return true;
}

/* Bytes of the body, or of the length in front of it. */
enum form { FORM_BODY, FORM_LENGTH, FORM_ARRAY, FORM_MAP, FORM_BAD };
static const struct {
    unsigned char form, size, extra;
} forms[32] = {
    /* c0 */ {FORM_BODY, 0, 0},
    {FORM_BAD, 0, 0},
    {FORM_BODY, 0, 0},
    {FORM_BODY, 0, 0},
    /* c4 bin */ {FORM_LENGTH, 1, 0},
    {FORM_LENGTH, 2, 0},
    {FORM_LENGTH, 4, 0},
    /* c7 ext */ {FORM_LENGTH, 1, 1},
    {FORM_LENGTH, 2, 1},
    {FORM_LENGTH, 4, 1},
    /* ca float */ {FORM_BODY, 4, 0},
    {FORM_BODY, 8, 0},
    /* cc uint */ {FORM_BODY, 1, 0},
    {FORM_BODY, 2, 0},
    {FORM_BODY, 4, 0},
    {FORM_BODY, 8, 0},
    /* d0 int */ {FORM_BODY, 1, 0},
    {FORM_BODY, 2, 0},
    {FORM_BODY, 4, 0},
    {FORM_BODY, 8, 0},
    /* d4 fixext */ {FORM_BODY, 2, 0},
    {FORM_BODY, 3, 0},
    {FORM_BODY, 5, 0},
    {FORM_BODY, 9, 0},
    {FORM_BODY, 17, 0},
    /* d9 str */ {FORM_LENGTH, 1, 0},
    {FORM_LENGTH, 2, 0},
    {FORM_LENGTH, 4, 0},
    /* dc array */ {FORM_ARRAY, 2, 0},
    {FORM_ARRAY, 4, 0},
    /* de map */ {FORM_MAP, 2, 0},
    {FORM_MAP, 4, 0},
};

static bool body(struct cursor *c, struct item *item)
{
    if (item->count > (uint64_t)(c->end - c->at))
        return false;
    item->data = c->at;
    c->at += item->count;
    return true;
}

static bool read_item(struct cursor *c, struct item *item)
{
    uint64_t v;

    memset(item, 0, sizeof(*item));
    if (!take(c, 1, &v))
        return false;
    item->head = (unsigned char)v;
    if (v < 0x80 || v >= 0xe0)
        return true;
    if (v < 0xa0) {
        item->container = true;
        item->count = v < 0x90 ? 2 * (v & 15) : v & 15;
        return true;
    }
    if (v < 0xc0) {
        item->count = v & 31;
        return body(c, item);
    }
    size_t size = forms[v - 0xc0].size, extra = forms[v - 0xc0].extra;
    switch ((enum form)forms[v - 0xc0].form) {
    case FORM_BODY:
        item->count = size;
        return body(c, item);
    case FORM_LENGTH:
        if (!take(c, size, &item->count))
            return false;
        item->count += extra;
        return body(c, item);
    case FORM_ARRAY:
        item->container = true;
        return take(c, size, &item->count);
    case FORM_MAP:
        item->container = true;
        if (!take(c, size, &item->count))
            return false;
        item->count *= 2;
        return true;
    case FORM_BAD:
        return false;
    }
    return false;
}

/* One whole value; each open item costs at least a byte, so the loop ends. */
static bool skip(struct cursor *c)
{
    uint64_t open = 1;
    struct item item;

    while (open > 0) {
        if (open > (uint64_t)(c->end - c->at) || !read_item(c, &item))
            return false;
        open += item.container ? item.count : 0;
        open--;
    }
    return true;
}

static bool is_text(const struct item *item, const char *text)
{
    bool str = (item->head >= 0xa0 && item->head < 0xc0) ||
               (item->head >= 0xd9 && item->head <= 0xdb);

    return str && item->count == strlen(text) &&
           memcmp(item->data, text, item->count) == 0;
}

static uint64_t big_endian(const struct item *item)
{
    uint64_t v = 0;

    for (uint64_t i = 0; i < item->count; i++)
        v = v << 8 | item->data[i];
    return v;
}

static bool int_of(const struct item *item, int64_t *out)
{
    unsigned char head = item->head;
    uint64_t v;

    if (head < 0x80 || head >= 0xe0) {
        *out = head < 0x80 ? head : (int64_t)head - 256;
        return true;
    }
    if (head < 0xcc || head > 0xd3)
        return false;
    v = big_endian(item);
    if (head >= 0xd0 && item->count > 0 && item->count < 8 &&
        v >> (8 * item->count - 1) != 0)
        v |= UINT64_MAX << (8 * item->count);
    *out = (int64_t)v;
    return true;
}

/* What cannot be a time is none: one such batch would make all later ones look
 * older than it. */
static double time_of(const struct item *item)
{
    double d = 0.;
    int64_t i;

    if (item->head == 0xcb) {
        uint64_t v = big_endian(item);

        memcpy(&d, &v, sizeof(d));
    } else if (int_of(item, &i)) {
        d = (double)i;
    }
    return d > 0. && d < KV_PEEK_TS_END ? d : 0.;
}

static bool is_array(const struct item *item)
{
    return item->container && ((item->head & 0xf0) == 0x90 ||
                               item->head == 0xdc || item->head == 0xdd);
}

double kv_peek_ts(const void *payload, size_t bytes)
{
    struct cursor c = {payload, (const unsigned char *)payload + bytes};
    struct item item;

    if (bytes == 0 || !read_item(&c, &item) || !item.container)
        return 0.;
    if (is_array(&item))
        return read_item(&c, &item) ? time_of(&item) : 0.;
    for (uint64_t pairs = item.count / 2; pairs > 0; pairs--) {
        if (!read_item(&c, &item))
            return 0.;
        if (is_text(&item, "ts"))
            return read_item(&c, &item) ? time_of(&item) : 0.;
        if (!skip(&c))
            return 0.;
    }
    return 0.;
}

bool kv_peek_rank(const void *payload, size_t bytes, int64_t *rank_out)
{
    struct cursor c = {payload, (const unsigned char *)payload + bytes};
    struct item item;

    if (bytes == 0 || !read_item(&c, &item) || !item.container)
        return false;
    if (is_array(&item))
        return item.count >= 3 && skip(&c) && skip(&c) &&
               read_item(&c, &item) && int_of(&item, rank_out);
    for (uint64_t pairs = item.count / 2; pairs > 0; pairs--) {
        if (!read_item(&c, &item))
            return false;
        if (is_text(&item, "data_parallel_rank") ||
            is_text(&item, "attn_dp_rank"))
            return read_item(&c, &item) && int_of(&item, rank_out);
        if (!skip(&c))
            return false;
    }
    return false;
}
