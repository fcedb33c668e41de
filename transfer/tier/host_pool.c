/* Host tier: equal blocks in one mapping. Decides which pages back it (2 MiB
 * from the kernel's pool, else transparent ones, else small), on which NUMA
 * node, and who holds which block. Leaves registration with NICs and devices
 * to others: they take base and bytes.
 * Invariants: a block is free exactly when its count is 0; the free list holds
 * each free block once; the base is aligned to 2 MiB when huge pages are asked
 * for, else to a page. One thread. */
#include "baton/transfer/tier.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <numa.h>
#include <numaif.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#define HUGE_BYTES  (UINT64_C(2) << 20)
#define HUGE_FLAGS  (MAP_HUGETLB | (21 << 26)) /* 26: MAP_HUGE_SHIFT */
#define ALIGN       64u
#define BLOCKS_MAX  (1u << 24)
#define SMAPS_LINES 200000u
#define NAME        "AnonHugePages:"

struct bt_host_pool {
    char *base;
    void *mapping;
    uint64_t mapping_bytes, bytes, block_bytes, page;
    uint32_t *counts, *free;
    uint32_t block_count, free_count;
    int node;
};

static uint64_t round_up(uint64_t value, uint64_t to)
{
    return (value + to - 1) / to * to;
}

static void *map(uint64_t bytes, int flags)
{
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);

    return at == MAP_FAILED ? NULL : at;
}

/* Pages of the kernel's pool are reserved by mmap, so a later touch cannot
 * fail; transparent ones need a base of their own alignment. */
static bool map_huge(struct bt_host_pool *p)
{
    uintptr_t start;

    p->mapping_bytes = round_up(p->bytes, HUGE_BYTES);
    p->mapping = map(p->mapping_bytes, HUGE_FLAGS);
    if (p->mapping) {
        p->base = p->mapping;
        p->page = HUGE_BYTES;
        return true;
    }
    p->mapping_bytes += HUGE_BYTES;
    p->mapping = map(p->mapping_bytes, 0);
    if (!p->mapping)
        return false;
    start = (uintptr_t)p->mapping;
    p->base = (char *)p->mapping + (round_up(start, HUGE_BYTES) - start);
    (void)madvise(p->base, round_up(p->bytes, HUGE_BYTES), MADV_HUGEPAGE);
    return true;
}

static bool map_pool(struct bt_host_pool *p, bool huge)
{
    p->page = (uint64_t)sysconf(_SC_PAGESIZE);
    if (huge)
        return map_huge(p);
    p->mapping_bytes = round_up(p->bytes, p->page);
    p->mapping = map(p->mapping_bytes, 0);
    p->base = p->mapping;
    return p->mapping != NULL;
}

/* Preferred, not bound: a full node costs speed, a bound pool would be killed.
 */
static void place(const struct bt_host_pool *p, int node)
{
    struct bitmask *nodes;

    if (node < 0 || numa_available() < 0 || node > numa_max_node())
        return;
    nodes = numa_allocate_nodemask();
    if (!nodes)
        return;
    numa_bitmask_setbit(nodes, (unsigned)node);
    (void)mbind(p->mapping, p->mapping_bytes, MPOL_PREFERRED, nodes->maskp,
                nodes->size + 1, 0);
    numa_bitmask_free(nodes);
}

/* KiB of transparent huge pages in the mapping of `at`; 0 when unknown. */
static uint64_t transparent_kib(uintptr_t at)
{
    FILE *file = fopen("/proc/self/smaps", "re");
    char line[512], *next;
    uint64_t from, to, kib = 0;
    bool inside = false;

    if (!file)
        return 0;
    for (uint32_t i = 0; i < SMAPS_LINES; i++) {
        if (!fgets(line, sizeof(line), file))
            break;
        from = strtoull(line, &next, 16);
        if (next != line && *next == '-') {
            to = strtoull(next + 1, NULL, 16);
            inside = at >= from && at < to;
        } else if (inside && strncmp(line, NAME, sizeof(NAME) - 1) == 0) {
            kib = strtoull(line + sizeof(NAME) - 1, NULL, 10);
            break;
        }
    }
    fclose(file);
    return kib;
}

/* What was really had: asked of the kernel, after the first page is there. */
static void look(struct bt_host_pool *p, bool huge)
{
    int node = -1;

    *(volatile char *)p->base = 0;
    if (huge && p->page != HUGE_BYTES &&
        transparent_kib((uintptr_t)p->base) >= HUGE_BYTES / 1024)
        p->page = HUGE_BYTES;
    if (get_mempolicy(&node, NULL, 0, p->base, MPOL_F_NODE | MPOL_F_ADDR) != 0)
        node = -1;
    p->node = node;
}

static enum bt_status lock(const struct bt_host_pool *p, char *error_out,
                           size_t error_size)
{
    struct rlimit limit;
    int saved;

    if (mlock(p->base, p->bytes) == 0)
        return BT_OK;
    saved = errno;
    if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0)
        limit.rlim_cur = limit.rlim_max = 0;
    if (limit.rlim_cur < limit.rlim_max) {
        limit.rlim_cur = limit.rlim_max;
        if (setrlimit(RLIMIT_MEMLOCK, &limit) == 0 &&
            mlock(p->base, p->bytes) == 0)
            return BT_OK;
    }
    snprintf(error_out, error_size,
             "locking the host pool needs %" PRIu64
             " KiB, the limit on locked memory (ulimit -l) is %" PRIu64
             " KiB: %s",
             round_up(p->bytes, 1024) / 1024, (uint64_t)limit.rlim_max / 1024,
             strerror(saved));
    return BT_LIMIT;
}

static enum bt_status refuse(const struct bt_host_pool_config *c,
                             char *error_out, size_t error_size)
{
    if (c->block_bytes > 0 && c->block_bytes <= UINT64_C(1) << 40 &&
        c->block_count > 0 && c->block_count <= BLOCKS_MAX &&
        round_up(c->block_bytes, ALIGN) <= (UINT64_C(1) << 46) / c->block_count)
        return BT_OK;
    snprintf(error_out, error_size,
             "host pool of %" PRIu32 " blocks of %" PRIu64
             " bytes: at least 1 of each, at most %u blocks and 64 TiB",
             c->block_count, c->block_bytes, BLOCKS_MAX);
    return BT_INVALID;
}

static bool fill_lists(struct bt_host_pool *p)
{
    p->counts = calloc(p->block_count, sizeof(*p->counts));
    p->free = malloc(p->block_count * sizeof(*p->free));
    if (!p->counts || !p->free)
        return false;
    for (uint32_t i = 0; i < p->block_count; i++)
        p->free[i] = p->block_count - 1 - i;
    p->free_count = p->block_count;
    return true;
}

enum bt_status bt_host_pool_create(const struct bt_host_pool_config *config,
                                   struct bt_host_pool **out, char *error_out,
                                   size_t error_size)
{
    enum bt_status status = refuse(config, error_out, error_size);
    struct bt_host_pool *p;

    if (status != BT_OK)
        return status;
    p = calloc(1, sizeof(*p));
    if (!p)
        return BT_NO_MEMORY;
    p->block_bytes = round_up(config->block_bytes, ALIGN);
    p->block_count = config->block_count;
    p->bytes = p->block_bytes * p->block_count;
    if (!fill_lists(p) || !map_pool(p, config->huge_pages)) {
        snprintf(error_out, error_size,
                 "host pool: %" PRIu64 " bytes could not be mapped: %s",
                 p->bytes, strerror(errno));
        status = BT_NO_MEMORY;
        goto undo;
    }
    place(p, config->numa_node);
    if (config->lock)
        status = lock(p, error_out, error_size);
    if (status != BT_OK)
        goto undo;
    look(p, config->huge_pages);
    *out = p;
    return BT_OK;
undo:
    bt_host_pool_destroy(p);
    return status;
}

void bt_host_pool_destroy(struct bt_host_pool *pool)
{
    if (!pool)
        return;
    if (pool->mapping)
        munmap(pool->mapping, pool->mapping_bytes);
    free(pool->counts);
    free(pool->free);
    free(pool);
}

void *bt_host_pool_base(const struct bt_host_pool *pool)
{
    return pool->base;
}

uint64_t bt_host_pool_bytes(const struct bt_host_pool *pool)
{
    return pool->bytes;
}

uint64_t bt_host_pool_page(const struct bt_host_pool *pool)
{
    return pool->page;
}

int bt_host_pool_node(const struct bt_host_pool *pool)
{
    return pool->node;
}

uint64_t bt_host_pool_block_bytes(const struct bt_host_pool *pool)
{
    return pool->block_bytes;
}

enum bt_status bt_host_pool_get(struct bt_host_pool *pool, uint32_t *block_out)
{
    uint32_t block;

    if (pool->free_count == 0)
        return BT_LIMIT;
    block = pool->free[--pool->free_count];
    assert(pool->counts[block] == 0);
    pool->counts[block] = 1;
    *block_out = block;
    return BT_OK;
}

void bt_host_pool_hold(struct bt_host_pool *pool, uint32_t block)
{
    assert(block < pool->block_count);
    assert(pool->counts[block] > 0 && pool->counts[block] < UINT32_MAX);
    pool->counts[block]++;
}

void bt_host_pool_put(struct bt_host_pool *pool, uint32_t block)
{
    assert(block < pool->block_count && pool->counts[block] > 0);
    if (--pool->counts[block] == 0)
        pool->free[pool->free_count++] = block;
}

void *bt_host_pool_at(const struct bt_host_pool *pool, uint32_t block)
{
    assert(block < pool->block_count);
    return pool->base + pool->block_bytes * block;
}

uint32_t bt_host_pool_free(const struct bt_host_pool *pool)
{
    return pool->free_count;
}
