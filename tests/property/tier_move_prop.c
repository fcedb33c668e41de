/* Moves between every two kinds of memory: bytes compared with what was put at
 * the source, cancelled at every turn of the loop, with damage, with errors and
 * with nothing to spare. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include "baton/base/rng.h"
#include "device.h"
#include "fake_cuda.h"
#include "tier_bed.h"
#include <cmocka.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BLOCK   4096u
#define BLOCKS  12u
#define STAGING 3u

static const struct fake_cuda_control *fake;
static struct tier_bed bed;
static char second_path[400];

/* One of each, twice: where from, where to. */
static struct side {
    unsigned char *host;
    struct bt_device *device;
    void *memory;
    struct bt_nvme_pool *nvme;
    uint32_t blocks[BLOCKS];
    uint64_t keys[BLOCKS];
} from, to;
static struct bt_host_pool *staging;
static unsigned char *scratch;
static uint64_t next_key = 1;

static void open_side(struct side *s, int ordinal, const char *path)
{
    struct bt_nvme_config config = tier_bed_config(&bed, 64);
    char error[128];

    config.path = path;
    s->nvme = tier_bed_open(&bed, &config);
    s->host = tier_blocks(BLOCK, BLOCKS);
    assert_int_equal(
        bt_device_open(FAKE_CUDA, ordinal, &s->device, error, sizeof(error)),
        BT_OK);
    assert_int_equal(bt_device_alloc(s->device, BLOCK * BLOCKS, &s->memory),
                     BT_OK);
}

static int set_up(void **state)
{
    const struct bt_host_pool_config config = {
        .block_bytes = BLOCK, .block_count = STAGING, .numa_node = -1};
    char error[128];

    (void)state;
    fake->reset();
    tier_bed_init(&bed, BLOCK);
    snprintf(second_path, sizeof(second_path), "%s/second", bed.dir);
    open_side(&from, 0, bed.path);
    open_side(&to, 1, second_path);
    assert_int_equal(
        bt_host_pool_create(&config, &staging, error, sizeof(error)), BT_OK);
    scratch = tier_blocks(BLOCK, 1);
    return 0;
}

static void close_side(struct side *s)
{
    bt_nvme_pool_close(s->nvme);
    bt_device_free(s->device, s->memory);
    bt_device_close(s->device);
    free(s->host);
}

static int tear_down(void **state)
{
    const char *last;

    (void)state;
    close_side(&from);
    close_side(&to);
    bt_host_pool_destroy(staging);
    free(scratch);
    tier_bed_fini(&bed);
    if (fake->faults(&last) != 0)
        print_error("driver: %s\n", last);
    assert_int_equal(fake->faults(&last), 0);
    assert_int_equal(fake->live(), 0);
    return 0;
}

/* ---- reaching each kind without a move ---- */

static void copy_now(struct side *s, uint32_t i, bool to_device)
{
    void *at = (char *)s->memory + (size_t)s->blocks[i] * BLOCK;
    const struct bt_device_copy in = {BT_COPY_TO_DEVICE, at, scratch, BLOCK,
                                      NULL};
    const struct bt_device_copy out = {BT_COPY_FROM_DEVICE, scratch, at, BLOCK,
                                       NULL};
    uint32_t ticket;

    assert_int_equal(bt_device_copy(s->device, to_device ? &in : &out, &ticket),
                     BT_OK);
    while (bt_device_poll(s->device, ticket) == BT_AGAIN)
        ;
}

static void put(struct side *s, enum bt_memory_kind kind, uint32_t i,
                uint64_t seed)
{
    tier_fill(scratch, BLOCK, seed);
    if (kind == BT_MEMORY_HOST)
        memcpy(s->host + (size_t)s->blocks[i] * BLOCK, scratch, BLOCK);
    else if (kind == BT_MEMORY_DEVICE)
        copy_now(s, i, true);
    else
        assert_int_equal(tier_store(&bed, s->nvme, s->keys[i], scratch), BT_OK);
}

static bool there(struct side *s, enum bt_memory_kind kind, uint32_t i,
                  uint64_t seed)
{
    memset(scratch, 0, BLOCK);
    if (kind == BT_MEMORY_HOST)
        memcpy(scratch, s->host + (size_t)s->blocks[i] * BLOCK, BLOCK);
    else if (kind == BT_MEMORY_DEVICE)
        copy_now(s, i, false);
    else if (tier_load(&bed, s->nvme, s->keys[i], scratch) != BT_OK)
        return false;
    return tier_is(scratch, BLOCK, seed);
}

/* Blocks in an order of their own on each side, new keys, source filled. */
static void prepare(enum bt_memory_kind kind, struct bt_rng *rng)
{
    struct side *sides[2] = {&from, &to};

    for (int k = 0; k < 2; k++) {
        struct side *s = sides[k];

        for (uint32_t i = 0; i < BLOCKS; i++) {
            uint32_t at = (uint32_t)bt_rng_below(rng, i + 1);

            s->blocks[i] = s->blocks[at];
            s->blocks[at] = i;
            s->keys[i] = next_key++;
        }
        memset(s->host, 0, BLOCK * BLOCKS);
    }
    for (uint32_t i = 0; i < BLOCKS; i++)
        put(&from, kind, i, from.keys[i]);
}

static struct bt_tier_end end_of(const struct side *s, enum bt_memory_kind kind)
{
    return (struct bt_tier_end){
        .kind = kind,
        .base = kind == BT_MEMORY_HOST ? (void *)s->host : s->memory,
        .blocks = s->blocks,
        .device = s->device,
        .nvme = s->nvme,
        .keys = s->keys,
    };
}

static struct bt_move_spec spec_of(int pair, uint32_t depth)
{
    return (struct bt_move_spec){
        .from = end_of(&from, (enum bt_memory_kind)(pair / 3)),
        .to = end_of(&to, (enum bt_memory_kind)(pair % 3)),
        .count = BLOCKS,
        .block_bytes = BLOCK,
        .staging = staging,
        .depth = depth,
    };
}

struct ended {
    struct bt_move_end end;
    enum bt_status status; /* TIER_PENDING until the call-back */
};

static void on_end(void *arg, const struct bt_move_end *end)
{
    struct ended *e = arg;

    assert_int_equal(e->status, TIER_PENDING);
    e->end = *end;
    e->status = end->status;
    /* All is over: memory and staging are the caller's again. */
    assert_int_equal(bt_host_pool_free(staging), STAGING);
}

static struct ended run(const struct bt_move_spec *spec)
{
    struct ended e = {.status = TIER_PENDING};
    struct bt_move *move;

    assert_int_equal(bt_move_start(bed.loop, spec, on_end, &e, &move), BT_OK);
    assert_int_equal(e.status, TIER_PENDING);
    tier_wait(&bed, &e.status);
    return e;
}

static void test_all_pairs(void **state)
{
    static const uint32_t depths[] = {0, 1, 2, 40};
    struct bt_rng rng;

    (void)state;
    bt_rng_seed(&rng, 3);
    for (int pair = 0; pair < 9; pair++)
        for (int d = 0; d < 4; d++) {
            struct bt_move_spec spec = spec_of(pair, depths[d]);
            struct ended e;

            prepare((enum bt_memory_kind)(pair / 3), &rng);
            e = run(&spec);
            assert_int_equal(e.status, BT_OK);
            assert_int_equal(e.end.moved, BLOCKS);
            assert_int_equal(e.end.bytes, BLOCKS * BLOCK);
            assert_true(e.end.duration_ns >= 0);
            for (uint32_t i = 0; i < BLOCKS; i++)
                if (!there(&to, (enum bt_memory_kind)(pair % 3), i,
                           from.keys[i]))
                    fail_msg("pair %d depth %u: block %u is wrong", pair,
                             depths[d], i);
        }
}

/* Between devices: straight with peer access, by the host without; within one
 * device straight either way. */
static void test_device_routes(void **state)
{
    struct bt_move_spec spec = spec_of(4, 4);
    struct bt_rng rng;

    (void)state;
    bt_rng_seed(&rng, 4);
    prepare(BT_MEMORY_DEVICE, &rng);
    assert_int_equal(run(&spec).status, BT_OK);
    assert_int_equal(fake->calls("cuMemcpyPeerAsync"), BLOCKS);
    tear_down(NULL);
    set_up(NULL);
    fake->set(0, 1, 2);
    spec = spec_of(4, 4);
    prepare(BT_MEMORY_DEVICE, &rng);
    assert_int_equal(run(&spec).status, BT_OK);
    assert_int_equal(fake->calls("cuMemcpyPeerAsync"), 0);
    assert_true(there(&to, BT_MEMORY_DEVICE, 7, from.keys[7]));
    spec.staging = NULL;
    {
        struct bt_move *move = NULL;
        struct ended e;

        assert_int_equal(bt_move_start(bed.loop, &spec, on_end, &e, &move),
                         BT_INVALID);
    }
    spec.to = spec.from;
    spec.to.blocks = to.blocks;
    assert_int_equal(run(&spec).status, BT_OK);
    assert_true(fake->calls("cuMemcpyDtoDAsync_v2") == BLOCKS);
}

/* Cancelled after 0, 1, 2... turns of the loop, until it is too late. */
static void cancel_at_each_turn(int pair)
{
    enum bt_status status = BT_CANCELLED;
    struct bt_rng rng;

    bt_rng_seed(&rng, (uint64_t)pair);
    for (int turns = 0; status == BT_CANCELLED; turns++) {
        struct bt_move_spec spec = spec_of(pair, 2);
        struct ended e = {.status = TIER_PENDING};
        struct bt_move *move;

        assert_true(turns < 2000);
        prepare((enum bt_memory_kind)(pair / 3), &rng);
        assert_int_equal(bt_move_start(bed.loop, &spec, on_end, &e, &move),
                         BT_OK);
        for (int i = 0; i < turns && e.status == TIER_PENDING; i++)
            ev_run(bed.loop, EVRUN_ONCE);
        if (e.status == TIER_PENDING)
            bt_move_cancel(move);
        status = tier_wait(&bed, &e.status);
        assert_true(status == BT_OK || status == BT_CANCELLED);
        assert_true(status == BT_OK || e.end.moved <= BLOCKS);
        if (turns == 0)
            assert_int_equal(e.end.moved, 0);
        /* Freed memory under a copy would be a fault of the driver, or of the
         * address sanitizer: hand all of it out anew. */
        memset(from.host, 0x11, BLOCK * BLOCKS);
        memset(to.host, 0x22, BLOCK * BLOCKS);
        bt_device_free(from.device, from.memory);
        bt_device_alloc(from.device, BLOCK * BLOCKS, &from.memory);
        bt_device_free(to.device, to.memory);
        bt_device_alloc(to.device, BLOCK * BLOCKS, &to.memory);
        for (uint32_t i = 0; i < BLOCK * BLOCKS; i++)
            assert_true(from.host[i] == 0x11 && to.host[i] == 0x22);
    }
}

static void test_cancel(void **state)
{
    (void)state;
    for (int pair = 0; pair < 9; pair++)
        cancel_at_each_turn(pair);
}

static void damage(uint64_t seed)
{
    int fd = open(bed.path, O_RDWR | O_CLOEXEC);
    unsigned char want[BLOCK], got[BLOCK];
    bool found = false;

    tier_fill(want, BLOCK, seed);
    for (off_t at = 0; !found && pread(fd, got, BLOCK, at) == BLOCK;
         at += BLOCK) {
        found = memcmp(want, got, BLOCK) == 0;
        got[77] ^= 1;
        if (found)
            assert_int_equal(pwrite(fd, got, BLOCK, at), BLOCK);
    }
    close(fd);
    assert_true(found);
}

/* One at a time, the blocks before the damaged one have arrived. */
static void test_damaged(void **state)
{
    struct bt_rng rng;

    (void)state;
    bt_rng_seed(&rng, 6);
    for (int kind = 0; kind < 3; kind++)
        for (uint32_t depth = 1; depth < 8; depth += 3) {
            struct bt_move_spec spec = spec_of(6 + kind, depth);
            struct ended e;

            prepare(BT_MEMORY_NVME, &rng);
            damage(from.keys[5]);
            e = run(&spec);
            assert_int_equal(e.status, BT_CHECKSUM);
            if (depth == 1)
                assert_int_equal(e.end.moved, 5);
            assert_true(e.end.moved < BLOCKS);
            for (uint32_t i = 0; i < 5 && depth == 1; i++)
                assert_true(
                    there(&to, (enum bt_memory_kind)kind, i, from.keys[i]));
            assert_false(bt_nvme_has(from.nvme, from.keys[5]));
        }
}

static void test_errors(void **state)
{
    static const struct {
        const char *call;
        int pair;
    } cases[] = {{"cuMemcpyHtoDAsync_v2", 1}, {"cuMemcpyDtoHAsync_v2", 3},
                 {"cuMemcpyPeerAsync", 4},    {"cuEventQuery", 5},
                 {"cuMemcpyHtoDAsync_v2", 7}, {"cuEventRecord", 7}};
    struct bt_rng rng;

    (void)state;
    bt_rng_seed(&rng, 8);
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct bt_move_spec spec = spec_of(cases[i].pair, 3);

        prepare((enum bt_memory_kind)(cases[i].pair / 3), &rng);
        fake->break_call(cases[i].call, 4, 719);
        assert_int_equal(run(&spec).status, BT_IO);
        fake->break_call("", 0, 0);
    }
    {
        struct bt_move_spec spec = spec_of(6, 3);
        struct ended e;

        prepare(BT_MEMORY_NVME, &rng);
        bt_nvme_drop(from.nvme, from.keys[11]);
        e = run(&spec);
        assert_int_equal(e.status, BT_NOT_FOUND);
        assert_int_equal(e.end.moved, 11);
    }
}

/* A key that is there counts as moved; the bytes of the first stay. */
static void test_already_there(void **state)
{
    struct bt_move_spec spec = spec_of(2, 4);
    struct bt_rng rng;

    (void)state;
    bt_rng_seed(&rng, 9);
    prepare(BT_MEMORY_HOST, &rng);
    put(&to, BT_MEMORY_NVME, 3, 999);
    assert_int_equal(run(&spec).end.moved, BLOCKS);
    assert_true(there(&to, BT_MEMORY_NVME, 3, 999));
}

/* All staging blocks are somebody else's: the move waits, then ends. */
static void test_no_staging_for_a_while(void **state)
{
    struct bt_move_spec spec = spec_of(5, 4);
    struct ended e = {.status = TIER_PENDING};
    struct bt_move *move;
    struct bt_rng rng;
    uint32_t held[STAGING];

    (void)state;
    bt_rng_seed(&rng, 10);
    prepare(BT_MEMORY_DEVICE, &rng);
    for (uint32_t i = 0; i < STAGING; i++)
        assert_int_equal(bt_host_pool_get(staging, &held[i]), BT_OK);
    assert_int_equal(bt_move_start(bed.loop, &spec, on_end, &e, &move), BT_OK);
    for (int i = 0; i < 80; i++)
        ev_run(bed.loop, EVRUN_ONCE);
    assert_int_equal(e.status, TIER_PENDING);
    for (uint32_t i = 0; i < STAGING; i++)
        bt_host_pool_put(staging, held[i]);
    assert_int_equal(tier_wait(&bed, &e.status), BT_OK);
    assert_int_equal(e.end.moved, BLOCKS);
}

/* A pool with room for two requests, and eight lanes. */
static void test_small_queue(void **state)
{
    struct bt_nvme_config config = tier_bed_config(&bed, 64);
    struct bt_move_spec spec;
    struct bt_rng rng;

    (void)state;
    bt_nvme_pool_close(to.nvme);
    config.path = second_path;
    config.depth = 1;
    config.waiting_max = 1;
    to.nvme = tier_bed_open(&bed, &config);
    bt_rng_seed(&rng, 11);
    prepare(BT_MEMORY_HOST, &rng);
    spec = spec_of(2, 8);
    assert_int_equal(run(&spec).end.moved, BLOCKS);
    for (uint32_t i = 0; i < BLOCKS; i++)
        assert_true(there(&to, BT_MEMORY_NVME, i, from.keys[i]));
}

static void refuse(const struct bt_move_spec *spec)
{
    struct ended e = {.status = TIER_PENDING};
    struct bt_move *move = NULL;

    assert_int_equal(bt_move_start(bed.loop, spec, on_end, &e, &move),
                     BT_INVALID);
    assert_null(move);
}

static void test_refused(void **state)
{
    struct bt_move_spec good = spec_of(8, 2), spec = good;

    (void)state;
    spec.count = 0;
    refuse(&spec);
    spec = good;
    spec.count = 65537;
    refuse(&spec);
    spec = good;
    spec.block_bytes = 2048; /* not the pool's */
    refuse(&spec);
    spec = good;
    spec.staging = NULL;
    refuse(&spec);
    spec = good;
    spec.depth = 257;
    refuse(&spec);
    spec = good;
    spec.from.keys = NULL;
    refuse(&spec);
    spec = spec_of(2, 2);
    spec.from.base = from.host + 64; /* not aligned for the disk */
    refuse(&spec);
}

#define T(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
int main(void)
{
    const struct CMUnitTest tests[] = {
        T(test_all_pairs),
        T(test_device_routes),
        T(test_cancel),
        T(test_damaged),
        T(test_errors),
        T(test_already_there),
        T(test_no_staging_for_a_while),
        T(test_small_queue),
        T(test_refused),
    };
    void *library = dlopen(FAKE_CUDA, RTLD_NOW | RTLD_LOCAL);
    void *at = library ? dlsym(library, "fake_cuda_control") : NULL;
    fake_cuda_control_fn get;

    if (!at)
        return 1;
    memcpy(&get, &at, sizeof(at));
    fake = get();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
