/* Decides where the parts of a JSON value lie and what its scalars mean. Texts
 * come validated from json_parse.c, but nothing here relies on that for memory
 * safety: every step is bounded by the span, so a cut text only ends early
 * (sse.c looks at cut lines). No recursion: containers are skipped by counting
 * brackets.
 */
#include "baton/orchestrator/json.h"

#include "json_walk.h"
#include "number.h"
#include "utf8.h"
#include <math.h>
#include <string.h>

#define REPLACEMENT 0xfffdu

enum bt_json_type bt_json_type_at(const char *first)
{
    switch (*first) {
    case '{':
        return BT_JSON_OBJECT;
    case '[':
        return BT_JSON_ARRAY;
    case '"':
        return BT_JSON_STRING;
    case 't':
        return BT_JSON_TRUE;
    case 'f':
        return BT_JSON_FALSE;
    case 'n':
        return BT_JSON_NULL;
    default:
        return BT_JSON_NUMBER;
    }
}

static const char *space_skip(const char *p, const char *end)
{
    while (p < end && (*p == ' ' || *p == '\n' || *p == '\t' || *p == '\r'))
        p++;
    return p;
}

/* p at the opening quote; past the closing one, or NULL when it is cut. */
static const char *string_skip(const char *p, const char *end)
{
    const char *from = p + 1;
    while (from < end) {
        const char *quote = memchr(from, '"', (size_t)(end - from));
        if (quote == NULL)
            return NULL;
        const char *run = quote;
        while (run > from && run[-1] == '\\')
            run--;
        if ((quote - run) % 2 == 0)
            return quote + 1;
        from = quote + 1;
    }
    return NULL;
}

/* No quote, bracket or brace among the 8 bytes? '[' and '{', ']' and '}' differ
 * in one bit, which the mask drops. */
static bool dull8(const char *p)
{
    const uint64_t ones = UINT64_MAX / 255, high = ones << 7;
    uint64_t v, fold, quote, open, close;
    memcpy(&v, p, sizeof v);
    fold = v & ones * 0xdf;
    quote = v ^ ones * '"';
    open = fold ^ ones * '[';
    close = fold ^ ones * ']';
    return ((((quote - ones) & ~quote) | ((open - ones) & ~open) |
             ((close - ones) & ~close)) &
            high) == 0;
}

static const char *container_skip(const char *p, const char *end)
{
    size_t depth = 0;
    while (p < end) {
        if (end - p >= 8 && dull8(p)) {
            p += 8;
            continue;
        }
        if (*p == '"') {
            p = string_skip(p, end);
            if (p == NULL)
                return NULL;
            continue;
        }
        if (*p == '{' || *p == '[')
            depth++;
        else if ((*p == '}' || *p == ']') && --depth == 0)
            return p + 1;
        p++;
    }
    return NULL;
}

static const char *scalar_skip(const char *p, const char *end)
{
    while (p < end && *p != ',' && *p != '}' && *p != ']' && *p != ' ' &&
           *p != '\n' && *p != '\t' && *p != '\r')
        p++;
    return p;
}

static const char *value_skip(const char *p, const char *end)
{
    if (*p == '"')
        return string_skip(p, end);
    if (*p == '{' || *p == '[')
        return container_skip(p, end);
    return scalar_skip(p, end);
}

/* Past the key and its colon, or NULL. */
static const char *key_read(const char *p, const char *end, struct bt_json *key)
{
    const char *q = *p == '"' ? string_skip(p, end) : NULL;
    if (q == NULL)
        return NULL;
    if (key != NULL) {
        key->at = p + 1;
        key->bytes = (size_t)(q - p) - 2;
        key->type = BT_JSON_STRING;
    }
    p = space_skip(q, end);
    if (p == end || *p != ':')
        return NULL;
    return space_skip(p + 1, end);
}

bool bt_json_next(const struct bt_json *container, size_t *cursor,
                  struct bt_json *key_out, struct bt_json *value_out)
{
    bool object = container->type == BT_JSON_OBJECT;
    if ((!object && container->type != BT_JSON_ARRAY) || container->bytes < 2)
        return false;
    const char *end = container->at + container->bytes;
    const char *p = space_skip(container->at + (*cursor ? *cursor : 1), end);
    if (p < end && *p == ',')
        p = space_skip(p + 1, end);
    if (p == end || *p == '}' || *p == ']')
        return false;
    if (object)
        p = key_read(p, end, key_out);
    if (p == NULL || p == end)
        return false;
    const char *q = value_skip(p, end);
    if (q == NULL || q == p)
        return false;
    value_out->at = p;
    value_out->bytes = (size_t)(q - p);
    value_out->type = bt_json_type_at(p);
    *cursor = (size_t)(q - container->at);
    return true;
}

static bool hex4(const char *p, const char *end, uint32_t *out)
{
    if (end - p < 4)
        return false;
    uint32_t v = 0;
    for (int i = 0; i < 4; i++) {
        uint32_t c = (unsigned char)p[i], d;
        if (c >= '0' && c <= '9')
            d = c - '0';
        else if ((c | 0x20u) >= 'a' && (c | 0x20u) <= 'f')
            d = (c | 0x20u) - 'a' + 10;
        else
            return false;
        v = v << 4 | d;
    }
    *out = v;
    return true;
}

/* *p after "\u": the code point, with the second half of a pair. */
static uint32_t point_decode(const char **p, const char *end)
{
    uint32_t high, low;
    if (!hex4(*p, end, &high)) {
        *p = end;
        return REPLACEMENT;
    }
    *p += 4;
    if (high < 0xd800 || high > 0xdfff)
        return high;
    if (high >= 0xdc00 || end - *p < 6 || (*p)[0] != '\\' || (*p)[1] != 'u' ||
        !hex4(*p + 2, end, &low) || low < 0xdc00 || low > 0xdfff)
        return REPLACEMENT;
    *p += 6;
    return 0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00);
}

/* Decode the byte or escape at *p (< end) to UTF-8; its bytes. */
static size_t unit_decode(const char **p, const char *end, char out[4])
{
    static const char from[] = "bfnrt", to[] = "\b\f\n\r\t";
    char c = *(*p)++;
    if (c != '\\' || *p == end) {
        out[0] = c;
        return 1;
    }
    c = *(*p)++;
    if (c == 'u')
        return utf8_put(point_decode(p, end), out);
    const char *short_form = c != '\0' ? strchr(from, c) : NULL;
    out[0] = short_form != NULL ? to[short_form - from] : c;
    return 1;
}

/* Compare decoded text with a plain one: whole, or as a prefix. */
static bool text_match(const char *p, size_t bytes, const char *plain,
                       bool prefix)
{
    if (bytes > 0 && *p != '\\' && *p != *plain && *plain != '\0')
        return false; /* the common case, told by the first byte */
    size_t want = strlen(plain), done = 0;
    if (memchr(p, '\\', bytes) == NULL)
        return (prefix ? bytes >= want : bytes == want) &&
               memcmp(p, plain, want) == 0;
    const char *end = p + bytes;
    while (p < end) {
        if (prefix && done == want)
            return true;
        char unit[4];
        size_t n = unit_decode(&p, end, unit);
        if (n > want - done || memcmp(plain + done, unit, n) != 0)
            return false;
        done += n;
    }
    return done == want;
}

bool bt_json_key_is(const struct bt_json *key, const char *name)
{
    return text_match(key->at, key->bytes, name, false);
}

bool bt_json_key_starts(const struct bt_json *key, const char *prefix)
{
    return text_match(key->at, key->bytes, prefix, true);
}

bool bt_json_member(const struct bt_json *object, const char *name,
                    struct bt_json *value_out, size_t *count_out)
{
    size_t cursor = 0, count = 0;
    struct bt_json key, value;
    if (object->type == BT_JSON_OBJECT) {
        while (bt_json_next(object, &cursor, &key, &value)) {
            if (!bt_json_key_is(&key, name))
                continue;
            count++;
            *value_out = value;
        }
    }
    if (count_out != NULL)
        *count_out = count;
    return count > 0;
}

enum bt_status bt_json_u64(const struct bt_json *value, uint64_t *out)
{
    if (value->type != BT_JSON_NUMBER)
        return BT_TYPE;
    const char *p = value->at, *end = p + value->bytes;
    bool negative = p < end && *p == '-', over = false;
    p += negative;
    uint64_t v = 0;
    for (const char *q = p; q < end; q++) {
        if (*q < '0' || *q > '9')
            return BT_TYPE;
        uint64_t d = (uint64_t)(*q - '0');
        /* 2^64 - 1 has 20 digits: shorter numbers cannot overflow. */
        over |= q - p >= 19 && v > (UINT64_MAX - d) / 10;
        v = v * 10 + d;
    }
    if (p == end)
        return BT_TYPE;
    if (over || (negative && v != 0))
        return BT_INVALID;
    *out = v;
    return BT_OK;
}

enum bt_status bt_json_double(const struct bt_json *value, double *out)
{
    double v;
    if (value->type != BT_JSON_NUMBER)
        return BT_TYPE;
    if (!bt_number_read(value->at, value->bytes, &v) || !isfinite(v))
        return BT_INVALID;
    *out = v;
    return BT_OK;
}

enum bt_status bt_json_string(const struct bt_json *value, char *buf,
                              size_t size, size_t *bytes_out)
{
    if (value->type != BT_JSON_STRING || value->bytes < 2)
        return BT_TYPE;
    const char *p = value->at + 1, *end = value->at + value->bytes - 1;
    size_t used = 0;
    while (p < end) {
        char unit[4];
        size_t n = unit_decode(&p, end, unit);
        if (n > size - used)
            return BT_TOO_LARGE;
        memcpy(buf + used, unit, n);
        used += n;
    }
    *bytes_out = used;
    return BT_OK;
}

bool bt_json_is(const struct bt_json *value, const char *text)
{
    return value->type == BT_JSON_STRING && value->bytes >= 2 &&
           text_match(value->at + 1, value->bytes - 2, text, false);
}
