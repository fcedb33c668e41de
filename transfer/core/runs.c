/* From a list of block pairs to gets: sort, join neighbours, cut at the chunk
 * size, and find which bytes of which block a chunk carries. Leaves pacing and
 * the order of gets of several pulls to others. Invariant: the chunks of a
 * list cover each of its blocks exactly once. */
#include "baton/transfer/runs.h"

#include <xxhash.h>

struct pairs {
    const uint32_t *remote, *local;
};

/* By distance local - remote, then by remote: what can share a run lies side
 * by side, so joining neighbours gives the fewest runs. */
static bool before(const struct pairs *p, uint32_t a, uint32_t b)
{
    uint32_t da = p->local[a] - p->remote[a];
    uint32_t db = p->local[b] - p->remote[b];

    if (da != db)
        return da < db;
    if (p->remote[a] != p->remote[b])
        return p->remote[a] < p->remote[b];
    return a < b;
}

static void swap(uint32_t *a, uint32_t *b)
{
    uint32_t t = *a;

    *a = *b;
    *b = t;
}

static void sift(const struct pairs *p, uint32_t *heap, size_t at, size_t count)
{
    for (;;) {
        size_t child = 2 * at + 1;

        if (child >= count)
            return;
        if (child + 1 < count && before(p, heap[child], heap[child + 1]))
            child++;
        if (!before(p, heap[at], heap[child]))
            return;
        swap(&heap[at], &heap[child]);
        at = child;
    }
}

static void sort(const struct pairs *p, uint32_t *order, size_t count)
{
    for (size_t i = count / 2; i > 0; i--)
        sift(p, order, i - 1, count);
    for (size_t end = count; end > 1; end--) {
        swap(&order[0], &order[end - 1]);
        sift(p, order, 0, end - 1);
    }
}

size_t bt_runs_build(const uint32_t *remote, const uint32_t *local,
                     size_t count, uint32_t *order_out, struct bt_run *runs_out)
{
    struct pairs p = {remote, local};
    bool sorted = true;
    size_t runs = 0;

    for (size_t i = 0; i < count; i++) {
        order_out[i] = (uint32_t)i;
        if (i > 0 && before(&p, (uint32_t)i, (uint32_t)i - 1))
            sorted = false;
    }
    if (!sorted)
        sort(&p, order_out, count);
    for (size_t i = 0; i < count; i++) {
        uint32_t r = remote[order_out[i]], l = local[order_out[i]];
        struct bt_run *last = runs > 0 ? &runs_out[runs - 1] : NULL;

        if (last != NULL && r > last->remote && l > last->local &&
            r - last->remote == last->count && l - last->local == last->count)
            last->count++;
        else
            runs_out[runs++] = (struct bt_run){r, l, 1, (uint32_t)i};
    }
    return runs;
}

uint64_t bt_run_peek(const struct bt_run *runs, size_t run_count,
                     uint64_t block_bytes, uint64_t chunk_max,
                     const struct bt_run_cursor *cursor)
{
    uint64_t left;

    if (cursor->run >= run_count)
        return 0;
    left = runs[cursor->run].count * block_bytes - cursor->offset;
    return left < chunk_max ? left : chunk_max;
}

bool bt_run_next(const struct bt_run *runs, size_t run_count,
                 uint64_t block_bytes, uint64_t chunk_max,
                 struct bt_run_cursor *cursor, struct bt_chunk *chunk_out)
{
    uint64_t bytes =
        bt_run_peek(runs, run_count, block_bytes, chunk_max, cursor);
    const struct bt_run *run;

    if (bytes == 0)
        return false;
    run = &runs[cursor->run];
    *chunk_out = (struct bt_chunk){
        .run = cursor->run,
        .offset = cursor->offset,
        .remote = run->remote * block_bytes + cursor->offset,
        .local = run->local * block_bytes + cursor->offset,
        .bytes = bytes,
    };
    cursor->offset += bytes;
    if (cursor->offset == run->count * block_bytes)
        *cursor = (struct bt_run_cursor){cursor->run + 1, 0};
    return true;
}

uint64_t bt_chunk_overlap(const struct bt_chunk *chunk, uint64_t block_bytes,
                          uint64_t k)
{
    uint64_t from = k * block_bytes, to = from + block_bytes;
    uint64_t end = chunk->offset + chunk->bytes;

    if (from < chunk->offset)
        from = chunk->offset;
    if (to > end)
        to = end;
    return to > from ? to - from : 0;
}

uint64_t bt_block_checksum(const void *block, size_t bytes)
{
    return XXH3_64bits(block, bytes);
}
