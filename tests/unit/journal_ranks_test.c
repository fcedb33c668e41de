/* Journals of what the core believes: full indexes, ranks, streams that come
 * and go, guesses, hits held against engines' reports. Recorded, replayed: the
 * same effects; and each field of the events by itself. */
#include "journal_fleet.h"

#include "baton/base/rng.h"
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

/* What makes room in a full index is decided again as it was: chains in pieces
 * whose parents count as used, placements that touch. */
static void test_a_full_index_is_repeated(void **state)
{
    static struct bt_replay_result result;

    (void)state;
    for (uint64_t seed = 1; seed <= 8; seed++) {
        struct bt_prefix_index_stats stats;
        struct bt_rng rng;
        struct fleet f = {.small = true};

        bt_rng_seed(&rng, seed);
        fleet_start(&f, false);
        for (uint32_t round = 0; round < 200; round++) {
            for (int k = 0; k < 4; k++)
                fleet_store_as(&f, k % 2 == 0 ? STORE_CHAIN : STORE_CHILD,
                               (uint32_t)bt_rng_below(&rng, WORKERS),
                               (uint32_t)bt_rng_below(&rng, 12),
                               k % 2 == 0 ? 0 : 3, k % 2 == 0 ? 3 : 6);
            fleet_serve(&f, (uint32_t)bt_rng_below(&rng, 12));
        }
        bt_core_index_stats(f.core, &stats);
        assert_true(stats.evicted > 100);
        fleet_stop(&f);
        fleet_replay(NULL, &result);
        assert_true(result.whole);
        if (!result.verified)
            fail_msg("seed %llu: event %llu has other effects",
                     (unsigned long long)seed,
                     (unsigned long long)result.differs_at);
    }
}

/* ---- ranks, guesses, self-check ---- */

static void tell_remaining(struct fleet *f, uint32_t worker, uint32_t i,
                           struct bt_rng *rng)
{
    uint64_t hashes[TOKENS / BLOCK];
    uint32_t left[TOKENS / BLOCK];
    struct bt_event event = {.type = BT_EV_KV_REMOVE};

    for (uint32_t b = 0; b < TOKENS / BLOCK; b++) {
        hashes[b] = fleet_hash(i, b);
        left[b] = (uint32_t)bt_rng_below(rng, 3);
    }
    event.u.kv_remove = (struct bt_ev_kv_remove){.worker = worker,
                                                 .rank = f->rank,
                                                 .hashes = hashes,
                                                 .remaining = left,
                                                 .count = TOKENS / BLOCK};
    fleet_step_any(f, &event);
}

static void tell_stream(struct fleet *f, uint32_t worker, struct bt_rng *rng)
{
    struct bt_event event = {.type = BT_EV_KV_STREAM};

    event.u.kv_stream = (struct bt_ev_kv_stream){
        .worker = worker,
        .rank = f->rank,
        .state =
            (enum bt_stream_state)bt_rng_below(rng, BT_STREAM_SUSPECT + 1u),
        .cause = (enum bt_stream_cause)bt_rng_below(rng, BT_STREAM_CAUSE_COUNT),
    };
    fleet_step_any(f, &event);
}

static void tell_counting(struct fleet *f, uint32_t worker, struct bt_rng *rng)
{
    struct bt_event event = {.type = BT_EV_KV_COUNTING};

    event.u.kv_counting = (struct bt_ev_kv_counting){
        .worker = worker,
        .rank = f->rank,
        .counting = (enum bt_kv_counting)bt_rng_below(rng, 2)};
    fleet_step_any(f, &event);
}

static void tell_clear(struct fleet *f, uint32_t worker, struct bt_rng *rng)
{
    struct bt_event event = {.type = BT_EV_KV_CLEAR};

    event.u.kv_clear = (struct bt_ev_kv_clear){
        .worker = worker,
        .rank = f->rank,
        .has_tier = bt_rng_below(rng, 2) != 0,
        .tier = (enum bt_tier)bt_rng_below(rng, BT_TIERS)};
    fleet_step_any(f, &event);
}

static void change_rank(struct fleet *f, struct bt_rng *rng)
{
    uint32_t worker = (uint32_t)bt_rng_below(rng, WORKERS);
    uint32_t i = (uint32_t)bt_rng_below(rng, 6);

    f->rank = worker < 2 ? (uint32_t)bt_rng_below(rng, 2) : 0;
    switch (bt_rng_below(rng, 10)) {
    case 0:
        tell_remaining(f, worker, i, rng);
        return;
    case 1:
        tell_stream(f, worker, rng);
        return;
    case 2:
        tell_counting(f, worker, rng);
        return;
    case 3:
        if (bt_rng_below(rng, 4) == 0)
            tell_clear(f, worker, rng);
        return;
    case 4:
        fleet_remove(f, worker, i, 2, 5, BT_TIER_DEVICE);
        return;
    default:
        fleet_store_as(f, STORE_CHAIN, worker, i, 0, TOKENS / BLOCK);
    }
}

/* Streams come and go, hits come true or not: what replaces them and what they
 * are worth is decided again as it was. */
static void test_ranks_and_guesses_are_repeated(void **state)
{
    static struct bt_replay_result result;

    (void)state;
    for (uint64_t seed = 1; seed <= 6; seed++) {
        struct bt_core_worker_info info;
        struct bt_rng rng;
        struct fleet f = {.ranks = true};
        uint64_t checks = 0, guessed = 0;

        bt_rng_seed(&rng, seed);
        fleet_start(&f, false);
        for (uint32_t round = 0; round < 200; round++) {
            for (int k = 0; k < 3; k++)
                change_rank(&f, &rng);
            f.cached = BLOCK * (uint32_t)bt_rng_below(&rng, 4);
            fleet_serve(&f, (uint32_t)bt_rng_below(&rng, 6));
            for (uint32_t w = 0; w < 2; w++) {
                bt_core_worker_get(f.core, w, &info);
                guessed += info.approx_blocks;
                checks = info.hit_checks > checks ? info.hit_checks : checks;
            }
        }
        fleet_stop(&f);
        assert_true(guessed > 0 && checks > 20); /* it was about something */
        fleet_replay(NULL, &result);
        assert_true(result.whole);
        if (!result.verified)
            fail_msg("seed %llu: event %llu has other effects",
                     (unsigned long long)seed,
                     (unsigned long long)result.differs_at);
    }
}

/* The next event of that type. */
static struct bt_event next_of(struct bt_journal_reader *reader,
                               enum bt_event_type type)
{
    struct bt_journal_entry entry;
    char cut[128];

    do
        assert_int_equal(bt_journal_next(reader, &entry, cut, sizeof(cut)),
                         BT_OK);
    while (entry.event.type != type);
    return entry.event;
}

static void check_rank_events(struct bt_journal_reader *reader,
                              const struct bt_event *told)
{
    struct bt_event got = next_of(reader, BT_EV_KV_REMOVE);

    assert_int_equal(got.u.kv_remove.rank, 1);
    assert_int_equal(got.u.kv_remove.tier, BT_TIER_DISK);
    assert_int_equal(got.u.kv_remove.count, 2);
    assert_memory_equal(got.u.kv_remove.hashes, told[0].u.kv_remove.hashes, 16);
    assert_memory_equal(got.u.kv_remove.remaining,
                        told[0].u.kv_remove.remaining, 8);
    got = next_of(reader, BT_EV_KV_REMOVE);
    assert_int_equal(got.u.kv_remove.count, 2);
    assert_null(got.u.kv_remove.remaining);
    got = next_of(reader, BT_EV_KV_CLEAR);
    assert_int_equal(got.u.kv_clear.rank, 1);
    assert_true(got.u.kv_clear.has_tier && !got.u.kv_clear.all_ranks);
    assert_int_equal(got.u.kv_clear.tier, BT_TIER_EXTERNAL);
    got = next_of(reader, BT_EV_KV_STREAM);
    assert_int_equal(got.u.kv_stream.worker, 1);
    assert_int_equal(got.u.kv_stream.rank, 1);
    assert_int_equal(got.u.kv_stream.state, BT_STREAM_SUSPECT);
    assert_int_equal(got.u.kv_stream.cause, BT_CAUSE_DISPROVED);
    got = next_of(reader, BT_EV_KV_COUNTING);
    assert_int_equal(got.u.kv_counting.worker, 1);
    assert_int_equal(got.u.kv_counting.rank, 1);
    assert_int_equal(got.u.kv_counting.counting, BT_KV_COUNT_SET);
}

static void test_fields_of_rank_events_come_back(void **state)
{
    static const uint64_t hashes[2] = {UINT64_MAX, 5};
    static const uint32_t left[2] = {UINT32_MAX, 0};
    struct bt_event told[] = {
        {.type = BT_EV_KV_REMOVE,
         .u.kv_remove = {1, 1, hashes, left, 2, BT_TIER_DISK}},
        {.type = BT_EV_KV_REMOVE,
         .u.kv_remove = {1, 1, hashes, NULL, 2, BT_TIER_DEVICE}},
        {.type = BT_EV_KV_CLEAR,
         .u.kv_clear = {1, 1, false, true, BT_TIER_EXTERNAL}},
        {.type = BT_EV_KV_STREAM,
         .u.kv_stream = {1, 1, BT_STREAM_SUSPECT, BT_CAUSE_DISPROVED}},
        {.type = BT_EV_KV_COUNTING, .u.kv_counting = {1, 1, BT_KV_COUNT_SET}},
    };
    struct fleet f = {.ranks = true};
    struct bt_journal_reader *reader;
    char error[256];

    (void)state;
    fleet_start(&f, false);
    for (size_t i = 0; i < sizeof(told) / sizeof(told[0]); i++)
        fleet_step(&f, &told[i]);
    fleet_stop(&f);
    assert_int_equal(bt_journal_open(fleet_path, &reader, error, sizeof(error)),
                     BT_OK);
    for (uint32_t i = 0; i < WORKERS; i++)
        (void)next_of(reader, BT_EV_KV_STREAM); /* of the start */
    check_rank_events(reader, told);
    bt_journal_reader_close(reader);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_full_index_is_repeated),
        cmocka_unit_test(test_ranks_and_guesses_are_repeated),
        cmocka_unit_test(test_fields_of_rank_events_come_back),
    };

    return cmocka_run_group_tests(tests, fleet_file_make, fleet_file_drop);
}
