/* One measured pool: filled first, then read or written in random order with
 * its queue kept full. Decides how many requests the caller keeps out: enough
 * that the device always has `depth`, and that stores waiting for their flush
 * do not starve it. */
#include "tier.h"

#include "baton/base/rng.h"
#include "baton/transfer/tier.h"
#include <ev.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define GUARD_S    120.0
#define COMMITTING (UINT64_C(64) << 20) /* bytes that wait for a flush */

struct slot {
    struct tier_disk *disk;
    uint32_t index;
};
struct tier_disk {
    struct ev_loop *loop;
    struct bt_nvme_pool *pool;
    struct bt_host_pool *buffers;
    struct slot *slots;
    uint32_t *order;
    uint32_t blocks, out_max, started, ended;
    uint64_t block_bytes, first_key;
    bool write, late;
    enum bt_status failed;
    struct bt_rng rng;
    char note[128];
};

static double seconds(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void start(struct slot *s);

static void on_end(void *arg, enum bt_status status)
{
    struct slot *s = arg;
    struct tier_disk *d = s->disk;

    d->ended++;
    if (status != BT_OK && d->failed == BT_OK)
        d->failed = status;
    if (d->failed == BT_OK && d->started < d->blocks)
        start(s);
}

static void start(struct slot *s)
{
    struct tier_disk *d = s->disk;
    uint64_t key = d->first_key + d->order[d->started];
    void *at = bt_host_pool_at(d->buffers, s->index);
    enum bt_status status = d->write
                                ? bt_nvme_store(d->pool, key, at, on_end, s)
                                : bt_nvme_load(d->pool, key, at, on_end, s);

    if (status == BT_OK)
        d->started++;
    else
        d->failed = status;
}

static void shuffle(struct tier_disk *d)
{
    for (uint32_t i = 0; i < d->blocks; i++) {
        uint32_t at = (uint32_t)bt_rng_below(&d->rng, i + 1);

        d->order[i] = d->order[at];
        d->order[at] = i;
    }
}

static void on_guard(struct ev_loop *loop, ev_timer *w, int revents)
{
    (void)revents;
    ((struct tier_disk *)w->data)->late = true;
    ev_break(loop, EVBREAK_ONE);
}

enum bt_status tier_disk_run(struct tier_disk *disk, bool write,
                             double *bytes_per_s_out)
{
    struct tier_disk *d = disk;
    ev_timer guard;
    double begun;

    shuffle(d);
    d->write = write;
    d->started = d->ended = 0;
    if (write)
        d->first_key += d->blocks;
    ev_timer_init(&guard, on_guard, GUARD_S, 0);
    guard.data = d;
    ev_now_update(d->loop);
    ev_timer_start(d->loop, &guard);
    begun = seconds();
    for (uint32_t i = 0; i < d->out_max && d->started < d->blocks; i++)
        if (d->failed == BT_OK)
            start(&d->slots[i]);
    while (d->ended < d->started && !d->late)
        ev_run(d->loop, EVRUN_ONCE);
    *bytes_per_s_out =
        (double)d->ended * (double)d->block_bytes / (seconds() - begun);
    ev_timer_stop(d->loop, &guard);
    return d->late ? BT_TIMEOUT : d->failed;
}

static enum bt_status make_buffers(struct tier_disk *d, char *error_out,
                                   size_t error_size)
{
    const struct bt_host_pool_config config = {.block_bytes = d->block_bytes,
                                               .block_count = d->out_max,
                                               .numa_node = -1,
                                               .huge_pages = true};
    enum bt_status status =
        bt_host_pool_create(&config, &d->buffers, error_out, error_size);

    if (status != BT_OK)
        return status;
    for (uint64_t i = 0; i < bt_host_pool_bytes(d->buffers); i += 8) {
        uint64_t value = bt_rng_u64(&d->rng);

        memcpy((char *)bt_host_pool_base(d->buffers) + i, &value, 8);
    }
    status = bt_nvme_register(d->pool, bt_host_pool_base(d->buffers),
                              bt_host_pool_bytes(d->buffers));
    if (status != BT_OK)
        snprintf(d->note, sizeof(d->note), "buffers not registered: %s",
                 bt_status_text(status));
    return BT_OK;
}

static enum bt_status make_tables(struct tier_disk *d)
{
    d->loop = ev_loop_new(EVFLAG_AUTO);
    d->slots = calloc(d->out_max, sizeof(*d->slots));
    d->order = calloc(d->blocks, sizeof(*d->order));
    if (!d->loop || !d->slots || !d->order)
        return BT_NO_MEMORY;
    for (uint32_t i = 0; i < d->out_max; i++)
        d->slots[i] = (struct slot){d, i};
    return BT_OK;
}

enum bt_status tier_disk_open(const struct tier_run *run, bool verify,
                              uint64_t seed, struct tier_disk **out,
                              char *error_out, size_t error_size)
{
    const struct bt_nvme_config config = {
        .path = run->path,
        .block_bytes = run->block_bytes,
        .block_count = (uint32_t)(run->file_bytes / run->block_bytes),
        .depth = run->depth,
        .verify = verify,
        /* Another one each time: what the last pool held is emptied. */
        .identity = (uint64_t)(seconds() * 1e9),
    };
    struct tier_disk *d = calloc(1, sizeof(*d));
    enum bt_status status = BT_NO_MEMORY;
    double unused;

    snprintf(error_out, error_size, "out of memory");
    if (!d)
        return status;
    bt_rng_seed(&d->rng, seed);
    d->blocks = config.block_count;
    d->block_bytes = run->block_bytes;
    d->out_max = 3 * run->depth + (uint32_t)(COMMITTING / run->block_bytes);
    if (d->out_max > d->blocks / 2)
        d->out_max = d->blocks / 2;
    status = make_tables(d);
    if (status == BT_OK)
        status = bt_nvme_pool_open(d->loop, &config, &d->pool, error_out,
                                   error_size);
    if (status == BT_OK)
        status = make_buffers(d, error_out, error_size);
    if (status == BT_OK) {
        status = tier_disk_run(d, true, &unused);
        if (status != BT_OK)
            snprintf(error_out, error_size, "filling the pool: %s",
                     bt_status_text(status));
    }
    if (status != BT_OK) {
        tier_disk_close(d);
        return status;
    }
    *out = d;
    return BT_OK;
}

const char *tier_disk_note(const struct tier_disk *disk)
{
    return disk->note;
}

void tier_disk_close(struct tier_disk *disk)
{
    if (!disk)
        return;
    bt_nvme_pool_close(disk->pool);
    bt_host_pool_destroy(disk->buffers);
    if (disk->loop)
        ev_loop_destroy(disk->loop);
    free(disk->slots);
    free(disk->order);
    free(disk);
}
