/* The event plane of an engine against its own word, GET /admin/blocks: own
 * keys recomputed from the events' token ids are those of the blocks that it
 * holds, in every encoding and hash form; the other wiring, replay framings and
 * a second life on the same ports. The real hash is a vector of engine-wire.md
 * 2.9.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <xxhash.h>
#include <zmq.h>

#include "baton/orchestrator/kv_events.h"
#include "baton/planner/block_hash.h"
#include "engine_rig.h"

#define HELD_MAX 512

struct held {
    uint64_t hash, own, ns;
    int copies;
};

struct view {
    struct held held[HELD_MAX];
    size_t count;
    uint64_t batches, unknown;
    char topic[160];
};

static void *context;

static struct held *find(struct view *v, uint64_t hash)
{
    for (size_t i = 0; i < v->count; i++) {
        if (v->held[i].hash == hash) {
            return &v->held[i];
        }
    }
    return NULL;
}

static void on_stored(struct view *v, const struct bt_kv_store *s)
{
    struct held *parent = s->has_parent ? find(v, s->parent) : NULL;
    uint64_t ns = parent != NULL ? parent->ns
                                 : bt_ns_seed(s->lora, s->lora_bytes, s->salt,
                                              s->salt_bytes);
    uint64_t own = parent != NULL ? parent->own : 0;
    assert_true(!s->has_parent || parent != NULL);
    for (size_t i = 0; i < s->hash_count; i++) {
        uint64_t local = bt_block_local(s->tokens + i * s->block_tokens,
                                        s->block_tokens, NULL, 0, ns);
        struct held *h = find(v, s->hashes[i]);
        own = i == 0 && parent == NULL ? local : bt_block_chain(own, local);
        if (h == NULL) {
            assert_true(v->count < HELD_MAX);
            h = &v->held[v->count++];
            *h = (struct held){.hash = s->hashes[i], .own = own, .ns = ns};
        }
        assert_int_equal(h->own, own);
        h->copies++;
    }
}

static void on_event(void *arg, const struct bt_kv_event *event)
{
    struct view *v = arg;
    switch (event->type) {
    case BT_KV_STORED:
        on_stored(v, &event->store);
        break;
    case BT_KV_REMOVED:
        for (size_t i = 0; i < event->hash_count; i++) {
            struct held *h = find(v, event->hashes[i]);
            v->unknown += h == NULL || h->copies == 0;
            if (h != NULL) {
                h->copies--;
            }
        }
        break;
    case BT_KV_CLEARED:
        v->count = 0;
        break;
    }
}

static void apply(struct view *v, const void *payload, size_t bytes)
{
    static uint64_t hashes[4096], mm[64];
    static uint32_t tokens[65536], remaining[4096];
    static uint16_t per_block[4096];
    struct bt_kv_scratch scratch = {hashes, 4096,      tokens, 65536,    mm,
                                    64,     per_block, 4096,   remaining};
    struct bt_kv_batch_stats stats;
    assert_int_equal(
        bt_kv_batch_decode(payload, bytes, &scratch, &stats, on_event, v),
        BT_OK);
    assert_int_equal(stats.skipped, 0);
    v->batches++;
}

static void *open_socket(int type, int timeout_ms)
{
    int linger = 0, hwm = 0;
    void *socket = zmq_socket(context, type);
    zmq_setsockopt(socket, ZMQ_RCVTIMEO, &timeout_ms, sizeof(timeout_ms));
    zmq_setsockopt(socket, ZMQ_LINGER, &linger, sizeof(linger));
    zmq_setsockopt(socket, ZMQ_RCVHWM, &hwm, sizeof(hwm));
    return socket;
}

/* Frames of one message; 0: none in time. */
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

static void close_frames(zmq_msg_t *frames, int count)
{
    for (int i = 0; i < count; i++) {
        zmq_msg_close(&frames[i]);
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

/* Everything from sequence 0; frames: of a reply, as a DEALER sees it. */
static void replay(const struct rig *e, int frames, struct view *v)
{
    const unsigned char from[8] = {0};
    zmq_msg_t f[4];
    void *dealer = open_socket(ZMQ_DEALER, 5000);
    assert_int_equal(zmq_connect(dealer, e->replay), 0);
    zmq_send(dealer, "", 0, ZMQ_SNDMORE);
    zmq_send(dealer, from, 8, 0);
    for (bool end = false; !end;) {
        int got = receive(dealer, f, 4);
        if (got != frames) {
            fail_msg("%d frames, not %d", got, frames);
        }
        uint64_t seq = be64(zmq_msg_data(&f[frames - 2]));
        end = seq == UINT64_MAX;
        if (!end) {
            assert_int_equal(seq, v->batches);
            apply(v, zmq_msg_data(&f[frames - 1]),
                  zmq_msg_size(&f[frames - 1]));
        }
        close_frames(f, got);
    }
    zmq_close(dealer);
}

/* ---- the truth ---- */

static int by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

static void expect_truth(const struct rig *e, const struct view *v)
{
    uint64_t keys[HELD_MAX];
    unsigned char bytes[HELD_MAX * 8];
    char hex[20];
    size_t count = 0, distinct = 0, copies = 0;
    for (size_t i = 0; i < v->count; i++) {
        if (v->held[i].copies > 0) {
            keys[count++] = v->held[i].own;
            copies += (size_t)v->held[i].copies;
        }
    }
    qsort(keys, count, sizeof(keys[0]), by_value);
    for (size_t i = 0; i < count; i++) {
        if (distinct == 0 || keys[distinct - 1] != keys[i]) {
            keys[distinct++] = keys[i];
        }
    }
    for (size_t i = 0; i < distinct * 8; i++) {
        bytes[i] = (unsigned char)(keys[i / 8] >> (8 * (i % 8)));
    }
    snprintf(hex, sizeof(hex), "%016llx",
             (unsigned long long)XXH3_64bits(bytes, distinct * 8));
    struct answer a = rig_call(e, "/admin/blocks?list=1", NULL);
    json_t *root = json_loads(a.body, 0, NULL);
    json_t *own = json_object_get(root, "own");
    assert_int_equal(json_integer_value(json_object_get(root, "copies")),
                     copies);
    assert_int_equal(json_integer_value(json_object_get(root, "distinct")),
                     distinct);
    assert_string_equal(json_string_value(json_object_get(root, "digest")),
                        hex);
    assert_int_equal(json_array_size(own), distinct);
    for (size_t i = 0; i < distinct; i++) {
        const char *text = json_string_value(json_array_get(own, i));
        assert_int_equal(strtoull(text, NULL, 16), keys[i]);
    }
    json_decref(root);
    answer_free(&a);
}

/* Prompts that overflow the pool of 64 blocks; two in three carry a salt. */
static void work(const struct rig *e)
{
    char prompt[512], body[2048];
    for (unsigned int i = 0; i < 9; i++) {
        make_prompt(prompt, 400, i % 4);
        snprintf(body, sizeof(body),
                 "{\"model\":\"demo\",\"prompt\":\"%s\",\"max_tokens\":40%s}",
                 prompt,
                 i % 3 == 0   ? ""
                 : i % 3 == 1 ? ",\"cache_salt\":\"a\""
                              : ",\"cache_salt\":\"b\"");
        struct answer a = rig_call(e, "/v1/completions", body);
        assert_int_equal(a.status, 200);
        answer_free(&a);
    }
}

static void check_form(enum bt_engine_event_form form, bool bytes, bool bare)
{
    static struct view v;
    struct rig e;
    struct bt_engine_config c;
    memset(&v, 0, sizeof(v));
    rig_config(&c, "e0");
    c.event_form = form;
    c.event_hash_bytes = bytes;
    c.replay_bare = bare;
    rig_start(&e, &c);
    work(&e);
    replay(&e, bare ? 3 : 4, &v);
    assert_int_equal(v.unknown, 0);
    assert_true(v.count > 64); /* more than the pool: some were removed */
    expect_truth(&e, &v);
    rig_stop(&e);
}

static void every_form(void **state)
{
    (void)state;
    for (int bytes = 0; bytes < 2; bytes++) {
        check_form(BT_ENGINE_EVENTS_ARRAY, bytes, false);
        check_form(BT_ENGINE_EVENTS_MAP, bytes, false);
        check_form(BT_ENGINE_EVENTS_MAP_BATCH, bytes, false);
    }
}

static void old_framing(void **state)
{
    (void)state;
    check_form(BT_ENGINE_EVENTS_MAP, false, true);
}

/* ---- vLLM's own hash ---- */

static void real_hash(void **state)
{
    (void)state;
    static struct view v;
    struct rig e;
    struct bt_engine_config c;
    char body[512];
    int used = snprintf(body, sizeof(body),
                        "{\"model\":\"demo\",\"max_tokens\":1,\"prompt\":[1");
    for (int t = 2; t <= 32; t++) {
        used += snprintf(body + used, sizeof(body) - (size_t)used, ",%d", t);
    }
    snprintf(body + used, sizeof(body) - (size_t)used, "]}");
    memset(&v, 0, sizeof(v));
    rig_config(&c, "e0");
    c.event_hash = BT_ENGINE_HASH_SHA256_CBOR;
    c.event_hash_seed = "0";
    rig_start(&e, &c);
    struct answer a = rig_call(&e, "/v1/completions", body);
    assert_int_equal(a.status, 200);
    answer_free(&a);
    work(&e);
    replay(&e, 4, &v);
    assert_int_equal(v.held[0].hash, 3236607068019569386ULL);
    assert_int_equal(v.held[1].hash, 2758186210834249151ULL);
    assert_int_equal(v.held[0].own, 0xea06fc71a5ee6e88ULL);
    assert_int_equal(v.held[1].own, 0xad01835a37dd294cULL);
    expect_truth(&e, &v);
    rig_stop(&e);
}

/* ---- wiring ---- */

static void set_timeout(void *socket, int ms)
{
    assert_int_equal(zmq_setsockopt(socket, ZMQ_RCVTIMEO, &ms, sizeof(ms)), 0);
}

/* Work until something of it comes: what was sent before the subscription had
 * arrived is lost. Leaves the first message in f. */
static void join(void *sub, const struct rig *e, zmq_msg_t *f)
{
    int tries = 0;
    set_timeout(sub, 100);
    do {
        assert_true(tries++ < 200);
        work(e);
    } while (receive(sub, f, 3) == 0);
    set_timeout(sub, 10000);
}

/* Two engines connect to one socket of ours; topics tell them apart. */
static void engines_connect(void **state)
{
    (void)state;
    static struct view views[2];
    struct rig e[2];
    struct bt_engine_config c;
    char endpoint[160], want[2][96];
    size_t size = sizeof(endpoint);
    zmq_msg_t f[3];
    void *sub = open_socket(ZMQ_SUB, 10000);
    memset(views, 0, sizeof(views));
    zmq_setsockopt(sub, ZMQ_SUBSCRIBE, "kv@", 3);
    assert_int_equal(zmq_bind(sub, "tcp://127.0.0.1:*"), 0);
    zmq_getsockopt(sub, ZMQ_LAST_ENDPOINT, endpoint, &size);
    for (int i = 0; i < 2; i++) {
        rig_config(&c, i == 0 ? "e0" : "e1");
        c.events_connect = endpoint;
        c.event_form = (enum bt_engine_event_form)i;
        rig_start(&e[i], &c);
        assert_string_equal(e[i].events, endpoint);
        snprintf(want[i], sizeof(want[i]), "kv@127.0.0.1:%u@demo", e[i].http);
    }
    for (int i = 0; i < 2; i++) {
        uint64_t seq = 0;
        join(sub, &e[i], f);
        for (bool all = false; !all;) {
            assert_int_equal(zmq_msg_size(&f[0]), strlen(want[i]));
            assert_memory_equal(zmq_msg_data(&f[0]), want[i], strlen(want[i]));
            seq = be64(zmq_msg_data(&f[1]));
            all = seq + 1 == (uint64_t)rig_state(&e[i], "events_next");
            close_frames(f, 3);
            assert_true(all || receive(sub, f, 3) == 3);
        }
        replay(&e[i], 4, &views[i]);
        expect_truth(&e[i], &views[i]);
        rig_stop(&e[i]);
    }
    zmq_close(sub);
}

static void no_replay(void **state)
{
    (void)state;
    struct rig e;
    struct bt_engine_config c;
    rig_config(&c, "e0");
    c.replay_endpoint = NULL;
    rig_start(&e, &c);
    assert_string_equal(e.replay, "-");
    work(&e);
    assert_true(rig_state(&e, "events_next") > 0);
    rig_stop(&e);
}

/* Killed without a word, back on the same three ports at once, with connections
 * of the first life still open: another engine to who looks at the sequence. */
static void second_life(void **state)
{
    (void)state;
    static struct view first, second;
    struct rig e, again;
    struct bt_engine_config c;
    char events[160], endpoint[160];
    memset(&first, 0, sizeof(first));
    memset(&second, 0, sizeof(second));
    void *sub = open_socket(ZMQ_SUB, 10000);
    zmq_msg_t f[3];
    rig_config(&c, "e0");
    rig_start(&e, &c);
    zmq_setsockopt(sub, ZMQ_SUBSCRIBE, "", 0);
    assert_int_equal(zmq_connect(sub, e.events), 0);
    join(sub, &e, f);
    close_frames(f, 3);
    replay(&e, 4, &first);
    rig_kill(&e);
    snprintf(events, sizeof(events), "%s", e.events);
    snprintf(endpoint, sizeof(endpoint), "%s", e.replay);
    c.port = (uint16_t)e.http;
    c.events_endpoint = events;
    c.replay_endpoint = endpoint;
    rig_start(&again, &c);
    assert_int_equal(again.http, e.http);
    replay(&again, 4, &second);
    assert_int_equal(second.batches, 0);
    work(&again);
    replay(&again, 4, &second);
    expect_truth(&again, &second);
    /* Same content, other handles: hashes are of the process. */
    assert_int_equal(first.held[0].own, second.held[0].own);
    assert_int_not_equal(first.held[0].hash, second.held[0].hash);
    /* The old subscription finds the new engine by itself: what comes last
     * is its newest batch. */
    uint64_t seq = 0, next = (uint64_t)rig_state(&again, "events_next");
    int tries = 0;
    set_timeout(sub, 100);
    for (bool back = false; !back;) {
        assert_true(tries++ < 1000);
        if (receive(sub, f, 3) == 3) {
            seq = be64(zmq_msg_data(&f[1]));
            close_frames(f, 3);
        }
        back = seq >= next && seq + 1 > first.batches;
        work(&again);
    }
    zmq_close(sub);
    rig_stop(&again);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_form), cmocka_unit_test(old_framing),
        cmocka_unit_test(real_hash),  cmocka_unit_test(engines_connect),
        cmocka_unit_test(no_replay),  cmocka_unit_test(second_life),
    };
    context = zmq_ctx_new();
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    zmq_ctx_term(context);
    return failed;
}
