/* Bump allocator over memory the caller owns. The pure layers allocate from
 * one at start and never again, so they need no malloc. A module that takes
 * from an arena also offers bt_<module>_bytes(limits), an upper bound built
 * from bt_arena_need().
 */
#ifndef BATON_BASE_ARENA_H
#define BATON_BASE_ARENA_H

#include <stddef.h>

struct bt_arena {
    unsigned char *base; /* owned by the caller */
    size_t size;         /* bytes at base */
    size_t used;         /* bytes handed out, padding included */
};

/* Start over memory of `size` bytes, zero-filled by the caller (calloc leaves
 * the pages of a large, sparsely used table untouched). Never fails. */
void bt_arena_init(struct bt_arena *arena, void *memory, size_t size);
/* `count` objects of `bytes` each, all zero, aligned to 16. NULL when the arena
 * is exhausted or count * bytes overflows. */
void *bt_arena_take(struct bt_arena *arena, size_t count, size_t bytes);
/* Bytes that bt_arena_take(count, bytes) may use at most, padding included;
 * SIZE_MAX when the product overflows. Sums of it may be over-estimates. */
size_t bt_arena_need(size_t count, size_t bytes);

#endif
