/* An engine with a tier of its own loads from it what its device lacks, though
 * no policy told it to: by hand, in blocks and nanoseconds. */
#include "sim_bed.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

/* A device of 9000 tokens has room for one prompt of 8192 and the first block
 * of the one before it. The other 15 blocks have sunk to the host tier, if
 * there is one, and come back at 50 GB/s: 7680 * 327680 B in 50.331648 ms. */
static void run(struct bed *b, uint64_t host_tokens)
{
    b->cluster.pools[0].kv_tokens = b->cluster.pools[1].kv_tokens = 9000;
    b->cluster.pools[0].host_tokens = b->cluster.pools[1].host_tokens =
        host_tokens;
    b->cluster.pools[0].host.rate_bytes_per_s = 50000000000ull;
    b->cluster.pools[1].host.rate_bytes_per_s = 50000000000ull;
    b->config.knowledge.output_known = 1; /* or none had room */
    bed_add(b, 0, 8192, 2, 0);
    bed_add(b, 10 * BT_NS_PER_S, 8192, 2, 100);
    bed_add(b, 20 * BT_NS_PER_S, 8704, 2, 200);
    bed_share(b, 0, 16);
    (void)bed_run(b);
    if (b->result.check_failures != 0)
        fail_msg("%s", b->result.first_failure);
}

static void test_prefill_worker(void **state)
{
    struct bed *b = bed_open(1, 1);
    const struct bt_sim_record *r;

    (void)state;
    run(b, 100000);
    r = &b->result.records[2];
    assert_int_equal(r->cached_tokens, 8192);
    assert_int_equal(r->fetched_tokens, 7680);
    assert_int_equal(r->source, 0);
    assert_in_range(r->prefill_start_ns - r->arrival_ns, 50331647, 50331649);
    bed_close(b);
}

static void test_no_tier(void **state)
{
    struct bed *b = bed_open(1, 1);
    const struct bt_sim_record *r;

    (void)state;
    run(b, 0);
    r = &b->result.records[2];
    assert_int_equal(r->cached_tokens, 512);
    assert_int_equal(r->fetched_tokens, 0);
    assert_int_equal(r->prefill_start_ns, r->arrival_ns);
    bed_close(b);
}

/* Serving whole requests: the only worker that decodes prefills as well. */
static void test_aggregated(void **state)
{
    struct bed *b = bed_open(0, 1);
    const struct bt_sim_record *r;

    (void)state;
    b->config.aggregated = true;
    run(b, 100000);
    r = &b->result.records[2];
    assert_int_equal(r->cached_tokens, 8192);
    assert_in_range(r->prefill_start_ns - r->arrival_ns, 50331647, 50331649);
    bed_close(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_prefill_worker),
        cmocka_unit_test(test_no_tier),
        cmocka_unit_test(test_aggregated),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
