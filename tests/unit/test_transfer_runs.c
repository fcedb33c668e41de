/* Coalescing against a brute force over sets of pairs, chunks against a count
 * of every byte, XXH3 against its published value for the empty input. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include "baton/transfer/runs.h"

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX 300

static uint64_t next(uint64_t *x)
{
    *x ^= *x << 13;
    *x ^= *x >> 7;
    *x ^= *x << 17;
    return *x;
}

/* The fewest runs of a set of distinct pairs: those without a predecessor
 * (remote - 1, local - 1) in the set each start one. */
static size_t fewest(const uint32_t *remote, const uint32_t *local, size_t n)
{
    size_t starts = 0;

    for (size_t i = 0; i < n; i++) {
        size_t j = 0;

        while (j < n &&
               !(remote[j] + 1 == remote[i] && local[j] + 1 == local[i]))
            j++;
        starts += j == n;
    }
    return starts;
}

static void check_runs(const uint32_t *remote, const uint32_t *local, size_t n)
{
    struct bt_run runs[MAX];
    uint32_t order[MAX];
    bool seen[MAX] = {false};
    size_t covered = 0;
    size_t count = bt_runs_build(remote, local, n, order, runs);

    assert_int_equal(count, fewest(remote, local, n));
    for (size_t r = 0; r < count; r++) {
        assert_int_equal(runs[r].first, covered);
        for (uint32_t k = 0; k < runs[r].count; k++) {
            uint32_t at = order[covered++];

            assert_true(at < n && !seen[at]);
            seen[at] = true;
            assert_int_equal(remote[at], runs[r].remote + k);
            assert_int_equal(local[at], runs[r].local + k);
        }
    }
    assert_int_equal(covered, n);
}

static void test_known(void **state)
{
    const uint32_t up[] = {4, 5, 6, 9}, to[] = {0, 1, 2, 3};
    const uint32_t down[] = {6, 5, 4}, down_to[] = {12, 11, 10};
    struct bt_run runs[4];
    uint32_t order[4];

    (void)state;
    assert_int_equal(bt_runs_build(up, to, 0, order, runs), 0);
    assert_int_equal(bt_runs_build(up, to, 4, order, runs), 2);
    assert_int_equal(bt_runs_build(down, down_to, 3, order, runs), 1);
    assert_int_equal(runs[0].remote, 4);
    assert_int_equal(runs[0].local, 10);
    assert_int_equal(runs[0].count, 3);
    assert_int_equal(order[0], 2);
}

/* Distinct locals, as the sink demands; remotes may repeat. */
static void test_brute_force(void **state)
{
    uint64_t seed = 20261129, x = seed;

    (void)state;
    print_message("seed %llu\n", (unsigned long long)seed);
    for (int round = 0; round < 400; round++) {
        uint32_t remote[MAX], local[MAX];
        size_t n = next(&x) % MAX;
        uint32_t base = (uint32_t)(next(&x) % 100);

        for (size_t i = 0; i < n; i++) {
            local[i] = base + (uint32_t)i;
            remote[i] = next(&x) % 3 > 0 && i > 0 ? remote[i - 1] + 1
                                                  : (uint32_t)(next(&x) % 500);
        }
        for (size_t i = n; i > 1; i--) { /* shuffle the pairs */
            size_t j = next(&x) % i;
            uint32_t r = remote[j], l = local[j];

            remote[j] = remote[i - 1], local[j] = local[i - 1];
            remote[i - 1] = r, local[i - 1] = l;
        }
        check_runs(remote, local, n);
    }
}

static void test_chunks(void **state)
{
    static const uint64_t sizes[] = {1, 3, 64, 1000};
    static const uint64_t limits[] = {1, 2, 7, 64, 999, 1000, 1001, 5000};
    const uint32_t remote[] = {10, 11, 12, 40, 41, 7};
    const uint32_t local[] = {0, 1, 2, 5, 6, 9};
    struct bt_run runs[6];
    uint32_t order[6];
    size_t count = bt_runs_build(remote, local, 6, order, runs);

    (void)state;
    assert_int_equal(count, 3);
    for (size_t s = 0; s < 4; s++) {
        for (size_t m = 0; m < 8; m++) {
            struct bt_run_cursor cursor = {0, 0};
            struct bt_chunk c;
            unsigned char hits[10000] = {0};
            uint64_t per_block[6] = {0}, chunks = 0, want = 0, peek;

            for (size_t r = 0; r < count; r++)
                want += (runs[r].count * sizes[s] + limits[m] - 1) / limits[m];
            for (;;) {
                peek = bt_run_peek(runs, count, sizes[s], limits[m], &cursor);
                if (!bt_run_next(runs, count, sizes[s], limits[m], &cursor, &c))
                    break;
                chunks++;
                assert_true(c.bytes == peek && c.bytes > 0);
                assert_true(c.bytes <= limits[m]);
                assert_true(c.local - runs[c.run].local * sizes[s] ==
                            c.remote - runs[c.run].remote * sizes[s]);
                for (uint64_t b = 0; b < c.bytes; b++)
                    hits[c.local + b]++;
                for (uint32_t k = 0; k < runs[c.run].count; k++)
                    per_block[runs[c.run].first + k] +=
                        bt_chunk_overlap(&c, sizes[s], k);
            }
            assert_int_equal(peek, 0);
            assert_int_equal(chunks, want);
            for (size_t i = 0; i < 6; i++) {
                assert_int_equal(per_block[i], sizes[s]);
                for (uint64_t b = 0; b < sizes[s]; b++)
                    assert_int_equal(hits[local[i] * sizes[s] + b], 1);
            }
        }
    }
}

static void test_checksum(void **state)
{
    (void)state;
    assert_true(bt_block_checksum("", 0) == 0x2D06800538D394C2u);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_known),
        cmocka_unit_test(test_brute_force),
        cmocka_unit_test(test_chunks),
        cmocka_unit_test(test_checksum),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
