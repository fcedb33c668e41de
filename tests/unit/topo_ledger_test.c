/* The ledger over a network: flows of known pairs live there, fetches and a
 * change of mind at the hand-off. */
#include "baton/planner/ledger.h"
#include "baton/planner/place.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#define WORKERS 4

static _Alignas(16) unsigned char memory[262144];

static struct {
    const struct bt_topology *topology;
    struct bt_network *network;
    struct bt_ledger *ledger;
} s;

/* Workers 0, 1, 2 on nodes with 1 byte per ns, 3 on none. */
static void start(void)
{
    static const struct bt_topology_node nodes[3] = {
        {.rack = BT_LINK_NONE, .rails = 1, .rail_bytes_per_s = 1000000000},
        {.rack = BT_LINK_NONE, .rails = 1, .rail_bytes_per_s = 1000000000},
        {.rack = BT_LINK_NONE, .rails = 1, .rail_bytes_per_s = 1000000000}};
    static const struct bt_topology_worker workers[WORKERS] = {
        {.node = 0}, {.node = 1}, {.node = 2}, {.node = BT_LINK_NONE}};
    static const struct bt_topology_spec spec = {.nodes = nodes,
                                                 .node_count = 3,
                                                 .workers = workers,
                                                 .worker_count = WORKERS};
    struct bt_network_limits of_network = {.flows_max = 16};
    struct bt_ledger_limits limits = {.workers_max = WORKERS,
                                      .requests_max = 8};
    struct bt_arena arena;

    memset(memory, 0, sizeof(memory));
    bt_arena_init(&arena, memory, sizeof(memory));
    s.topology = bt_topology_init(&arena, &spec);
    assert_non_null(s.topology);
    of_network.topology = s.topology;
    s.network = bt_network_init(&arena, &of_network);
    assert_non_null(s.network);
    limits.network = s.network;
    s.ledger = bt_ledger_init(&arena, &limits);
    assert_non_null(s.ledger);
}

static uint32_t on_ingress(uint32_t worker)
{
    return bt_network_flows_on(s.network,
                               bt_topology_nic_in(s.topology, worker));
}

static uint32_t on_egress(uint32_t worker)
{
    return bt_network_flows_on(s.network,
                               bt_topology_nic_out(s.topology, worker));
}

static struct bt_ledger_worker look(uint32_t w)
{
    struct bt_ledger_worker out;

    bt_ledger_worker_get(s.ledger, w, &out);
    return out;
}

static int64_t to_two(int64_t now, int64_t at, uint64_t bytes)
{
    return bt_network_transfer_ns(s.network, now, at, 1, 2, bytes, 1);
}

/* Prefill 300 on worker 0, then 1000 bytes to worker 2 from 300 on. */
static void transfer_lives_in_the_network(void **state)
{
    struct bt_booking b = {0};
    uint64_t left[4];

    (void)state;
    start();
    bt_ledger_book(s.ledger, &b, 0, 0, 2, 5, 10, 300, 1000, 20);
    assert_true(b.transfer_held);
    assert_int_equal(bt_ledger_flows(s.ledger, 0, 2, 0, left, 4), 0);
    assert_int_equal(on_egress(0), 1);
    assert_int_equal(on_ingress(2), 1);
    assert_int_equal(look(0).transfers + look(2).transfers, 2);
    assert_int_equal(to_two(0, 0, 200), 200); /* over before it starts */
    assert_int_equal(to_two(0, 0, 400), 800);
    bt_ledger_prefill_done(s.ledger, &b, 500); /* late: it starts now */
    assert_int_equal(to_two(500, 500, 2000), 3000);
    assert_int_equal(to_two(900, 900, 2000), 2600);
    bt_ledger_transfer_done(s.ledger, &b, 900);
    assert_int_equal(to_two(900, 900, 2000), 2000);
    assert_int_equal(on_ingress(2), 0);
    bt_ledger_release_all(s.ledger, &b, 900);
    assert_true(bt_ledger_is_empty(s.ledger));
    assert_true(bt_network_is_empty(s.network));
}

/* The second transfer follows the second prefill, and moves when the first
 * one ends late. */
static void plans_follow_the_queue(void **state)
{
    struct bt_booking b[2] = {{0}, {0}};

    (void)state;
    start();
    bt_ledger_book(s.ledger, &b[0], 0, 0, 0, 0, 1, 100, 0, 1);
    bt_ledger_book(s.ledger, &b[1], 0, 0, 2, 1, 1, 200, 1000, 1);
    assert_int_equal(b[1].transfer_start_ns, 300);
    assert_int_equal(to_two(0, 0, 300), 300);
    assert_int_equal(to_two(0, 0, 301), 602);
    bt_ledger_prefill_done(s.ledger, &b[0], 150);
    assert_int_equal(b[1].transfer_start_ns, 350);
    assert_int_equal(to_two(150, 150, 200), 200);
    assert_int_equal(to_two(150, 150, 201), 402);
    bt_ledger_release_all(s.ledger, &b[0], 150);
    bt_ledger_release_all(s.ledger, &b[1], 150);
    assert_true(bt_network_is_empty(s.network));
}

static void unknown_pairs_stay_pairs(void **state)
{
    struct bt_booking b = {0};
    uint64_t left[4];

    (void)state;
    start();
    bt_ledger_book(s.ledger, &b, 0, 0, 3, 0, 1, 100, 1000, 1);
    assert_true(b.transfer_held);
    assert_true(bt_network_is_empty(s.network));
    assert_int_equal(bt_ledger_flows(s.ledger, 0, 3, 500, left, 4), 1);
    assert_int_equal(left[0], 1000);
    bt_ledger_book_fetch(s.ledger, &b, 0, 3, 70);
    assert_int_equal(bt_ledger_flows(s.ledger, 3, 0, 500, left, 4), 1);
    assert_int_equal(left[0], 70);
    assert_int_equal(look(3).transfers, 2);
    bt_ledger_release_all(s.ledger, &b, 0);
    assert_int_equal(look(3).transfers + look(0).transfers, 0);
    assert_true(bt_ledger_is_empty(s.ledger));
}

static void a_fetch_ends_with_the_prefill(void **state)
{
    struct bt_booking b = {0};

    (void)state;
    start();
    bt_ledger_book(s.ledger, &b, 0, 0, 2, 3, 10, 300, 1000, 20);
    bt_ledger_book_fetch(s.ledger, &b, 0, 1, 500);
    assert_true(b.fetch_held);
    assert_int_equal(on_egress(1), 1);
    assert_int_equal(on_ingress(0), 1);
    assert_int_equal(look(1).transfers, 1);
    assert_int_equal(look(0).transfers, 2);
    bt_ledger_prefill_done(s.ledger, &b, 200);
    assert_false(b.fetch_held);
    assert_int_equal(on_egress(1), 0);
    assert_int_equal(look(1).transfers, 0);
    bt_ledger_release_all(s.ledger, &b, 200);
    bt_ledger_book(s.ledger, &b, 300, 0, 2, 3, 10, 300, 1000, 20);
    bt_ledger_book_fetch(s.ledger, &b, 300, 0, 500); /* own tier: no flow */
    assert_false(b.fetch_held);
    bt_ledger_book_fetch(s.ledger, &b, 300, 1, 500);
    bt_ledger_release_all(s.ledger, &b, 300);
    assert_true(bt_ledger_is_empty(s.ledger));
    assert_true(bt_network_is_empty(s.network));
}

static void another_decode_worker(void **state)
{
    struct bt_booking b = {0};

    (void)state;
    start();
    bt_ledger_book(s.ledger, &b, 0, 0, 2, 3, 10, 300, 1000, 20);
    bt_ledger_rebook_decode(s.ledger, &b, 100, 1, 600);
    assert_int_equal(b.d, 1);
    assert_int_equal(look(2).decode_tokens + look(2).decode_requests, 0);
    assert_int_equal(look(1).decode_tokens, 20);
    assert_int_equal(look(0).prefill_free_ns, 300);
    assert_int_equal(b.transfer_start_ns, 300);
    assert_int_equal(on_ingress(2), 0);
    assert_int_equal(on_ingress(1), 1);
    bt_ledger_prefill_done(s.ledger, &b, 300);
    bt_ledger_rebook_decode(s.ledger, &b, 400, 3, 50); /* to a pair */
    assert_int_equal(b.transfer_start_ns, 400);
    assert_int_equal(on_ingress(1), 0);
    assert_true(b.transfer_held);
    bt_ledger_rebook_decode(s.ledger, &b, 400, 0, 0); /* p itself */
    assert_false(b.transfer_held);
    assert_int_equal(look(0).decode_tokens, 20);
    assert_int_equal(look(3).transfers + look(0).transfers, 0);
    bt_ledger_decode_done(s.ledger, &b);
    bt_ledger_rebook_decode(s.ledger, &b, 400, 2, 9); /* over: nothing */
    assert_true(bt_ledger_is_empty(s.ledger));
    assert_true(bt_network_is_empty(s.network));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(transfer_lives_in_the_network),
        cmocka_unit_test(plans_follow_the_queue),
        cmocka_unit_test(unknown_pairs_stay_pairs),
        cmocka_unit_test(a_fetch_ends_with_the_prefill),
        cmocka_unit_test(another_decode_worker),
    };

    return cmocka_run_group_tests_name("ledger_network", tests, NULL, NULL);
}
