/* Random books and releases, in any order and repeated: sums equal a naive
 * recount, flows never exceed what was booked nor grow, and the end is empty
 * (cost-models.md section 21, invariant 9). */
#include "baton/base/rng.h"
#include "baton/planner/ledger.h"
#include "baton/planner/place.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#define WORKERS  4
#define REQUESTS 24
#define OPS      100000

struct live {
    struct bt_booking booking;
    int used;
};

static struct live requests[REQUESTS];

static void recount(const struct bt_ledger *l)
{
    struct bt_ledger_worker want[WORKERS] = {{0}};
    int held = 0;

    for (uint32_t i = 0; i < REQUESTS; i++) {
        const struct bt_booking *b = &requests[i].booking;

        if (b->prefill_held) {
            want[b->p].prefill_tokens += b->prefill_tokens;
            want[b->p].prefill_requests++;
        }
        if (b->decode_held) {
            want[b->d].decode_tokens += b->decode_tokens;
            want[b->d].decode_requests++;
        }
        if (b->transfer_held) {
            want[b->p].transfers++;
            want[b->d].transfers++;
        }
        held += b->prefill_held + b->decode_held + b->transfer_held;
    }
    for (uint32_t w = 0; w < WORKERS; w++) {
        struct bt_ledger_worker got;

        bt_ledger_worker_get(l, w, &got);
        assert_int_equal(got.prefill_tokens, want[w].prefill_tokens);
        assert_int_equal(got.prefill_requests, want[w].prefill_requests);
        assert_int_equal(got.decode_tokens, want[w].decode_tokens);
        assert_int_equal(got.decode_requests, want[w].decode_requests);
        assert_int_equal(got.transfers, want[w].transfers);
    }
    assert_int_equal(bt_ledger_is_empty(l), held == 0);
}

/* Free time of a worker: not before now plus all but the head, not after now
 * plus everything. */
static void check_free(const struct bt_ledger *l, uint32_t w, int64_t now)
{
    struct bt_ledger_worker got;
    int64_t all = 0, head = 0;

    bt_ledger_worker_get(l, w, &got);
    for (uint32_t i = 0; i < REQUESTS; i++) {
        const struct bt_booking *b = &requests[i].booking;

        if (!b->prefill_held || b->p != w)
            continue;
        all += b->prefill_cost_ns;
        if (b->prefill_prev == 0)
            head = b->prefill_cost_ns;
    }
    assert_true(got.prefill_free_ns <= now + all);
    assert_true(got.prefill_free_ns >= now + all - head);
}

static uint64_t seen_hash; /* of every look at the flows */

/* Live flows, by a walk over the busy pairs; each pair once. */
static size_t walked(const struct bt_ledger *l, int64_t now)
{
    bool met[WORKERS][WORKERS] = {{false}};
    uint32_t at = 0, p, d;
    size_t all = 0;

    while ((at = bt_ledger_busy(l, at, &p, &d)) != 0) {
        uint64_t left[REQUESTS];

        assert_false(met[p][d]);
        met[p][d] = true;
        all += bt_ledger_busy_flows(l, at, now, left, REQUESTS);
    }
    return all;
}

/* Looks at times to come: they must leave no trace. */
static void look_ahead(const struct bt_ledger *l, int64_t now)
{
    uint64_t left[REQUESTS];

    for (uint32_t p = 0; p < WORKERS; p++)
        for (uint32_t d = 0; d < WORKERS; d++)
            (void)bt_ledger_flows(l, p, d, now + 7777 * (p + 1), left,
                                  REQUESTS);
}

static void check_flows(const struct bt_ledger *l, int64_t now)
{
    size_t all = 0;

    for (uint32_t p = 0; p < WORKERS; p++) {
        for (uint32_t d = 0; d < WORKERS; d++) {
            uint64_t left[REQUESTS], sum = 0, booked = 0;
            size_t n = bt_ledger_flows(l, p, d, now, left, REQUESTS);
            size_t held = 0;

            for (size_t i = 0; i < n; i++)
                sum += left[i];
            for (uint32_t i = 0; i < REQUESTS; i++) {
                const struct bt_booking *b = &requests[i].booking;

                if (!b->transfer_held || b->p != p || b->d != d)
                    continue;
                booked += b->transfer_bytes;
                held++;
            }
            assert_true(n <= held);
            assert_true(sum <= booked);
            seen_hash = bt_mix64(seen_hash ^ sum ^ (uint64_t)n << 48);
            all += n;
        }
    }
    assert_int_equal(all, walked(l, now));
}

static void book(struct bt_ledger *l, struct bt_rng *rng, uint32_t i,
                 int64_t now)
{
    uint32_t p = (uint32_t)bt_rng_below(rng, WORKERS + 1);
    uint64_t bytes = bt_rng_below(rng, 4) ? bt_rng_below(rng, 1 << 20) : 0;

    requests[i].used = 1;
    bt_ledger_book(
        l, &requests[i].booking, now, p == WORKERS ? BT_PLACE_NONE : p,
        (uint32_t)bt_rng_below(rng, WORKERS), i, bt_rng_below(rng, 1000),
        (int64_t)bt_rng_below(rng, 100000), bytes, bt_rng_below(rng, 5000));
    check_free(l, requests[i].booking.p, now);
}

static void release(struct bt_ledger *l, struct bt_rng *rng, uint32_t i,
                    int64_t now)
{
    struct bt_booking *b = &requests[i].booking;
    int had_prefill = b->prefill_held;

    switch (bt_rng_below(rng, 4)) {
    case 0:
        bt_ledger_prefill_done(l, b, now);
        break;
    case 1:
        bt_ledger_transfer_done(l, b, now);
        break;
    case 2:
        bt_ledger_decode_done(l, b);
        break;
    default:
        bt_ledger_release_all(l, b, now);
        break;
    }
    if (had_prefill && !b->prefill_held)
        check_free(l, b->p, now);
    requests[i].used = b->prefill_held || b->transfer_held || b->decode_held;
}

/* 0 is unknown. */
static uint64_t rate_of(const void *arg, uint32_t p, uint32_t d)
{
    (void)arg;
    return p == 0 ? 0 : 1000000000ULL * d;
}

static void live(bool ahead)
{
    const struct bt_ledger_limits limits = {
        .workers_max = WORKERS, .requests_max = REQUESTS, .rate = rate_of};
    const uint64_t seed = 77001;
    size_t bytes = bt_ledger_bytes(&limits);
    void *memory = calloc(1, bytes);
    struct bt_arena arena;
    struct bt_ledger *l;
    struct bt_rng rng;
    int64_t now = 0;

    seen_hash = 0;
    memset(requests, 0, sizeof(requests));
    print_message("seed %llu\n", (unsigned long long)seed);
    assert_non_null(memory);
    bt_arena_init(&arena, memory, bytes);
    l = bt_ledger_init(&arena, &limits);
    assert_non_null(l);
    bt_rng_seed(&rng, seed);
    for (uint32_t n = 0; n < OPS; n++) {
        uint32_t i = (uint32_t)bt_rng_below(&rng, REQUESTS);

        now += (int64_t)bt_rng_below(&rng, 50000);
        if (requests[i].used)
            release(l, &rng, i, now);
        else
            book(l, &rng, i, now);
        recount(l);
        if (ahead)
            look_ahead(l, now);
        check_flows(l, now);
    }
    for (uint32_t i = 0; i < REQUESTS; i++)
        bt_ledger_release_all(l, &requests[i].booking, now);
    recount(l);
    assert_true(bt_ledger_is_empty(l));
    free(memory);
}

static void random_life(void **state)
{
    uint64_t plain;

    (void)state;
    live(false);
    plain = seen_hash;
    live(true);
    assert_true(seen_hash == plain);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_life),
    };

    return cmocka_run_group_tests_name("ledger_random", tests, NULL, NULL);
}
