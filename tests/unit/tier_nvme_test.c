/* NVMe pool, case by case: answers, eviction order worked by hand, bounds, the
 * order of data, flush and record, and every kind of failing operation. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include "baton/transfer/runs.h"
#include "nvme.h"
#include "tier_bed.h"
#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BLOCK 8192u

static struct tier_bed bed;
static unsigned char *mem; /* 16 blocks */

static unsigned char *block(uint32_t i)
{
    return mem + (size_t)i * BLOCK;
}

static int set_up(void **state)
{
    (void)state;
    tier_bed_init(&bed, BLOCK);
    mem = tier_blocks(BLOCK, 16);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    free(mem);
    tier_bed_fini(&bed);
    return 0;
}

static struct bt_nvme_pool *open_n(uint32_t blocks)
{
    const struct bt_nvme_config config = tier_bed_config(&bed, blocks);

    return tier_bed_open(&bed, &config);
}

static struct bt_nvme_stats stats(const struct bt_nvme_pool *pool)
{
    struct bt_nvme_stats s;

    bt_nvme_stats(pool, &s);
    return s;
}

static void put(struct bt_nvme_pool *pool, uint64_t key)
{
    tier_fill(block(0), BLOCK, key);
    assert_int_equal(tier_store(&bed, pool, key, block(0)), BT_OK);
}

static void expect(struct bt_nvme_pool *pool, uint64_t key)
{
    memset(block(1), 0, BLOCK);
    assert_int_equal(tier_load(&bed, pool, key, block(1)), BT_OK);
    assert_true(tier_is(block(1), BLOCK, key));
}

static void test_answers(void **state)
{
    struct bt_nvme_pool *pool = open_n(4);

    (void)state;
    assert_int_equal(tier_load(&bed, pool, 1, block(1)), BT_NOT_FOUND);
    put(pool, 1);
    put(pool, 0);
    expect(pool, 1);
    expect(pool, 0);
    tier_fill(block(2), BLOCK, 77);
    assert_int_equal(tier_store(&bed, pool, 1, block(2)), BT_EXISTS);
    expect(pool, 1);
    bt_nvme_drop(pool, 1);
    bt_nvme_drop(pool, 12345);
    assert_false(bt_nvme_has(pool, 1));
    assert_int_equal(tier_load(&bed, pool, 1, block(1)), BT_NOT_FOUND);
    assert_int_equal(stats(pool).blocks, 1);
    assert_int_equal(stats(pool).reads, 3);
    assert_int_equal(stats(pool).writes, 2);
    assert_int_equal(stats(pool).write_bytes, 2 * BLOCK);
    bt_nvme_pool_close(pool);
    pool = open_n(4);
    assert_false(bt_nvme_has(pool, 1));
    expect(pool, 0);
    assert_int_equal(stats(pool).dropped_at_open, 0);
    bt_nvme_pool_close(pool);
}

/* 1 2 3 stored, 1 read: 4 pushes out 2, 5 pushes out 3. */
static void test_eviction(void **state)
{
    struct bt_nvme_pool *pool = open_n(3);

    (void)state;
    put(pool, 1);
    put(pool, 2);
    put(pool, 3);
    expect(pool, 1);
    put(pool, 4);
    assert_false(bt_nvme_has(pool, 2));
    put(pool, 5);
    assert_false(bt_nvme_has(pool, 3));
    expect(pool, 1);
    expect(pool, 4);
    expect(pool, 5);
    assert_int_equal(stats(pool).evicted, 2);
    bt_nvme_pool_close(pool);
    /* Reopened, the order is that of storing: 1 goes first. */
    pool = open_n(3);
    put(pool, 6);
    assert_false(bt_nvme_has(pool, 1));
    expect(pool, 4);
    bt_nvme_pool_close(pool);
}

static void test_bounds(void **state)
{
    struct bt_nvme_config config = tier_bed_config(&bed, 8);
    enum bt_status end[6];
    struct bt_nvme_pool *pool;

    (void)state;
    config.depth = 2;
    config.waiting_max = 3;
    pool = tier_bed_open(&bed, &config);
    for (uint64_t i = 0; i < 6; i++) {
        end[i] = TIER_PENDING;
        tier_fill(block((uint32_t)i), BLOCK, i);
        assert_int_equal(
            bt_nvme_store(pool, i, block((uint32_t)i), tier_got, &end[i]),
            i < 5 ? BT_OK : BT_LIMIT);
    }
    assert_int_equal(stats(pool).out, 2);
    assert_int_equal(stats(pool).waiting, 3);
    for (int i = 0; i < 5; i++)
        assert_int_equal(tier_wait(&bed, &end[i]), BT_OK);
    assert_int_equal(stats(pool).out + stats(pool).waiting, 0);
    for (uint64_t i = 0; i < 5; i++)
        expect(pool, i);
    bt_nvme_pool_close(pool);
}

/* Both blocks of the pool are being stored: a third has no room. */
static void test_all_in_use(void **state)
{
    struct bt_nvme_pool *pool = open_n(2);
    enum bt_status end[2] = {TIER_PENDING, TIER_PENDING}, none = TIER_PENDING;

    (void)state;
    for (uint64_t i = 0; i < 2; i++)
        assert_int_equal(bt_nvme_store(pool, i, block(0), tier_got, &end[i]),
                         BT_OK);
    assert_int_equal(bt_nvme_store(pool, 2, block(0), tier_got, &none),
                     BT_LIMIT);
    assert_int_equal(tier_wait(&bed, &end[0]), BT_OK);
    assert_int_equal(tier_wait(&bed, &end[1]), BT_OK);
    assert_int_equal(tier_store(&bed, pool, 2, block(0)), BT_OK);
    bt_nvme_pool_close(pool);
}

static void test_same_key_twice(void **state)
{
    struct bt_nvme_pool *pool = open_n(2);
    enum bt_status first = TIER_PENDING, second = TIER_PENDING;

    (void)state;
    tier_fill(block(0), BLOCK, 9);
    tier_fill(block(2), BLOCK, 10);
    bt_nvme_store(pool, 9, block(0), tier_got, &first);
    bt_nvme_store(pool, 9, block(2), tier_got, &second);
    assert_false(bt_nvme_has(pool, 9));
    assert_int_equal(tier_wait(&bed, &second), BT_EXISTS);
    assert_int_equal(first, BT_OK);
    expect(pool, 9);
    bt_nvme_pool_close(pool);
}

/* A drop amid the store ends it, and the key can be stored anew at once. */
static void test_drop_amid(void **state)
{
    struct bt_nvme_pool *pool = open_n(4);
    enum bt_status first = TIER_PENDING, second = TIER_PENDING, load;

    (void)state;
    bt_nvme_store(pool, 9, block(3), tier_got, &first);
    bt_nvme_drop(pool, 9);
    tier_fill(block(0), BLOCK, 9);
    bt_nvme_store(pool, 9, block(0), tier_got, &second);
    assert_int_equal(tier_wait(&bed, &second), BT_OK);
    assert_int_equal(tier_wait(&bed, &first), BT_CANCELLED);
    load = TIER_PENDING;
    assert_int_equal(bt_nvme_load(pool, 9, block(1), tier_got, &load), BT_OK);
    bt_nvme_drop(pool, 9);
    assert_int_equal(tier_wait(&bed, &load), BT_OK);
    assert_true(tier_is(block(1), BLOCK, 9));
    assert_int_equal(stats(pool).blocks, 0);
    bt_nvme_pool_close(pool);
}

static void test_close_with_requests(void **state)
{
    struct bt_nvme_config config = tier_bed_config(&bed, 16);
    enum bt_status end[10];
    struct bt_nvme_pool *pool;

    (void)state;
    config.depth = 2;
    pool = tier_bed_open(&bed, &config);
    put(pool, 100);
    for (uint64_t i = 0; i < 10; i++) {
        end[i] = TIER_PENDING;
        if (i % 2)
            bt_nvme_load(pool, 100, block((uint32_t)i), tier_got, &end[i]);
        else
            bt_nvme_store(pool, i, block((uint32_t)i), tier_got, &end[i]);
    }
    bt_nvme_pool_close(pool);
    for (int i = 0; i < 10; i++)
        assert_int_equal(end[i], BT_CANCELLED);
    pool = open_n(16);
    assert_int_equal(stats(pool).blocks, 1);
    expect(pool, 100);
    bt_nvme_pool_close(pool);
}

struct closer {
    struct bt_nvme_pool *pool;
    enum bt_status inner, end;
};

static void close_there(void *arg, enum bt_status status)
{
    struct closer *c = arg;

    bt_nvme_pool_close(c->pool);
    c->end = status;
}

static void store_there(void *arg, enum bt_status status)
{
    struct closer *c = arg;

    assert_int_equal(status, BT_CANCELLED);
    c->inner = bt_nvme_store(c->pool, 8, block(3), tier_got, NULL);
}

static void test_close_in_call_back(void **state)
{
    struct closer c = {.pool = open_n(4), .end = TIER_PENDING};

    (void)state;
    bt_nvme_store(c.pool, 1, block(0), close_there, &c);
    assert_int_equal(tier_wait(&bed, &c.end), BT_OK);
    c.pool = open_n(4);
    assert_true(bt_nvme_has(c.pool, 1));
    bt_nvme_load(c.pool, 1, block(1), store_there, &c);
    bt_nvme_pool_close(c.pool);
    assert_int_equal(c.inner, BT_CANCELLED);
}

/* ---- injected results ---- */

struct inject {
    enum bt_nvme_kind kind;
    uint32_t skip, times; /* results of the kind left alone, then replaced */
    int result;
    uint32_t seen;
};

static int injected(void *arg, const struct bt_nvme_event *e)
{
    struct inject *in = arg;

    if (e->submit || e->kind != in->kind)
        return e->result;
    in->seen++;
    if (in->seen <= in->skip || in->seen > in->skip + in->times)
        return e->result;
    return in->result;
}

static void test_read_error(void **state)
{
    struct bt_nvme_pool *pool = open_n(4);
    struct inject in = {BT_NVME_READ, 0, 1, -EIO, 0};

    (void)state;
    put(pool, 5);
    bt_nvme_hook(pool, injected, &in);
    assert_int_equal(tier_load(&bed, pool, 5, block(1)), BT_IO);
    assert_false(bt_nvme_has(pool, 5));
    assert_int_equal(stats(pool).io_errors, 1);
    put(pool, 5);
    expect(pool, 5);
    bt_nvme_pool_close(pool);
}

/* Parts of 4 KiB, and asked to try again: the block is whole all the same. */
static void test_short_reads(void **state)
{
    static const int results[] = {4096, -EAGAIN, -EINTR};
    struct bt_nvme_pool *pool = open_n(4);

    (void)state;
    put(pool, 5);
    for (size_t i = 0; i < 3; i++) {
        struct inject in = {BT_NVME_READ, 0, 1, results[i], 0};

        bt_nvme_hook(pool, injected, &in);
        expect(pool, 5);
        assert_int_equal(in.seen, 2);
    }
    bt_nvme_hook(pool, NULL, NULL);
    assert_int_equal(stats(pool).io_errors, 0);
    bt_nvme_pool_close(pool);
}

static void test_endless_again(void **state)
{
    struct bt_nvme_pool *pool = open_n(4);
    struct inject in = {BT_NVME_READ, 0, 1000, -EAGAIN, 0};

    (void)state;
    put(pool, 5);
    bt_nvme_hook(pool, injected, &in);
    assert_int_equal(tier_load(&bed, pool, 5, block(1)), BT_IO);
    assert_int_equal(in.seen, NVME_TRIES + 1);
    bt_nvme_pool_close(pool);
}

/* Each phase of a store fails: said so, and the block is absent, after
 * reopening too; the next store is fine. */
static void test_store_errors(void **state)
{
    static const struct {
        enum bt_nvme_kind kind;
        int result;
        enum bt_status status;
    } cases[] = {
        {BT_NVME_WRITE, -EIO, BT_IO},   {BT_NVME_WRITE, -ENOSPC, BT_LIMIT},
        {BT_NVME_WRITE, 0, BT_IO},      {BT_NVME_FLUSH, -EIO, BT_IO},
        {BT_NVME_RECORDS, -EIO, BT_IO}, {BT_NVME_RECORDS, -ENOSPC, BT_IO}};

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct inject in = {cases[i].kind, 0, 1, cases[i].result, 0};
        struct bt_nvme_pool *pool = open_n(4);

        bt_nvme_hook(pool, injected, &in);
        assert_int_equal(tier_store(&bed, pool, i, block(0)), cases[i].status);
        assert_false(bt_nvme_has(pool, i));
        assert_int_equal(stats(pool).io_errors, 1);
        put(pool, 100 + i);
        bt_nvme_hook(pool, NULL, NULL);
        bt_nvme_pool_close(pool);
        pool = open_n(4);
        assert_false(bt_nvme_has(pool, i));
        expect(pool, 100 + i);
        assert_int_equal(stats(pool).dropped_at_open, 0);
        bt_nvme_pool_close(pool);
    }
}

/* ---- order ---- */

struct order {
    uint32_t clock, data_done, flush_start, flush_done, record_start;
    enum bt_status record_flushed;
};

static int note(void *arg, const struct bt_nvme_event *e)
{
    struct order *o = arg;

    o->clock++;
    if (e->kind == BT_NVME_WRITE && !e->submit)
        o->data_done = o->clock;
    if (e->kind == BT_NVME_FLUSH && e->submit && !o->flush_start)
        o->flush_start = o->clock;
    if (e->kind == BT_NVME_FLUSH && !e->submit && !o->flush_done)
        o->flush_done = o->clock;
    if (e->kind == BT_NVME_FLUSH && !e->submit && o->record_start)
        o->record_flushed = BT_OK;
    if (e->kind == BT_NVME_RECORDS && e->submit)
        o->record_start = o->clock;
    return e->result;
}

static void test_two_phases(void **state)
{
    struct bt_nvme_pool *pool = open_n(4);
    struct order o = {.record_flushed = TIER_PENDING};

    (void)state;
    bt_nvme_hook(pool, note, &o);
    put(pool, 1);
    assert_true(0 < o.data_done && o.data_done < o.flush_start);
    assert_true(o.flush_start < o.flush_done && o.flush_done < o.record_start);
    /* Idle, the pool flushes its last record of its own accord. */
    assert_int_equal(tier_wait(&bed, &o.record_flushed), BT_OK);
    bt_nvme_hook(pool, NULL, NULL);
    bt_nvme_pool_close(pool);
}

/* ---- files ---- */

static void write_at(off_t at, const void *bytes, size_t size)
{
    int fd = open(bed.path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);

    assert_true(fd >= 0);
    assert_int_equal(pwrite(fd, bytes, size, at), size);
    close(fd);
}

static void refused(const struct bt_nvme_config *config, enum bt_status want,
                    const char *text)
{
    struct bt_nvme_pool *pool = NULL;
    char error[256] = "";

    assert_int_equal(
        bt_nvme_pool_open(bed.loop, config, &pool, error, sizeof(error)), want);
    assert_null(pool);
    if (!strstr(error, text))
        fail_msg("no '%s' in '%s'", text, error);
}

static void test_files_not_ours(void **state)
{
    struct bt_nvme_config config = tier_bed_config(&bed, 4);
    char back[16] = "";
    int fd;

    (void)state;
    write_at(0, "somebody's file", 15);
    refused(&config, BT_INCOMPATIBLE, "not a pool of baton");
    fd = open(bed.path, O_RDONLY | O_CLOEXEC);
    assert_int_equal(read(fd, back, 16), 15);
    assert_string_equal(back, "somebody's file");
    close(fd);
    unlink(bed.path);
    config.path = bed.dir;
    refused(&config, BT_IO, bed.dir);
    config.path = "/nonexistent/pool";
    refused(&config, BT_IO, "No such file");
    config.path = bed.path;
    config.block_count = 0;
    refused(&config, BT_INVALID, "blocks");
    config.block_count = 4;
    config.depth = 100000;
    refused(&config, BT_INVALID, "depth");
}

static void test_in_use(void **state)
{
    const struct bt_nvme_config config = tier_bed_config(&bed, 4);
    struct bt_nvme_pool *pool = open_n(4);

    (void)state;
    put(pool, 3);
    refused(&config, BT_EXISTS, "in use");
    expect(pool, 3);
    bt_nvme_pool_close(pool);
    pool = open_n(4);
    expect(pool, 3);
    bt_nvme_pool_close(pool);
}

/* Another model's, or another shape: emptied, counted, never served, and the
 * old blocks do not come back with the old identity. */
static void test_identity(void **state)
{
    struct bt_nvme_config config = tier_bed_config(&bed, 4);
    struct bt_nvme_pool *pool = open_n(4);

    (void)state;
    put(pool, 3);
    put(pool, 4);
    bt_nvme_pool_close(pool);
    config.identity = 43;
    pool = tier_bed_open(&bed, &config);
    assert_false(bt_nvme_has(pool, 3));
    assert_int_equal(stats(pool).dropped_at_open, 2);
    put(pool, 5);
    bt_nvme_pool_close(pool);
    pool = open_n(4);
    assert_false(bt_nvme_has(pool, 3) || bt_nvme_has(pool, 5));
    assert_int_equal(stats(pool).dropped_at_open, 1);
    put(pool, 6);
    bt_nvme_pool_close(pool);
    pool = open_n(9);
    assert_int_equal(stats(pool).dropped_at_open, 1);
    assert_int_equal(stats(pool).blocks, 0);
    bt_nvme_pool_close(pool);
    pool = open_n(2);
    assert_int_equal(stats(pool).capacity, 2);
    bt_nvme_pool_close(pool);
}

static void read_at(off_t at, void *bytes, size_t size)
{
    int fd = open(bed.path, O_RDONLY | O_CLOEXEC);

    assert_true(fd >= 0);
    assert_int_equal(pread(fd, bytes, size, at), size);
    close(fd);
}

/* A crash between the new header and the emptied index: the records of the
 * file's earlier life are whole, and do not count. */
static void test_earlier_life(void **state)
{
    struct bt_nvme_config config = tier_bed_config(&bed, 4);
    struct bt_nvme_pool *pool = open_n(4);
    unsigned char page[4096];

    (void)state;
    put(pool, 3);
    bt_nvme_pool_close(pool);
    read_at(4096, page, sizeof(page));
    config.identity = 43;
    bt_nvme_pool_close(tier_bed_open(&bed, &config));
    write_at(4096, page, sizeof(page));
    pool = tier_bed_open(&bed, &config);
    assert_int_equal(stats(pool).blocks, 0);
    bt_nvme_pool_close(pool);
}

/* Two whole records of one key, as a crash before an erasure leaves them: the
 * later one counts, whichever slot it is in. */
static void test_two_records(void **state)
{
    unsigned char before[128], after[128];
    struct bt_nvme_pool *pool = open_n(2);

    (void)state;
    put(pool, 5);
    bt_nvme_pool_close(pool);
    read_at(4096, before, sizeof(before));
    pool = open_n(2);
    bt_nvme_drop(pool, 5);
    put(pool, 9);
    tier_fill(block(0), BLOCK, 55);
    assert_int_equal(tier_store(&bed, pool, 5, block(0)), BT_OK);
    bt_nvme_pool_close(pool);
    read_at(4096, after, sizeof(after));
    /* 9 took the slot that 5 had. */
    assert_memory_not_equal(before, after, 64);
    write_at(4096, before, 64);
    pool = open_n(2);
    assert_int_equal(stats(pool).dropped_at_open, 1);
    assert_int_equal(tier_load(&bed, pool, 5, block(1)), BT_OK);
    assert_true(tier_is(block(1), BLOCK, 55));
    bt_nvme_pool_close(pool);
}

static void test_version(void **state)
{
    const struct bt_nvme_config config = tier_bed_config(&bed, 4);
    unsigned char page[4096];
    uint64_t sum;

    (void)state;
    bt_nvme_pool_close(open_n(4));
    read_at(0, page, sizeof(page));
    /* A header that is whole, but newer. */
    page[8] = 2;
    sum = bt_block_checksum(page, 4088);
    memcpy(page + 4088, &sum, 8);
    write_at(0, page, sizeof(page));
    refused(&config, BT_INCOMPATIBLE, "version 2");
}

/* Without verify: what an earlier process stored is checked when first read.
 * One byte of the only block is changed behind the pool's back. */
static void test_first_read(void **state)
{
    struct bt_nvme_config config = tier_bed_config(&bed, 1);
    struct bt_nvme_pool *pool;

    (void)state;
    config.verify = false;
    pool = tier_bed_open(&bed, &config);
    put(pool, 3);
    bt_nvme_pool_close(pool);
    write_at(8192 + 5000, "x", 1);
    pool = tier_bed_open(&bed, &config);
    assert_true(bt_nvme_has(pool, 3));
    assert_int_equal(tier_load(&bed, pool, 3, block(1)), BT_CHECKSUM);
    assert_false(bt_nvme_has(pool, 3));
    assert_int_equal(stats(pool).checksum_failures, 1);
    bt_nvme_pool_close(pool);
}

static void test_registered(void **state)
{
    struct bt_nvme_pool *pool = open_n(4);
    enum bt_status status = bt_nvme_register(pool, mem, 16 * BLOCK);

    (void)state;
    if (status == BT_UNSUPPORTED || status == BT_LIMIT)
        print_message("not registered: %s\n", bt_status_name(status));
    else
        assert_int_equal(status, BT_OK);
    put(pool, 1);
    expect(pool, 1);
    for (int i = 0; i < 20 && status == BT_OK; i++)
        status = bt_nvme_register(pool, block((uint32_t)i % 16), BLOCK);
    assert_int_not_equal(status, BT_OK); /* 16 at most */
    put(pool, 2);
    expect(pool, 2);
    bt_nvme_pool_close(pool);
}

#define T(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
int main(void)
{
    const struct CMUnitTest tests[] = {
        T(test_answers),
        T(test_eviction),
        T(test_bounds),
        T(test_all_in_use),
        T(test_same_key_twice),
        T(test_drop_amid),
        T(test_close_with_requests),
        T(test_close_in_call_back),
        T(test_read_error),
        T(test_short_reads),
        T(test_endless_again),
        T(test_store_errors),
        T(test_two_phases),
        T(test_files_not_ours),
        T(test_in_use),
        T(test_identity),
        T(test_version),
        T(test_first_read),
        T(test_registered),
        T(test_earlier_life),
        T(test_two_records),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
