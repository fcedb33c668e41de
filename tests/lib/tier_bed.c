/* See tier_bed.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include "tier_bed.h"

#include "baton/base/rng.h"
#include <cmocka.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define GUARD_S 30.0

void tier_bed_init(struct tier_bed *bed, uint64_t block_bytes)
{
    const char *tmp = getenv("TMPDIR");

    memset(bed, 0, sizeof(*bed));
    snprintf(bed->dir, sizeof(bed->dir), "%s/baton-tier-XXXXXX",
             tmp ? tmp : "/tmp");
    assert_non_null(mkdtemp(bed->dir));
    snprintf(bed->path, sizeof(bed->path), "%s/pool", bed->dir);
    bed->block_bytes = block_bytes;
    bed->loop = ev_loop_new(EVFLAG_AUTO);
    assert_non_null(bed->loop);
}

void tier_bed_fini(struct tier_bed *bed)
{
    DIR *dir = opendir(bed->dir);
    struct dirent *entry;
    char path[600];

    while (dir && (entry = readdir(dir)) != NULL) {
        snprintf(path, sizeof(path), "%s/%s", bed->dir, entry->d_name);
        if (entry->d_name[0] != '.')
            unlink(path);
    }
    if (dir)
        closedir(dir);
    assert_int_equal(rmdir(bed->dir), 0);
    ev_loop_destroy(bed->loop);
}

struct bt_nvme_config tier_bed_config(const struct tier_bed *bed,
                                      uint32_t blocks)
{
    return (struct bt_nvme_config){.path = bed->path,
                                   .block_bytes = bed->block_bytes,
                                   .block_count = blocks,
                                   .verify = true,
                                   .identity = 42};
}

struct bt_nvme_pool *tier_bed_open(const struct tier_bed *bed,
                                   const struct bt_nvme_config *config)
{
    struct bt_nvme_pool *pool = NULL;
    char error[256] = "";
    enum bt_status status =
        bt_nvme_pool_open(bed->loop, config, &pool, error, sizeof(error));

    if (status != BT_OK)
        print_error("open: %s: %s\n", bt_status_name(status), error);
    assert_int_equal(status, BT_OK);
    return pool;
}

unsigned char *tier_blocks(uint64_t block_bytes, uint32_t count)
{
    unsigned char *at = aligned_alloc(4096, block_bytes * count);

    assert_non_null(at);
    memset(at, 0xEE, block_bytes * count);
    return at;
}

void tier_fill(unsigned char *block, uint64_t bytes, uint64_t seed)
{
    uint64_t x = bt_mix64(seed + 1);

    for (uint64_t i = 0; i + 8 <= bytes; i += 8) {
        x = x * 6364136223846793005u + 1442695040888963407u;
        memcpy(block + i, &x, 8);
    }
}

bool tier_is(const unsigned char *block, uint64_t bytes, uint64_t seed)
{
    uint64_t x = bt_mix64(seed + 1);

    for (uint64_t i = 0; i + 8 <= bytes; i += 8) {
        x = x * 6364136223846793005u + 1442695040888963407u;
        if (memcmp(block + i, &x, 8) != 0)
            return false;
    }
    return true;
}

void tier_got(void *arg, enum bt_status status)
{
    enum bt_status *to = arg;

    assert_int_equal(*to, TIER_PENDING);
    *to = status;
}

static void on_guard(struct ev_loop *loop, ev_timer *w, int revents)
{
    (void)revents;
    *(bool *)w->data = true;
    ev_break(loop, EVBREAK_ONE);
}

enum bt_status tier_wait(const struct tier_bed *bed,
                         const enum bt_status *status)
{
    bool late = false;
    ev_timer guard;

    ev_timer_init(&guard, on_guard, GUARD_S, 0);
    guard.data = &late;
    ev_now_update(bed->loop);
    ev_timer_start(bed->loop, &guard);
    while (*status == TIER_PENDING && !late)
        ev_run(bed->loop, EVRUN_ONCE);
    ev_timer_stop(bed->loop, &guard);
    assert_false(late);
    return *status;
}

enum bt_status tier_store(const struct tier_bed *bed, struct bt_nvme_pool *pool,
                          uint64_t key, const void *from)
{
    enum bt_status end = TIER_PENDING;
    enum bt_status status = bt_nvme_store(pool, key, from, tier_got, &end);

    return status == BT_OK ? tier_wait(bed, &end) : status;
}

enum bt_status tier_load(const struct tier_bed *bed, struct bt_nvme_pool *pool,
                         uint64_t key, void *to)
{
    enum bt_status end = TIER_PENDING;
    enum bt_status status = bt_nvme_load(pool, key, to, tier_got, &end);

    return status == BT_OK ? tier_wait(bed, &end) : status;
}
