/* A pool's file, damaged at random in header, records and blocks, or cut off:
 * whatever is served is what was stored, what is missing is counted, and a file
 * that has lost its magic is refused and left alone. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include "baton/base/rng.h"
#include "tier_bed.h"
#include <cmocka.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define BLOCK  4096u
#define BLOCKS 70u /* two pages of records */
#define STORED 66u
#define ROUNDS 400u
#define SECTOR 512u
#define INDEX  4096u
#define DATA   (3u * 4096u)

static struct tier_bed bed;
static unsigned char *mem, *good, *bad;
static size_t size;

static void read_good(void)
{
    int fd = open(bed.path, O_RDONLY | O_CLOEXEC);
    struct stat st;

    memset(&st, 0, sizeof(st));
    assert_true(fd >= 0 && fstat(fd, &st) == 0);
    size = (size_t)st.st_size;
    assert_int_equal(size, DATA + BLOCKS * BLOCK);
    good = malloc(DATA + BLOCKS * BLOCK);
    bad = malloc(DATA + BLOCKS * BLOCK);
    assert_true(good && bad);
    assert_int_equal(pread(fd, good, size, 0), size);
    close(fd);
}

static void write_bad(size_t bytes)
{
    int fd = open(bed.path, O_WRONLY | O_TRUNC | O_CLOEXEC);

    assert_true(fd >= 0);
    assert_int_equal(pwrite(fd, bad, bytes, 0), bytes);
    close(fd);
}

/* Random bytes where the damage is; never all zeros, as an empty record is. */
static void damage(struct bt_rng *rng, size_t at, size_t bytes)
{
    switch (bt_rng_below(rng, 3)) {
    case 0:
        bad[at + bt_rng_below(rng, bytes)] ^=
            (unsigned char)(1u << bt_rng_below(rng, 8));
        break;
    case 1:
        for (size_t i = 0; i < bytes; i++)
            bad[at + i] = (unsigned char)(bt_rng_u64(rng) | 1);
        break;
    default: /* a write that went elsewhere */
        memcpy(bad + at,
               good + bt_rng_below(rng, (size - bytes) / SECTOR) * SECTOR,
               bytes);
        break;
    }
}

/* Keys that are served; each must be right. */
static uint32_t serve(struct bt_nvme_pool *pool)
{
    uint32_t served = 0;

    for (uint64_t key = 0; key < STORED; key++) {
        enum bt_status status;

        if (!bt_nvme_has(pool, key))
            continue;
        status = tier_load(&bed, pool, key, mem);
        assert_true(status == BT_OK || status == BT_CHECKSUM);
        if (status != BT_OK)
            continue;
        assert_true(tier_is(mem, BLOCK, key));
        served++;
    }
    return served;
}

static void check(bool misplaced_zeros)
{
    const struct bt_nvme_config config = tier_bed_config(&bed, BLOCKS);
    struct bt_nvme_pool *pool = NULL;
    struct bt_nvme_stats s;
    char error[256] = "";
    enum bt_status status;
    uint32_t lost;

    status = bt_nvme_pool_open(bed.loop, &config, &pool, error, sizeof(error));
    if (memcmp(bad, good, 8) != 0) {
        assert_int_equal(status, BT_INCOMPATIBLE);
        return;
    }
    /* A misplaced page of ours may even carry another version. */
    if (status == BT_INCOMPATIBLE && memcmp(bad, good, INDEX) != 0)
        return;
    assert_int_equal(status, BT_OK);
    lost = STORED - serve(pool);
    bt_nvme_stats(pool, &s);
    /* Damage to records that held nothing is counted too. */
    if (memcmp(bad, good, DATA) == 0)
        assert_int_equal(s.checksum_failures + s.dropped_at_open, lost);
    else if (memcmp(bad, good, INDEX) == 0)
        assert_true(misplaced_zeros ||
                    s.dropped_at_open + s.checksum_failures >= lost);
    else
        assert_true(lost == 0 || misplaced_zeros || s.dropped_at_open > 0);
    /* It goes on as a pool. */
    tier_fill(mem, BLOCK, 1000);
    assert_int_equal(tier_store(&bed, pool, 1000, mem), BT_OK);
    assert_int_equal(tier_load(&bed, pool, 1000, mem), BT_OK);
    assert_true(tier_is(mem, BLOCK, 1000));
    bt_nvme_pool_close(pool);
}

/* Records that were there and are all zero now cannot be missed. */
static bool zeroed(void)
{
    static const unsigned char nothing[64];

    for (size_t at = INDEX; at < DATA; at += 64)
        if (memcmp(bad + at, nothing, 64) == 0 &&
            memcmp(good + at, nothing, 64) != 0)
            return true;
    return false;
}

static void test_torn(void **state)
{
    static const size_t starts[] = {0, INDEX, INDEX, DATA};
    struct bt_rng rng;

    (void)state;
    bt_rng_seed(&rng, 2026);
    for (uint32_t round = 0; round < ROUNDS; round++) {
        size_t which = bt_rng_below(&rng, 4);
        size_t end = which == 0 ? INDEX : which == 3 ? size : DATA;
        uint64_t times = 1 + bt_rng_below(&rng, 4);
        size_t bytes = size;

        memcpy(bad, good, size);
        for (uint64_t i = 0; i < times; i++)
            damage(&rng,
                   starts[which] +
                       bt_rng_below(&rng, (end - starts[which]) / SECTOR) *
                           SECTOR,
                   SECTOR);
        write_bad(bytes);
        check(zeroed());
    }
}

/* Cut off: what lies beyond the end is gone, and counted; below one page of
 * header the pool is empty. */
static void test_cut_off(void **state)
{
    struct bt_rng rng;

    (void)state;
    bt_rng_seed(&rng, 7);
    for (uint32_t round = 0; round < 60; round++) {
        size_t bytes = bt_rng_below(&rng, size + 1);

        if (round % 4 == 0)
            bytes = 8 + bt_rng_below(&rng, DATA);
        memcpy(bad, good, size);
        memset(bad + bytes, 0, size - bytes); /* as it will read */
        write_bad(bytes);
        if (bytes > 0 && bytes < 8)
            continue;
        check(bytes < DATA);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_torn),
        cmocka_unit_test(test_cut_off),
    };
    struct bt_nvme_config config;
    struct bt_nvme_pool *pool;
    int failed;

    tier_bed_init(&bed, BLOCK);
    mem = tier_blocks(BLOCK, 1);
    config = tier_bed_config(&bed, BLOCKS);
    pool = tier_bed_open(&bed, &config);
    for (uint64_t key = 0; key < STORED; key++) {
        tier_fill(mem, BLOCK, key);
        if (tier_store(&bed, pool, key, mem) != BT_OK)
            return 1;
    }
    bt_nvme_pool_close(pool);
    read_good();
    failed = cmocka_run_group_tests(tests, NULL, NULL);
    free(good);
    free(bad);
    free(mem);
    tier_bed_fini(&bed);
    return failed;
}
