/* Which slot of the file holds which key, and which block makes room next.
 * Decides eviction (least recently used among blocks nobody reads) and which of
 * two records of one key counts (the later generation). Leaves the disk to
 * nvme_file.c and nvme_commit.c.
 * Invariants: a key is in at most one slot that is storing or held; a slot with
 * users is neither free nor evicted; only held slots without users are in the
 * list from oldest to newest. Nothing is allocated after init. */
#include "nvme.h"

#include "baton/base/rng.h"
#include <assert.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name;
    unsigned next; /* bit per state */
    const char *waits_for;
} STATES[] = {
    [BT_SLOT_FREE] = {"free", 1u << BT_SLOT_STORING | 1u << BT_SLOT_HELD,
                      "a store"},
    [BT_SLOT_STORING] = {"storing",
                         1u << BT_SLOT_HELD | 1u << BT_SLOT_GONE |
                             1u << BT_SLOT_FREE,
                         "its record on the disk"},
    [BT_SLOT_HELD] = {"held", 1u << BT_SLOT_GONE | 1u << BT_SLOT_FREE,
                      "loads, or eviction"},
    [BT_SLOT_GONE] = {"gone", 1u << BT_SLOT_FREE, "its last user"},
};

static void move(struct bt_nvme_slot *slot, enum bt_slot_state to)
{
    assert(STATES[slot->state].next & 1u << to);
    slot->state = to;
}

static uint32_t *bucket(const struct bt_nvme_index *x, uint64_t key)
{
    return &x->buckets[bt_mix64(key) & x->bucket_mask];
}

enum bt_status bt_nvme_index_init(struct bt_nvme_index *index, uint32_t count)
{
    uint32_t buckets = 1;

    memset(index, 0, sizeof(*index));
    while (buckets < count)
        buckets *= 2;
    index->slots = calloc(count, sizeof(*index->slots));
    index->buckets = malloc(buckets * sizeof(*index->buckets));
    index->free = malloc(count * sizeof(*index->free));
    if (!index->slots || !index->buckets || !index->free) {
        bt_nvme_index_fini(index);
        return BT_NO_MEMORY;
    }
    index->count = count;
    index->bucket_mask = buckets - 1;
    index->oldest = index->newest = NVME_NONE;
    memset(index->buckets, 0xFF, buckets * sizeof(*index->buckets));
    for (uint32_t i = 0; i < count; i++)
        index->free[i] = count - 1 - i;
    index->free_count = count;
    return BT_OK;
}

void bt_nvme_index_fini(struct bt_nvme_index *index)
{
    free(index->slots);
    free(index->buckets);
    free(index->free);
    memset(index, 0, sizeof(*index));
}

uint32_t bt_nvme_index_find(const struct bt_nvme_index *index, uint64_t key)
{
    uint32_t slot = *bucket(index, key);

    while (slot != NVME_NONE && index->slots[slot].key != key)
        slot = index->slots[slot].chain;
    return slot;
}

static void hash_in(struct bt_nvme_index *x, uint32_t slot)
{
    uint32_t *head = bucket(x, x->slots[slot].key);

    x->slots[slot].chain = *head;
    *head = slot;
}

static void hash_out(struct bt_nvme_index *x, uint32_t slot)
{
    uint32_t *at = bucket(x, x->slots[slot].key);

    while (*at != slot)
        at = &x->slots[*at].chain;
    *at = x->slots[slot].chain;
}

static void list_in(struct bt_nvme_index *x, uint32_t slot)
{
    struct bt_nvme_slot *s = &x->slots[slot];

    s->newer = NVME_NONE;
    s->older = x->newest;
    if (x->newest == NVME_NONE)
        x->oldest = slot;
    else
        x->slots[x->newest].newer = slot;
    x->newest = slot;
}

static void list_out(struct bt_nvme_index *x, uint32_t slot)
{
    const struct bt_nvme_slot *s = &x->slots[slot];

    if (s->older == NVME_NONE)
        x->oldest = s->newer;
    else
        x->slots[s->older].newer = s->newer;
    if (s->newer == NVME_NONE)
        x->newest = s->older;
    else
        x->slots[s->newer].older = s->older;
}

static void release(struct bt_nvme_index *x, uint32_t slot)
{
    move(&x->slots[slot], BT_SLOT_FREE);
    x->slots[slot].store = NULL;
    x->free[x->free_count++] = slot;
}

uint32_t bt_nvme_index_take(struct bt_nvme_index *index, uint64_t key,
                            bool *evicted_out)
{
    struct bt_nvme_slot *s;
    uint32_t slot;

    *evicted_out = index->free_count == 0;
    if (*evicted_out) {
        if (index->oldest == NVME_NONE)
            return NVME_NONE;
        bt_nvme_index_remove(index, index->oldest);
    }
    slot = index->free[--index->free_count];
    s = &index->slots[slot];
    move(s, BT_SLOT_STORING);
    s->key = key;
    s->generation = ++index->generation;
    s->users = 0;
    s->unproven = false;
    hash_in(index, slot);
    return slot;
}

void bt_nvme_index_stored(struct bt_nvme_index *index, uint32_t slot)
{
    move(&index->slots[slot], BT_SLOT_HELD);
    index->slots[slot].store = NULL;
    index->held++;
    list_in(index, slot);
}

void bt_nvme_index_remove(struct bt_nvme_index *index, uint32_t slot)
{
    struct bt_nvme_slot *s = &index->slots[slot];
    bool in_use = s->users > 0 || (s->state == BT_SLOT_STORING && s->store);

    if (s->state != BT_SLOT_GONE)
        hash_out(index, slot);
    if (s->state == BT_SLOT_HELD) {
        index->held--;
        if (s->users == 0)
            list_out(index, slot);
    }
    if (!in_use)
        release(index, slot);
    else if (s->state != BT_SLOT_GONE)
        move(s, BT_SLOT_GONE);
}

void bt_nvme_index_pin(struct bt_nvme_index *index, uint32_t slot)
{
    struct bt_nvme_slot *s = &index->slots[slot];

    assert(s->state == BT_SLOT_HELD);
    if (s->users++ == 0)
        list_out(index, slot);
}

void bt_nvme_index_unpin(struct bt_nvme_index *index, uint32_t slot)
{
    struct bt_nvme_slot *s = &index->slots[slot];

    assert(s->users > 0);
    if (--s->users > 0)
        return;
    if (s->state == BT_SLOT_GONE)
        release(index, slot);
    else
        list_in(index, slot);
}

/* ---- loading ---- */

struct found {
    struct bt_nvme_record record;
    uint32_t slot;
};

static int by_generation(const void *a, const void *b)
{
    const struct found *x = a, *y = b;

    if (x->record.generation != y->record.generation)
        return x->record.generation < y->record.generation ? -1 : 1;
    return x->slot < y->slot ? -1 : x->slot > y->slot;
}

static void adopt(struct bt_nvme_index *x, const struct found *f)
{
    struct bt_nvme_slot *s = &x->slots[f->slot];

    s->key = f->record.key;
    s->generation = f->record.generation;
    s->checksum = f->record.checksum;
    s->unproven = true;
    hash_in(x, f->slot);
    bt_nvme_index_stored(x, f->slot);
    if (s->generation > x->generation)
        x->generation = s->generation;
}

static uint32_t collect(struct bt_nvme_file *file, struct found *list,
                        uint64_t *dropped)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < file->block_count; i++) {
        struct found *f = &list[count];
        enum bt_status status = bt_nvme_record_get(file, i, &f->record);
        uint64_t end = bt_nvme_block_at(file, i) + file->block_bytes;

        f->slot = i;
        if (status == BT_OK && end <= file->bytes_at_open) {
            count++;
            continue;
        }
        *dropped += status != BT_NOT_FOUND;
        bt_nvme_record_erase(file, i);
    }
    return count;
}

uint64_t bt_nvme_index_load(struct bt_nvme_index *index,
                            struct bt_nvme_file *file)
{
    struct found *list = malloc(file->block_count * sizeof(*list));
    uint64_t dropped = 0;
    uint32_t count;

    if (!list)
        return UINT64_MAX;
    count = collect(file, list, &dropped);
    qsort(list, count, sizeof(*list), by_generation);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t other = bt_nvme_index_find(index, list[i].record.key);

        if (other != NVME_NONE) {
            /* The free list is built below: only undo the adoption. */
            hash_out(index, other);
            list_out(index, other);
            index->held--;
            index->slots[other].state = BT_SLOT_FREE;
            bt_nvme_record_erase(file, other);
            dropped++;
        }
        adopt(index, &list[i]);
    }
    index->free_count = 0;
    for (uint32_t i = file->block_count; i-- > 0;)
        if (index->slots[i].state == BT_SLOT_FREE)
            index->free[index->free_count++] = i;
    free(list);
    return dropped;
}
