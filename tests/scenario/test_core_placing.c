/* The first choice: roles, short prompts, missing pools, bursts, identity of
 * workers, streams, the what-if (field-failures B08, B10, B18, B20). */
#include "test_core_world.h"

#include "baton/planner/block_hash.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#define EXPECT(call, text) assert_string_equal(call, text)

static const struct bt_core_counters *counters(const struct world *w)
{
    return bt_core_counters_get(w->core);
}

/* Eight requests in one instant: booked in the same step, so the ninth look
 * sees the first eight. */
static void test_burst_spreads(void **state)
{
    static const char *const names[] = {"round_robin", "least_loaded",
                                        "prefix_load", "joint"};
    struct world w;

    (void)state;
    for (size_t i = 0; i < 4; i++) {
        world_init(&w);
        w.config.policy = bt_policy_find(names[i]);
        assert_non_null(w.config.policy);
        world_start(&w);
        for (uint64_t c = 0; c < 8; c++)
            (void)world_request(&w, c);
        for (uint32_t s = 0; s < 2; s++) {
            assert_in_range(world_info(&w, s).prefill_requests, 3, 5);
            assert_in_range(world_info(&w, 2 + s).decode_requests, 3, 5);
        }
        world_fini(&w);
    }
}

static void test_burst_of_plain_requests_spreads(void **state)
{
    struct bt_ev_request ask = world_ask(0);
    struct world w;

    (void)state;
    world_init(&w);
    world_start(&w);
    ask.pd_allowed = false;
    for (ask.cookie = 0; ask.cookie < 8; ask.cookie++)
        (void)world_send(&w, &ask);
    assert_int_equal(world_info(&w, 2).decode_requests, 4);
    assert_int_equal(world_info(&w, 3).decode_requests, 4);
    world_fini(&w);
}

static void test_unsupported_is_plain(void **state)
{
    struct bt_ev_request ask = world_ask(1);
    struct world w;

    (void)state;
    world_init(&w);
    w.config.pd_required = true;
    world_start(&w);
    ask.pd_allowed = false;
    EXPECT(world_send(&w, &ask), "A1 D1#1@2");
    assert_int_equal(counters(&w)->live[BT_REQUEST_DECODING], 1);
    assert_int_equal(world_info(&w, 2).prefill_tokens, 100);
    assert_int_equal(world_info(&w, 2).transfers, 0);
    EXPECT(world_first(&w, 1, 1), "");
    EXPECT(world_done(&w, 1, 1), "F1:ok/200");
    assert_int_equal(w.decisions[1].reason, BT_REASON_UNSUPPORTED);
    assert_int_equal(w.decisions[1].placement.chosen.p, BT_PLACE_NONE);
    assert_true(bt_core_is_idle(w.core));
    world_fini(&w);
}

static const char *send_of(struct world *w, uint64_t cookie, uint32_t tokens)
{
    struct bt_ev_request ask = world_ask(cookie);

    ask.prompt_tokens = tokens;
    return world_send(w, &ask);
}

static void test_short_prompts(void **state)
{
    struct world w;

    (void)state;
    world_init(&w);
    world_start(&w);
    EXPECT(send_of(&w, 1, 1), "A1 D1#1@2");
    EXPECT(world_done(&w, 1, 1), "F1:ok/200");
    assert_int_equal(w.decisions[1].reason, BT_REASON_SHORT_PROMPT);
    EXPECT(send_of(&w, 2, 15), "A2 D2#1@2");
    EXPECT(world_done(&w, 2, 1), "F2:ok/200");
    EXPECT(send_of(&w, 3, 16), "A3 P3#1@0");
    EXPECT(world_gone(&w, 3), "X3#1@0 F3:cancelled/499");
    EXPECT(send_of(&w, 4, 17), "A4 P4#1@0");
    EXPECT(world_gone(&w, 4), "X4#1@0 F4:cancelled/499");
    EXPECT(send_of(&w, 5, 0), "A5 D5#1@2");
    world_fini(&w);
    world_init(&w);
    w.config.pd_min_tokens = 64;
    world_start(&w);
    EXPECT(send_of(&w, 1, 63), "A1 D1#1@2");
    EXPECT(send_of(&w, 2, 64), "A2 P2#1@0");
    world_fini(&w);
}

static void test_no_prefill_pool(void **state)
{
    struct world w;

    (void)state;
    world_init(&w);
    world_start(&w);
    EXPECT(world_worker(&w, 0, BT_WORKER_UNHEALTHY), "");
    EXPECT(world_worker(&w, 1, BT_WORKER_DRAINING), "");
    EXPECT(world_request(&w, 1), "A1 D1#1@2");
    EXPECT(world_done(&w, 1, 1), "F1:ok/200");
    assert_int_equal(w.decisions[1].reason, BT_REASON_NO_PREFILL);
    assert_int_equal(w.decisions[1].fallback, BT_FALLBACK_NO_PREFILL);
    assert_int_equal(counters(&w)->fallbacks[BT_FALLBACK_NO_PREFILL], 1);
    world_fini(&w);
    world_init(&w);
    w.config.pd_required = true;
    world_start_pending(&w);
    EXPECT(world_ready(&w, 2, 1, WORLD_BLOCK), "");
    EXPECT(world_request(&w, 1), "A1 F1:no_worker/503");
    world_fini(&w);
}

static void test_local_prefill(void **state)
{
    struct world w;

    (void)state;
    world_init(&w);
    w.config.worker_count = 2;
    w.workers[0].roles = BT_ROLE_BOTH;
    w.workers[1].roles = BT_ROLE_BOTH;
    for (size_t i = 0; i < 4; i++) /* 10 MB at 1 MB/s: 10 s */
        w.links[i].model.rate_bytes_per_s = 1000000;
    world_start(&w);
    EXPECT(world_request(&w, 1), "A1 D1#1@0");
    EXPECT(world_first(&w, 1, 1), "");
    EXPECT(world_done(&w, 1, 1), "F1:ok/200");
    assert_int_equal(w.decisions[1].reason, BT_REASON_LOCAL);
    assert_int_equal(w.decisions[1].fallback, BT_FALLBACK_NONE);
    assert_true(bt_core_is_idle(w.core));
    world_fini(&w);
}

static void test_tokens_unknown(void **state)
{
    struct bt_ev_request ask = world_ask(1);
    struct world w;

    (void)state;
    world_init(&w);
    world_start(&w);
    ask.tokens_known = false;
    EXPECT(world_send(&w, &ask), "A1 P1#1@0");
    EXPECT(world_gone(&w, 1), "X1#1@0 F1:cancelled/499");
    assert_int_equal(w.decisions[1].reason, BT_REASON_NO_TOKENS);
    assert_false(w.decisions[1].tokens_known);
    world_fini(&w);
}

static enum bt_reason reason_with(enum bt_stream_state p0,
                                  enum bt_stream_state p1,
                                  enum bt_stream_state *index_out)
{
    struct world w;

    world_init(&w);
    world_start(&w);
    world_stream(&w, 0, p0);
    world_stream(&w, 1, p1);
    (void)world_request(&w, 1);
    (void)world_gone(&w, 1);
    world_fini(&w);
    *index_out = w.decisions[1].index_state;
    return w.decisions[1].reason;
}

static void test_streams_in_the_record(void **state)
{
    enum bt_stream_state index;
    enum bt_reason sound;

    (void)state;
    sound = reason_with(BT_STREAM_EXACT, BT_STREAM_EXACT, &index);
    assert_int_equal(index, BT_STREAM_EXACT);
    assert_int_not_equal(sound, BT_REASON_EVENTS_DEGRADED);
    assert_int_equal(reason_with(BT_STREAM_PARTIAL, BT_STREAM_DEGRADED, &index),
                     sound);
    assert_int_equal(index, BT_STREAM_DEGRADED);
    assert_int_equal(reason_with(BT_STREAM_ABSENT, BT_STREAM_EXACT, &index),
                     sound);
    assert_int_equal(index, BT_STREAM_ABSENT);
    assert_int_equal(reason_with(BT_STREAM_DEGRADED, BT_STREAM_ABSENT, &index),
                     BT_REASON_EVENTS_DEGRADED);
}

/* Full d, alone: one slot, taken. Step of its batch 10 ms, output 10 expected,
 * one must end: 10 ms * 10 * 1 / 1 = 100 ms. */
static void test_wait_for_a_slot(void **state)
{
    struct world w;

    (void)state;
    world_init(&w);
    w.config.worker_count = 3;
    w.workers[2].decode_slots = 1;
    world_start(&w);
    EXPECT(world_request(&w, 1), "A1 P1#1@0");
    EXPECT(world_request(&w, 2), "A2 P2#1@0");
    EXPECT(world_gone(&w, 2), "X2#1@0 F2:cancelled/499");
    assert_int_equal(w.decisions[2].placement.chosen.terms.slot_ns, 100000000);
    world_fini(&w);
}

/* KV room: capacity 250, each request 110: the third needs one average
 * request to end, of a batch of two: 10 ms * 10 * 1 / 2 = 50 ms. */
static void test_wait_for_kv_room(void **state)
{
    struct world w;

    (void)state;
    world_init(&w);
    w.config.worker_count = 3;
    w.workers[2].kv_capacity_tokens = 250;
    world_start(&w);
    (void)world_request(&w, 1);
    (void)world_request(&w, 2);
    (void)world_request(&w, 3);
    (void)world_gone(&w, 3);
    assert_int_equal(w.decisions[3].placement.chosen.terms.slot_ns, 50000000);
    world_fini(&w);
}

/* expected_output_tokens is 100: more is not reserved, nor is nothing. */
static void test_reserved_output(void **state)
{
    static const uint32_t max_tokens[] = {10, 100, 5000, 0};
    static const uint32_t booked[] = {110, 200, 200, 200};
    struct bt_ev_request ask = world_ask(1);
    struct world w;

    (void)state;
    for (size_t i = 0; i < 4; i++) {
        world_init(&w);
        world_start(&w);
        ask.max_tokens = max_tokens[i];
        (void)world_send(&w, &ask);
        assert_int_equal(world_info(&w, 2).decode_tokens, booked[i]);
        world_fini(&w);
    }
}

static void test_wrong_block_size_is_refused(void **state)
{
    struct world w;

    (void)state;
    world_init(&w);
    world_start_pending(&w);
    EXPECT(world_ready(&w, 2, 1, 64), "");
    assert_int_equal(w.status, BT_INVALID);
    assert_int_equal(world_info(&w, 2).state, BT_WORKER_REFUSED);
    assert_int_equal(world_info(&w, 2).block_tokens, 64);
    assert_int_equal(bt_worker_generation(world_info(&w, 2).id), 0);
    EXPECT(world_request(&w, 1), "A1");
    EXPECT(world_ready(&w, 2, 1, WORLD_BLOCK), "D1#1@2");
    assert_int_equal(bt_worker_generation(world_info(&w, 2).id), 1);
    world_fini(&w);
}

static const uint32_t *prompt_tokens(void)
{
    static uint32_t tokens[100];

    for (uint32_t i = 0; i < 100; i++)
        tokens[i] = i + 1;
    return tokens;
}

/* Worker `slot` stores the first `blocks` blocks of the prompt. */
static void store(struct world *w, uint32_t slot, size_t blocks)
{
    static const uint64_t hashes[] = {11, 12, 13, 14, 15, 16};
    struct bt_kv_store kv = {.hashes = hashes,
                             .hash_count = blocks,
                             .tokens = prompt_tokens(),
                             .token_count = blocks * WORLD_BLOCK,
                             .block_tokens = WORLD_BLOCK,
                             .full_attention = 1};
    struct bt_event e = {.type = BT_EV_KV_STORE,
                         .u.kv_store = {.worker = slot, .store = &kv}};

    EXPECT(world_step(w, &e), "");
    assert_int_equal(w->status, BT_OK);
}

static void test_prefix_and_generations(void **state)
{
    struct bt_ev_request ask = world_ask(1);
    uint64_t keys[6];
    struct world w;
    struct bt_event clear = {.type = BT_EV_KV_CLEAR,
                             .u.kv_clear = {.worker = 1, .all_ranks = true}};

    (void)state;
    world_init(&w);
    world_start(&w);
    ask.keys = keys;
    ask.key_count =
        bt_block_keys(prompt_tokens(), 100, WORLD_BLOCK, BT_NS_PLAIN, keys, 6);
    assert_int_equal(ask.key_count, 6);
    store(&w, 1, 6);
    assert_int_equal(world_info(&w, 1).index_blocks, 6);
    EXPECT(world_send(&w, &ask), "A1 P1#1@1"); /* prefix beats the tie */
    assert_int_equal(world_info(&w, 1).prefill_tokens, 4);
    EXPECT(world_gone(&w, 1), "X1#1@1 F1:cancelled/499");
    assert_int_equal(w.decisions[1].placement.chosen.terms.overlap_p, 96);
    /* same incarnation after a bad spell: nothing is forgotten */
    EXPECT(world_worker(&w, 1, BT_WORKER_UNHEALTHY), "");
    EXPECT(world_ready(&w, 1, 1, WORLD_BLOCK), "");
    assert_int_equal(world_info(&w, 1).index_blocks, 6);
    assert_int_equal(bt_worker_generation(world_info(&w, 1).id), 1);
    /* a new one: all forgotten */
    EXPECT(world_ready(&w, 1, 2, WORLD_BLOCK), "");
    assert_int_equal(world_info(&w, 1).index_blocks, 0);
    assert_int_equal(bt_worker_generation(world_info(&w, 1).id), 2);
    /* pending in between counts as new, even through unhealthy, but the
     * process is the one whose events came: its blocks stay */
    store(&w, 1, 3);
    EXPECT(world_worker(&w, 1, BT_WORKER_PENDING), "");
    EXPECT(world_worker(&w, 1, BT_WORKER_UNHEALTHY), "");
    EXPECT(world_ready(&w, 1, 2, WORLD_BLOCK), "");
    assert_int_equal(bt_worker_generation(world_info(&w, 1).id), 3);
    assert_int_equal(world_info(&w, 1).index_blocks, 3);
    /* another process after pending: all forgotten */
    EXPECT(world_worker(&w, 1, BT_WORKER_PENDING), "");
    EXPECT(world_ready(&w, 1, 7, WORLD_BLOCK), "");
    assert_int_equal(world_info(&w, 1).index_blocks, 0);
    store(&w, 1, 3);
    EXPECT(world_step(&w, &clear), "");
    assert_int_equal(world_info(&w, 1).index_blocks, 0);
    world_fini(&w);
}

/* Events may come before the worker has said who it is. */
static void test_blocks_before_the_first_ready(void **state)
{
    struct world w;

    (void)state;
    world_init(&w);
    world_start_pending(&w);
    store(&w, 1, 3);
    EXPECT(world_ready(&w, 1, 9, WORLD_BLOCK), "");
    assert_int_equal(world_info(&w, 1).index_blocks, 3);
    world_fini(&w);
}

static void test_telemetry_is_kept_apart(void **state)
{
    struct bt_event e = {
        .type = BT_EV_WORKER_STATS,
        .u.worker_stats = {
            .worker = 2, .running = 7, .waiting = 3, .kv_usage = 0.5}};
    struct world w;

    (void)state;
    world_init(&w);
    world_start(&w);
    EXPECT(world_step(&w, &e), "");
    assert_int_equal(world_info(&w, 2).running, 7);
    assert_int_equal(world_info(&w, 2).stats_at_ns, w.now_ms * 1000000);
    assert_int_equal(world_info(&w, 2).decode_requests, 0);
    assert_true(bt_core_is_idle(w.core));
    world_fini(&w);
}

static void test_explain_is_the_choice(void **state)
{
    struct bt_place_candidate table[8];
    struct bt_placement placement;
    struct world w;
    size_t pairs;

    (void)state;
    world_init(&w);
    w.links[0 * 4 + 2].model.rate_bytes_per_s = 1000000; /* slow 0 -> 2 */
    world_start(&w);
    pairs = bt_core_explain(w.core, w.now_ms * 1000000, 0, 100, NULL, 0, 10,
                            &placement, table, 8);
    assert_int_equal(pairs, 4);
    for (size_t i = 0; i < pairs; i++) {
        const struct bt_place_terms *t = &table[i].terms;
        int64_t wait = t->arrival_ns > t->slot_ns ? t->arrival_ns : t->slot_ns;

        assert_int_equal(t->arrival_ns,
                         t->queue_ns + t->prefill_ns + t->transfer_ns);
        assert_int_equal(t->total_ns, wait + t->step_ns);
        assert_true(i == 0 || t->total_ns >= table[i - 1].terms.total_ns);
    }
    assert_int_equal(table[3].p, 0);
    assert_int_equal(table[3].d, 2);
    assert_true(bt_core_is_idle(w.core));
    (void)world_request(&w, 1);
    (void)world_gone(&w, 1);
    assert_int_equal(w.decisions[1].placement.chosen.p, placement.chosen.p);
    assert_int_equal(w.decisions[1].placement.chosen.d, placement.chosen.d);
    assert_int_equal(w.decisions[1].placement.chosen.terms.total_ns,
                     placement.chosen.terms.total_ns);
    assert_int_equal(
        bt_core_explain(w.core, 0, 5, 100, NULL, 0, 10, &placement, table, 8),
        0);
    assert_int_equal(placement.chosen.d, BT_PLACE_NONE);
    world_fini(&w);
}

static void test_names(void **state)
{
    (void)state;
    assert_string_equal(bt_request_state_name(BT_REQUEST_HANDING_OFF),
                        "handing_off");
    assert_string_equal(bt_worker_state_name(BT_WORKER_DRAINING), "draining");
    assert_string_equal(bt_stream_state_name(BT_STREAM_PARTIAL), "partial");
    assert_string_equal(bt_outcome_name(BT_OUTCOME_TRUNCATED), "truncated");
    assert_string_equal(bt_fallback_name(BT_FALLBACK_LEASE_EXPIRED),
                        "lease_expired");
    for (int i = 0; i < BT_REQUEST_STATE_COUNT; i++)
        assert_true(strlen(bt_request_state_name((enum bt_request_state)i)) >
                    3);
}

/* Tables of pairs leave out those that no role allows: 1,000 + 1,000 workers
 * need less than 48 bytes for each of the million pairs. */
static void test_memory_of_a_large_fleet(void **state)
{
    static struct bt_core_worker_config workers[2000];
    struct bt_core_link_config link = {.class_index = 0};
    struct bt_core_model_config model = {.block_tokens = 16};
    struct bt_core_config config = {.workers = workers,
                                    .worker_count = 2,
                                    .links = &link,
                                    .models = &model,
                                    .model_count = 1,
                                    .requests_max = 16,
                                    .index_blocks_max = 16,
                                    .index_holdings_max = 16};
    size_t small;

    (void)state;
    for (uint32_t i = 0; i < 2000; i++)
        workers[i].roles = i % 2 != 0 ? BT_ROLE_PREFILL : BT_ROLE_DECODE;
    small = bt_core_bytes(&config);
    config.worker_count = 2000;
    assert_true(bt_core_bytes(&config) - small < 48000000);
    assert_true(bt_core_bytes(&config) > small);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_burst_spreads),
        cmocka_unit_test(test_burst_of_plain_requests_spreads),
        cmocka_unit_test(test_unsupported_is_plain),
        cmocka_unit_test(test_short_prompts),
        cmocka_unit_test(test_no_prefill_pool),
        cmocka_unit_test(test_local_prefill),
        cmocka_unit_test(test_tokens_unknown),
        cmocka_unit_test(test_streams_in_the_record),
        cmocka_unit_test(test_wait_for_a_slot),
        cmocka_unit_test(test_wait_for_kv_room),
        cmocka_unit_test(test_reserved_output),
        cmocka_unit_test(test_wrong_block_size_is_refused),
        cmocka_unit_test(test_prefix_and_generations),
        cmocka_unit_test(test_blocks_before_the_first_ready),
        cmocka_unit_test(test_telemetry_is_kept_apart),
        cmocka_unit_test(test_explain_is_the_choice),
        cmocka_unit_test(test_memory_of_a_large_fleet),
        cmocka_unit_test(test_names),
    };

    return cmocka_run_group_tests_name("core_placing", tests, NULL, NULL);
}
