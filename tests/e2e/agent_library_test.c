/* The agent library over UCX on loopback: errors and limits of its calls,
 * events that are never lost, leases, cancels, keyed regions, many threads. */
#include "agent_rig.h"

#include <errno.h>
#include <pthread.h>
#include <time.h>

static uint64_t sink_refs[RIG_BLOCKS];
static uint32_t line[RIG_BLOCKS];

static void make_lines(void)
{
    for (uint32_t i = 0; i < RIG_BLOCKS; i++) {
        line[i] = i;
        sink_refs[i] = i;
    }
}

/* ---- errors and limits ---- */

static void bad_configurations(void **state)
{
    static const uint8_t key[32] = {1};
    const struct bt_agent_config good = {.api_version = BT_AGENT_API_VERSION,
                                         .name = "a"};
    struct bt_agent_config c[8];
    char error[200];
    struct bt_agent *agent = NULL;
    char long_name[80];

    (void)state;
    (void)key;
    memset(long_name, 'x', sizeof(long_name));
    long_name[79] = '\0';
    for (size_t i = 0; i < 8; i++)
        c[i] = good;
    c[0].api_version = 99;
    c[1].name = NULL;
    c[2].name = long_name;
    c[3].listen = "0.0.0.0"; /* no key */
    c[4].rail_count = 9;
    c[5].fabric = "no such fabric at all";
    c[6].fabric = "carrier";
    c[7].listen = "127.0.0.1";
    c[7].pulls_max = 1u << 30;
    for (size_t i = 0; i < 8; i++) {
        error[0] = '\0';
        assert_int_equal(bt_agent_open(&c[i], &agent, error, sizeof(error)),
                         BT_INVALID);
        assert_true(error[0] != '\0');
        assert_null(agent);
    }
}

static void bad_calls(void **state)
{
    struct side a;
    struct bt_agent_region r;
    uint32_t out = 77;
    uint64_t id = 77;
    char error[200] = "";
    const uint32_t outside = RIG_BLOCKS;
    const uint32_t twice[2] = {3, 3};
    char long_id[BT_KV_REQUEST_MAX + 2];

    (void)state;
    rig_side(&a, "a", NULL);
    r = rig_region(&a);
    assert_int_equal(bt_agent_region(a.agent, &r, &out, error, sizeof(error)),
                     BT_INVALID); /* the name is there */
    r.name = "other";
    r.base = NULL;
    assert_int_equal(bt_agent_region(a.agent, &r, &out, error, sizeof(error)),
                     BT_INVALID);
    assert_int_equal(out, 77);

    assert_int_equal(rig_publish(&a, "r", &outside, 1, NULL), BT_INVALID);
    assert_int_equal(rig_publish(&a, "r", twice, 2, NULL), BT_INVALID);
    assert_int_equal(rig_publish(&a, "", line, 1, NULL), BT_INVALID);
    assert_int_equal(rig_publish(&a, "r", line, 1, NULL), BT_OK);
    assert_int_equal(rig_publish(&a, "r", line, 1, NULL), BT_EXISTS);
    assert_int_equal(bt_agent_withdraw(a.agent, 5, "r"), BT_INVALID);
    assert_int_equal(bt_agent_withdraw(a.agent, 0, "q"), BT_NOT_FOUND);

    struct bt_agent_pull p = rig_pull(&a, &a, "r");
    p.remote = sink_refs;
    p.local = &outside;
    p.count = 1;
    assert_int_equal(bt_agent_pull(a.agent, &p, &id), BT_INVALID);
    p.local = line;
    p.region = 9;
    assert_int_equal(bt_agent_pull(a.agent, &p, &id), BT_INVALID);
    p.region = 0;
    p.deadline_ns = 0;
    assert_int_equal(bt_agent_pull(a.agent, &p, &id), BT_INVALID);
    p.deadline_ns = 1;
    memset(long_id, 'i', sizeof(long_id) - 1);
    long_id[sizeof(long_id) - 1] = '\0';
    p.request_id = long_id;
    assert_int_equal(bt_agent_pull(a.agent, &p, &id), BT_INVALID);
    p.request_id = "r";
    p.count = 65537;
    assert_int_equal(bt_agent_pull(a.agent, &p, &id), BT_LIMIT);
    assert_int_equal(id, 77);
    bt_agent_cancel(a.agent, 0x123456789aULL); /* of nobody */
    bt_agent_answer(a.agent, 3, BT_OK, NULL);
    assert_null(bt_agent_api(99));
    rig_close(&a);
}

static void regions_are_bounded(void **state)
{
    struct side a;
    char error[200] = "", name[16];
    uint32_t out = 0;

    (void)state;
    rig_side(&a, "a", NULL);
    for (uint32_t i = 1; i <= 16; i++) {
        struct bt_agent_region r = rig_region(&a);

        snprintf(name, sizeof(name), "kv%u", i);
        r.name = name;
        r.serve = BT_AGENT_SERVE_OPEN;
        assert_int_equal(
            bt_agent_region(a.agent, &r, &out, error, sizeof(error)),
            i < 16 ? BT_OK : BT_LIMIT);
    }
    assert_int_equal(out, 15);
    rig_close(&a);
}

/* ---- moving ---- */

static void pull_moves_bytes(void **state)
{
    struct side a, b;
    struct bt_agent_event e;
    struct bt_agent_stats stats;
    uint64_t id = 0;
    int owner = 0, lease = 0;

    (void)state;
    rig_side(&a, "a", NULL);
    rig_side(&b, "b", NULL);
    rig_fill(&a, 1);
    assert_int_equal(rig_publish(&a, "r", line, 64, &lease), BT_OK);
    struct bt_agent_pull p = rig_pull(&a, &b, "r");
    p.remote = sink_refs;
    p.local = line + 100;
    p.count = 64;
    p.estimate_ns = 4242;
    p.owner = &owner;
    assert_int_equal(bt_agent_pull(b.agent, &p, &id), BT_OK);
    e = rig_next(&b, BT_AGENT_PULLED);
    assert_int_equal(e.status, BT_OK);
    assert_int_equal(e.id, id);
    assert_ptr_equal(e.owner, &owner);
    assert_string_equal(e.request_id, "r");
    assert_string_equal(e.peer, "a");
    assert_int_equal(e.bytes, 64 * RIG_BYTES);
    assert_int_equal(e.rail_bytes[0], 64 * RIG_BYTES);
    assert_int_equal(e.descriptors, 1);
    assert_int_equal(e.estimate_ns, 4242);
    assert_true(e.duration_ns > 0 && e.setup_ns > 0 &&
                e.setup_ns + e.queued_ns + e.moved_ns <=
                    e.duration_ns + 1000000);
    assert_memory_equal(b.memory + 100 * RIG_BYTES, a.memory, 64 * RIG_BYTES);
    e = rig_next(&a, BT_AGENT_RELEASED);
    assert_ptr_equal(e.owner, &lease);
    assert_string_equal(e.request_id, "r");
    bt_agent_stats(b.agent, &stats);
    assert_int_equal(stats.pulls, 1);
    assert_int_equal(stats.live_pulls, 0);
    bt_agent_stats(a.agent, &stats);
    assert_int_equal(stats.released, 1);
    assert_int_equal(stats.live_leases, 0);
    rig_close(&b);
    rig_close(&a);
}

/* A path that is known is predicted; both figures come back together. */
static void predictions_come_with_ends(void **state)
{
    struct side a, b;
    struct bt_agent_path path;
    uint32_t predicted = 0;

    (void)state;
    rig_side(&a, "a", NULL);
    rig_side(&b, "b", NULL);
    for (uint32_t i = 0; i < 20; i++) {
        struct bt_agent_pull p = rig_pull(&a, &b, "r");
        uint64_t id;

        assert_int_equal(rig_publish(&a, "r", line, RIG_BLOCKS, NULL), BT_OK);
        p.remote = sink_refs;
        p.local = line;
        p.count = RIG_BLOCKS;
        assert_int_equal(bt_agent_pull(b.agent, &p, &id), BT_OK);
        struct bt_agent_event e = rig_next(&b, BT_AGENT_PULLED);
        assert_int_equal(e.status, BT_OK);
        predicted += e.predicted_ns > 0;
        (void)rig_next(&a, BT_AGENT_RELEASED);
    }
    assert_int_equal(predicted, 18); /* not the first two */
    assert_int_equal(bt_agent_paths(b.agent, &path, 1), 1);
    assert_string_equal(path.name, "a");
    assert_string_equal(path.region, "kv");
    assert_int_equal(path.pulls, 20);
    assert_int_equal(path.predicted, 18);
    assert_true(path.rate_bytes_per_s > 0);
    assert_true(path.error_p95 >= path.error_median);
    rig_close(&b);
    rig_close(&a);
}

static void refusals(void **state)
{
    struct side a, b;
    struct bt_agent_event e;
    uint64_t id = 0;

    (void)state;
    rig_side(&a, "a", NULL);
    rig_side(&b, "b", NULL);
    struct bt_agent_pull p = rig_pull(&a, &b, "nobody");
    p.remote = sink_refs;
    p.local = line;
    p.count = 2;
    assert_int_equal(bt_agent_pull(b.agent, &p, &id), BT_OK);
    assert_int_equal(rig_next(&b, BT_AGENT_PULLED).status, BT_NOT_FOUND);
    assert_int_equal(rig_publish(&a, "r", line, 1, NULL), BT_OK);
    p.request_id = "r"; /* block 1 is not in it */
    assert_int_equal(bt_agent_pull(b.agent, &p, &id), BT_OK);
    assert_int_equal(rig_next(&b, BT_AGENT_PULLED).status, BT_NOT_FOUND);
    bt_agent_expire(a.agent, a.region);
    e = rig_next(&a, BT_AGENT_EXPIRED);
    assert_string_equal(e.request_id, "r");
    p.count = 1;
    assert_int_equal(bt_agent_pull(b.agent, &p, &id), BT_OK);
    assert_int_equal(rig_next(&b, BT_AGENT_PULLED).status, BT_LEASE_EXPIRED);
    p.remote_region = "elsewhere";
    assert_int_equal(bt_agent_pull(b.agent, &p, &id), BT_OK);
    assert_true(rig_next(&b, BT_AGENT_PULLED).status != BT_OK);
    p.remote_region = NULL;
    p.host = "no such host";
    assert_int_equal(bt_agent_pull(b.agent, &p, &id), BT_OK);
    assert_int_equal(rig_next(&b, BT_AGENT_PULLED).status, BT_INVALID);
    rig_close(&b);
    rig_close(&a);
}

static void lease_times(void **state)
{
    struct side a;
    struct bt_agent_publication p = {
        .request_id = "short", .blocks = line, .count = 1, .lease_ns = 1000000};

    (void)state;
    rig_side(&a, "a", NULL);
    assert_int_equal(bt_agent_publish(a.agent, &p), BT_OK);
    assert_string_equal(rig_next(&a, BT_AGENT_EXPIRED).request_id, "short");
    assert_int_equal(rig_publish(&a, "long", line, 1, NULL), BT_OK);
    assert_int_equal(bt_agent_withdraw(a.agent, a.region, "long"), BT_OK);
    assert_string_equal(rig_next(&a, BT_AGENT_WITHDRAWN).request_id, "long");
    rig_close(&a);
}

/* ---- limits under load ---- */

/* More ends than the event ring holds, nobody fetching: none is lost. */
static void full_ring_loses_nothing(void **state)
{
    static bool seen[3000];
    const struct bt_agent_config limits = {.leases_max = 3000};
    struct side a;
    uint32_t count = 0;
    char id[32];

    (void)state;
    rig_side(&a, "a", &limits);
    for (uint32_t i = 0; i < 3000; i++) {
        snprintf(id, sizeof(id), "r%u", i);
        assert_int_equal(
            rig_publish(&a, id, line + i % RIG_BLOCKS, 1, seen + i), BT_OK);
    }
    assert_int_equal(rig_publish(&a, "one more", line, 1, NULL), BT_LIMIT);
    for (uint32_t i = 0; i < 3000; i++) {
        snprintf(id, sizeof(id), "r%u", i);
        assert_int_equal(bt_agent_withdraw(a.agent, a.region, id), BT_OK);
    }
    while (count < 3000) {
        struct bt_agent_event events[32];
        size_t n = rig_events(&a, events, 32);

        for (size_t i = 0; i < n; i++) {
            bool *mark = events[i].owner;

            assert_int_equal(events[i].kind, BT_AGENT_WITHDRAWN);
            assert_false(*mark);
            *mark = true;
        }
        count += (uint32_t)n;
    }
    rig_close(&a);
}

#define PULLS_MAX 8u

/* Ended pulls whose events nobody fetches keep their places. */
static void pulls_are_bounded(void **state)
{
    const struct bt_agent_config limits = {.pulls_max = PULLS_MAX};
    struct side a, b;
    uint64_t id = 0;
    uint32_t started = 0;

    (void)state;
    rig_side(&a, "a", NULL);
    rig_side(&b, "b", &limits);
    struct bt_agent_pull p = rig_pull(&a, &b, "nobody");
    p.remote = sink_refs;
    p.local = line;
    p.count = 1;
    p.port = 1; /* nobody listens: they wait for the connection */
    for (uint32_t i = 0; i < 4 * PULLS_MAX; i++) {
        p.local = line + i;
        enum bt_status status = bt_agent_pull(b.agent, &p, &id);

        assert_true(status == BT_OK || status == BT_LIMIT);
        started += status == BT_OK;
    }
    assert_true(started >= PULLS_MAX);
    for (uint32_t i = 0; i < started; i++)
        assert_true(rig_next(&b, BT_AGENT_PULLED).status != BT_OK);
    rig_close(&b);
    rig_close(&a);
}

#define THREADS 4u
#define EACH    250u

struct caller {
    struct side *from, *to;
    uint32_t index;
    const char *fault;
};

/* 250 pulls, each of one block under a lease of its own. */
static void *call_all(void *arg)
{
    struct caller *c = arg;
    const struct timespec nap = {.tv_nsec = 200000};
    char id[32];

    for (uint32_t i = 0; i < EACH; i++) {
        struct bt_agent_pull p = rig_pull(c->from, c->to, id);
        uint32_t block = c->index * EACH + i;
        const uint64_t ref = block;
        uint64_t pull;
        enum bt_status status;

        snprintf(id, sizeof(id), "t%u-%u", c->index, i);
        if (rig_publish(c->from, id, &block, 1, NULL) != BT_OK)
            c->fault = "publish";
        p.remote = &ref;
        p.local = &block;
        p.count = 1;
        p.owner = (void *)(uintptr_t)(c->index * EACH + i + 1);
        while ((status = bt_agent_pull(c->to->agent, &p, &pull)) == BT_LIMIT)
            nanosleep(&nap, NULL);
        if (status != BT_OK)
            c->fault = "pull";
    }
    return NULL;
}

static void many_callers(void **state)
{
    static uint8_t ended[THREADS * EACH + 1];
    struct side a, b;
    struct caller callers[THREADS];
    pthread_t threads[THREADS];
    uint32_t left = THREADS * EACH;

    (void)state;
    memset(ended, 0, sizeof(ended));
    rig_side(&a, "a", NULL);
    rig_side(&b, "b", NULL);
    rig_fill(&a, 7);
    for (uint32_t i = 0; i < THREADS; i++) {
        callers[i] = (struct caller){&a, &b, i, NULL};
        assert_int_equal(
            pthread_create(&threads[i], NULL, call_all, &callers[i]), 0);
    }
    while (left > 0) {
        struct bt_agent_event events[32];
        size_t n = rig_events(&b, events, 32);

        for (size_t i = 0; i < n; i++) {
            if (events[i].kind != BT_AGENT_PULLED)
                continue;
            uintptr_t mark = (uintptr_t)events[i].owner;

            assert_int_equal(events[i].status, BT_OK);
            assert_int_equal(ended[mark]++, 0);
            left--;
        }
    }
    for (uint32_t i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        if (callers[i].fault != NULL)
            fail_msg("thread %u: %s", i, callers[i].fault);
    }
    assert_memory_equal(b.memory, a.memory, (size_t)THREADS * EACH * RIG_BYTES);
    rig_close(&b);
    rig_close(&a);
}

/* ---- cancel and close ---- */

static void cancel_under_way(void **state)
{
    const struct bt_agent_config config = {.chunk_bytes = 4096};
    struct side a, b;
    uint64_t ids[3];

    (void)state;
    rig_side(&a, "a", NULL);
    rig_side(&b, "b", &config);
    assert_int_equal(bt_agent_pace(b.agent, "a", 100000, 0, "slow"), BT_OK);
    assert_int_equal(bt_agent_pace(b.agent, "a", 100000, 0, "slow"),
                     BT_DUPLICATE);
    assert_int_equal(rig_publish(&a, "r", line, RIG_BLOCKS, NULL), BT_OK);
    for (uint32_t i = 0; i < 3; i++) { /* 2 s each at that pace */
        struct bt_agent_pull p = rig_pull(&a, &b, "r");

        p.remote = sink_refs;
        p.local = line + i * 50;
        p.count = 50;
        assert_int_equal(bt_agent_pull(b.agent, &p, &ids[i]), BT_OK);
    }
    for (uint32_t i = 0; i < 2; i++) {
        bt_agent_cancel(b.agent, ids[i]);
        bt_agent_cancel(b.agent, ids[i]);
    }
    for (uint32_t i = 0; i < 2; i++) {
        struct bt_agent_event e = rig_next(&b, BT_AGENT_PULLED);

        assert_int_equal(e.status, BT_CANCELLED);
        assert_true(e.id == ids[0] || e.id == ids[1]);
        bt_agent_cancel(b.agent, e.id); /* stale */
    }
    rig_close(&b); /* with the third under way */
    rig_close(&a);
}

/* ---- keyed ---- */

static void keyed_region_asks(void **state)
{
    struct side a, b;
    struct bt_agent_region r;
    struct bt_agent_event e;
    const uint64_t keys[3] = {0xfedcba9876543210u, 7, 0x100000000u};
    const uint32_t where[3] = {200, 3, 77};
    char error[200];
    uint32_t region = 0;
    uint64_t id;

    (void)state;
    rig_side(&a, "a", NULL);
    rig_side(&b, "b", NULL);
    rig_fill(&a, 5);
    r = rig_region(&a);
    r.name = "pool";
    r.serve = BT_AGENT_SERVE_KEYED;
    assert_int_equal(bt_agent_region(a.agent, &r, &region, error, 200), BT_OK);
    struct bt_agent_pull p = rig_pull(&a, &b, "k");
    p.remote_region = "pool";
    p.remote = keys;
    p.local = line;
    p.count = 3;
    assert_int_equal(bt_agent_pull(b.agent, &p, &id), BT_OK);
    e = rig_next(&a, BT_AGENT_ASKED);
    assert_int_equal(e.region, region);
    assert_string_equal(e.request_id, "k");
    assert_string_equal(e.peer, "b");
    assert_int_equal(e.ref_count, 3);
    assert_memory_equal(e.refs, keys, sizeof(keys));
    bt_agent_answer(a.agent, e.id, BT_OK, where);
    bt_agent_answer(a.agent, e.id, BT_NOT_FOUND, NULL); /* one counts */
    assert_int_equal(rig_next(&b, BT_AGENT_PULLED).status, BT_OK);
    for (uint32_t i = 0; i < 3; i++)
        assert_memory_equal(b.memory + i * RIG_BYTES,
                            a.memory + where[i] * RIG_BYTES, RIG_BYTES);
    assert_int_equal(rig_next(&a, BT_AGENT_LEFT).id, e.id);
    assert_int_equal(bt_agent_pull(b.agent, &p, &id), BT_OK);
    e = rig_next(&a, BT_AGENT_ASKED);
    bt_agent_answer(a.agent, e.id, BT_NOT_FOUND, NULL);
    assert_int_equal(rig_next(&b, BT_AGENT_PULLED).status, BT_NOT_FOUND);
    /* a block outside the region */
    const uint32_t bad[3] = {0, 1, RIG_BLOCKS};
    assert_int_equal(bt_agent_pull(b.agent, &p, &id), BT_OK);
    e = rig_next(&a, BT_AGENT_ASKED);
    bt_agent_answer(a.agent, e.id, BT_OK, bad);
    assert_true(rig_next(&b, BT_AGENT_PULLED).status != BT_OK);
    assert_int_equal(rig_next(&a, BT_AGENT_LEFT).id, e.id);
    /* never answered: the puller's deadline ends it, and close frees it */
    p.deadline_ns = 300000000;
    assert_int_equal(bt_agent_pull(b.agent, &p, &id), BT_OK);
    (void)rig_next(&a, BT_AGENT_ASKED);
    assert_int_equal(rig_next(&b, BT_AGENT_PULLED).status, BT_TIMEOUT);
    rig_close(&b);
    rig_close(&a);
}

/* ---- keys ---- */

static void wrong_key_is_refused(void **state)
{
    static const uint8_t keys[2][32] = {{1, 2, 3}, {1, 2, 4}};
    const uint8_t *const pairs[4][2] = {{keys[0], keys[0]},
                                        {keys[0], keys[1]},
                                        {keys[0], NULL},
                                        {NULL, keys[0]}};

    (void)state;
    for (uint32_t i = 0; i < 4; i++) {
        struct bt_agent_config ca = {.key = pairs[i][0]};
        struct bt_agent_config cb = {.key = pairs[i][1]};
        struct bt_agent_stats stats;
        struct side a, b;
        uint64_t id;

        rig_side(&a, "a", &ca);
        rig_side(&b, "b", &cb);
        rig_fill(&a, 3);
        assert_int_equal(rig_publish(&a, "r", line, 8, NULL), BT_OK);
        struct bt_agent_pull p = rig_pull(&a, &b, "r");
        p.remote = sink_refs;
        p.local = line;
        p.count = 8;
        p.deadline_ns = 3000000000LL;
        assert_int_equal(bt_agent_pull(b.agent, &p, &id), BT_OK);
        struct bt_agent_event e = rig_next(&b, BT_AGENT_PULLED);
        assert_true((e.status == BT_OK) == (i == 0));
        if (i == 0) {
            assert_memory_equal(b.memory, a.memory, 8 * RIG_BYTES);
        } else {
            assert_int_equal(b.memory[0], 0);
            assert_true(e.detail[0] != '\0');
            e = rig_next(&a, BT_AGENT_REFUSED);
            assert_string_equal(e.peer, "b");
            bt_agent_stats(a.agent, &stats);
            assert_true(stats.refused_auth >= 1);
        }
        rig_close(&b);
        rig_close(&a);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_configurations),
        cmocka_unit_test(bad_calls),
        cmocka_unit_test(regions_are_bounded),
        cmocka_unit_test(pull_moves_bytes),
        cmocka_unit_test(predictions_come_with_ends),
        cmocka_unit_test(refusals),
        cmocka_unit_test(lease_times),
        cmocka_unit_test(full_ring_loses_nothing),
        cmocka_unit_test(pulls_are_bounded),
        cmocka_unit_test(many_callers),
        cmocka_unit_test(cancel_under_way),
        cmocka_unit_test(keyed_region_asks),
        cmocka_unit_test(wrong_key_is_refused),
    };

    setenv("UCX_NET_DEVICES", "lo", 0); /* nothing leaves the machine */
    make_lines();
    fabric = argc > 1 ? argv[1] : NULL;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
