/* Decides what a list of block hashes says, and whether one occurs twice
 * (engine-wire.md 1.7: such a store refers to itself). Few are compared each
 * with each; many go through a table of positions in the scratch; where that
 * has no room, or the hashes were made to collide in it, they are sorted. So
 * the cost is n log n at worst, whatever an engine sends.
 */
#include "kv_hashes.h"

#include <string.h>

#define DIGEST_MAX      64
#define QUADRATIC_MAX   32
#define PROBES_PER_HASH 8

bool bt_kv_is_int(const struct msgpack_item *item)
{
    return item->type == MSGPACK_UINT || item->type == MSGPACK_NEGATIVE;
}

bool bt_kv_hash_of(const struct msgpack_item *item, uint64_t *out)
{
    if (bt_kv_is_int(item)) {
        *out = item->u;
        return true;
    }
    if (item->type != MSGPACK_BIN || item->u < 8 || item->u > DIGEST_MAX)
        return false;
    uint64_t v = 0;
    for (size_t i = 0; i < 8; i++)
        v = v << 8 | (unsigned char)item->s[item->u - 8 + i];
    *out = v;
    return true;
}

bool bt_kv_hashes_read(const struct msgpack_item *list, struct msgpack rest,
                       struct bt_kv_scratch *scratch, size_t *count_out)
{
    struct msgpack_item item;
    size_t n = 0;
    if (list->type != MSGPACK_ARRAY || list->u > scratch->hashes_max)
        return false;
    size_t count = (size_t)list->u;
    while ((n += bt_msgpack_u64s(&rest, scratch->hashes + n, count - n)) <
           count) {
        if (!bt_msgpack_read(&rest, &item) ||
            !bt_kv_hash_of(&item, &scratch->hashes[n]))
            return false;
        n++;
    }
    *count_out = count;
    return true;
}

static void sift(uint64_t *v, size_t root, size_t count)
{
    for (size_t child; (child = 2 * root + 1) < count; root = child) {
        if (child + 1 < count && v[child] < v[child + 1])
            child++;
        if (v[root] >= v[child])
            return;
        uint64_t t = v[root];
        v[root] = v[child];
        v[child] = t;
    }
}

static void heap_sort(uint64_t *v, size_t count)
{
    for (size_t i = count / 2; i > 0; i--)
        sift(v, i - 1, count);
    for (size_t last = count; last > 1; last--) {
        uint64_t t = v[0];
        v[0] = v[last - 1];
        v[last - 1] = t;
        sift(v, 0, last - 1);
    }
}

static bool few_repeat(const uint64_t *v, size_t count)
{
    for (size_t i = 1; i < count; i++)
        for (size_t j = 0; j < i; j++)
            if (v[i] == v[j])
                return true;
    return false;
}

static bool sorted_repeat(uint64_t *v, size_t count)
{
    heap_sort(v, count);
    for (size_t i = 1; i < count; i++)
        if (v[i] == v[i - 1])
            return true;
    return false;
}

enum verdict { DISTINCT, REPEATED, UNDECIDED };

/* Open addressing over positions + 1, at most half full. */
static enum verdict table_repeat(const uint64_t *v, size_t count,
                                 uint32_t *table, size_t table_max)
{
    size_t slots = 64, probes = 0;
    unsigned shift = 64 - 6;
    for (; slots < 2 * count; slots *= 2)
        shift--;
    if (table == NULL || slots > table_max || count > UINT32_MAX / 2)
        return UNDECIDED;
    memset(table, 0, slots * sizeof *table);
    for (size_t i = 0; i < count; i++) {
        size_t at = (size_t)(v[i] * 0x9e3779b97f4a7c15u >> shift);
        for (; table[at] != 0; at = (at + 1) & (slots - 1)) {
            if (v[table[at] - 1] == v[i])
                return REPEATED;
            if (++probes > PROBES_PER_HASH * count)
                return UNDECIDED;
        }
        table[at] = (uint32_t)i + 1;
    }
    return DISTINCT;
}

bool bt_kv_hashes_repeat(struct bt_kv_scratch *scratch, size_t count,
                         bool *reordered)
{
    uint64_t *v = scratch->hashes;
    *reordered = false;
    if (count <= QUADRATIC_MAX)
        return few_repeat(v, count);
    enum verdict verdict =
        table_repeat(v, count, scratch->remaining, scratch->hashes_max);
    if (verdict != UNDECIDED)
        return verdict == REPEATED;
    *reordered = true;
    return sorted_repeat(v, count);
}
