/* Prometheus pages: what is written is compared with lines written by hand from
 * the exposition format 0.0.4, and read back by the reader. */
#include "baton/orchestrator/promtext.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

struct page {
    char bytes[2048];
    struct bt_text text;
};

static void open_page(struct page *p)
{
    bt_text_init(&p->text, p->bytes, sizeof(p->bytes));
}

static void expect(struct page *p, const char *want)
{
    assert_false(p->text.overflow);
    assert_true(p->text.used < sizeof(p->bytes));
    p->bytes[p->text.used] = '\0';
    assert_string_equal(p->bytes, want);
}

static void writes_families(void **state)
{
    struct page p;

    (void)state;
    open_page(&p);
    bt_prom_one(&p.text, "up", "gauge", "Is it.", 1);
    bt_prom_family(&p.text, "n_total", "counter", "How many.");
    bt_prom_labelled(&p.text, "n_total", "kind", "a", 2);
    bt_prom_labelled(&p.text, "n_total", "kind", "b", 0.25);
    expect(&p, "# HELP up Is it.\n# TYPE up gauge\nup 1\n"
               "# HELP n_total How many.\n# TYPE n_total counter\n"
               "n_total{kind=\"a\"} 2\nn_total{kind=\"b\"} 0.25\n");
}

static void writes_numbers(void **state)
{
    const struct bt_prom_pair none[] = {{NULL, NULL}};
    struct page p;

    (void)state;
    open_page(&p);
    bt_prom_row(&p.text, "a", NULL, 999999999999999.0);
    bt_prom_row(&p.text, "b", none, 1e15);
    bt_prom_row(&p.text, "c", NULL, -1.0 / 3);
    bt_prom_row_u64(&p.text, "d", NULL, UINT64_MAX);
    bt_prom_row_fixed(&p.text, "e", NULL, 1.5, 3);
    bt_prom_row(&p.text, "f", NULL, (double)NAN);
    bt_prom_row(&p.text, "g", NULL, (double)INFINITY);
    bt_prom_row_fixed(&p.text, "h", NULL, -(double)INFINITY, 6);
    expect(&p, "a 999999999999999\nb 1e+15\nc -0.333333333\n"
               "d 18446744073709551615\ne 1.500\nf NaN\ng +Inf\nh -Inf\n");
}

static const char nasty[] = "a\"b\\c\nd\te}";

static void check_nasty(void *arg, const struct bt_prom_sample *sample)
{
    char value[32];

    ++*(int *)arg;
    assert_true(bt_prom_is(sample, "x"));
    assert_true(bt_prom_label(sample, "p", value, sizeof(value)));
    assert_string_equal(value, "a\"b\\c\nd_e}");
    assert_true(bt_prom_label(sample, "q", value, sizeof(value)));
    assert_string_equal(value, "z");
    assert_true(sample->value == 7);
}

static void escapes_labels(void **state)
{
    const struct bt_prom_pair labels[] = {
        {"p", nasty}, {"q", "z"}, {NULL, NULL}};
    struct page p;
    int seen = 0;

    (void)state;
    open_page(&p);
    bt_prom_row(&p.text, "x", labels, 7);
    expect(&p, "x{p=\"a\\\"b\\\\c\\nd_e}\",q=\"z\"} 7\n");
    assert_int_equal(bt_prom_read(p.bytes, p.text.used, check_nasty, &seen), 0);
    assert_int_equal(seen, 1);
}

/* By hand: .1 (at a bound: within), NaN and -1 (as 0) below .1; .3 below .5; 2
 * beyond. */
static void accumulates_buckets(void **state)
{
    static const double bounds[] = {.1, .5};
    static const double values[] = {.1, .3, 2, (double)NAN, -1};
    struct bt_prom_histogram h = {.bounds = bounds, .bound_count = 2};
    struct page p;

    (void)state;
    for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++)
        bt_prom_observe(&h, values[i]);
    open_page(&p);
    bt_prom_histogram_write(&p.text, "t_seconds", "Time.", &h);
    expect(&p, "# HELP t_seconds Time.\n# TYPE t_seconds histogram\n"
               "t_seconds_bucket{le=\"0.1\"} 3\n"
               "t_seconds_bucket{le=\"0.5\"} 4\n"
               "t_seconds_bucket{le=\"+Inf\"} 5\n"
               "t_seconds_sum 2.4\nt_seconds_count 5\n");
}

/* Every size that is too small says so and leaves what lies beyond alone. */
static void tells_overflow(void **state)
{
    const struct bt_prom_pair labels[] = {{"p", nasty}, {NULL, NULL}};
    char bytes[64];
    struct bt_text t;

    (void)state;
    bt_text_init(&t, bytes, sizeof(bytes));
    bt_prom_row(&t, "x", labels, 7);
    assert_false(t.overflow);
    for (size_t size = 0, need = t.used; size < need; size++) {
        memset(bytes, '#', sizeof(bytes));
        bt_text_init(&t, bytes, size);
        bt_prom_row(&t, "x", labels, 7);
        assert_true(t.overflow);
        assert_int_equal(bytes[size], '#');
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(writes_families),
        cmocka_unit_test(writes_numbers),
        cmocka_unit_test(escapes_labels),
        cmocka_unit_test(accumulates_buckets),
        cmocka_unit_test(tells_overflow),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
