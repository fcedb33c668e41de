/* Table of topic prefixes, sorted by bytes. Decides which source a topic names:
 * the longest prefix that is in the table. A look-up is a binary search per
 * length, from the longest; topics are short and tables hold thousands.
 */
#include "topics.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum bt_status topics_init(struct topics *t, uint32_t max)
{
    t->count = 0;
    t->max = max;
    t->sorted = calloc(max, sizeof(*t->sorted));
    return t->sorted == NULL ? BT_NO_MEMORY : BT_OK;
}

void topics_fini(struct topics *t)
{
    for (uint32_t i = 0; i < t->count; i++)
        free(t->sorted[i].text);
    free(t->sorted);
    t->sorted = NULL;
    t->count = 0;
}

static int compare(const char *a, size_t a_bytes, const char *b, size_t b_bytes)
{
    size_t bytes = a_bytes < b_bytes ? a_bytes : b_bytes;
    int order = memcmp(a, b, bytes);

    if (order != 0 || a_bytes == b_bytes)
        return order;
    return a_bytes < b_bytes ? -1 : 1;
}

/* Position of the text, or where it would be. */
static bool locate(const struct topics *t, const char *text, size_t bytes,
                   uint32_t *at_out)
{
    uint32_t low = 0, high = t->count;

    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        int order = compare(t->sorted[middle].text, t->sorted[middle].bytes,
                            text, bytes);

        if (order == 0) {
            *at_out = middle;
            return true;
        }
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    *at_out = low;
    return false;
}

enum bt_status topics_add(struct topics *t, const char *text, uint32_t source)
{
    size_t bytes = strlen(text);
    uint32_t at;
    char *own;

    if (bytes == 0 || bytes > TOPIC_MAX || locate(t, text, bytes, &at))
        return BT_INVALID;
    if (t->count == t->max)
        return BT_LIMIT;
    own = strdup(text);
    if (own == NULL)
        return BT_NO_MEMORY;
    memmove(&t->sorted[at + 1], &t->sorted[at],
            (t->count - at) * sizeof(*t->sorted));
    t->sorted[at] =
        (struct topic){.text = own, .bytes = bytes, .source = source};
    t->count++;
    return BT_OK;
}

void topics_remove(struct topics *t, uint32_t source)
{
    for (uint32_t i = 0; i < t->count; i++) {
        if (t->sorted[i].source != source)
            continue;
        free(t->sorted[i].text);
        t->count--;
        memmove(&t->sorted[i], &t->sorted[i + 1],
                (t->count - i) * sizeof(*t->sorted));
        return;
    }
}

enum bt_status topics_find(const struct topics *t, const char *topic,
                           size_t bytes, uint32_t *source_out)
{
    if (bytes > TOPIC_MAX)
        bytes = TOPIC_MAX;
    for (; bytes > 0; bytes--) {
        uint32_t at;

        if (!locate(t, topic, bytes, &at))
            continue;
        *source_out = t->sorted[at].source;
        return BT_OK;
    }
    return BT_NOT_FOUND;
}
