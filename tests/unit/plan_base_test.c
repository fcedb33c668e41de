/* bt_base: units, histogram, status, arena, rng. Right values: worked by hand,
 * a sorted array (histogram), published sequences (rng). */
#include "baton/base/arena.h"
#include "baton/base/histogram.h"
#include "baton/base/rng.h"
#include "baton/base/status.h"
#include "baton/base/units.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static void durations(void **state)
{
    static const struct {
        const char *text;
        int64_t ns;
    } good[] = {
        {"0ns", 0},
        {"7us", 7000},
        {"1.5ms", 1500000},
        {"30s", 30000000000},
        {"2m", 120000000000},
        {"1.25h", 4500000000000},
        {"0.0000000019s", 1}, /* cut, never rounded up */
        {"9223372036854775807ns", INT64_MAX},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        int64_t ns = -1;

        assert_int_equal(bt_duration_parse(good[i].text, &ns), BT_OK);
        assert_int_equal(ns, good[i].ns);
    }
}

static void sizes_and_rates(void **state)
{
    uint64_t v = 0;

    (void)state;
    assert_int_equal(bt_size_parse("512MiB", &v), BT_OK);
    assert_int_equal(v, 536870912);
    assert_int_equal(bt_size_parse("1.5kB", &v), BT_OK);
    assert_int_equal(v, 1500);
    assert_int_equal(bt_size_parse("1.1KiB", &v), BT_OK);
    assert_int_equal(v, 1126); /* 1126.4 */
    assert_int_equal(bt_size_parse("18446744073709551615B", &v), BT_OK);
    assert_true(v == UINT64_MAX);
    assert_int_equal(bt_rate_parse("400Gbps", &v), BT_OK);
    assert_int_equal(v, 50000000000);
    assert_int_equal(bt_rate_parse("12.5GB/s", &v), BT_OK);
    assert_int_equal(v, 12500000000);
    assert_int_equal(bt_rate_parse("2.5Gbps", &v), BT_OK);
    assert_int_equal(v, 312500000);
    assert_int_equal(bt_rate_parse("80bps", &v), BT_OK);
    assert_int_equal(v, 10);
}

static void refused_units(void **state)
{
    static const char *const bad[] = {
        "",
        "30",
        "s",
        "-1s",
        "+1s",
        "1e3s",
        "1.s",
        ".5s",
        "1 s",
        "1S",
        "1sec",
        "1s ",
        " 1s",
        "1.2.3s",
        "0x1s",
        "1kib",
        "20000000000000000000ns",
        "9223372036854775808ns",
        "3000000000h",
    };
    int64_t ns = 42;
    uint64_t v = 43;

    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        assert_int_equal(bt_duration_parse(bad[i], &ns), BT_INVALID);
    assert_int_equal(bt_duration_parse(NULL, &ns), BT_INVALID);
    assert_int_equal(bt_size_parse("10", &v), BT_INVALID);
    assert_int_equal(bt_size_parse("10GB/s", &v), BT_INVALID);
    assert_int_equal(bt_size_parse("16777216TiB", &v), BT_INVALID); /* 2^64 */
    assert_int_equal(bt_rate_parse("10GB", &v), BT_INVALID);
    assert_int_equal(ns, 42);
    assert_int_equal(v, 43);
}

static void formats(void **state)
{
    char b[32];

    (void)state;
    assert_string_equal(bt_duration_format(0, b, sizeof(b)), "0 ns");
    assert_string_equal(bt_duration_format(12345678, b, sizeof(b)), "12.3 ms");
    assert_string_equal(bt_duration_format(-1500, b, sizeof(b)), "-1.50 us");
    assert_string_equal(bt_duration_format(999999, b, sizeof(b)), "1.00 ms");
    assert_string_equal(bt_duration_format(30000000000, b, sizeof(b)), "30 s");
    assert_string_equal(bt_duration_format(90000000000, b, sizeof(b)),
                        "1.50 m");
    assert_non_null(strstr(bt_duration_format(INT64_MIN, b, sizeof(b)), " h"));
    assert_string_equal(bt_size_format(1610612736, b, sizeof(b)), "1.50 GiB");
    assert_string_equal(bt_size_format(17, b, sizeof(b)), "17 B");
    assert_non_null(strstr(bt_size_format(UINT64_MAX, b, sizeof(b)), " TiB"));
    assert_string_equal(bt_rate_format(12500000000, b, sizeof(b)), "12.5 GB/s");
    assert_string_equal(bt_rate_format(12500000000, b, 5), "12.5");
}

static int by_value(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

    return (x > y) - (x < y);
}

static void histogram_against_sorted(void **state)
{
    static int64_t v[5000];
    static struct bt_histogram h;
    static const double qs[] = {0, 0.01, 0.5, 0.9, 0.99, 0.999, 1};
    const size_t n = sizeof(v) / sizeof(v[0]);
    struct bt_rng rng;
    double sum = 0;

    (void)state;
    bt_rng_seed(&rng, 7);
    bt_histogram_reset(&h);
    for (size_t i = 0; i < n; i++) {
        v[i] = (int64_t)(bt_rng_u64(&rng) >> (1 + bt_rng_below(&rng, 62)));
        sum += (double)v[i];
        bt_histogram_add(&h, v[i]);
    }
    qsort(v, n, sizeof(v[0]), by_value);
    for (size_t i = 0; i < sizeof(qs) / sizeof(qs[0]); i++) {
        size_t rank = (size_t)ceil(qs[i] * (double)n);
        int64_t truth = v[rank == 0 ? 0 : rank - 1];
        int64_t got = bt_histogram_quantile(&h, qs[i]);

        assert_true(got >= truth);
        assert_true((double)got <= (double)truth * (1 + 1.0 / 32));
    }
    assert_int_equal(h.min, v[0]);
    assert_int_equal(h.max, v[n - 1]);
    assert_true(fabs(bt_histogram_mean(&h) - sum / (double)n) <=
                1e-9 * sum / (double)n);
}

static void histogram_edges(void **state)
{
    static struct bt_histogram a, b;

    (void)state;
    bt_histogram_reset(&a);
    bt_histogram_reset(&b);
    assert_int_equal(bt_histogram_quantile(&a, 0.5), 0);
    assert_true(bt_histogram_mean(&a) == 0);
    bt_histogram_merge(&a, &b);
    assert_int_equal(a.count, 0);
    bt_histogram_add(&a, -5);
    assert_int_equal(a.max, 0);
    bt_histogram_add(&b, INT64_MAX);
    bt_histogram_add(&b, 40);
    bt_histogram_merge(&a, &b);
    assert_int_equal(a.count, 3);
    assert_int_equal(a.min, 0);
    assert_true(bt_histogram_quantile(&a, 1) == INT64_MAX);
    assert_int_equal(bt_histogram_quantile(&a, 0.5), 40);
    assert_int_equal(bt_histogram_quantile(&a, (double)NAN), 0);
}

static void statuses(void **state)
{
    (void)state;
    assert_int_equal(BT_OK, 0);
    assert_string_equal(bt_status_name(BT_LEASE_EXPIRED), "lease_expired");
    assert_int_equal(bt_status_http(BT_LIMIT), 429);
    assert_int_equal(bt_status_class_of(BT_BUG), BT_CLASS_BUG);
    assert_string_equal(bt_status_name((enum bt_status)9999), "unknown");
    for (int i = 0; i <= BT_BUG; i++) {
        assert_true(strlen(bt_status_text((enum bt_status)i)) > 0);
        for (int j = 0; j < i; j++)
            assert_string_not_equal(bt_status_name((enum bt_status)i),
                                    bt_status_name((enum bt_status)j));
    }
}

static void arena(void **state)
{
    static unsigned char memory[1024];
    struct bt_arena a;
    unsigned char *p;

    (void)state;
    bt_arena_init(&a, memory + 1, 200);
    p = bt_arena_take(&a, 3, 5);
    assert_non_null(p);
    assert_int_equal((uintptr_t)p % 16, 0);
    for (int i = 0; i < 15; i++)
        assert_int_equal(p[i], 0);
    assert_true(p + 15 <= (unsigned char *)bt_arena_take(&a, 1, 16));
    assert_null(bt_arena_take(&a, 1, 200));
    assert_null(bt_arena_take(&a, SIZE_MAX / 2, 4));
    assert_true(bt_arena_need(SIZE_MAX / 2, 4) == SIZE_MAX);
    bt_arena_init(&a, memory + 3, bt_arena_need(7, 9) + bt_arena_need(2, 100));
    assert_non_null(bt_arena_take(&a, 7, 9));
    assert_non_null(bt_arena_take(&a, 2, 100));
}

/* splitmix64 of seed 0 and xoshiro256** from state 1, 2, 3, 4: as published
 * with the reference implementations. */
static void rng_sequences(void **state)
{
    static const uint64_t splitmix[] = {
        0xe220a8397b1dcdafULL, 0x6e789e6aa1b965f4ULL, 0x06c45d188009454fULL,
        0xf88bb8a8724c81ecULL};
    static const uint64_t xoshiro[] = {11520,
                                       0,
                                       1509978240,
                                       1215971899390074240,
                                       1216172134540287360,
                                       607988272756665600,
                                       16172922978634559625ULL,
                                       8476171486693032832,
                                       10595114339597558777ULL,
                                       2904607092377533576};
    struct bt_rng rng;

    (void)state;
    bt_rng_seed(&rng, 0);
    for (int i = 0; i < 4; i++)
        assert_true(rng.s[i] == splitmix[i]);
    for (int i = 0; i < 4; i++)
        rng.s[i] = (uint64_t)i + 1;
    for (int i = 0; i < 10; i++)
        assert_true(bt_rng_u64(&rng) == xoshiro[i]);
}

static void rng_ranges(void **state)
{
    struct bt_rng rng;
    unsigned int seen[7] = {0};
    double sum = 0;

    (void)state;
    bt_rng_seed(&rng, 3);
    assert_int_equal(bt_rng_below(&rng, 0), 0);
    assert_int_equal(bt_rng_below(&rng, 1), 0);
    for (int i = 0; i < 70000; i++) {
        double u = bt_rng_unit(&rng);

        seen[bt_rng_below(&rng, 7)]++;
        assert_true(u >= 0 && u < 1);
        sum += bt_rng_exponential(&rng, 5);
    }
    for (int i = 0; i < 7; i++)
        assert_in_range(seen[i], 9500, 10500); /* 5 sigma is 463 */
    assert_true(fabs(sum / 70000 - 5) < 0.1);  /* 5 sigma is 0.094 */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(durations),
        cmocka_unit_test(sizes_and_rates),
        cmocka_unit_test(refused_units),
        cmocka_unit_test(formats),
        cmocka_unit_test(histogram_against_sorted),
        cmocka_unit_test(histogram_edges),
        cmocka_unit_test(statuses),
        cmocka_unit_test(arena),
        cmocka_unit_test(rng_sequences),
        cmocka_unit_test(rng_ranges),
    };

    return cmocka_run_group_tests_name("base", tests, NULL, NULL);
}
