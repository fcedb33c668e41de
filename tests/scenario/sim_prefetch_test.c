/* Prefixes ahead of held requests in whole runs: they are sent and used, pay
 * where the network is slow, leave nothing behind, whatever fails meanwhile.
 *
 * Two prefill workers at 100 GbE. In each round a prefix comes to lie on one of
 * them, both get long prompts, and then somebody asks for the prefix. Where its
 * holder has the longer one, the other worker fetches it while it computes:
 * 2.7 GB, 215 ms, much more than the lead. */
#include "sim_bed.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define MS     BT_NS_PER_MS
#define ROUNDS 16u
#define PREFIX 16u /* blocks */

static void add_round(struct bed *b, uint32_t round)
{
    int64_t at = (int64_t)round * 12 * BT_NS_PER_S;
    uint64_t id = 1000u * round;
    size_t first = b->trace.count;

    bed_add(b, at, PREFIX * 512 + 300, 2, id);
    bed_add(b, at + 3000 * MS, 40000, 2, id + 100);
    bed_add(b, at + 3001 * MS, 20000 + 1000 * round, 2, id + 200);
    bed_add(b, at + 3100 * MS, PREFIX * 512 + 900, 2, id + 300);
    bed_share(b, first, PREFIX);
}

static struct bed *open_bed(void)
{
    struct bed *b = bed_open(2, 1);

    b->config.policy = "joint";
    b->config.fetch = true;
    b->config.hold.prefetch = true;
    b->cluster.fabrics[0].nic_bytes_per_s = 12500000000ull;
    for (uint32_t i = 0; i < ROUNDS; i++)
        add_round(b, i);
    return b;
}

static void clean(const struct bed *b)
{
    const struct bt_core_counters *c = &b->result.counters;

    if (b->result.check_failures != 0)
        fail_msg("%s", b->result.first_failure);
    assert_int_equal(c->prefetches, c->prefetches_used + c->prefetches_wasted);
}

/* Who asks for the prefix, round by round. */
static const struct bt_sim_record *asks_of(const struct bed *b, uint32_t round)
{
    return &b->result.records[4 * round + 3];
}

static int64_t ttft_ns(const struct bt_sim_record *r)
{
    assert_int_equal(r->outcome, BT_OUTCOME_OK);
    return r->first_token_ns - r->arrival_ns;
}

/* Without it the worker waits for all of the fetch but the lead (20 ms):
 * 8,192 tokens x 327,680 bytes at 12.5 GB/s are 214.7 ms. */
static void test_hides_the_fetch(void **state)
{
    struct bed *b = open_bed();
    int64_t without[ROUNDS], gained = 0;
    uint64_t used;

    (void)state;
    b->config.hold.prefetch = false;
    (void)bed_run(b);
    clean(b);
    assert_int_equal(b->result.counters.prefetches, 0);
    for (uint32_t i = 0; i < ROUNDS; i++)
        without[i] = ttft_ns(asks_of(b, i));
    b->config.hold.prefetch = true;
    (void)bed_run(b);
    clean(b);
    used = b->result.counters.prefetches_used;
    for (uint32_t i = 0; i < ROUNDS; i++)
        gained += without[i] - ttft_ns(asks_of(b, i));
    printf("prefetch: %llu used, %lld ns gained\n", (unsigned long long)used,
           (long long)gained);
    assert_true(used >= ROUNDS / 2);
    assert_int_equal(b->result.counters.prefetches_wasted, 0);
    assert_in_range(gained / (int64_t)used, 180 * MS, 200 * MS);
    bed_close(b);
}

/* Legs that waited for what was still on the way: longer than for any work
 * within the lead, and less than a fetch of their own would have taken. */
static uint32_t joined(const struct bed *b)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < ROUNDS; i++) {
        const struct bt_sim_record *r = asks_of(b, i);
        int64_t wait = r->prefill_start_ns - r->dispatched_ns;

        n += r->fetch_bytes > 0 && r->cached_tokens == PREFIX * 512 &&
             wait > 25 * MS && wait < 210 * MS;
    }
    return n;
}

/* What is on the way when the leg comes is waited for, and nothing is fetched
 * twice: the planner believes in links four times as fast (it thinks that all
 * is there), or in workers half as fast (they are free before it is). */
static void test_leg_joins(void **state)
{
    struct bed *b = open_bed();
    uint64_t once = (uint64_t)PREFIX * 512 * BED_KV;

    (void)state;
    b->config.knowledge.calibrate = false;
    for (int what = 0; what < 2; what++) {
        uint32_t n = 0;

        b->config.knowledge.link_bias = what == 0 ? 3 : 0;
        b->config.knowledge.compute_bias = what == 1 ? 1 : 0;
        for (uint32_t shift = 0; shift < 5; shift++) {
            for (uint32_t i = 0; i < ROUNDS; i++) /* closer to the end */
                b->requests[4 * i + 3].arrival_ns =
                    b->requests[4 * i].arrival_ns +
                    (3100 + 150 * (int64_t)i + 30 * shift) * MS;
            (void)bed_run(b);
            clean(b);
            n += joined(b);
            for (uint32_t i = 0; i < ROUNDS; i++)
                assert_true(asks_of(b, i)->fetch_bytes <= once);
        }
        printf("joined: %u\n", n);
        assert_true(n > 0);
    }
    bed_close(b);
}

/* In each round something fails while a prefix is under way: the one that
 * sends, the one that pulls, or what lies between. Nothing is left over, and
 * every request ends once. */
static void test_failures(void **state)
{
    struct bed *b = open_bed();
    struct bt_sim_fault faults[ROUNDS];

    (void)state;
    b->config.faults = faults;
    b->config.fault_count = ROUNDS;
    for (uint32_t kind = 0; kind < 4; kind++) {
        for (uint32_t i = 0; i < ROUNDS; i++) {
            int64_t at = ((int64_t)i * 12000 + 3120 + 20 * i) * MS;

            faults[i] = (struct bt_sim_fault){
                .kind = kind < 2 ? BT_SIM_KILL : BT_SIM_CUT,
                .worker = kind % 2,
                .at_ns = at,
                .until_ns = at + (kind < 2 ? 2000 : 7000) * MS};
        }
        (void)bed_run(b);
        clean(b);
        printf("kind %u: %llu sent, %llu used\n", kind,
               (unsigned long long)b->result.counters.prefetches,
               (unsigned long long)b->result.counters.prefetches_used);
        assert_true(b->result.counters.prefetches > 0);
    }
    bed_close(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hides_the_fetch),
        cmocka_unit_test(test_leg_joins),
        cmocka_unit_test(test_failures),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
