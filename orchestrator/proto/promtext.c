/* Decides which lines of a Prometheus scrape are samples and what they say;
 * which names matter is left to the caller. Lines are independent: a bad one is
 * counted and the next is read. Invariant: a sample's spans lie in its line.
 *
 *   name [ '{' labels '}' ] value [ timestamp ] [ '#' exemplar ]
 */
#include "baton/orchestrator/promtext.h"

#include "number.h"
#include <math.h>
#include <string.h>
#include <strings.h>

#define LINE_MAX_BYTES 4096

static bool is_name(char c, bool first)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
           c == ':' || (!first && c >= '0' && c <= '9');
}

static const char *space_skip(const char *p, const char *end)
{
    while (p < end && (*p == ' ' || *p == '\t'))
        p++;
    return p;
}

static const char *name_skip(const char *p, const char *end)
{
    const char *start = p;
    while (p < end && is_name(*p, p == start))
        p++;
    return p;
}

/* p after an opening quote: the closing one, or NULL. */
static const char *quote_find(const char *p, const char *end)
{
    for (; p < end; p++) {
        if (*p == '"')
            return p;
        if (*p == '\\')
            p++;
    }
    return NULL;
}

/* One label at p: its parts and the place behind it, or NULL. */
static const char *label_read(const char *p, const char *end,
                              const char *name[2], const char *value[2])
{
    name[0] = p;
    name[1] = p = name_skip(p, end);
    p = space_skip(p, end);
    if (name[1] == name[0] || p == end || *p != '=')
        return NULL;
    p = space_skip(p + 1, end);
    if (p == end || *p != '"')
        return NULL;
    value[0] = p + 1;
    value[1] = quote_find(p + 1, end);
    return value[1] != NULL ? value[1] + 1 : NULL;
}

/* p after '{': the place of the '}', or NULL. */
static const char *labels_skip(const char *p, const char *end)
{
    const char *name[2], *value[2];
    for (;;) {
        p = space_skip(p, end);
        if (p < end && *p == '}')
            return p;
        p = label_read(p, end, name, value);
        if (p == NULL)
            return NULL;
        p = space_skip(p, end);
        if (p < end && *p == ',')
            p++;
        else if (p == end || *p != '}')
            return NULL;
    }
}

static bool word_is(const char *p, size_t bytes, const char *word)
{
    return bytes == strlen(word) && strncasecmp(p, word, bytes) == 0;
}

static bool value_read(const char *p, size_t bytes, double *out)
{
    if (bytes > 0 && bt_number_read(p, bytes, out))
        return true;
    bool negative = bytes > 0 && *p == '-';
    if (bytes > 0 && (*p == '-' || *p == '+')) {
        p++;
        bytes--;
    }
    if (word_is(p, bytes, "nan")) {
        *out = (double)NAN;
        return true;
    }
    if (!word_is(p, bytes, "inf") && !word_is(p, bytes, "infinity"))
        return false;
    *out = negative ? -(double)INFINITY : (double)INFINITY;
    return true;
}

/* A time stamp, an exemplar, or nothing. */
static bool tail_good(const char *p, const char *end)
{
    const char *start = p;
    double ignored;
    if (p < end && *p != '#') {
        while (p < end && *p != ' ' && *p != '\t')
            p++;
        if (!bt_number_read(start, (size_t)(p - start), &ignored))
            return false;
        p = space_skip(p, end);
    }
    return p == end || *p == '#';
}

static bool line_read(const char *p, const char *end,
                      struct bt_prom_sample *sample)
{
    memset(sample, 0, sizeof *sample);
    sample->name = p;
    p = name_skip(p, end);
    sample->name_bytes = (size_t)(p - sample->name);
    if (sample->name_bytes == 0)
        return false;
    p = space_skip(p, end);
    if (p < end && *p == '{') {
        sample->labels = p + 1;
        p = labels_skip(p + 1, end);
        if (p == NULL)
            return false;
        sample->label_bytes = (size_t)(p - sample->labels);
        p++;
    }
    p = space_skip(p, end);
    const char *value = p;
    while (p < end && *p != ' ' && *p != '\t')
        p++;
    return value_read(value, (size_t)(p - value), &sample->value) &&
           tail_good(space_skip(p, end), end);
}

size_t bt_prom_read(const char *text, size_t bytes, bt_prom_fn fn, void *arg)
{
    size_t bad = 0;
    if (bytes == 0)
        return bad;
    const char *p = text, *end = text + bytes;
    while (p < end) {
        const char *stop = memchr(p, '\n', (size_t)(end - p));
        const char *next = stop != NULL ? stop + 1 : end;
        if (stop == NULL)
            stop = end;
        if (stop > p && stop[-1] == '\r')
            stop--;
        struct bt_prom_sample sample;
        bool fits = stop - p <= LINE_MAX_BYTES;
        p = space_skip(p, stop);
        if (p < stop && *p != '#') {
            if (fits && line_read(p, stop, &sample))
                fn(arg, &sample);
            else
                bad++;
        }
        p = next;
    }
    return bad;
}

bool bt_prom_is(const struct bt_prom_sample *sample, const char *name)
{
    return sample->name_bytes == strlen(name) &&
           memcmp(sample->name, name, sample->name_bytes) == 0;
}

static bool value_copy(const char *p, const char *end, char *buf, size_t size)
{
    size_t used = 0;
    while (p < end) {
        char c = *p++;
        if (c == '\\' && p < end) {
            c = *p++;
            if (c == 'n')
                c = '\n';
        }
        if (used + 1 >= size)
            return false;
        buf[used++] = c;
    }
    if (size == 0)
        return false;
    buf[used] = '\0';
    return true;
}

bool bt_prom_label(const struct bt_prom_sample *sample, const char *label,
                   char *buf, size_t size)
{
    const char *name[2], *value[2];
    size_t want = strlen(label);
    if (sample->labels == NULL)
        return false;
    const char *p = sample->labels, *end = p + sample->label_bytes;
    while ((p = space_skip(p, end)) < end) {
        p = label_read(p, end, name, value);
        if (p == NULL)
            return false;
        if ((size_t)(name[1] - name[0]) == want &&
            memcmp(name[0], label, want) == 0)
            return value_copy(value[0], value[1], buf, size);
        p = space_skip(p, end);
        if (p < end && *p == ',')
            p++;
    }
    return false;
}
