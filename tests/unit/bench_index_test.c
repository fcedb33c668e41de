/* `baton bench index`: its event log against a second replay by plain lists,
 * routing and peaks by brute force, keys against the hash of the whole prompt,
 * payloads against bytes written by hand, and what it prints. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "baton/bench/micro_index.h"
#include "baton/planner/block_hash.h"
#include "index_parts.h"
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#define BLOCK   32u
#define WORKERS 5u

static void make(struct bt_trace *t, uint64_t seed, size_t requests)
{
    struct bt_trace_generate_options g;

    memset(t, 0, sizeof(*t));
    bt_trace_generate_options_init(&g);
    g.seed = seed;
    g.requests = requests;
    g.block_tokens = 128;
    assert_int_equal(bt_trace_generate(&g, t), BT_OK);
}

/* ---- a second replay ---- */

/* Ids that a worker holds, newest first. */
struct list {
    uint64_t ids[4096];
    size_t count;
    uint64_t load;
};

static size_t position(const struct list *l, uint64_t id)
{
    size_t at = 0;

    while (at < l->count && l->ids[at] != id)
        at++;
    return at;
}

static uint32_t held(const struct list *l, const uint64_t *ids, uint32_t count)
{
    uint32_t depth = 0;

    while (depth < count && position(l, ids[depth]) < l->count)
        depth++;
    return depth;
}

static void to_front(struct list *l, uint64_t id)
{
    size_t at = position(l, id);

    if (at == l->count)
        l->count++;
    assert_true(l->count <= 4096);
    memmove(l->ids + 1, l->ids, at * sizeof(*l->ids));
    l->ids[0] = id;
}

/* The rule, worker by worker. */
static uint32_t due_worker(const struct list *lists, const uint64_t *ids,
                           uint32_t count, uint64_t load, uint32_t longest)
{
    double most = 1.25 * (double)load / WORKERS + longest;
    uint32_t best = WORKERS;

    for (uint32_t w = 0; w < WORKERS; w++) {
        uint32_t mine = held(&lists[w], ids, count), other;

        if ((double)lists[w].load > most)
            continue;
        other = best < WORKERS ? held(&lists[best], ids, count) : 0;
        if (best == WORKERS || mine > other ||
            (mine == other && lists[w].load < lists[best].load))
            best = w;
    }
    return best;
}

struct second {
    struct list *lists;
    const struct index_keys *keys;
    const struct index_log *log;
    uint64_t removed[8192], stored[8192]; /* engine hashes of one request */
    size_t removed_count, stored_count;
};

static uint64_t hash_of(const struct second *s, uint64_t id, uint32_t sub,
                        uint32_t worker)
{
    return index_log_hash(s->keys->keys[s->keys->at[id] + sub], worker);
}

/* What the request changes, by the plain rule: touch all from the tail, then
 * drop the oldest. */
static void second_serve(struct second *s, uint32_t worker, const uint64_t *ids,
                         uint32_t count)
{
    struct list *l = &s->lists[worker];
    uint32_t depth;

    s->removed_count = s->stored_count = 0;
    if (count > s->log->cache_blocks)
        count = s->log->cache_blocks;
    depth = held(l, ids, count);
    for (uint32_t i = depth; i < count; i++)
        for (uint32_t b = 0; b < s->keys->subs[ids[i]]; b++)
            s->stored[s->stored_count++] = hash_of(s, ids[i], b, worker);
    for (uint32_t i = count; i > 0; i--)
        to_front(l, ids[i - 1]);
    while (l->count > s->log->cache_blocks) {
        uint64_t gone = l->ids[--l->count];

        for (uint32_t b = s->keys->subs[gone]; b > 0; b--)
            s->removed[s->removed_count++] = hash_of(s, gone, b - 1, worker);
    }
}

/* Events of the request hold those and chain properly. */
static void check_request(const struct second *s, const struct index_request *r,
                          uint64_t parent, bool has_parent)
{
    const struct index_log *log = s->log;
    size_t removed = 0, stored = 0;

    for (size_t i = 0; i < r->event_count; i++) {
        const struct index_event *e = &log->events[r->event_at + i];

        assert_int_equal(e->worker, r->worker);
        assert_true(e->count > 0);
        if (!e->store) {
            assert_int_equal(stored, 0); /* room first */
            assert_true(removed + e->count <= s->removed_count);
            assert_memory_equal(log->hashes + e->at, s->removed + removed,
                                e->count * sizeof(uint64_t));
            removed += e->count;
            continue;
        }
        assert_true(e->count * BLOCK <= INDEX_LOG_STORE_TOKENS);
        assert_int_equal(e->has_parent, has_parent || stored > 0);
        if (e->has_parent)
            assert_true(e->parent ==
                        (stored > 0 ? s->stored[stored - 1] : parent));
        assert_true(stored + e->count <= s->stored_count);
        assert_memory_equal(log->hashes + e->at, s->stored + stored,
                            e->count * sizeof(uint64_t));
        stored += e->count;
    }
    assert_int_equal(removed, s->removed_count);
    assert_int_equal(stored, s->stored_count);
}

/* Blocks and (block, worker) pairs held now, from the lists. */
static void count_all(const struct second *s, uint64_t *blocks_out,
                      uint64_t *holdings_out)
{
    bool *seen = calloc((size_t)s->keys->trace->block_ids, sizeof(*seen));

    assert_non_null(seen);
    *blocks_out = *holdings_out = 0;
    for (uint32_t w = 0; w < WORKERS; w++)
        for (size_t i = 0; i < s->lists[w].count; i++) {
            uint64_t id = s->lists[w].ids[i];

            *holdings_out += s->keys->subs[id];
            *blocks_out += seen[id] ? 0 : s->keys->subs[id];
            seen[id] = true;
        }
    free(seen);
}

static void replay_again(struct second *s, uint64_t seed)
{
    const struct bt_trace *t = s->keys->trace;
    uint64_t load = 0, peak_blocks = 0, peak_holdings = 0;
    uint64_t blocks = 0, holdings = 0;
    uint32_t longest = 0;

    for (size_t i = 0; i < t->count; i++)
        if (t->requests[i].block_count > longest)
            longest = t->requests[i].block_count;
    for (size_t i = 0; i < t->count; i++) {
        const struct bt_trace_request *q = &t->requests[i];
        const uint64_t *ids = t->blocks + q->block_at;
        const struct index_request *r = &s->log->requests[i];
        uint32_t count = q->block_count, w, depth;
        uint64_t parent = 0;

        while (count > 0 && s->keys->subs[ids[count - 1]] == 0)
            count--;
        w = due_worker(s->lists, ids, count, load, longest);
        if (w != r->worker)
            fail_msg("seed %llu, request %zu: worker %u, due %u",
                     (unsigned long long)seed, i, r->worker, w);
        depth = held(&s->lists[w], ids, count);
        if (depth > 0)
            parent = hash_of(s, ids[depth - 1],
                             s->keys->subs[ids[depth - 1]] - 1, w);
        s->lists[w].load += count;
        load += count;
        second_serve(s, w, ids, count);
        check_request(s, r, parent, depth > 0);
        count_all(s, &blocks, &holdings);
        peak_blocks = blocks > peak_blocks ? blocks : peak_blocks;
        peak_holdings = holdings > peak_holdings ? holdings : peak_holdings;
    }
    assert_int_equal(s->log->peak_blocks, peak_blocks);
    assert_int_equal(s->log->peak_holdings, peak_holdings);
    assert_int_equal(s->log->last_blocks, blocks);
    assert_int_equal(s->log->last_holdings, holdings);
}

static void check_log(const struct bt_trace *t, uint64_t seed)
{
    struct second s = {.lists = calloc(WORKERS, sizeof(struct list))};
    struct index_keys keys;
    struct index_log log;

    assert_non_null(s.lists);
    assert_int_equal(index_keys_init(&keys, t, BLOCK, seed), BT_OK);
    /* Short enough to evict, and shorter than the longest request. */
    assert_int_equal(index_log_init(&log, &keys, WORKERS, 60), BT_OK);
    s.keys = &keys;
    s.log = &log;
    replay_again(&s, seed);
    assert_true(log.removed > 0);
    assert_int_equal(log.stored - log.removed, log.last_holdings);
    index_log_fini(&log);
    index_keys_fini(&keys);
    free(s.lists);
}

static void test_log_is_a_second_replay(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 3; seed++) {
        struct bt_trace t;

        make(&t, seed, 120);
        check_log(&t, seed);
        bt_trace_fini(&t);
    }
}

/* Half of every prompt is common: the first worker would get them all, were it
 * not for the bound. */
static void test_bound_spreads(void **state)
{
    struct bt_trace_generate_options g;
    struct bt_trace t;

    (void)state;
    memset(&t, 0, sizeof(t));
    bt_trace_generate_options_init(&g);
    g.requests = 300;
    g.block_tokens = 128;
    g.input_fixed = 1024;
    g.output_fixed = 16;
    g.hit_fixed = 0.5;
    assert_int_equal(bt_trace_generate(&g, &t), BT_OK);
    check_log(&t, g.seed);
    bt_trace_fini(&t);
}

/* ---- keys ---- */

static void test_keys_are_those_of_the_prompt(void **state)
{
    static uint32_t tokens[1u << 20];
    static uint64_t due[1u << 15];
    struct index_keys keys;
    struct index_log log;
    struct bt_trace t;
    size_t deep = 0;

    (void)state;
    make(&t, 4, 60);
    assert_int_equal(index_keys_init(&keys, &t, BLOCK, 9), BT_OK);
    assert_int_equal(index_log_init(&log, &keys, 2, 100), BT_OK);
    for (size_t i = 0; i < t.count; i++) {
        const struct bt_trace_request *q = &t.requests[i];
        const struct index_request *r = &log.requests[i];
        size_t n = 0;

        for (uint32_t b = 0; b < q->block_count; b++) {
            uint64_t id = t.blocks[q->block_at + b];

            for (uint32_t s = 0; s < keys.subs[id]; s++, n += BLOCK) {
                assert_true(n + BLOCK <= 1u << 20);
                index_keys_tokens(&keys, keys.at[id] + s, tokens + n);
            }
        }
        assert_int_equal(n / BLOCK, q->input_tokens / BLOCK);
        assert_int_equal(
            bt_block_keys(tokens, n, BLOCK, BT_NS_PLAIN, due, 1u << 15),
            r->key_count);
        assert_memory_equal(log.chain + r->key_at, due,
                            r->key_count * sizeof(*due));
        deep += r->key_count > 1;
    }
    assert_true(deep > 30);
    index_log_fini(&log);
    index_keys_fini(&keys);
    bt_trace_fini(&t);
}

/* ---- the wire ---- */

static void test_payload_by_hand(void **state)
{
    /* [time, [["BlockStored", [0x0102030405060708], nil, [1, 300], 2, nil,
     * "GPU", nil], ["BlockRemoved", [200], "GPU"]], 0] */
    static const unsigned char due[] = {
        0x93, 0xcb, 0x41, 0xd9, 0,    0,    0,    0,   0,   0,   0x92, 0x98,
        0xab, 'B',  'l',  'o',  'c',  'k',  'S',  't', 'o', 'r', 'e',  'd',
        0x91, 0xcf, 1,    2,    3,    4,    5,    6,   7,   8,   0xc0, 0x92,
        0x01, 0xcd, 0x01, 0x2c, 0x02, 0xc0, 0xa3, 'G', 'P', 'U', 0xc0, 0x93,
        0xac, 'B',  'l',  'o',  'c',  'k',  'R',  'e', 'm', 'o', 'v',  'e',
        'd',  0x91, 0xcc, 0xc8, 0xa3, 'G',  'P',  'U', 0x00};
    static const uint64_t hash = 0x0102030405060708u;
    static const uint32_t tokens[] = {1, 300};
    const struct bt_kv_store store = {.hashes = &hash,
                                      .hash_count = 1,
                                      .tokens = tokens,
                                      .token_count = 2,
                                      .block_tokens = 2};
    struct index_wire w = {.as_maps = false};

    (void)state;
    index_wire_batch(&w, 2);
    index_wire_stored(&w, &store);
    index_wire_removed(&w, 200);
    index_wire_rank(&w);
    assert_false(w.failed);
    assert_int_equal(w.count, sizeof(due));
    assert_memory_equal(w.bytes, due, sizeof(due));
    index_wire_fini(&w);
}

/* ---- the whole ---- */

static void run(struct bt_micro_index_report *report, const struct bt_trace *t)
{
    const struct bt_micro_index_options o = {.trace = t,
                                             .source = "a \"test\"",
                                             .workers = {8, 64},
                                             .worker_count = 2,
                                             .block_tokens = {128, 16},
                                             .block_count = 2,
                                             .cache_blocks = 40,
                                             .seed = 3,
                                             .quick = true};
    enum bt_status status = bt_micro_index(&o, report);

    if (status != BT_OK)
        fail_msg("%s: %s", bt_status_text(status), report->error);
}

static char *print(const struct bt_micro_index_report *report,
                   enum bt_status (*fn)(const struct bt_micro_index_report *,
                                        FILE *))
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *to = open_memstream(&text, &bytes);

    assert_non_null(to);
    assert_int_equal(fn(report, to), BT_OK);
    fclose(to);
    return text;
}

static void check_json(const struct bt_micro_index_report *report)
{
    static const char *const above_0[] = {"block_events_per_s",
                                          "lookups_per_s",
                                          "lookup_p99_us",
                                          "lookup_p999_us",
                                          "bytes_per_block",
                                          "bytes_per_holding",
                                          "mixed_lookups_per_s",
                                          "mixed_block_events_per_s",
                                          "block_events_from_tokens_per_s",
                                          "block_events_from_wire_a_per_s",
                                          "block_events_from_wire_b_per_s",
                                          "tier_lookups_per_s",
                                          "baseline_block_events_per_s",
                                          "baseline_lookups_per_s",
                                          "copies_per_block",
                                          "lookup_ns_per_key",
                                          "lookups_compared_with_baseline"};
    char *text = print(report, bt_micro_index_print_json);
    json_error_t error;
    json_t *all = json_loads(text, 0, &error), *results, *others;

    if (!all)
        fail_msg("%s in %s", error.text, text);
    /* One member per number of workers, whatever else was measured. */
    results = json_object_get(all, "results");
    others = json_object_get(all, "by_block_tokens");
    assert_int_equal(json_array_size(results), 2);
    assert_int_equal(json_array_size(others), 2);
    for (size_t i = 0; i < 4; i++) {
        const json_t *r = json_array_get(i < 2 ? results : others, i % 2);

        assert_int_equal(json_integer_value(json_object_get(r, "workers")),
                         i % 2 ? 64 : 8);
        assert_int_equal(json_integer_value(json_object_get(r, "block_tokens")),
                         i < 2 ? 128 : 16);
        for (size_t k = 0; k < sizeof(above_0) / sizeof(above_0[0]); k++) {
            double value = json_number_value(json_object_get(r, above_0[k]));

            if (!(value > 0))
                fail_msg("result %zu: %s is %f", i, above_0[k], value);
        }
    }
    assert_int_equal(json_array_size(json_object_get(all, "aims")), 8);
    assert_string_equal(json_string_value(json_object_get(all, "source")),
                        "a \"test\"");
    assert_true(json_is_true(json_object_get(all, "synthetic")));
    json_decref(all);
    free(text);
}

static void test_report(void **state)
{
    struct bt_micro_index_report *report = calloc(1, sizeof(*report));
    struct bt_trace t;
    char *text;

    (void)state;
    assert_non_null(report);
    make(&t, 5, 150);
    run(report, &t);
    assert_int_equal(report->count, 4);
    for (size_t i = 0; i < 4; i++) {
        const struct bt_micro_index_run *r = &report->runs[i];

        assert_int_equal(r->requests, 150);
        assert_true(r->naive_compared > 20);
        assert_true(r->stored > r->removed);
        assert_true(r->copies >= 1);
        assert_true(r->bytes_roomy > r->bytes_tight);
        assert_true(r->p50_us <= r->p99_us && r->p99_us <= r->p999_us);
    }
    check_json(report);
    text = print(report, bt_micro_index_print_table);
    assert_non_null(strstr(text, "blocks of 128 tokens\n"));
    assert_non_null(strstr(text, "\naim: block events, each >= 10000000/s: "));
    assert_non_null(strstr(text, "a \"test\", 150 requests"));
    free(text);
    bt_trace_fini(&t);
    free(report);
}

static void test_refuses(void **state)
{
    struct bt_micro_index_report *report = calloc(1, sizeof(*report));
    struct bt_trace t;
    struct bt_micro_index_options o = {.trace = &t,
                                       .workers = {8},
                                       .worker_count = 1,
                                       .block_tokens = {100},
                                       .block_count = 1};

    (void)state;
    assert_non_null(report);
    make(&t, 6, 10);
    assert_int_equal(bt_micro_index(&o, report), BT_INVALID);
    assert_string_equal(report->error,
                        "blocks must divide the trace's, of 128");
    o.block_tokens[0] = 128;
    o.workers[0] = 4097;
    assert_int_equal(bt_micro_index(&o, report), BT_INVALID);
    o.workers[0] = 8;
    o.worker_count = 0;
    assert_int_equal(bt_micro_index(&o, report), BT_INVALID);
    o.worker_count = 1;
    t.has_prefixes = false;
    assert_int_equal(bt_micro_index(&o, report), BT_INVALID);
    t.has_prefixes = true;
    bt_trace_fini(&t);
    free(report);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_log_is_a_second_replay),
        cmocka_unit_test(test_bound_spreads),
        cmocka_unit_test(test_keys_are_those_of_the_prompt),
        cmocka_unit_test(test_payload_by_hand),
        cmocka_unit_test(test_report),
        cmocka_unit_test(test_refuses),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
