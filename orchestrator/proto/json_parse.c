/* Decides whether a text is one JSON value by RFC 8259; finding members and
 * decoding is left to json.c. One pass, no recursion: the open containers are
 * a depth and one bit each (object or array), so the limit is 64 levels.
 *
 *   VALUE -> scalar -> AFTER        AFTER -> ',' -> KEY or VALUE
 *   VALUE -> '{' -> KEY_OR_CLOSE    AFTER -> close -> AFTER (depth - 1)
 *   VALUE -> '[' -> VALUE_OR_CLOSE  KEY -> string ':' -> VALUE
 *
 * Invariant: every turn of the loop consumes a byte or ends it.
 */
#include "baton/orchestrator/json.h"

#include "json_walk.h"
#include "utf8.h"
#include <string.h>

enum expect { VALUE, VALUE_OR_CLOSE, KEY_OR_CLOSE, KEY, AFTER };

struct scan {
    const unsigned char *at, *end;
    uint64_t objects; /* bit d: the container at depth d is an object */
    unsigned depth;
    enum expect expect;
};

static void space_skip(struct scan *s)
{
    while (s->at < s->end && (*s->at == ' ' || *s->at == '\n' ||
                              *s->at == '\t' || *s->at == '\r'))
        s->at++;
}

static bool is_digit(const struct scan *s)
{
    return s->at < s->end && *s->at >= '0' && *s->at <= '9';
}

static bool digits_scan(struct scan *s)
{
    if (!is_digit(s))
        return false;
    while (is_digit(s))
        s->at++;
    return true;
}

static bool number_scan(struct scan *s)
{
    if (*s->at == '-')
        s->at++;
    if (s->at < s->end && *s->at == '0')
        s->at++;
    else if (!digits_scan(s))
        return false;
    if (s->at < s->end && *s->at == '.') {
        s->at++;
        if (!digits_scan(s))
            return false;
    }
    if (s->at < s->end && (*s->at == 'e' || *s->at == 'E')) {
        s->at++;
        if (s->at < s->end && (*s->at == '+' || *s->at == '-'))
            s->at++;
        return digits_scan(s);
    }
    return true;
}

static bool is_hex(unsigned char c)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') ||
           (c >= 'A' && c <= 'F');
}

/* At the backslash. */
static bool escape_scan(struct scan *s)
{
    if (s->end - s->at < 2)
        return false;
    unsigned char c = s->at[1];
    if (c != 'u') {
        if (c == '\0' || strchr("\"\\/bfnrt", c) == NULL)
            return false;
        s->at += 2;
        return true;
    }
    if (s->end - s->at < 6)
        return false;
    for (int i = 2; i < 6; i++)
        if (!is_hex(s->at[i]))
            return false;
    s->at += 6;
    return true;
}

/* Are the next 8 bytes ASCII without quote, backslash and control character?
 * May say no when they are: a borrow only spreads from a byte that is not. */
static bool plain8(const unsigned char *p)
{
    const uint64_t ones = UINT64_MAX / 255, high = ones << 7;
    uint64_t v;
    memcpy(&v, p, sizeof v);
    uint64_t quote = v ^ ones * '"', slash = v ^ ones * '\\';
    return ((v | (v - ones * 0x20) | (quote - ones) | (slash - ones)) & high) ==
           0;
}

/* At the opening quote. */
static bool string_scan(struct scan *s)
{
    s->at++;
    while (s->at < s->end) {
        while (s->end - s->at >= 8 && plain8(s->at))
            s->at += 8;
        if (s->at == s->end)
            break;
        unsigned char c = *s->at;
        if (c == '"') {
            s->at++;
            return true;
        }
        if (c == '\\') {
            if (!escape_scan(s))
                return false;
        } else if (c >= 0x80) {
            size_t n = utf8_size(s->at, s->end);
            if (n == 0)
                return false;
            s->at += n;
        } else if (c < 0x20) {
            return false;
        } else {
            s->at++;
        }
    }
    return false;
}

static bool word_scan(struct scan *s, const char *word)
{
    size_t n = strlen(word);
    if ((size_t)(s->end - s->at) < n || memcmp(s->at, word, n) != 0)
        return false;
    s->at += n;
    return true;
}

static enum bt_status container_open(struct scan *s, bool object)
{
    if (s->depth == BT_JSON_DEPTH_MAX)
        return BT_TOO_LARGE;
    uint64_t bit = (uint64_t)1 << s->depth++;
    s->objects = object ? s->objects | bit : s->objects & ~bit;
    s->expect = object ? KEY_OR_CLOSE : VALUE_OR_CLOSE;
    s->at++;
    return BT_OK;
}

static bool in_object(const struct scan *s)
{
    return s->objects >> (s->depth - 1) & 1;
}

/* Token ids come as long runs of whole numbers: take ",123" again and again
 * while the next byte shows that the number has ended. */
static void integers_skip(struct scan *s)
{
    while (s->end - s->at >= 2 && s->at[0] == ',' && s->at[1] >= '1' &&
           s->at[1] <= '9') {
        const unsigned char *p = s->at + 2;
        while (p < s->end && *p >= '0' && *p <= '9')
            p++;
        if (p == s->end || (*p != ',' && *p != ']'))
            return;
        s->at = p;
    }
}

static enum bt_status value_scan(struct scan *s)
{
    bool good = false;
    s->expect = AFTER;
    switch (*s->at) {
    case '{':
    case '[':
        return container_open(s, *s->at == '{');
    case '"':
        good = string_scan(s);
        break;
    case 't':
        good = word_scan(s, "true");
        break;
    case 'f':
        good = word_scan(s, "false");
        break;
    case 'n':
        good = word_scan(s, "null");
        break;
    default:
        good = (*s->at == '-' || is_digit(s)) && number_scan(s);
        if (good && s->depth > 0 && !in_object(s))
            integers_skip(s);
    }
    return good ? BT_OK : BT_INVALID;
}

static enum bt_status key_scan(struct scan *s)
{
    if (*s->at != '"' || !string_scan(s))
        return BT_INVALID;
    space_skip(s);
    if (s->at == s->end || *s->at != ':')
        return BT_INVALID;
    s->at++;
    s->expect = VALUE;
    return BT_OK;
}

static void container_close(struct scan *s)
{
    s->at++;
    s->depth--;
    s->expect = AFTER;
}

static enum bt_status after_scan(struct scan *s)
{
    bool object = in_object(s);
    if (*s->at == ',') {
        s->at++;
        s->expect = object ? KEY : VALUE;
        return BT_OK;
    }
    if (*s->at != (object ? '}' : ']'))
        return BT_INVALID;
    container_close(s);
    return BT_OK;
}

/* One turn; s->at < s->end. */
static enum bt_status turn(struct scan *s)
{
    switch (s->expect) {
    case VALUE_OR_CLOSE:
        if (*s->at == ']') {
            container_close(s);
            return BT_OK;
        }
        return value_scan(s);
    case VALUE:
        return value_scan(s);
    case KEY_OR_CLOSE:
        if (*s->at == '}') {
            container_close(s);
            return BT_OK;
        }
        return key_scan(s);
    case KEY:
        return key_scan(s);
    case AFTER:
        return after_scan(s);
    }
    return BT_BUG;
}

enum bt_status bt_json_parse(const char *text, size_t bytes,
                             struct bt_json *value_out, size_t *error_at)
{
    const unsigned char *start = (const unsigned char *)(bytes ? text : "");
    struct scan s = {.at = start, .end = start + bytes, .expect = VALUE};
    space_skip(&s);
    const unsigned char *first = s.at, *last;
    enum bt_status status = BT_OK;
    do {
        space_skip(&s);
        status = s.at < s.end ? turn(&s) : BT_INVALID;
    } while (status == BT_OK && (s.depth > 0 || s.expect != AFTER));
    last = s.at;
    if (status == BT_OK) {
        space_skip(&s);
        if (s.at != s.end)
            status = BT_INVALID;
    }
    if (status == BT_INVALID && error_at != NULL)
        *error_at = (size_t)(s.at - start);
    if (status == BT_OK) {
        value_out->at = (const char *)first;
        value_out->bytes = (size_t)(last - first);
        value_out->type = bt_json_type_at((const char *)first);
    }
    return status;
}
