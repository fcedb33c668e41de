/* Random worlds, configurations and faults: the simulator's own checks hold,
 * every request ends once, times follow each other, and the run repeats
 * itself. */
#include "sim_load.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define WORLDS 24

static struct bt_rng rng;

static bool coin(uint32_t one_in)
{
    return bt_rng_below(&rng, one_in) == 0;
}

static uint64_t between(uint64_t least, uint64_t most)
{
    return least + bt_rng_below(&rng, most - least + 1);
}

static void random_pools(struct bed *b)
{
    for (uint32_t i = 0; i < b->cluster.pool_count; i++) {
        struct bt_sim_pool *p = &b->cluster.pools[i];

        p->kv_tokens = between(20000, 80000);
        p->decode_slots = (uint32_t)between(2, 40);
        p->local_chunk = coin(2) ? (uint32_t)between(64, 2048) : 0;
        p->prefill_chunk = coin(3) ? (uint32_t)between(256, 8192) : 0;
        if (coin(2)) {
            p->host_tokens = between(1000, 200000);
            p->host.rate_bytes_per_s = 20000000000ull;
            p->host.setup_ns = 500000;
        }
        if (coin(2)) {
            p->disk_tokens = between(1000, 400000);
            p->disk.rate_bytes_per_s = 6000000000ull;
            p->disk_servers = (uint32_t)between(1, 4);
            p->disk_saturation = (uint32_t)between(1, 8);
            p->disk_first_share = 0.5;
        }
    }
}

static void random_fabric(struct bed *b)
{
    struct bt_sim_fabric *f = &b->cluster.fabrics[0];

    f->nic_bytes_per_s = between(5, 60) * 1000000000ull;
    f->slow_nic_bytes_per_s = coin(3) ? f->nic_bytes_per_s / 5 : 0;
    f->racks = coin(2) ? (uint32_t)between(1, 3) : 0;
    f->rack_up_bytes_per_s = f->racks ? f->nic_bytes_per_s / 2 : 0;
    f->background = coin(3) ? 0.5 : 0;
    f->background_period_ns = coin(2) ? BT_NS_PER_S : 0;
    f->setup_ns = (int64_t)between(0, 3000000);
    f->per_descriptor_ns = 1000;
    f->degraded_factor = coin(4) ? 0.25 : 0;
}

static void random_mode(struct bed *b)
{
    struct bt_engine_mode *m = &b->cluster.mode;

    m->overlap = (enum bt_overlap)between(BT_OVERLAP_NONE, BT_OVERLAP_LAYER);
    m->pieces = (uint32_t)between(1, 40);
    m->allocate_first = coin(3);
    m->whole_prompt = coin(3);
    m->late_decode = m->overlap == BT_OVERLAP_NONE && coin(2);
    m->replication = (uint32_t)between(0, 2);
}

static void random_knowledge(struct bed *b)
{
    struct bt_sim_knowledge *k = &b->config.knowledge;

    k->compute_bias = coin(3) ? 0.3 : 0;
    k->link_bias = coin(3) ? -0.3 : 0;
    k->shuffled_costs = coin(4);
    k->telemetry_ns = coin(3) ? 0 : 200 * BT_NS_PER_MS;
    k->telemetry_lag_ns = coin(3) ? 300 * BT_NS_PER_MS : 0;
    k->event_lag_ns = coin(2) ? 50 * BT_NS_PER_MS : 0;
    k->event_loss = coin(3) ? 0.05 : 0;
    k->event_reorder = coin(3);
    k->events_off = coin(5);
    k->output_known = coin(2);
    k->event_replay = coin(2);
    k->approximate = !coin(4);
    k->approximate_ttl_ns = (int64_t)between(1, 60) * BT_NS_PER_S;
    k->self_check = !coin(4);
}

static void random_faults(struct bt_sim_fault *out, size_t n, uint32_t workers)
{
    for (size_t i = 0; i < n; i++) {
        int64_t at = (int64_t)between(1, 20) * BT_NS_PER_S;

        out[i] = (struct bt_sim_fault){
            .kind = (enum bt_sim_fault_kind)between(0, BT_SIM_FAULT_COUNT - 1),
            .worker = (uint32_t)between(0, workers - 1),
            .at_ns = at,
            .until_ns =
                coin(5) ? 0 : at + (int64_t)between(1, 15) * BT_NS_PER_S,
            .factor = (double)between(1, 20) / 4,
        };
    }
}

static void follow(const struct bt_sim_record *r)
{
    if (r->outcome != BT_OUTCOME_OK)
        return;
    assert_true(r->dispatched_ns >= r->arrival_ns);
    assert_true(r->first_token_ns > r->dispatched_ns);
    assert_true(r->finished_ns >= r->first_token_ns);
    assert_true(r->first_token_ns >= r->transfer_end_ns);
    assert_true(r->transfer_end_ns >= r->transfer_start_ns);
    assert_true(r->cached_tokens < r->input_tokens);
    if (r->output_tokens > 1)
        assert_true(r->second_token_ns > r->first_token_ns);
}

static void one_world(uint64_t seed)
{
    static const char *const policies[] = {"joint", "round_robin",
                                           "prefix_load", "least_loaded"};
    struct bt_sim_fault faults[3];
    struct bed *b;
    uint64_t hash;

    bt_rng_seed(&rng, seed);
    b = bed_open((uint32_t)between(1, 4), (uint32_t)between(1, 4));
    random_pools(b);
    random_fabric(b);
    random_mode(b);
    random_knowledge(b);
    b->config.seed = seed;
    b->config.policy = policies[between(0, 3)];
    b->config.aggregated = coin(6);
    b->config.local = coin(2);
    b->config.fetch = coin(2);
    b->config.hold.enabled = coin(2);
    b->config.faults = faults;
    b->config.fault_count = coin(2) ? (size_t)between(1, 3) : 0;
    random_faults(faults, b->config.fault_count, 2);
    load_add(b, 150, (double)between(2, 12), seed);
    (void)bed_run(b);
    if (b->result.check_failures != 0)
        fail_msg("seed %llu: %s", (unsigned long long)seed,
                 b->result.first_failure);
    for (size_t i = 0; i < b->result.count; i++)
        follow(&b->result.records[i]);
    hash = b->result.effects_hash;
    (void)bed_run(b);
    if (b->result.effects_hash != hash)
        fail_msg("seed %llu does not repeat itself", (unsigned long long)seed);
    bed_close(b);
}

static void test_worlds(void **state)
{
    const char *from = getenv("BATON_SEED");
    uint64_t first = from != NULL ? strtoull(from, NULL, 10) : 1;

    (void)state;
    for (uint64_t i = 0; i < WORLDS; i++) {
        print_message("world %llu\n", (unsigned long long)(first + i));
        one_world(first + i);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_worlds)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
