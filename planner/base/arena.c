/* Bump allocation over caller memory. Invariant: used <= size. */
#include "baton/base/arena.h"

#include <stdint.h>

#define ALIGNMENT ((size_t)16)

void bt_arena_init(struct bt_arena *arena, void *memory, size_t size)
{
    arena->base = memory;
    arena->size = size;
    arena->used = 0;
}

size_t bt_arena_need(size_t count, size_t bytes)
{
    if (bytes != 0 && count > (SIZE_MAX - 2 * ALIGNMENT) / bytes)
        return SIZE_MAX;
    return count * bytes + ALIGNMENT - 1;
}

void *bt_arena_take(struct bt_arena *arena, size_t count, size_t bytes)
{
    uintptr_t at = (uintptr_t)arena->base + arena->used;
    size_t pad = (size_t)(-at & (ALIGNMENT - 1));
    size_t need = bt_arena_need(count, bytes);
    void *taken;

    if (need == SIZE_MAX || arena->size - arena->used < pad ||
        count * bytes > arena->size - arena->used - pad)
        return NULL;
    taken = arena->base + arena->used + pad;
    arena->used += pad + count * bytes;
    return taken;
}
