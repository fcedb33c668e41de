/* GET /admin/blocks: what the prefix cache of an engine holds at this moment,
 * by own keys (block_hash.h): the truth that an index built from events is held
 * against. Decides the order, the digest and how much is listed.
 *
 * copies >= distinct: copies of a block are not merged, as in vLLM.
 */
#include "engine_priv.h"

#include <endian.h>
#include <stdio.h>
#include <stdlib.h>

#include <xxhash.h>

#define LISTED_MAX 65536

static int by_key(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

/* Own keys of all registered blocks, ascending, each once. */
static uint32_t collect(const struct bt_engine *e, uint64_t *keys)
{
    uint32_t copies = 0, distinct = 0;
    for (uint32_t i = 0; i < e->pool.count; i++) {
        if (e->pool.blocks[i].registered) {
            keys[copies++] = e->names.own[i];
        }
    }
    qsort(keys, copies, sizeof(*keys), by_key);
    for (uint32_t i = 0; i < copies; i++) {
        if (i == 0 || keys[i] != keys[i - 1]) {
            keys[distinct++] = keys[i];
        }
    }
    return distinct;
}

/* XXH3-64 of the keys as little-endian words, which they become here. */
static uint64_t digest_of(uint64_t *keys, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        keys[i] = htole64(keys[i]);
    }
    return XXH3_64bits(keys, count * sizeof(*keys));
}

static json_t *hex(uint64_t value)
{
    char text[17];
    snprintf(text, sizeof(text), "%016llx", (unsigned long long)value);
    return json_string(text);
}

void bt_admin_blocks(struct bt_engine *e, struct bt_httpd_request *req)
{
    uint64_t *keys = e->names.scratch;
    uint32_t distinct = collect(e, keys);
    json_t *root = json_pack(
        "{s:i, s:i, s:o, s:I}", "copies", (int)e->pool.registered_count,
        "distinct", (int)distinct, "digest", hex(digest_of(keys, distinct)),
        "events_next",
        (json_int_t)(e->events == NULL ? 0
                                       : bt_events_next_sequence(e->events)));
    const char *list = bt_httpd_query(req, "list");
    if (root != NULL && list != NULL && list[0] == '1') {
        uint32_t listed = distinct < LISTED_MAX ? distinct : LISTED_MAX;
        json_t *own = json_array();
        for (uint32_t i = 0; i < listed; i++) {
            json_array_append_new(own, hex(le64toh(keys[i])));
        }
        json_object_set_new(root, "own", own);
        json_object_set_new(root, "truncated", json_boolean(listed < distinct));
    }
    bt_reply_tree(req, root);
}
