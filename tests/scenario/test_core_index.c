/* What the core believes of caches: ranks, guesses where events are missing or
 * not to be believed, hits that are held against what engines report. Depths
 * were counted by hand; credits come from the sum written out below and, where
 * marked, from a calculation outside this program. */
#include "test_core_world.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#define BLOCKS  10u /* of a prompt, which is one token longer */
#define PROMPT  (BLOCKS * WORLD_BLOCK + 1)
#define CACHED  (BLOCKS * WORLD_BLOCK)
#define TTL_MS  10000
#define HASH_OF 1000u /* engine hash = own key + this */

struct bed {
    struct world w;
    uint64_t keys[8][BLOCKS]; /* chains, nothing in common */
    uint64_t cookie;
};

static void bed_init(struct bed *b)
{
    memset(b, 0, sizeof(*b));
    world_init(&b->w);
    for (uint32_t c = 0; c < 8; c++)
        for (uint32_t i = 0; i < BLOCKS; i++)
            b->keys[c][i] = 100 * (c + 1) + i;
}

/* One worker that prefills, three that decode. */
static void bed_one_p(struct bed *b)
{
    bed_init(b);
    b->w.workers[1].roles = BT_ROLE_DECODE;
}

static enum bt_status store(struct bed *b, uint32_t slot, uint32_t rank,
                            const uint64_t *keys, size_t count)
{
    uint64_t hashes[BLOCKS];
    struct bt_kv_store s = {.own_keys = keys,
                            .hashes = hashes,
                            .hash_count = count,
                            .full_attention = 1};
    struct bt_event e = {
        .type = BT_EV_KV_STORE,
        .u.kv_store = {.worker = slot, .rank = rank, .store = &s}};

    for (size_t i = 0; i < count; i++)
        hashes[i] = keys[i] + HASH_OF;
    assert_string_equal(world_step(&b->w, &e), "");
    return b->w.status;
}

static void drop(struct bed *b, uint32_t slot, uint64_t key,
                 const uint32_t *remaining)
{
    uint64_t hash = key + HASH_OF;
    struct bt_event e = {.type = BT_EV_KV_REMOVE,
                         .u.kv_remove = {.worker = slot,
                                         .hashes = &hash,
                                         .remaining = remaining,
                                         .count = 1}};

    assert_string_equal(world_step(&b->w, &e), "");
    assert_int_equal(b->w.status, BT_OK);
}

static enum bt_status stream(struct bed *b, uint32_t slot, uint32_t rank,
                             enum bt_stream_state state,
                             enum bt_stream_cause cause)
{
    struct bt_event e = {
        .type = BT_EV_KV_STREAM,
        .u.kv_stream = {
            .worker = slot, .rank = rank, .state = state, .cause = cause}};

    assert_string_equal(world_step(&b->w, &e), "");
    return b->w.status;
}

/* Sends it; the legs are left out. Returns the cookie. */
static uint64_t ask(struct bed *b, const uint64_t *keys)
{
    struct bt_ev_request r = world_ask(++b->cookie);

    r.prompt_tokens = PROMPT;
    r.keys = keys;
    r.key_count = BLOCKS;
    world_send(&b->w, &r);
    return b->cookie;
}

/* Its leg P answers, its leg D too. */
static const struct bt_decision *answer(struct bed *b, uint64_t cookie,
                                        uint32_t cached)
{
    world_answered(&b->w, cookie, 1, PROMPT, cached);
    world_first(&b->w, cookie, 2);
    world_done(&b->w, cookie, 2);
    assert_int_equal(b->w.finished[cookie], 1);
    return &b->w.decisions[cookie];
}

static const struct bt_decision *serve(struct bed *b, const uint64_t *keys,
                                       uint32_t cached)
{
    return answer(b, ask(b, keys), cached);
}

static uint32_t p_of(const struct bt_decision *d)
{
    return d->placement.chosen.p;
}

static uint32_t hit_of(const struct bt_decision *d)
{
    return d->placement.chosen.terms.overlap_p;
}

static void check_near(double got, double want)
{
    double off = got > want ? got - want : want - got;

    if (off > 5e-7)
        fail_msg("got %.7f, want %.7f", got, want);
}

/* ---- self-check ---- */

/* Credit after `hits` checks that came true, then `misses` of which only the
 * forgiven block did, then `again` that came true: the sums written out. */
static double credit_of(uint32_t hits, uint32_t misses, uint32_t again)
{
    uint32_t n = hits + misses + again;
    double good = 0, all = 0, weight = 1;

    for (uint32_t i = n; i-- > 0;) {
        bool true_one = i < hits || i >= hits + misses;

        good += weight * (true_one ? CACHED : WORLD_BLOCK);
        all += weight * CACHED;
        weight *= 31.0 / 32;
    }
    return good / all;
}

/* Once true, seven times not: 0.200403 (computed elsewhere), so of 10 blocks
 * 2 count; the 17th hit after that brings 0.809170. */
static void wrong_hits_lose_credit_and_recover(void **state)
{
    struct bed b;
    const struct bt_decision *d;
    struct bt_core_worker_info info;

    (void)state;
    bed_one_p(&b);
    b.w.config.self_check = true;
    world_start(&b.w);
    assert_int_equal(store(&b, 0, 0, b.keys[0], BLOCKS), BT_OK);
    serve(&b, b.keys[0], CACHED);
    for (uint32_t i = 1; i <= 7; i++) {
        info = world_info(&b.w, 0);
        assert_int_equal(info.stream, BT_STREAM_EXACT);
        check_near(info.credit, credit_of(1, i - 1, 0));
        d = serve(&b, b.keys[0], 0);
        assert_int_equal(hit_of(d), CACHED);
        assert_int_equal(d->overlap_source, BT_PREFIX_EVENTS);
    }
    info = world_info(&b.w, 0);
    check_near(info.credit, 0.200403);
    assert_int_equal(info.stream, BT_STREAM_SUSPECT);
    assert_int_equal(info.cause, BT_CAUSE_DISPROVED);
    assert_int_equal(info.hit_checks, 8);
    assert_int_equal(info.hit_predicted, 8 * CACHED);
    assert_int_equal(info.hit_actual, CACHED);
    assert_int_equal(info.hit_unforeseen, 0);
    d = serve(&b, b.keys[0], CACHED);
    assert_int_equal(hit_of(d), 2 * WORLD_BLOCK);
    assert_int_equal(d->overlap_raw_tokens, CACHED);
    assert_int_equal(d->overlap_source, BT_PREFIX_DISCOUNTED);
    assert_int_equal(d->index_state, BT_STREAM_SUSPECT);
    assert_int_equal(d->index_cause, BT_CAUSE_DISPROVED);
    assert_int_equal(d->reason, BT_REASON_EVENTS_DEGRADED);
    check_near(d->credit, 0.200403);
    for (uint32_t i = 1; i < 17; i++) {
        assert_int_equal(world_info(&b.w, 0).stream, BT_STREAM_SUSPECT);
        check_near(world_info(&b.w, 0).credit, credit_of(1, 7, i));
        serve(&b, b.keys[0], CACHED);
    }
    check_near(world_info(&b.w, 0).credit, 0.809170);
    assert_int_equal(world_info(&b.w, 0).stream, BT_STREAM_EXACT);
    d = serve(&b, b.keys[0], CACHED);
    assert_int_equal(hit_of(d), CACHED);
    assert_int_equal(d->overlap_source, BT_PREFIX_EVENTS);
    world_fini(&b.w);
}

/* Nobody asks a disproved worker again: 5 s halve the doubt, 0.200403 ->
 * 0.600201
 * -> 0.800101, and it is believed. What was seen weighs a sixteenth then: of
 * the 8 checks s = (1 - (31/32)^8) * 32 = 7.177, s / 16 = 0.4486. One more lie
 * (the share of one block of 10 came true) and it is 0.307, disproved. */
static void doubt_wears_off(void **state)
{
    const double seen = (1 - pow(31.0 / 32, 8)) * 32 / 16 * 31 / 32;
    struct bed b;

    (void)state;
    bed_one_p(&b);
    b.w.config.self_check = true;
    world_start(&b.w);
    store(&b, 0, 0, b.keys[0], BLOCKS);
    serve(&b, b.keys[0], CACHED);
    for (int i = 0; i < 7; i++)
        serve(&b, b.keys[0], 0);
    check_near(world_info(&b.w, 0).credit, 0.200403);
    world_tick(&b.w, 4900);
    check_near(world_info(&b.w, 0).credit, 0.200403);
    world_tick(&b.w, 1100);
    check_near(world_info(&b.w, 0).credit, 0.600201);
    assert_int_equal(world_info(&b.w, 0).stream, BT_STREAM_SUSPECT);
    world_tick(&b.w, 4000);
    check_near(world_info(&b.w, 0).credit, 0.600201);
    world_tick(&b.w, 2000);
    check_near(world_info(&b.w, 0).credit, 0.800101);
    assert_int_equal(world_info(&b.w, 0).stream, BT_STREAM_EXACT);
    world_tick(&b.w, 60000); /* it is believed: nothing wears off any more */
    check_near(world_info(&b.w, 0).credit, 0.800101);
    serve(&b, b.keys[0], 0);
    check_near(world_info(&b.w, 0).credit,
               (seen * 0.800101 + 0.1) / (seen + 1));
    assert_int_equal(world_info(&b.w, 0).stream, BT_STREAM_SUSPECT);
    world_fini(&b.w);
}

static void one_block_less_is_forgiven(void **state)
{
    struct bed b;

    (void)state;
    bed_one_p(&b);
    b.w.config.self_check = true;
    world_start(&b.w);
    store(&b, 0, 0, b.keys[0], BLOCKS);
    for (int i = 0; i < 12; i++) {
        uint64_t cookie = ask(&b, b.keys[0]);

        assert_false(b.w.items[1].has_rank); /* it has only one */
        answer(&b, cookie, CACHED - WORLD_BLOCK);
    }
    check_near(world_info(&b.w, 0).credit, 1);
    world_fini(&b.w);
}

/* 0 also means not reported. */
static void silent_engines_are_not_disproved(void **state)
{
    struct bed b;

    (void)state;
    bed_one_p(&b);
    b.w.config.self_check = true;
    world_start(&b.w);
    store(&b, 0, 0, b.keys[0], BLOCKS);
    for (int i = 0; i < 20; i++)
        assert_int_equal(hit_of(serve(&b, b.keys[0], 0)), CACHED);
    assert_int_equal(world_info(&b.w, 0).hit_checks, 0);
    check_near(world_info(&b.w, 0).credit, 1);
    assert_int_equal(world_info(&b.w, 0).stream, BT_STREAM_EXACT);
    world_fini(&b.w);
}

/* Wrong block size or hash domain: hits come, none was foreseen. */
static void unforeseen_hits_are_counted(void **state)
{
    struct bed b;
    struct bt_core_worker_info info;

    (void)state;
    bed_one_p(&b);
    b.w.config.self_check = true;
    world_start(&b.w);
    for (int i = 0; i < 8; i++)
        serve(&b, b.keys[0], 2 * WORLD_BLOCK);
    info = world_info(&b.w, 0);
    assert_int_equal(info.hit_checks, 8);
    assert_int_equal(info.hit_predicted, 0);
    assert_int_equal(info.hit_unforeseen, 8 * 2 * WORLD_BLOCK);
    check_near(info.credit, 1);
    assert_int_equal(info.stream, BT_STREAM_EXACT);
    /* nor do they tell what a predicted hit is worth: (0 + 1) / 10 */
    store(&b, 0, 0, b.keys[1], BLOCKS);
    serve(&b, b.keys[1], 0);
    for (int i = 0; i < 8; i++)
        serve(&b, b.keys[0], 2 * WORLD_BLOCK);
    check_near(world_info(&b.w, 0).credit, 0.1);
    assert_int_equal(world_info(&b.w, 0).stream, BT_STREAM_EXACT);
    /* another process: forgotten */
    world_ready(&b.w, 0, 2, WORLD_BLOCK);
    assert_int_equal(world_info(&b.w, 0).hit_checks, 0);
    world_fini(&b.w);
}

/* A prompt of whole blocks: the last token is computed in any case, so only
 * the blocks before it can be found. */
static void last_block_of_a_full_prompt_is_not_expected(void **state)
{
    struct bed b;
    struct bt_ev_request r;

    (void)state;
    bed_one_p(&b);
    b.w.config.self_check = true;
    world_start(&b.w);
    store(&b, 0, 0, b.keys[0], BLOCKS);
    r = world_ask(++b.cookie);
    r.prompt_tokens = CACHED;
    r.keys = b.keys[0];
    r.key_count = BLOCKS;
    world_send(&b.w, &r);
    answer(&b, b.cookie, CACHED - WORLD_BLOCK);
    assert_int_equal(b.w.decisions[b.cookie].overlap_raw_tokens, CACHED);
    assert_int_equal(world_info(&b.w, 0).hit_predicted, CACHED - WORLD_BLOCK);
    world_fini(&b.w);
}

/* A request that one worker serves alone is checked by its own usage; leg D of
 * a pair, whose prompt came from p, is not. */
static void whole_requests_are_checked_at_their_end(void **state)
{
    struct bed b;
    struct bt_ev_request r;
    struct bt_event e = {.type = BT_EV_DECODE_DONE};

    (void)state;
    bed_one_p(&b);
    b.w.config.self_check = true;
    world_start(&b.w);
    store(&b, 1, 0, b.keys[0], BLOCKS);
    r = world_ask(++b.cookie);
    r.prompt_tokens = PROMPT;
    r.keys = b.keys[0];
    r.key_count = BLOCKS;
    r.pd_allowed = false;
    assert_string_equal(world_send(&b.w, &r), "A1 D1#1@1");
    e.u.progress = (struct bt_ev_progress){.request = b.w.ids[1],
                                           .attempt = 1,
                                           .tokens = 3,
                                           .cached_tokens = 5 * WORLD_BLOCK};
    assert_string_equal(world_step(&b.w, &e), "F1:ok/200");
    assert_int_equal(world_info(&b.w, 1).hit_predicted, CACHED);
    assert_int_equal(world_info(&b.w, 1).hit_actual, 5 * WORLD_BLOCK);
    check_near(world_info(&b.w, 1).credit, 0.6); /* (5 + 1) / 10 */
    serve(&b, b.keys[0], 0);
    for (uint32_t i = 1; i < 4; i++)
        assert_int_equal(world_info(&b.w, i).hit_checks, i == 1);
    world_fini(&b.w);
}

/* ---- guesses ---- */

static void bed_guess(struct bed *b)
{
    b->w.config.approx_blocks_max = 256;
    b->w.config.approx_ttl_ns = TTL_MS * 1000000LL;
}

/* p0 is kept busy, so that the first prompt goes to p1; once both are idle
 * again it still goes there, until its time to live is over. */
static void without_events_own_placements_count(void **state)
{
    struct bed b;
    const struct bt_decision *d;
    uint64_t busy;

    (void)state;
    bed_init(&b);
    bed_guess(&b);
    world_start_pending(&b.w);
    for (uint32_t i = 0; i < 4; i++)
        world_ready(&b.w, i, 1, WORLD_BLOCK);
    busy = ask(&b, b.keys[7]);
    d = serve(&b, b.keys[0], 0);
    assert_int_equal(p_of(d), 1);
    assert_int_equal(hit_of(d), 0);
    assert_int_equal(p_of(answer(&b, busy, 0)), 0);
    assert_int_equal(world_info(&b.w, 1).approx_blocks, BLOCKS);
    /* both went to the first decode worker */
    assert_int_equal(world_info(&b.w, 2).approx_blocks, 2 * BLOCKS);
    world_tick(&b.w, TTL_MS - 1);
    d = serve(&b, b.keys[0], 0);
    assert_int_equal(p_of(d), 1);
    assert_int_equal(hit_of(d), CACHED);
    assert_int_equal(d->overlap_raw_tokens, CACHED);
    assert_int_equal(d->overlap_source, BT_PREFIX_APPROX);
    assert_int_equal(d->index_state, BT_STREAM_ABSENT);
    assert_int_equal(d->index_cause, BT_CAUSE_NO_EVENTS);
    assert_int_equal(d->reason, BT_REASON_EVENTS_DEGRADED);
    assert_int_equal(d->copies, 1);
    world_tick(&b.w, TTL_MS);
    d = serve(&b, b.keys[0], 0);
    assert_int_equal(p_of(d), 0);
    assert_int_equal(hit_of(d), 0);
    world_fini(&b.w);
}

/* The same with nothing to guess with: nobody knows. */
static void without_events_and_guesses_nothing_is_known(void **state)
{
    struct bed b;
    const struct bt_decision *d;

    (void)state;
    bed_one_p(&b);
    world_start_pending(&b.w);
    for (uint32_t i = 0; i < 4; i++)
        world_ready(&b.w, i, 1, WORLD_BLOCK);
    serve(&b, b.keys[0], 0);
    d = serve(&b, b.keys[0], 0);
    assert_int_equal(hit_of(d), 0);
    assert_int_equal(d->overlap_source, BT_PREFIX_UNKNOWN);
    world_fini(&b.w);
}

/* Room for 12 blocks: the second prompt pushes out all but two of the first,
 * and what goes first is its end. */
static void guesses_fit_the_worker(void **state)
{
    struct bed b;

    (void)state;
    bed_one_p(&b);
    bed_guess(&b);
    b.w.workers[0].kv_capacity_tokens = 12 * WORLD_BLOCK;
    world_start_pending(&b.w);
    for (uint32_t i = 0; i < 4; i++)
        world_ready(&b.w, i, 1, WORLD_BLOCK);
    serve(&b, b.keys[0], 0);
    serve(&b, b.keys[1], 0);
    assert_int_equal(world_info(&b.w, 0).approx_blocks, 12);
    assert_int_equal(hit_of(serve(&b, b.keys[0], 0)), 2 * WORLD_BLOCK);
    world_fini(&b.w);
}

static void a_degraded_stream_is_guessed_on(void **state)
{
    struct bed b;
    const struct bt_decision *d;

    (void)state;
    bed_one_p(&b);
    bed_guess(&b);
    world_start(&b.w);
    store(&b, 0, 0, b.keys[0], BLOCKS);
    store(&b, 0, 0, b.keys[1], BLOCKS);
    d = serve(&b, b.keys[0], 0);
    assert_int_equal(d->overlap_source, BT_PREFIX_EVENTS);
    assert_int_equal(world_info(&b.w, 0).approx_blocks, 0);
    /* a hole that is being filled changes nothing */
    stream(&b, 0, 0, BT_STREAM_SYNCING, BT_CAUSE_GAP);
    d = serve(&b, b.keys[0], 0);
    assert_int_equal(hit_of(d), CACHED);
    assert_int_equal(d->overlap_source, BT_PREFIX_EVENTS);
    stream(&b, 0, 0, BT_STREAM_DEGRADED, BT_CAUSE_NO_REPLAY);
    assert_int_equal(world_info(&b.w, 0).approx_blocks, 2 * BLOCKS);
    drop(&b, 0, b.keys[0][5], NULL);
    store(&b, 0, 0, b.keys[2], 3);
    d = serve(&b, b.keys[0], 0);
    assert_int_equal(hit_of(d), 5 * WORLD_BLOCK);
    assert_int_equal(d->overlap_source, BT_PREFIX_APPROX);
    assert_int_equal(d->index_state, BT_STREAM_DEGRADED);
    assert_int_equal(d->index_cause, BT_CAUSE_NO_REPLAY);
    d = serve(&b, b.keys[2], 0);
    assert_int_equal(hit_of(d), 3 * WORLD_BLOCK);
    /* the second chain has not been used: it fades; the first, placed a
     * moment ago, stays */
    world_tick(&b.w, TTL_MS - 1);
    assert_int_equal(hit_of(serve(&b, b.keys[0], 0)), CACHED);
    world_tick(&b.w, 1);
    assert_int_equal(hit_of(serve(&b, b.keys[1], 0)), 0);
    /* read anew */
    stream(&b, 0, 0, BT_STREAM_EXACT, BT_CAUSE_REPLAYED);
    assert_int_equal(world_info(&b.w, 0).approx_blocks, 0);
    d = serve(&b, b.keys[1], 0);
    assert_int_equal(hit_of(d), CACHED);
    assert_int_equal(d->overlap_source, BT_PREFIX_EVENTS);
    world_fini(&b.w);
}

/* Its cache was emptied in the hole: the guesses do not come true, its credit
 * goes; what it is given then does, its credit comes back. */
static void a_degraded_hot_worker_loses_its_credit_and_recovers(void **state)
{
    struct bed b;
    const struct bt_decision *d;
    uint32_t hits = 0;

    (void)state;
    bed_one_p(&b);
    bed_guess(&b);
    b.w.config.self_check = true;
    world_start(&b.w);
    for (uint32_t c = 0; c < 8; c++)
        store(&b, 0, 0, b.keys[c], BLOCKS);
    serve(&b, b.keys[0], CACHED);
    stream(&b, 0, 0, BT_STREAM_DEGRADED, BT_CAUSE_NO_REPLAY);
    for (uint32_t c = 1; c < 8; c++) {
        d = serve(&b, b.keys[c], 0);
        assert_int_equal(hit_of(d), CACHED);
    }
    assert_int_equal(world_info(&b.w, 0).stream, BT_STREAM_SUSPECT);
    check_near(world_info(&b.w, 0).credit, 0.200403);
    for (; world_info(&b.w, 0).stream == BT_STREAM_SUSPECT && hits < 100;
         hits++) {
        d = serve(&b, b.keys[1 + hits % 7], CACHED);
        assert_int_equal(d->overlap_source, BT_PREFIX_APPROX);
        assert_true(hit_of(d) < CACHED);
        assert_int_equal(d->overlap_raw_tokens, CACHED);
    }
    assert_int_equal(hits, 17);
    assert_int_equal(world_info(&b.w, 0).stream, BT_STREAM_DEGRADED);
    assert_int_equal(world_info(&b.w, 0).cause, BT_CAUSE_NO_REPLAY);
    assert_int_equal(hit_of(serve(&b, b.keys[1], CACHED)), CACHED);
    world_fini(&b.w);
}

static void over_a_hole(struct bed *b)
{
    world_start(&b->w);
    store(b, 0, 0, b->keys[0], BLOCKS);
    store(b, 0, 0, b->keys[1], BLOCKS);
    stream(b, 0, 0, BT_STREAM_DEGRADED, BT_CAUSE_REPLAY_SHORT);
    assert_int_equal(world_info(&b->w, 0).index_blocks, 2 * BLOCKS);
    store(b, 0, 0, b->keys[0], 4); /* told again: there */
    stream(b, 0, 0, BT_STREAM_PARTIAL, BT_CAUSE_AGED_OUT);
    assert_int_equal(world_info(&b->w, 0).index_blocks, 4);
}

static void what_is_aged_is_dropped_when_the_hole_is_over(void **state)
{
    struct bed b;
    const struct bt_decision *d;

    (void)state;
    bed_one_p(&b);
    over_a_hole(&b);
    d = serve(&b, b.keys[0], 0);
    assert_int_equal(hit_of(d), 4 * WORLD_BLOCK);
    assert_int_equal(d->overlap_source, BT_PREFIX_EVENTS);
    assert_int_equal(d->index_state, BT_STREAM_PARTIAL);
    assert_int_equal(d->index_cause, BT_CAUSE_AGED_OUT);
    world_fini(&b.w);
}

/* What is in use all the time is never announced anew: guessing goes on until
 * events can tell again. */
static void guesses_outlive_an_aged_hole(void **state)
{
    struct bed b;
    const struct bt_decision *d;

    (void)state;
    bed_one_p(&b);
    bed_guess(&b);
    over_a_hole(&b);
    assert_int_equal(world_info(&b.w, 0).approx_blocks, 2 * BLOCKS);
    d = serve(&b, b.keys[0], CACHED);
    assert_int_equal(hit_of(d), CACHED);
    assert_int_equal(d->overlap_source, BT_PREFIX_APPROX);
    stream(&b, 0, 0, BT_STREAM_EXACT, BT_CAUSE_REPLAYED);
    assert_int_equal(world_info(&b.w, 0).approx_blocks, 0);
    d = serve(&b, b.keys[0], 4 * WORLD_BLOCK);
    assert_int_equal(hit_of(d), 4 * WORLD_BLOCK);
    assert_int_equal(d->overlap_source, BT_PREFIX_EVENTS);
    world_fini(&b.w);
}

/* Late, but nothing was missed: guesses stand in, nothing is in doubt. */
static void a_late_stream_is_guessed_and_not_aged(void **state)
{
    struct bed b;
    const struct bt_decision *d;

    (void)state;
    bed_one_p(&b);
    bed_guess(&b);
    world_start(&b.w);
    store(&b, 0, 0, b.keys[0], BLOCKS);
    stream(&b, 0, 0, BT_STREAM_DEGRADED, BT_CAUSE_LATE);
    d = serve(&b, b.keys[0], CACHED);
    assert_int_equal(hit_of(d), CACHED);
    assert_int_equal(d->overlap_source, BT_PREFIX_APPROX);
    assert_int_equal(d->index_cause, BT_CAUSE_LATE);
    stream(&b, 0, 0, BT_STREAM_PARTIAL, BT_CAUSE_AGED_OUT);
    assert_int_equal(world_info(&b.w, 0).index_blocks, BLOCKS);
    stream(&b, 0, 0, BT_STREAM_EXACT, BT_CAUSE_FROM_START);
    d = serve(&b, b.keys[0], CACHED);
    assert_int_equal(d->overlap_source, BT_PREFIX_EVENTS);
    world_fini(&b.w);
}

/* ---- ranks ---- */

static void bed_ranks(struct bed *b)
{
    bed_one_p(b);
    b->w.workers[0].ranks = 2;
    world_start(&b->w);
    stream(b, 0, 1, BT_STREAM_EXACT, BT_CAUSE_FROM_START);
}

static void ranks_are_caches_of_their_own(void **state)
{
    struct bed b;
    const struct bt_decision *d;
    uint64_t cookie;
    struct bt_event clear = {.type = BT_EV_KV_CLEAR,
                             .u.kv_clear = {.worker = 0, .rank = 1}};

    (void)state;
    bed_ranks(&b);
    assert_int_equal(store(&b, 0, 0, b.keys[0], 3), BT_OK);
    assert_int_equal(store(&b, 0, 1, b.keys[0], 7), BT_OK);
    assert_int_equal(store(&b, 0, 2, b.keys[0], 7), BT_INVALID);
    assert_int_equal(stream(&b, 0, 2, BT_STREAM_EXACT, BT_CAUSE_NONE),
                     BT_INVALID);
    cookie = ask(&b, b.keys[0]);
    assert_int_equal(b.w.items[1].type, BT_FX_SEND_PREFILL);
    assert_true(b.w.items[1].has_rank);
    assert_int_equal(b.w.items[1].rank, 1);
    d = answer(&b, cookie, 0);
    assert_int_equal(hit_of(d), 7 * WORLD_BLOCK);
    assert_int_equal(d->overlap_rank, 1);
    assert_int_equal(world_info(&b.w, 0).index_blocks, 10);
    assert_int_equal(world_info(&b.w, 0).ranks, 2);
    assert_string_equal(world_step(&b.w, &clear), "");
    store(&b, 0, 1, b.keys[0], 2);
    cookie = ask(&b, b.keys[0]);
    assert_true(b.w.items[1].has_rank);
    assert_int_equal(b.w.items[1].rank, 0);
    d = answer(&b, cookie, 0);
    assert_int_equal(hit_of(d), 3 * WORLD_BLOCK);
    assert_int_equal(d->overlap_rank, 0);
    /* nobody has it: any rank will do */
    cookie = ask(&b, b.keys[1]);
    assert_false(b.w.items[1].has_rank);
    answer(&b, cookie, 0);
    world_fini(&b.w);
}

static void a_worker_is_as_good_as_its_worst_rank(void **state)
{
    struct bed b;
    struct bt_core_worker_info info;

    (void)state;
    bed_ranks(&b);
    stream(&b, 0, 1, BT_STREAM_DEGRADED, BT_CAUSE_BUFFER_FULL);
    stream(&b, 0, 0, BT_STREAM_PARTIAL, BT_CAUSE_JOINED_LATE);
    info = world_info(&b.w, 0);
    assert_int_equal(info.stream, BT_STREAM_DEGRADED);
    assert_int_equal(info.cause, BT_CAUSE_BUFFER_FULL);
    stream(&b, 0, 1, BT_STREAM_EXACT, BT_CAUSE_REPLAYED);
    info = world_info(&b.w, 0);
    assert_int_equal(info.stream, BT_STREAM_PARTIAL);
    assert_int_equal(info.cause, BT_CAUSE_JOINED_LATE);
    world_fini(&b.w);
}

static void depths_are_told_by_row(void **state)
{
    struct bed b;
    uint32_t depths[5 * BT_TIERS];

    (void)state;
    bed_ranks(&b);
    assert_int_equal(bt_core_row_count(b.w.core), 5);
    assert_int_equal(bt_core_row_of(b.w.core, 0, 1), 1);
    assert_int_equal(bt_core_row_of(b.w.core, 3, 0), 4);
    store(&b, 0, 1, b.keys[0], 7);
    store(&b, 3, 0, b.keys[0], 2);
    bt_core_match(b.w.core, 0, b.keys[0], BLOCKS, depths);
    for (uint32_t row = 0; row < 5; row++)
        assert_int_equal(depths[row * BT_TIERS],
                         row == 1 ? 7 : (row == 4 ? 2 : 0));
    bt_core_match(b.w.core, 1, b.keys[0], BLOCKS, depths);
    for (uint32_t i = 0; i < 5 * BT_TIERS; i++)
        assert_int_equal(depths[i], 0);
    world_fini(&b.w);
}

/* One rank is not believed, the other is: the guess and the events of each. */
static void ranks_are_guessed_apart(void **state)
{
    struct bed b;
    const struct bt_decision *d;
    uint64_t cookie;

    (void)state;
    bed_one_p(&b);
    bed_guess(&b);
    b.w.workers[0].ranks = 2;
    world_start(&b.w); /* rank 1 stays absent */
    store(&b, 0, 0, b.keys[0], 4);
    d = serve(&b, b.keys[0], 0);
    assert_int_equal(hit_of(d), 4 * WORLD_BLOCK);
    assert_int_equal(d->overlap_source, BT_PREFIX_EVENTS);
    assert_int_equal(d->overlap_rank, 0);
    assert_int_equal(d->index_state, BT_STREAM_ABSENT); /* of rank 1 */
    assert_int_equal(world_info(&b.w, 0).approx_blocks, 0);
    store(&b, 0, 1, b.keys[0], 6);
    cookie = ask(&b, b.keys[0]);
    assert_true(b.w.items[1].has_rank);
    assert_int_equal(b.w.items[1].rank, 1);
    d = answer(&b, cookie, 0);
    assert_int_equal(hit_of(d), 6 * WORLD_BLOCK);
    assert_int_equal(d->overlap_source, BT_PREFIX_APPROX);
    assert_int_equal(d->overlap_rank, 1);
    /* it was sent to that rank, which has all of it now */
    assert_int_equal(world_info(&b.w, 0).approx_blocks, BLOCKS);
    world_fini(&b.w);
}

/* Nobody tells which rank took a prompt: it is guessed on the first, and no leg
 * is bound to that. Once events have told of it, legs are. */
static void a_guess_binds_no_leg_to_a_rank(void **state)
{
    struct bed b;
    uint64_t cookie;

    (void)state;
    bed_one_p(&b);
    bed_guess(&b);
    b.w.workers[0].ranks = 2;
    world_start_pending(&b.w);
    for (uint32_t i = 0; i < 4; i++)
        world_ready(&b.w, i, 1, WORLD_BLOCK);
    serve(&b, b.keys[0], 0);
    cookie = ask(&b, b.keys[0]);
    assert_false(b.w.items[1].has_rank);
    assert_int_equal(hit_of(answer(&b, cookie, 0)), CACHED);
    stream(&b, 0, 0, BT_STREAM_EXACT, BT_CAUSE_FROM_START);
    store(&b, 0, 0, b.keys[0], 4);
    stream(&b, 0, 0, BT_STREAM_DEGRADED, BT_CAUSE_GAP);
    cookie = ask(&b, b.keys[0]);
    assert_true(b.w.items[1].has_rank);
    assert_int_equal(b.w.items[1].rank, 0);
    assert_int_equal(hit_of(answer(&b, cookie, 0)), 4 * WORLD_BLOCK);
    world_fini(&b.w);
}

/* ---- the rest of the events ---- */

static void copies_and_tiers_are_told(void **state)
{
    struct bed b;
    const uint32_t none = 0;
    struct bt_event clear = {
        .type = BT_EV_KV_CLEAR,
        .u.kv_clear = {.worker = 0, .has_tier = true, .tier = BT_TIER_HOST}};
    struct bt_event counting = {
        .type = BT_EV_KV_COUNTING,
        .u.kv_counting = {.worker = 0, .counting = BT_KV_COUNT_SET}};

    (void)state;
    bed_one_p(&b);
    world_start(&b.w);
    store(&b, 0, 0, b.keys[0], 2);
    store(&b, 0, 0, b.keys[0], 2);
    drop(&b, 0, b.keys[0][1], NULL); /* one of two */
    assert_int_equal(world_info(&b.w, 0).index_blocks, 2);
    drop(&b, 0, b.keys[0][0], &none); /* both */
    assert_int_equal(world_info(&b.w, 0).index_blocks, 1);
    assert_string_equal(world_step(&b.w, &clear), "");
    assert_int_equal(world_info(&b.w, 0).index_blocks, 1);
    clear.u.kv_clear.tier = BT_TIER_DEVICE;
    assert_string_equal(world_step(&b.w, &clear), "");
    assert_int_equal(world_info(&b.w, 0).index_blocks, 0);
    store(&b, 0, 0, b.keys[0], 2);
    store(&b, 0, 0, b.keys[0], 2);
    assert_string_equal(world_step(&b.w, &counting), "");
    assert_int_equal(b.w.status, BT_OK);
    drop(&b, 0, b.keys[0][1], NULL); /* the last one, whatever was counted */
    assert_int_equal(world_info(&b.w, 0).index_blocks, 1);
    counting.u.kv_counting.rank = 1;
    assert_string_equal(world_step(&b.w, &counting), "");
    assert_int_equal(b.w.status, BT_INVALID);
    world_fini(&b.w);
}

/* Both have the block that every prompt begins with: load decides, as if
 * nobody had it; the same block on p0 alone does steer. */
static void what_all_have_does_not_steer(void **state)
{
    struct bed b;
    const struct bt_decision *d;
    uint64_t busy;

    (void)state;
    bed_init(&b);
    world_start(&b.w);
    for (uint32_t c = 0; c < 3; c++)
        b.keys[c][0] = 7;
    store(&b, 0, 0, b.keys[0], 1);
    busy = ask(&b, b.keys[5]);
    d = serve(&b, b.keys[0], 0);
    assert_int_equal(p_of(d), 1); /* p0 is busy: 0.1 ms a token */
    assert_int_equal(d->common_tokens, 0);
    assert_int_equal(d->copies, 0);
    answer(&b, busy, 0);
    store(&b, 1, 0, b.keys[0], 1);
    store(&b, 2, 0, b.keys[0], 1); /* decodes: no candidate, but a copy */
    busy = ask(&b, b.keys[6]);
    d = serve(&b, b.keys[1], 0);
    assert_int_equal(p_of(d), 1);
    assert_int_equal(hit_of(d), WORLD_BLOCK);
    assert_int_equal(d->common_tokens, WORLD_BLOCK);
    assert_int_equal(d->copies, 3);
    assert_int_equal(p_of(answer(&b, busy, 0)), 0);
    world_fini(&b.w);
}

/* The same tokens have the same keys in two models, but their blocks are no
 * copies of each other; nor are those of two ranks. */
static void copies_are_of_workers_of_the_model(void **state)
{
    struct bed b;
    const struct bt_decision *d;

    (void)state;
    bed_one_p(&b);
    b.w.config.model_count = 2;
    b.w.models[1] = b.w.models[0];
    b.w.workers[0].ranks = 2;
    b.w.workers[3].model = 1;
    world_start(&b.w);
    stream(&b, 0, 1, BT_STREAM_EXACT, BT_CAUSE_FROM_START);
    store(&b, 0, 0, b.keys[0], 2);
    store(&b, 0, 1, b.keys[0], 2);
    store(&b, 3, 0, b.keys[0], 2);
    d = serve(&b, b.keys[0], 0);
    assert_int_equal(hit_of(d), 2 * WORLD_BLOCK);
    assert_int_equal(d->copies, 1);
    store(&b, 1, 0, b.keys[0], 2);
    d = serve(&b, b.keys[0], 0);
    assert_int_equal(d->copies, 2);
    world_fini(&b.w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wrong_hits_lose_credit_and_recover),
        cmocka_unit_test(doubt_wears_off),
        cmocka_unit_test(one_block_less_is_forgiven),
        cmocka_unit_test(silent_engines_are_not_disproved),
        cmocka_unit_test(unforeseen_hits_are_counted),
        cmocka_unit_test(last_block_of_a_full_prompt_is_not_expected),
        cmocka_unit_test(whole_requests_are_checked_at_their_end),
        cmocka_unit_test(without_events_own_placements_count),
        cmocka_unit_test(without_events_and_guesses_nothing_is_known),
        cmocka_unit_test(guesses_fit_the_worker),
        cmocka_unit_test(a_degraded_stream_is_guessed_on),
        cmocka_unit_test(a_degraded_hot_worker_loses_its_credit_and_recovers),
        cmocka_unit_test(what_is_aged_is_dropped_when_the_hole_is_over),
        cmocka_unit_test(guesses_outlive_an_aged_hole),
        cmocka_unit_test(a_late_stream_is_guessed_and_not_aged),
        cmocka_unit_test(ranks_are_caches_of_their_own),
        cmocka_unit_test(a_worker_is_as_good_as_its_worst_rank),
        cmocka_unit_test(depths_are_told_by_row),
        cmocka_unit_test(ranks_are_guessed_apart),
        cmocka_unit_test(a_guess_binds_no_leg_to_a_rank),
        cmocka_unit_test(copies_and_tiers_are_told),
        cmocka_unit_test(what_all_have_does_not_steer),
        cmocka_unit_test(copies_are_of_workers_of_the_model),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
