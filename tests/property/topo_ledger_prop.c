/* Random bookings, fetches, changes of mind and releases over a network that
 * knows most workers: every sum and every link equals a naive recount, and the
 * end is empty (cost-models.md section 21, invariant 9). */
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

#define WORKERS  5
#define PLACED   4 /* the last one sits on no node */
#define REQUESTS 20
#define OPS      60000

static struct bt_booking bookings[REQUESTS];

static struct {
    void *memory;
    const struct bt_topology *topology;
    struct bt_network *network;
    struct bt_ledger *ledger;
} s;

/* Rates so low that the model ends few flows by itself. */
static void start(void)
{
    struct bt_topology_node nodes[PLACED];
    struct bt_topology_worker workers[WORKERS];
    struct bt_topology_spec spec = {.nodes = nodes,
                                    .node_count = PLACED,
                                    .workers = workers,
                                    .worker_count = WORKERS};
    struct bt_network_limits of_network = {.flows_max = 2 * REQUESTS};
    struct bt_ledger_limits limits = {.workers_max = WORKERS,
                                      .requests_max = REQUESTS};
    const size_t size = 1 << 20;
    struct bt_arena arena;

    memset(workers, 0, sizeof(workers));
    for (uint32_t i = 0; i < PLACED; i++) {
        nodes[i] =
            (struct bt_topology_node){NULL, BT_LINK_NONE, 1, 1, false, 0};
        workers[i].node = i;
    }
    workers[PLACED].node = BT_LINK_NONE;
    memset(bookings, 0, sizeof(bookings));
    s.memory = calloc(1, size);
    assert_non_null(s.memory);
    bt_arena_init(&arena, s.memory, size);
    s.topology = of_network.topology = bt_topology_init(&arena, &spec);
    assert_non_null(s.topology);
    s.network = limits.network = bt_network_init(&arena, &of_network);
    assert_non_null(s.network);
    s.ledger = bt_ledger_init(&arena, &limits);
    assert_non_null(s.ledger);
}

struct count {
    struct bt_ledger_worker sums;
    uint32_t out, in; /* flows on its NIC */
};

static void count_hop(struct count *count, uint32_t from, uint32_t to)
{
    count[from].sums.transfers++;
    count[to].sums.transfers++;
    if (from >= PLACED || to >= PLACED)
        return;
    count[from].out++;
    count[to].in++;
}

static bool count_booking(struct count *count, const struct bt_booking *b)
{
    if (b->prefill_held) {
        count[b->p].sums.prefill_tokens += b->prefill_tokens;
        count[b->p].sums.prefill_requests++;
    }
    if (b->decode_held) {
        count[b->d].sums.decode_tokens += b->decode_tokens;
        count[b->d].sums.decode_requests++;
    }
    if (b->transfer_held)
        count_hop(count, b->p, b->d);
    if (b->fetch_held)
        count_hop(count, b->fetch_from, b->p);
    assert_true(!b->fetch_held || b->prefill_held);
    return b->prefill_held || b->decode_held || b->transfer_held;
}

static void recount(void)
{
    struct count want[WORKERS] = {{{0}, 0, 0}};
    bool held = false;

    for (uint32_t i = 0; i < REQUESTS; i++)
        held |= count_booking(want, &bookings[i]);
    for (uint32_t w = 0; w < WORKERS; w++) {
        struct bt_ledger_worker got;

        bt_ledger_worker_get(s.ledger, w, &got);
        assert_int_equal(got.prefill_tokens, want[w].sums.prefill_tokens);
        assert_int_equal(got.prefill_requests, want[w].sums.prefill_requests);
        assert_int_equal(got.decode_tokens, want[w].sums.decode_tokens);
        assert_int_equal(got.decode_requests, want[w].sums.decode_requests);
        assert_int_equal(got.transfers, want[w].sums.transfers);
        if (w >= PLACED)
            continue;
        assert_int_equal(
            bt_network_flows_on(s.network, bt_topology_nic_out(s.topology, w)),
            want[w].out);
        assert_int_equal(
            bt_network_flows_on(s.network, bt_topology_nic_in(s.topology, w)),
            want[w].in);
    }
    assert_int_equal(bt_ledger_is_empty(s.ledger), !held);
}

/* At least 1 GiB at 1 byte a second: it does not end by itself. */
static uint64_t draw_bytes(struct bt_rng *rng)
{
    return bt_rng_below(rng, 4) ? (1 << 30) + bt_rng_below(rng, 1 << 20) : 0;
}

static void book(struct bt_rng *rng, uint32_t i, int64_t now)
{
    uint32_t p = (uint32_t)bt_rng_below(rng, WORKERS + 1);

    bt_ledger_book(s.ledger, &bookings[i], now,
                   p == WORKERS ? BT_PLACE_NONE : p,
                   (uint32_t)bt_rng_below(rng, WORKERS), i,
                   bt_rng_below(rng, 1000), (int64_t)bt_rng_below(rng, 100000),
                   draw_bytes(rng), bt_rng_below(rng, 5000));
    if (bt_rng_below(rng, 2))
        bt_ledger_book_fetch(s.ledger, &bookings[i], now,
                             (uint32_t)bt_rng_below(rng, WORKERS),
                             draw_bytes(rng));
}

static void change(struct bt_rng *rng, uint32_t i, int64_t now)
{
    struct bt_booking *b = &bookings[i];
    uint32_t p = b->p;

    switch (bt_rng_below(rng, 5)) {
    case 0:
        bt_ledger_prefill_done(s.ledger, b, now);
        break;
    case 1:
        bt_ledger_transfer_done(s.ledger, b, now);
        break;
    case 2:
        bt_ledger_decode_done(s.ledger, b);
        break;
    case 3:
        bt_ledger_rebook_decode(s.ledger, b, now,
                                (uint32_t)bt_rng_below(rng, WORKERS),
                                draw_bytes(rng));
        assert_int_equal(b->p, p);
        break;
    default:
        bt_ledger_release_all(s.ledger, b, now);
        break;
    }
}

static void random_life(void **state)
{
    const uint64_t seed = 8004;
    struct bt_rng rng;
    int64_t now = 0;

    (void)state;
    print_message("seed %llu\n", (unsigned long long)seed);
    bt_rng_seed(&rng, seed);
    start();
    for (uint32_t n = 0; n < OPS; n++) {
        uint32_t i = (uint32_t)bt_rng_below(&rng, REQUESTS);
        const struct bt_booking *b = &bookings[i];

        now += (int64_t)bt_rng_below(&rng, 50000);
        if (b->prefill_held || b->decode_held || b->transfer_held)
            change(&rng, i, now);
        else
            book(&rng, i, now);
        recount();
    }
    for (uint32_t i = 0; i < REQUESTS; i++)
        bt_ledger_release_all(s.ledger, &bookings[i], now);
    recount();
    assert_true(bt_ledger_is_empty(s.ledger));
    assert_true(bt_network_is_empty(s.network));
    free(s.memory);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_life),
    };

    return cmocka_run_group_tests_name("ledger_network_random", tests, NULL,
                                       NULL);
}
