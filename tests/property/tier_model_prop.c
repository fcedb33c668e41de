/* The NVMe pool against a list in memory: random stores, loads, drops and
 * reopenings. One request at a time the model knows everything, the evicted
 * block too; with many under way it knows which bytes a key may have. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include "baton/base/rng.h"
#include "tier_bed.h"
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#define BLOCK    4096u
#define CAPACITY 12u
#define KEYS     30u
#define SEEDS    12u
#define STEPS    300u
#define FLIGHT   8u

struct entry {
    bool held;
    uint64_t version, stored, used; /* times */
};
struct model {
    struct entry keys[KEYS];
    uint64_t clock;
};

static struct tier_bed bed;
static unsigned char *mem;

static uint64_t seed_of(uint64_t key, uint64_t version)
{
    return key * 100000 + version;
}

static struct bt_nvme_pool *open_pool(void)
{
    struct bt_nvme_config config = tier_bed_config(&bed, CAPACITY);

    config.depth = 3;
    return tier_bed_open(&bed, &config);
}

static uint32_t held(const struct model *m)
{
    uint32_t count = 0;

    for (int i = 0; i < (int)KEYS; i++)
        count += m->keys[i].held;
    return count;
}

static void evict(struct model *m)
{
    struct entry *oldest = NULL;

    for (int i = 0; i < (int)KEYS; i++)
        if (m->keys[i].held && (!oldest || m->keys[i].used < oldest->used))
            oldest = &m->keys[i];
    oldest->held = false;
}

static void step_store(struct model *m, struct bt_nvme_pool *pool, uint64_t key)
{
    struct entry *e = &m->keys[key];
    bool was = e->held;

    tier_fill(mem, BLOCK, seed_of(key, m->clock + 1));
    assert_int_equal(tier_store(&bed, pool, key, mem), was ? BT_EXISTS : BT_OK);
    if (was)
        return;
    if (held(m) == CAPACITY)
        evict(m);
    m->clock++;
    *e = (struct entry){true, m->clock, m->clock, m->clock};
}

static void step_load(struct model *m, struct bt_nvme_pool *pool, uint64_t key)
{
    struct entry *e = &m->keys[key];

    memset(mem, 0, BLOCK);
    assert_int_equal(tier_load(&bed, pool, key, mem),
                     e->held ? BT_OK : BT_NOT_FOUND);
    if (!e->held)
        return;
    assert_true(tier_is(mem, BLOCK, seed_of(key, e->version)));
    e->used = ++m->clock;
}

static struct bt_nvme_pool *reopen(struct model *m, struct bt_nvme_pool *pool)
{
    struct bt_nvme_stats s;

    bt_nvme_pool_close(pool);
    pool = open_pool();
    bt_nvme_stats(pool, &s);
    assert_int_equal(s.blocks, held(m));
    assert_int_equal(s.dropped_at_open, 0);
    for (int i = 0; i < (int)KEYS; i++)
        m->keys[i].used = m->keys[i].stored;
    return pool;
}

static void one_at_a_time(uint64_t seed)
{
    struct bt_nvme_pool *pool = open_pool();
    struct model m = {0};
    struct bt_rng rng;

    bt_rng_seed(&rng, seed);
    for (uint32_t i = 0; i < STEPS; i++) {
        uint64_t key = bt_rng_below(&rng, KEYS), what = bt_rng_below(&rng, 40);

        if (what == 0) {
            pool = reopen(&m, pool);
        } else if (what < 4) {
            bt_nvme_drop(pool, key);
            m.keys[key].held = false;
        } else if (what < 20) {
            step_load(&m, pool, key);
        } else {
            step_store(&m, pool, key);
        }
        for (uint64_t k = 0; k < KEYS; k++)
            assert_int_equal(bt_nvme_has(pool, k), m.keys[k].held);
    }
    bt_nvme_pool_close(pool);
}

static void test_one_at_a_time(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        print_message("seed %d\n", (int)seed);
        tier_bed_init(&bed, BLOCK);
        one_at_a_time(seed);
        tier_bed_fini(&bed);
    }
}

/* ---- many at a time ---- */

struct flight {
    enum bt_status status;
    bool out, load;
    uint64_t key, version;
    unsigned char *block;
};

static bool busy(const struct flight *flights, uint64_t key)
{
    for (uint32_t i = 0; i < FLIGHT; i++)
        if (flights[i].out && flights[i].key == key)
            return true;
    return false;
}

static void settle(struct model *m, struct flight *f)
{
    struct entry *e = &m->keys[f->key];

    tier_wait(&bed, &f->status);
    f->out = false;
    if (f->load) {
        assert_int_equal(f->status, BT_OK);
        assert_true(tier_is(f->block, BLOCK, seed_of(f->key, e->version)));
    } else {
        assert_true(f->status == BT_OK || f->status == BT_EXISTS);
        if (f->status == BT_OK)
            e->version = f->version;
    }
}

static void start(struct model *m, struct bt_nvme_pool *pool, struct flight *f,
                  uint64_t what)
{
    enum bt_status status;

    f->status = TIER_PENDING;
    f->load = what < 2;
    f->version = ++m->clock;
    if (f->load) {
        status = bt_nvme_load(pool, f->key, f->block, tier_got, &f->status);
        assert_true(status == BT_OK || status == BT_NOT_FOUND);
    } else {
        tier_fill(f->block, BLOCK, seed_of(f->key, f->version));
        status = bt_nvme_store(pool, f->key, f->block, tier_got, &f->status);
        /* 8 under way of 12 blocks: there is always room. */
        assert_int_equal(status, BT_OK);
    }
    f->out = status == BT_OK;
}

static void many(uint64_t seed)
{
    struct flight flights[FLIGHT] = {0};
    struct bt_nvme_pool *pool = open_pool();
    struct model m = {0};
    struct bt_nvme_stats s;
    struct bt_rng rng;

    bt_rng_seed(&rng, seed);
    for (uint32_t i = 0; i < FLIGHT; i++)
        flights[i].block = mem + (size_t)i * BLOCK;
    for (uint32_t i = 0; i < 2 * STEPS; i++) {
        struct flight *f = &flights[bt_rng_below(&rng, FLIGHT)];
        uint64_t key = bt_rng_below(&rng, KEYS), what = bt_rng_below(&rng, 5);

        if (f->out)
            settle(&m, f);
        if (busy(flights, key))
            continue;
        f->key = key;
        if (what == 4)
            bt_nvme_drop(pool, key);
        else
            start(&m, pool, f, what);
        bt_nvme_stats(pool, &s);
        assert_true(s.blocks <= CAPACITY && s.out + s.waiting <= FLIGHT);
    }
    for (uint32_t i = 0; i < FLIGHT; i++)
        if (flights[i].out)
            settle(&m, &flights[i]);
    bt_nvme_stats(pool, &s);
    assert_int_equal(s.checksum_failures + s.io_errors, 0);
    bt_nvme_pool_close(pool);
}

static void test_many(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        print_message("seed %d\n", (int)seed);
        tier_bed_init(&bed, BLOCK);
        many(seed);
        tier_bed_fini(&bed);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_at_a_time),
        cmocka_unit_test(test_many),
    };
    int failed;

    mem = tier_blocks(BLOCK, FLIGHT);
    failed = cmocka_run_group_tests(tests, NULL, NULL);
    free(mem);
    return failed;
}
