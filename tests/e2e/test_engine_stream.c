/* KV events of an engine as a subscriber sees them: live, replayed, in both
 * encodings, and that they add up to what the engine holds. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <zmq.h>

#include "baton/orchestrator/kv_events.h"
#include "engine_rig.h"

#define HELD_MAX 256

/* Engine hashes with their number of copies. */
struct view {
    uint64_t hashes[HELD_MAX];
    int copies[HELD_MAX];
    size_t count;
    uint64_t stored, removed, cleared, batches, next;
    uint32_t block_tokens;
};

static int *copies_of(struct view *v, uint64_t hash)
{
    size_t i = 0;
    while (i < v->count && v->hashes[i] != hash) {
        i++;
    }
    if (i == v->count) {
        assert_true(v->count < HELD_MAX);
        v->hashes[v->count++] = hash;
        v->copies[i] = 0;
    }
    return &v->copies[i];
}

static void on_event(void *arg, const struct bt_kv_event *event)
{
    struct view *v = arg;
    switch (event->type) {
    case BT_KV_STORED:
        v->block_tokens = event->store.block_tokens;
        for (size_t i = 0; i < event->store.hash_count; i++) {
            (*copies_of(v, event->store.hashes[i]))++;
            v->stored++;
        }
        if (event->store.has_parent) { /* never an orphan */
            assert_true(*copies_of(v, event->store.parent) > 0);
        }
        break;
    case BT_KV_REMOVED:
        for (size_t i = 0; i < event->hash_count; i++) {
            assert_true((*copies_of(v, event->hashes[i]))-- > 0);
            v->removed++;
        }
        break;
    case BT_KV_CLEARED:
        v->count = 0;
        v->stored = v->removed = 0;
        v->cleared++;
        break;
    }
}

static uint64_t be64(const unsigned char *in)
{
    uint64_t v = 0;
    for (int i = 0; i < 8; i++) {
        v = v << 8 | in[i];
    }
    return v;
}

/* Receive one message of frames; 0 on time-out. */
static int receive(void *socket, zmq_msg_t *frames, int max)
{
    int n = 0, more = 1;
    while (more) {
        assert_true(n < max);
        zmq_msg_init(&frames[n]);
        if (zmq_msg_recv(&frames[n], socket, 0) < 0) {
            zmq_msg_close(&frames[n]);
            return 0;
        }
        more = zmq_msg_more(&frames[n++]);
    }
    return n;
}

static void apply(struct view *v, const void *payload, size_t bytes)
{
    static uint64_t hashes[4096], mm[64];
    static uint32_t tokens[65536];
    static uint16_t per_block[4096];
    static uint32_t remaining[4096];
    struct bt_kv_scratch scratch = {hashes, 4096,      tokens, 65536,    mm,
                                    64,     per_block, 4096,   remaining};
    struct bt_kv_batch_stats stats;
    assert_int_equal(
        bt_kv_batch_decode(payload, bytes, &scratch, &stats, on_event, v),
        BT_OK);
    assert_int_equal(stats.skipped, 0);
    assert_int_equal(stats.unknown_tags, 0);
    v->batches++;
}

/* All batches from `start` through the replay socket. */
static void replay(void *context, const struct rig *e, uint64_t start,
                   struct view *v)
{
    unsigned char from[8] = {0};
    zmq_msg_t f[4];
    int timeout = 5000, linger = 0;
    void *dealer = zmq_socket(context, ZMQ_DEALER);
    from[7] = (unsigned char)start;
    v->next = start;
    zmq_setsockopt(dealer, ZMQ_RCVTIMEO, &timeout, sizeof(timeout));
    zmq_setsockopt(dealer, ZMQ_LINGER, &linger, sizeof(linger));
    assert_int_equal(zmq_connect(dealer, e->replay), 0);
    zmq_send(dealer, "", 0, ZMQ_SNDMORE);
    zmq_send(dealer, from, 8, 0);
    for (bool end = false; !end;) {
        assert_int_equal(receive(dealer, f, 4), 4);
        assert_int_equal(zmq_msg_size(&f[0]), 0);
        uint64_t seq = be64(zmq_msg_data(&f[2]));
        end = seq == UINT64_MAX;
        if (!end) {
            assert_int_equal(seq, v->next++);
            assert_int_equal(zmq_msg_size(&f[1]), strlen("kv-events"));
            apply(v, zmq_msg_data(&f[3]), zmq_msg_size(&f[3]));
        } else {
            assert_int_equal(zmq_msg_size(&f[3]), 0);
        }
        for (int i = 0; i < 4; i++) {
            zmq_msg_close(&f[i]);
        }
    }
    zmq_close(dealer);
}

static void ask(const struct rig *e, unsigned int variant)
{
    char prompt[512], body[2048];
    make_prompt(prompt, 400, variant);
    body_plain(body, sizeof(body), prompt, 40);
    struct answer a = rig_call(e, "/v1/completions", body);
    assert_int_equal(a.status, 200);
    answer_free(&a);
}

static long long copies_held(const struct view *v)
{
    long long sum = 0;
    for (size_t i = 0; i < v->count; i++) {
        sum += v->copies[i];
    }
    return sum;
}

/* Prompts that overflow the pool: what events add up to is what is cached. */
static void adds_up(enum bt_engine_event_form form)
{
    struct rig e;
    struct bt_engine_config c;
    static struct view v;
    memset(&v, 0, sizeof(v));
    void *context = zmq_ctx_new();
    rig_config(&c, "e0");
    c.event_form = form;
    rig_start(&e, &c);
    for (unsigned int i = 0; i < 6; i++) {
        ask(&e, i % 4);
    }
    replay(context, &e, 0, &v);
    assert_int_equal(v.block_tokens, 16);
    assert_true(v.removed > 0);
    assert_int_equal(copies_held(&v), rig_state(&e, "blocks.cached"));
    assert_int_equal(v.next, rig_state(&e, "events_next"));
    struct answer a = rig_call(&e, "/reset_prefix_cache", "");
    answer_free(&a);
    replay(context, &e, v.next, &v);
    assert_int_equal(v.cleared, 1);
    assert_int_equal(copies_held(&v), 0);
    assert_int_equal(rig_state(&e, "blocks.cached"), 0);
    rig_stop(&e);
    zmq_ctx_term(context);
}

static void arrays_add_up(void **state)
{
    (void)state;
    adds_up(BT_ENGINE_EVENTS_ARRAY);
}

static void maps_add_up(void **state)
{
    (void)state;
    adds_up(BT_ENGINE_EVENTS_MAP);
}

static void *subscribe(void *context, const struct rig *e)
{
    int timeout = 200, linger = 0;
    void *sub = zmq_socket(context, ZMQ_SUB);
    zmq_setsockopt(sub, ZMQ_RCVTIMEO, &timeout, sizeof(timeout));
    zmq_setsockopt(sub, ZMQ_LINGER, &linger, sizeof(linger));
    zmq_setsockopt(sub, ZMQ_SUBSCRIBE, "", 0);
    assert_int_equal(zmq_connect(sub, e->events), 0);
    return sub;
}

/* One live batch; false on time-out. */
static bool live(void *sub, uint64_t *seq_out)
{
    zmq_msg_t f[3];
    if (receive(sub, f, 3) == 0) {
        return false;
    }
    assert_int_equal(zmq_msg_size(&f[1]), 8);
    *seq_out = be64(zmq_msg_data(&f[1]));
    for (int i = 0; i < 3; i++) {
        zmq_msg_close(&f[i]);
    }
    return true;
}

/* A subscriber joins late; from then on it sees what a fault lets through. */
static void live_and_faults(void **state)
{
    (void)state;
    struct rig e;
    struct bt_engine_config c;
    uint64_t seq = 0, again = 0;
    unsigned int variant = 10;
    void *context = zmq_ctx_new();
    rig_config(&c, "e0");
    rig_start(&e, &c);
    void *sub = subscribe(context, &e);
    bool seen = false;
    for (int tries = 0; tries < 50 && !seen; tries++) { /* slow joiner */
        ask(&e, variant++);
        seen = live(sub, &seq);
    }
    assert_true(seen);
    while (live(sub, &again)) {
        assert_int_equal(again, seq + 1);
        seq = again;
    }
    rig_fault(&e, "{\"fault\":\"events_drop\",\"factor\":100}");
    long long before = rig_state(&e, "events_next");
    ask(&e, variant++);
    assert_true(rig_state(&e, "events_next") > before);
    assert_false(live(sub, &again));
    rig_fault(&e, "{\"fault\":\"events_drop\",\"factor\":0}");
    rig_fault(&e, "{\"fault\":\"events_duplicate\",\"factor\":100}");
    before = rig_state(&e, "events_next");
    ask(&e, variant++);
    assert_true(live(sub, &seq));
    assert_int_equal(seq, before);
    assert_true(live(sub, &again));
    assert_int_equal(again, seq);
    zmq_close(sub);
    rig_stop(&e);
    zmq_ctx_term(context);
}

static void announces_another_block_size(void **state)
{
    (void)state;
    struct rig e;
    struct bt_engine_config c;
    static struct view v;
    const char *fault = "wrong_block_size:factor=4";
    memset(&v, 0, sizeof(v));
    void *context = zmq_ctx_new();
    rig_config(&c, "e0");
    c.faults = &fault;
    c.fault_count = 1;
    rig_start(&e, &c);
    ask(&e, 1);
    replay(context, &e, 0, &v);
    assert_int_equal(v.block_tokens, 64);
    rig_stop(&e);
    zmq_ctx_term(context);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(arrays_add_up),
        cmocka_unit_test(maps_add_up),
        cmocka_unit_test(live_and_faults),
        cmocka_unit_test(announces_another_block_size),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
