/* Blocks of one tier of one worker: who is there, who may go. A block in use
 * is pinned and cannot be evicted; the rest stand in order of last use. Users
 * release a chain from its deep end, so that of blocks used together the
 * deeper ones go first and no prefix loses its middle before its end.
 *
 * Invariant: count == pinned + length of the list of unpinned blocks.
 */
#include "sim_priv.h"

#include <assert.h>
#include <stdlib.h>

bool sim_cache_init(struct sim_cache *c, uint32_t capacity)
{
    uint32_t heads = 16;

    while (heads < capacity && heads < 1u << 30)
        heads *= 2;
    *c = (struct sim_cache){.capacity = capacity,
                            .mask = heads - 1,
                            .free_first = SIM_NONE,
                            .oldest = SIM_NONE,
                            .newest = SIM_NONE};
    c->blocks = calloc((size_t)capacity + 1, sizeof(*c->blocks));
    c->heads = malloc(heads * sizeof(*c->heads));
    if (c->blocks == NULL || c->heads == NULL) {
        sim_cache_fini(c);
        return false;
    }
    for (uint32_t i = 0; i < heads; i++)
        c->heads[i] = SIM_NONE;
    return true;
}

void sim_cache_fini(struct sim_cache *c)
{
    free(c->blocks);
    free(c->heads);
    c->blocks = NULL;
    c->heads = NULL;
}

static uint32_t *head_of(const struct sim_cache *c, uint64_t id)
{
    return &c->heads[(uint32_t)bt_mix64(id) & c->mask];
}

uint32_t sim_cache_find(const struct sim_cache *c, uint64_t id)
{
    uint32_t at;

    if (c->count == 0)
        return SIM_NONE;
    at = *head_of(c, id);
    while (at != SIM_NONE && c->blocks[at].id != id)
        at = c->blocks[at].chain;
    return at;
}

uint32_t sim_cache_leading(const struct sim_cache *c, const uint64_t *ids,
                           uint32_t count)
{
    uint32_t i = 0;

    while (i < count && sim_cache_find(c, ids[i]) != SIM_NONE)
        i++;
    return i;
}

static void unlink_block(struct sim_cache *c, struct sim_block *b)
{
    if (b->prev == SIM_NONE)
        c->oldest = b->next;
    else
        c->blocks[b->prev].next = b->next;
    if (b->next == SIM_NONE)
        c->newest = b->prev;
    else
        c->blocks[b->next].prev = b->prev;
}

void sim_cache_pin(struct sim_cache *c, uint32_t at)
{
    struct sim_block *b = &c->blocks[at];

    if (b->pins++ > 0)
        return;
    unlink_block(c, b);
    c->pinned++;
}

void sim_cache_unpin(struct sim_cache *c, uint32_t at)
{
    struct sim_block *b = &c->blocks[at];

    assert(b->pins > 0);
    if (--b->pins > 0)
        return;
    c->pinned--;
    b->prev = c->newest;
    b->next = SIM_NONE;
    if (c->newest == SIM_NONE)
        c->oldest = at;
    else
        c->blocks[c->newest].next = at;
    c->newest = at;
}

uint32_t sim_cache_insert(struct sim_cache *c, uint64_t id)
{
    uint32_t at = c->free_first, *head = head_of(c, id);

    if (c->count == c->capacity)
        return SIM_NONE;
    if (at == SIM_NONE)
        at = c->fresh++;
    else
        c->free_first = c->blocks[at].next;
    c->blocks[at] = (struct sim_block){.id = id, .pins = 1, .chain = *head};
    *head = at;
    c->count++;
    c->pinned++;
    return at;
}

void sim_cache_remove(struct sim_cache *c, uint32_t at)
{
    struct sim_block *b = &c->blocks[at];
    uint32_t *link = head_of(c, b->id);

    assert(b->pins == 0);
    while (*link != at)
        link = &c->blocks[*link].chain;
    *link = b->chain;
    unlink_block(c, b);
    b->next = c->free_first;
    c->free_first = at;
    c->count--;
}
