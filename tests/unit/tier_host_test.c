/* Host pool: counted blocks against a plain array, alignment, refusals, and
 * what a locked-memory limit says. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include "baton/base/rng.h"
#include "baton/transfer/tier.h"
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

static struct bt_host_pool *create(uint64_t bytes, uint32_t count, bool huge)
{
    const struct bt_host_pool_config config = {.block_bytes = bytes,
                                               .block_count = count,
                                               .numa_node = -1,
                                               .huge_pages = huge};
    struct bt_host_pool *pool = NULL;
    char error[256] = "";

    assert_int_equal(bt_host_pool_create(&config, &pool, error, sizeof(error)),
                     BT_OK);
    return pool;
}

static void test_shape(void **state)
{
    struct bt_host_pool *pool = create(100, 3, false);
    char *base = bt_host_pool_base(pool);

    (void)state;
    assert_int_equal(bt_host_pool_block_bytes(pool), 128);
    assert_int_equal(bt_host_pool_bytes(pool), 384);
    assert_ptr_equal(bt_host_pool_at(pool, 2), base + 256);
    assert_int_equal(bt_host_pool_page(pool), sysconf(_SC_PAGESIZE));
    assert_true(bt_host_pool_node(pool) >= 0); /* of the first page */
    memset(base, 1, 384);
    bt_host_pool_destroy(pool);
}

/* Two pages' worth: the base is aligned to 2 MiB whichever way they came, and
 * the page named is one of the two there are. */
static void test_huge(void **state)
{
    struct bt_host_pool *pool = create(1 << 20, 5, true);
    uint64_t page = bt_host_pool_page(pool);

    (void)state;
    assert_int_equal((uintptr_t)bt_host_pool_base(pool) % (2 << 20), 0);
    assert_true(page == 2 << 20 || page == (uint64_t)sysconf(_SC_PAGESIZE));
    memset(bt_host_pool_base(pool), 7, bt_host_pool_bytes(pool));
    bt_host_pool_destroy(pool);
}

static void test_counts(void **state)
{
    uint32_t count[7] = {0}, in_use = 0;
    struct bt_host_pool *pool = create(4096, 7, false);
    struct bt_rng rng;

    (void)state;
    bt_rng_seed(&rng, 5);
    for (int i = 0; i < 5000; i++) {
        uint32_t block = (uint32_t)bt_rng_below(&rng, 7), got = 99;
        uint64_t what = bt_rng_below(&rng, 3);

        if (what == 0) {
            enum bt_status status = bt_host_pool_get(pool, &got);

            assert_int_equal(status, in_use == 7 ? BT_LIMIT : BT_OK);
            if (status == BT_OK) {
                assert_true(got < 7 && count[got] == 0);
                count[got] = 1;
                in_use++;
            } else {
                assert_int_equal(got, 99);
            }
        } else if (what == 1 && count[block] > 0 && count[block] < 4) {
            bt_host_pool_hold(pool, block);
            count[block]++;
        } else if (what == 2 && count[block] > 0) {
            bt_host_pool_put(pool, block);
            in_use -= --count[block] == 0;
        }
        assert_int_equal(bt_host_pool_free(pool), 7 - in_use);
    }
    bt_host_pool_destroy(pool);
}

static void test_refused(void **state)
{
    static const struct {
        uint64_t bytes;
        uint32_t count;
    } bad[] = {{0, 1}, {64, 0}, {UINT64_MAX, 2}, {UINT64_C(1) << 40, 1u << 24}};
    struct bt_host_pool *pool = NULL;
    char error[256] = "";

    (void)state;
    for (size_t i = 0; i < 4; i++) {
        const struct bt_host_pool_config config = {.block_bytes = bad[i].bytes,
                                                   .block_count = bad[i].count};

        assert_int_equal(
            bt_host_pool_create(&config, &pool, error, sizeof(error)),
            BT_INVALID);
        assert_null(pool);
    }
}

/* A node that does not exist is no reason to fail. */
static void test_node(void **state)
{
    const struct bt_host_pool_config config = {
        .block_bytes = 4096, .block_count = 2, .numa_node = 4095};
    struct bt_host_pool *pool;
    char error[256];

    (void)state;
    assert_int_equal(bt_host_pool_create(&config, &pool, error, sizeof(error)),
                     BT_OK);
    bt_host_pool_destroy(pool);
}

/* In a child without rights: exit code 0 when the pool was refused in words. */
static int locked_child(void)
{
    static char page[1 << 20];
    const struct bt_host_pool_config config = {
        .block_bytes = 1 << 20, .block_count = 4, .lock = true};
    const struct rlimit limit = {65536, 65536};
    struct bt_host_pool *pool;
    char error[256] = "";

    if (setrlimit(RLIMIT_MEMLOCK, &limit) != 0)
        return 1;
    if (geteuid() == 0 && (setgid(65534) != 0 || setuid(65534) != 0))
        return 2;
    /* Sanitizers turn mlock into nothing. */
    if (mlock(page, sizeof(page)) == 0)
        return 77;
    if (bt_host_pool_create(&config, &pool, error, sizeof(error)) != BT_LIMIT)
        return 3;
    return strstr(error, "needs 4096 KiB") && strstr(error, "is 64 KiB") ? 0
                                                                         : 4;
}

static void test_lock_limit(void **state)
{
    pid_t child = fork();
    int status = -1;

    (void)state;
    if (child == 0)
        _exit(locked_child());
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == 77)
        skip();
    assert_int_equal(WEXITSTATUS(status), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shape),  cmocka_unit_test(test_huge),
        cmocka_unit_test(test_counts), cmocka_unit_test(test_refused),
        cmocka_unit_test(test_node),   cmocka_unit_test(test_lock_limit),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
