/* Cost models against the worked examples of cost-models.md section 20. */
#include "baton/planner/cost.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>

/* Six significant digits, as the table gives them. */
static void assert_ms(int64_t ns, double ms)
{
    double got = (double)ns / 1e6;

    if (fabs(got - ms) > 5e-6 * ms)
        fail_msg("%.9g ms instead of %.9g", got, ms);
}

static struct bt_compute_model preset(const char *name)
{
    struct bt_compute_model m;

    assert_int_equal(bt_compute_preset(name, &m), BT_OK);
    return m;
}

static void w1_prefill(void **state)
{
    struct bt_compute_model h = preset("h100-70b-tp8");
    struct bt_compute_model g = preset("a100-70b-tp8");

    (void)state;
    assert_ms(bt_prefill_ns(&h, 8192, 0), 310.773);
    assert_ms(bt_prefill_ns(&h, 4096, 4096), 162.618);
    assert_ms(bt_prefill_ns(&h, 32768, 0), 1414.42);
    assert_ms(bt_prefill_ns(&h, 2048, 0) + bt_prefill_ns(&h, 2048, 2048) +
                  bt_prefill_ns(&h, 2048, 4096) + bt_prefill_ns(&h, 2048, 6144),
              330.303);
    /* W10: profile G, 12,035 tokens, 20 blocks of 512 held. */
    assert_ms(bt_prefill_ns(&g, 12035 - 10240, 10240), 217.015);
    assert_ms(bt_prefill_ns(&g, 12035, 0), 1264.77);
}

static void decode_steps(void **state)
{
    struct bt_compute_model h = preset("h100-70b-tp8");

    (void)state;
    assert_ms(bt_decode_step_ns(&h, 64, 64 * 4096), 13.7271);
    assert_ms(bt_decode_step_ns(&h, 256, 256 * 4096), 28.3283);
    assert_ms(bt_decode_step_ns(&h, 1, 8192), 8.98930);
}

static void speedup_divides(void **state)
{
    struct bt_compute_model h = preset("h100-70b-tp8");

    (void)state;
    h.speedup = 100;
    assert_ms(bt_prefill_ns(&h, 8192, 0), 3.10773);
    h.speedup = 0;
    assert_int_equal(bt_prefill_ns(&h, 8192, 0), BT_COST_INFINITE);
    h.speedup = -1;
    assert_int_equal(bt_decode_step_ns(&h, 1, 1), BT_COST_INFINITE);
    h.speedup = (double)NAN;
    assert_int_equal(bt_prefill_ns(&h, 8192, 0), BT_COST_INFINITE);
}

static void preset_table(void **state)
{
    struct bt_compute_model m = {.speedup = 7};
    size_t count = 0;

    (void)state;
    assert_int_equal(bt_compute_preset("h100-9b", &m), BT_NOT_FOUND);
    assert_true(m.speedup == 7);
    for (const char *name; (name = bt_compute_preset_name(count)); count++) {
        m = preset(name);
        assert_true(m.speedup == 1);
        assert_true(m.prefill_b_ms > 0 && m.decode_a_ms > 0);
    }
    assert_int_equal(count, 11);
    m = preset("h100-qwen3-32b-tp4-fp8");
    assert_true(m.prefill_a_ms == 2.82 && m.decode_c_ms == 1.40e-5);
    m = preset("h200-8b-tp1");
    assert_true(m.prefill_b_ms == 0.02005 && m.decode_b_ms == 0.0110);
}

static void w6_shared_link(void **state)
{
    const struct bt_link_model link = {.rate_bytes_per_s = 10000000000};
    const uint64_t left[] = {2000000000, 6000000000, 1000000000};

    (void)state;
    assert_ms(bt_transfer_ns(&link, 4000000000, 7, left, 3), 1100);
    assert_ms(bt_transfer_ns(&link, 4000000000, 7, NULL, 0), 400);
}

static void w3_additive_form(void **state)
{
    const struct bt_link_model link = {.rate_bytes_per_s = 48000000000,
                                       .setup_ns = 6200,
                                       .per_descriptor_ns = 1000};

    (void)state;
    assert_ms(bt_transfer_ns(&link, 335544320, 81920, NULL, 0), 88.9167);
    assert_ms(bt_transfer_ns(&link, 335544320, 512, NULL, 0), 7.50871);
    assert_int_equal(bt_transfer_ns(&link, 0, 5, NULL, 0), 0);
}

static void infinite_not_free(void **state)
{
    struct bt_link_model link = {.rate_bytes_per_s = 0};
    const uint64_t left[] = {UINT64_MAX, UINT64_MAX};
    struct bt_compute_model m = preset("h100-8b-tp1");

    (void)state;
    assert_int_equal(bt_transfer_ns(&link, 1, 0, NULL, 0), BT_COST_INFINITE);
    link.rate_bytes_per_s = 1000;
    /* 2^50 bytes at 1 kB/s is 1.1e21 ns: saturates (invariant 11). */
    assert_int_equal(bt_transfer_ns(&link, 1ULL << 50, 0, NULL, 0),
                     BT_COST_INFINITE);
    assert_int_equal(bt_transfer_ns(&link, UINT64_MAX, 0, left, 2),
                     BT_COST_INFINITE);
    link.setup_ns = -1;
    assert_int_equal(bt_transfer_ns(&link, 1, 0, NULL, 0), BT_COST_INFINITE);
    link.setup_ns = 0;
    link.per_descriptor_ns = INT64_MAX;
    assert_int_equal(bt_transfer_ns(&link, 1, UINT64_MAX, NULL, 0),
                     BT_COST_INFINITE);
    assert_int_equal(bt_prefill_ns(&m, UINT64_MAX, UINT64_MAX),
                     BT_COST_INFINITE);
    m.prefill_b_ms = (double)NAN;
    assert_int_equal(bt_prefill_ns(&m, 1, 0), BT_COST_INFINITE);
    m.prefill_b_ms = -1e9;
    assert_int_equal(bt_prefill_ns(&m, 1, 0), BT_COST_INFINITE);
    m.decode_a_ms = (double)INFINITY;
    assert_int_equal(bt_decode_step_ns(&m, 1, 0), BT_COST_INFINITE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(w1_prefill),        cmocka_unit_test(decode_steps),
        cmocka_unit_test(speedup_divides),   cmocka_unit_test(preset_table),
        cmocka_unit_test(w6_shared_link),    cmocka_unit_test(w3_additive_form),
        cmocka_unit_test(infinite_not_free),
    };

    return cmocka_run_group_tests_name("cost", tests, NULL, NULL);
}
