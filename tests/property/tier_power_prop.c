/* A power cut at random moments, simulated: a disk with a volatile cache keeps
 * what was written before the last finished flush began, and of everything
 * later any subset of sectors, in flight or not. The file as the cut leaves it
 * is opened anew: what it serves is what was stored under that key, and what
 * was called back before a flush that has ended is there. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include "baton/base/rng.h"
#include "nvme.h"
#include <cmocka.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tier_bed.h"

#define BLOCK    4096u
#define CAPACITY 10u
#define KEYS     16u
#define VERSIONS 200u
#define SECTOR   512u
#define BYTES    (8192u + CAPACITY * BLOCK)
#define WRITES   512u
#define CUTS     24u
#define SEEDS    8u
#define STEPS    120u

struct written {
    uint64_t at, bytes;
    unsigned char data[BLOCK];
    bool done, covered;
};
struct cut {
    unsigned char image[BYTES];
    uint32_t sure[KEYS]; /* version that must be there, 0 none */
    uint32_t last[KEYS]; /* versions 1..last may be */
};
static struct disk {
    struct bt_nvme_pool *pool;
    struct bt_rng rng;
    unsigned char durable[BYTES];
    struct written writes[WRITES];
    uint32_t count;
    struct cut cuts[CUTS];
    uint32_t cut_count;
    uint32_t last[KEYS], called_back[KEYS], flushing[KEYS], sure[KEYS];
} disk;

static struct tier_bed bed;
static unsigned char *mem;

static uint64_t seed_of(uint64_t key, uint32_t version)
{
    return key * VERSIONS + version;
}

static void take_cut(struct disk *d)
{
    struct cut *c = &d->cuts[d->cut_count++];

    memcpy(c->image, d->durable, BYTES);
    for (uint32_t i = 0; i < d->count; i++)
        for (uint64_t at = 0; at < d->writes[i].bytes; at += SECTOR)
            if (bt_rng_below(&d->rng, 2))
                memcpy(c->image + d->writes[i].at + at, d->writes[i].data + at,
                       SECTOR);
    memcpy(c->last, d->last, sizeof(c->last));
    for (uint64_t key = 0; key < KEYS; key++)
        c->sure[key] = bt_nvme_has(d->pool, key) ? d->sure[key] : 0;
}

static void write_starts(struct disk *d, const struct bt_nvme_event *e)
{
    struct written *w = &d->writes[d->count++];

    assert_true(d->count < WRITES && e->bytes <= BLOCK);
    w->at = e->at;
    w->bytes = e->bytes;
    w->done = w->covered = false;
    memcpy(w->data, e->buffer, e->bytes);
}

static void write_ends(struct disk *d, const struct bt_nvme_event *e)
{
    for (uint32_t i = 0; i < d->count; i++)
        if (!d->writes[i].done && d->writes[i].at == e->at)
            d->writes[i].done = true;
}

static void flush_starts(struct disk *d)
{
    for (uint32_t i = 0; i < d->count; i++)
        d->writes[i].covered = d->writes[i].done;
    memcpy(d->flushing, d->called_back, sizeof(d->flushing));
}

static void flush_ends(struct disk *d)
{
    uint32_t kept = 0;

    for (uint32_t i = 0; i < d->count; i++) {
        struct written *w = &d->writes[i];

        if (w->covered)
            memcpy(d->durable + w->at, w->data, w->bytes);
        else
            d->writes[kept++] = *w;
    }
    d->count = kept;
    for (int key = 0; key < (int)KEYS; key++)
        d->sure[key] =
            d->flushing[key] == d->called_back[key] ? d->flushing[key] : 0;
}

static int on_disk(void *arg, const struct bt_nvme_event *e)
{
    struct disk *d = arg;

    if (e->kind == BT_NVME_READ)
        return e->result;
    if (d->cut_count < CUTS && bt_rng_below(&d->rng, 15) == 0)
        take_cut(d);
    if (e->kind == BT_NVME_FLUSH && e->submit)
        flush_starts(d);
    else if (e->kind == BT_NVME_FLUSH)
        flush_ends(d);
    else if (e->submit)
        write_starts(d, e);
    else
        write_ends(d, e);
    if (d->cut_count < CUTS && bt_rng_below(&d->rng, 15) == 0)
        take_cut(d);
    return e->result;
}

/* ---- work ---- */

struct job {
    enum bt_status status;
    uint64_t key;
    uint32_t version;
    bool out;
};

static void on_stored(void *arg, enum bt_status status)
{
    struct job *j = arg;

    tier_got(&j->status, status);
    j->out = false;
    if (status == BT_OK)
        disk.called_back[j->key] = j->version;
}

static void drop(uint64_t key)
{
    disk.called_back[key] = disk.sure[key] = disk.flushing[key] = 0;
    bt_nvme_drop(disk.pool, key);
}

static void work(struct bt_rng *rng)
{
    struct job jobs[4] = {0};

    for (uint32_t i = 0; i < STEPS; i++) {
        uint32_t n = (uint32_t)bt_rng_below(rng, 4);
        struct job *j = &jobs[n];
        uint64_t key = bt_rng_below(rng, KEYS);
        bool taken = false;

        if (j->out)
            tier_wait(&bed, &j->status);
        for (int k = 0; k < 4; k++)
            taken = taken || (jobs[k].out && jobs[k].key == key);
        if (taken)
            continue;
        if (bt_nvme_has(disk.pool, key)) {
            drop(key);
            continue;
        }
        disk.called_back[key] = disk.sure[key] = disk.flushing[key] = 0;
        *j = (struct job){TIER_PENDING, key, ++disk.last[key], true};
        tier_fill(mem + (size_t)n * BLOCK, BLOCK, seed_of(key, j->version));
        assert_int_equal(bt_nvme_store(disk.pool, key, mem + (size_t)n * BLOCK,
                                       on_stored, j),
                         BT_OK);
    }
    for (int k = 0; k < 4; k++)
        if (jobs[k].out)
            tier_wait(&bed, &jobs[k].status);
}

static void check_key(struct bt_nvme_pool *pool, const struct cut *c,
                      uint64_t key)
{
    enum bt_status status = tier_load(&bed, pool, key, mem);
    uint32_t version = c->last[key];

    if (status == BT_NOT_FOUND || status == BT_CHECKSUM) {
        assert_int_equal(c->sure[key], 0);
        return;
    }
    assert_int_equal(status, BT_OK);
    while (version > 0 && !tier_is(mem, BLOCK, seed_of(key, version)))
        version--;
    assert_true(version > 0);
    if (c->sure[key])
        assert_int_equal(version, c->sure[key]);
}

static uint32_t check_cut(const struct bt_nvme_config *config,
                          const struct cut *c)
{
    int fd = open(config->path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    struct bt_nvme_pool *pool;
    uint32_t sure = 0;

    assert_true(fd >= 0);
    assert_int_equal(pwrite(fd, c->image, BYTES, 0), BYTES);
    close(fd);
    pool = tier_bed_open(&bed, config);
    for (uint64_t key = 0; key < KEYS; key++) {
        check_key(pool, c, key);
        sure += c->sure[key] > 0;
    }
    bt_nvme_pool_close(pool);
    return sure;
}

static void read_durable(void)
{
    int fd = open(bed.path, O_RDONLY | O_CLOEXEC);

    assert_int_equal(pread(fd, disk.durable, BYTES, 0), BYTES);
    close(fd);
}

static void test_power_cuts(void **state)
{
    uint32_t sure = 0, cuts = 0;

    (void)state;
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        struct bt_nvme_config config;
        struct bt_rng rng;

        print_message("seed %d\n", (int)seed);
        bt_rng_seed(&rng, seed);
        memset(&disk, 0, sizeof(disk));
        bt_rng_seed(&disk.rng, seed + 1000);
        tier_bed_init(&bed, BLOCK);
        config = tier_bed_config(&bed, CAPACITY);
        config.depth = 3;
        config.verify = false; /* safe all the same */
        disk.pool = tier_bed_open(&bed, &config);
        read_durable();
        bt_nvme_hook(disk.pool, on_disk, &disk);
        work(&rng);
        bt_nvme_hook(disk.pool, NULL, NULL);
        bt_nvme_pool_close(disk.pool);
        for (uint32_t i = 0; i < disk.cut_count; i++)
            sure += check_cut(&config, &disk.cuts[i]);
        cuts += disk.cut_count;
        tier_bed_fini(&bed);
    }
    /* The test has something to say. */
    assert_true(cuts >= SEEDS * CUTS / 2 && sure > cuts);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_power_cuts)};
    int failed;

    mem = tier_blocks(BLOCK, 4);
    failed = cmocka_run_group_tests(tests, NULL, NULL);
    free(mem);
    return failed;
}
