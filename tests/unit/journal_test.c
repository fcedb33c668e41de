/* The journal and its replay: a scripted fleet is run through a core and
 * recorded; what comes back must be the same configuration, the same events
 * and, replayed, the same effects. Faults: cut, flipped bits, other files. No
 * token of a prompt may be in the file. */
#include "baton/orchestrator/journal.h"
#include "baton/orchestrator/replay.h"
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmocka.h>

#include "baton/base/units.h"
#include "baton/planner/block_hash.h"

#define WORKERS  4u
#define BLOCK    16u
#define REQUESTS 40u
#define TOKENS   160u

static char path[] = "/tmp/baton-journal-XXXXXX";

struct fleet {
    struct bt_core_worker_config workers[WORKERS];
    struct bt_core_link_config links[WORKERS * WORKERS];
    struct bt_core_model_config model;
    struct bt_topology_node nodes[WORKERS];
    struct bt_topology_worker placed[WORKERS];
    struct bt_topology_rack rack;
    struct bt_topology_spec spec;
    struct bt_core_config config;
    void *topology_memory, *memory;
    struct bt_core *core;
    struct bt_effects effects;
    struct bt_effect items[256];
    struct bt_journal_writer *writer;
    int64_t now;
    bool tiers;            /* workers load from their host memory */
    uint32_t last_overlap; /* of the last decision, at p */
};

static void fleet_topology(struct fleet *f)
{
    struct bt_arena arena;

    f->rack = (struct bt_topology_rack){.name = "r0", .pod = BT_LINK_NONE};
    for (uint32_t i = 0; i < WORKERS; i++) {
        f->nodes[i] = (struct bt_topology_node){
            .name = "node", .rails = 1, .rail_bytes_per_s = 12500000000u};
        f->placed[i].node = i;
    }
    f->spec = (struct bt_topology_spec){
        .racks = &f->rack,
        .rack_count = 1,
        .nodes = f->nodes,
        .node_count = WORKERS,
        .workers = f->placed,
        .worker_count = WORKERS,
    };
    f->spec.classes[BT_PATH_RACK].setup_ns = BT_NS_PER_MS;
    f->topology_memory = calloc(1, bt_topology_bytes(&f->spec));
    assert_non_null(f->topology_memory);
    bt_arena_init(&arena, f->topology_memory, bt_topology_bytes(&f->spec));
    f->config.topology = bt_topology_init(&arena, &f->spec);
    assert_non_null(f->config.topology);
}

static void fleet_config(struct fleet *f)
{
    for (uint32_t i = 0; i < WORKERS; i++) {
        f->workers[i].roles = i < 2 ? BT_ROLE_PREFILL : BT_ROLE_DECODE;
        assert_int_equal(
            bt_compute_preset("h100-8b-tp1", &f->workers[i].compute), BT_OK);
        f->workers[i].decode_slots = 64;
        if (f->tiers)
            f->workers[i].host.rate_bytes_per_s = 50000000000u;
    }
    for (uint32_t i = 0; i < WORKERS * WORKERS; i++)
        f->links[i].model = (struct bt_link_model){
            .rate_bytes_per_s = 12000000000u + (i == 3), .setup_ns = 1000};
    f->model.kv_bytes_per_token = 131072;
    f->model.block_tokens = BLOCK;
    f->config = (struct bt_core_config){
        .policy = bt_policy_find("joint"),
        .workers = f->workers,
        .worker_count = WORKERS,
        .links = f->links,
        .models = &f->model,
        .model_count = 1,
        .requests_max = 64,
        .queue_max = 16,
        .index_blocks_max = 4096,
        .index_holdings_max = 8192,
        .prompt_blocks_max = 64,
        .attempts_max = 4,
        .retry_budget_ratio = 0.1,
        .retry_budget_min = 10,
        .expected_output_tokens = 32,
        .suspect_failures = 3,
        .seed = 7,
    };
}

static void step(struct fleet *f, struct bt_event *event)
{
    f->now += 3 * BT_NS_PER_MS;
    event->now_ns = f->now;
    f->effects.count = 0;
    assert_int_equal(bt_core_step(f->core, event, &f->effects), BT_OK);
    assert_int_equal(bt_journal_event(f->writer, f->core, event, &f->effects),
                     BT_OK);
}

/* Whatever the core says of the event. */
static void step_any(struct fleet *f, struct bt_event *event)
{
    f->now += 3 * BT_NS_PER_MS;
    event->now_ns = f->now;
    f->effects.count = 0;
    (void)bt_core_step(f->core, event, &f->effects);
    assert_int_equal(bt_journal_event(f->writer, f->core, event, &f->effects),
                     BT_OK);
}

static void fleet_start(struct fleet *f, bool topology)
{
    struct bt_arena arena;
    size_t bytes;

    fleet_config(f);
    if (topology)
        fleet_topology(f);
    bytes = bt_core_bytes(&f->config);
    f->memory = calloc(1, bytes);
    assert_non_null(f->memory);
    bt_arena_init(&arena, f->memory, bytes);
    f->core = bt_core_init(&arena, &f->config);
    assert_non_null(f->core);
    f->effects.items = f->items;
    f->effects.capacity = 256;
    assert_int_equal(bt_journal_create(path, &f->config,
                                       topology ? &f->spec : NULL, 0,
                                       &f->writer),
                     BT_OK);
    for (uint32_t i = 0; i < WORKERS; i++) {
        struct bt_event ready = {.type = BT_EV_WORKER_STATE};
        struct bt_event stream = {.type = BT_EV_KV_STREAM};

        ready.u.worker_state =
            (struct bt_ev_worker_state){.worker = i,
                                        .state = BT_WORKER_READY,
                                        .incarnation = 1,
                                        .block_tokens = BLOCK,
                                        .kv_capacity_tokens = 100000};
        step(f, &ready);
        stream.u.kv_stream =
            (struct bt_ev_kv_stream){.worker = i, .state = BT_STREAM_EXACT};
        step(f, &stream);
    }
}

static void fleet_stop(struct fleet *f)
{
    assert_int_equal(bt_journal_close(f->writer), BT_OK);
    free(f->memory);
    free(f->topology_memory);
}

/* The effect of this type among those of the last step: there must be one. */
static struct bt_effect effect_of(const struct fleet *f,
                                  enum bt_effect_type type)
{
    size_t i = 0;

    while (i < f->effects.count && f->items[i].type != type)
        i++;
    assert_true(i < f->effects.count);
    return f->items[i];
}

/* Tokens of request i: a shared half, then its own; values that would be found
 * in the file if they got there. */
static void tokens_of(uint32_t i, uint32_t *tokens)
{
    for (uint32_t t = 0; t < TOKENS; t++)
        tokens[t] = 0x70617373u + (t < TOKENS / 2 ? i % 3 : i) * 1000 + t;
}

/* Engine hash of its block b. */
static uint64_t hash_of(uint32_t i, uint32_t b)
{
    return b < TOKENS / BLOCK / 2 ? 100 * (i % 3) + b + 1 : 1000 + 100 * i + b;
}

static void store(struct fleet *f, uint32_t worker, uint32_t i,
                  const uint32_t *tokens)
{
    uint64_t hashes[TOKENS / BLOCK];
    struct bt_kv_store kv = {
        .hashes = hashes,
        .hash_count = TOKENS / BLOCK,
        .tokens = tokens,
        .token_count = TOKENS,
        .block_tokens = BLOCK,
        .full_attention = 1,
    };
    struct bt_event event = {.type = BT_EV_KV_STORE};

    for (uint32_t b = 0; b < TOKENS / BLOCK; b++)
        hashes[b] = hash_of(i, b);
    event.u.kv_store.worker = worker;
    event.u.kv_store.store = &kv;
    step(f, &event);
}

static void serve_one(struct fleet *f, uint32_t i)
{
    static uint64_t keys[REQUESTS][TOKENS / BLOCK];
    struct bt_event event = {.type = BT_EV_REQUEST};
    struct bt_effect leg;
    uint32_t tokens[TOKENS];
    size_t count;

    tokens_of(i, tokens);
    count = bt_block_keys(tokens, TOKENS, BLOCK, BT_NS_PLAIN, keys[i],
                          TOKENS / BLOCK);
    event.u.request = (struct bt_ev_request){.cookie = i + 1,
                                             .prompt_tokens = TOKENS,
                                             .tokens_known = true,
                                             .keys = keys[i],
                                             .key_count = count,
                                             .max_tokens = 16,
                                             .pd_allowed = true};
    step(f, &event);
    leg = effect_of(f, BT_FX_SEND_PREFILL);
    event = (struct bt_event){.type = BT_EV_PREFILL_DONE};
    event.u.prefill_done = (struct bt_ev_prefill_done){
        .request = leg.request, .attempt = leg.attempt, .has_params = true};
    step(f, &event);
    leg = effect_of(f, BT_FX_SEND_DECODE);
    store(f, bt_worker_slot(leg.worker), i, tokens);
    event = (struct bt_event){.type = BT_EV_FIRST_TOKEN};
    event.u.progress = (struct bt_ev_progress){
        .request = leg.request, .attempt = leg.attempt, .tokens = 1};
    step(f, &event);
    event.type = BT_EV_DECODE_DONE;
    event.u.progress.tokens = 16;
    step(f, &event);
    leg = effect_of(f, BT_FX_FINISHED);
    f->last_overlap = leg.decision->placement.chosen.terms.overlap_p;
    assert_int_equal(leg.cookie, i + 1);
}

static void record(struct fleet *f, bool topology)
{
    memset(f, 0, sizeof(*f));
    fleet_start(f, topology);
    for (uint32_t i = 0; i < REQUESTS; i++)
        serve_one(f, i);
}

static void test_configuration_comes_back(void **state)
{
    struct fleet f;
    struct bt_journal_reader *reader;
    const struct bt_core_config *got;
    char error[256];

    (void)state;
    record(&f, true);
    fleet_stop(&f);
    assert_int_equal(bt_journal_open(path, &reader, error, sizeof(error)),
                     BT_OK);
    got = bt_journal_config(reader);
    assert_string_equal(bt_journal_policy(reader), "joint");
    assert_ptr_equal(got->policy, f.config.policy);
    assert_int_equal(got->worker_count, WORKERS);
    assert_int_equal(got->seed, 7);
    for (uint32_t i = 0; i < WORKERS; i++) {
        assert_int_equal(got->workers[i].roles, f.workers[i].roles);
        assert_int_equal(got->workers[i].decode_slots, 64);
        assert_memory_equal(&got->workers[i].compute, &f.workers[i].compute,
                            sizeof(f.workers[i].compute));
    }
    for (uint32_t i = 0; i < WORKERS * WORKERS; i++)
        assert_int_equal(got->links[i].model.rate_bytes_per_s,
                         f.links[i].model.rate_bytes_per_s);
    assert_int_equal(got->models[0].kv_bytes_per_token, 131072);
    assert_non_null(got->topology);
    assert_int_equal(bt_topology_link_count(got->topology), 2 * WORKERS);
    bt_journal_reader_close(reader);
}

/* Every setting another value, so that two that change places show. */
static void settings_fill(struct fleet *f)
{
    struct bt_core_config *c = &f->config;

    c->knobs_set = true;
    for (uint32_t i = 0; i < BT_POLICY_KNOBS_MAX; i++)
        c->knobs[i] = i + 0.5;
    c->prices = (struct bt_place_prices){-1, 0.3, 0.9, 1.1, 0.1};
    c->hold = (struct bt_core_hold_config){.enabled = true,
                                           .lead_ns = 101,
                                           .patience_ns = 102,
                                           .ask_max = 103,
                                           .ageing = 0.15,
                                           .fairness = 0.45,
                                           .oldest_share = 0.03,
                                           .prefetch = true};
    c->slo = (struct bt_core_slo_config){104, 5.5, 105};
    c->calibrate = true;
    f->model.mode = (struct bt_engine_mode){.overlap = BT_OVERLAP_LAYER,
                                            .pieces = 80,
                                            .allocate_first = true,
                                            .whole_prompt = true,
                                            .descriptors_per_block = 2,
                                            .replication = 3};
    f->workers[1].host = (struct bt_tier_model){106, 107};
    f->workers[1].disk = (struct bt_tier_model){108, 109};
    f->workers[1].local_ok = true;
    f->workers[2].fetch_ok = true;
    f->workers[1].chunk_tokens = 110;
    f->workers[1].batch_tokens = 111;
}

static void check_settings(const struct fleet *f,
                           const struct bt_core_config *got)
{
    const struct bt_core_worker_config *w = &got->workers[1];
    const struct bt_engine_mode *mode = &got->models[0].mode;

    assert_true(got->knobs_set);
    assert_memory_equal(got->knobs, f->config.knobs, sizeof(got->knobs));
    assert_memory_equal(&got->prices, &f->config.prices, sizeof(got->prices));
    assert_true(got->hold.enabled);
    assert_true(got->hold.prefetch);
    assert_int_equal(got->hold.lead_ns, 101);
    assert_int_equal(got->hold.patience_ns, 102);
    assert_int_equal(got->hold.ask_max, 103);
    assert_true(got->hold.ageing == 0.15);
    assert_true(got->hold.fairness == 0.45);
    assert_true(got->hold.oldest_share == 0.03);
    assert_int_equal(got->slo.ttft_base_ns, 104);
    assert_true(got->slo.ttft_factor == 5.5);
    assert_int_equal(got->slo.tpot_ns, 105);
    assert_true(got->calibrate);
    assert_int_equal(mode->overlap, BT_OVERLAP_LAYER);
    assert_int_equal(mode->pieces, 80);
    assert_true(mode->allocate_first && mode->whole_prompt);
    assert_false(mode->late_decode);
    assert_int_equal(mode->descriptors_per_block, 2);
    assert_int_equal(mode->replication, 3);
    assert_int_equal(w->host.rate_bytes_per_s, 106);
    assert_int_equal(w->host.setup_ns, 107);
    assert_int_equal(w->disk.rate_bytes_per_s, 108);
    assert_int_equal(w->disk.setup_ns, 109);
    assert_true(w->local_ok && !w->fetch_ok);
    assert_true(!got->workers[2].local_ok && got->workers[2].fetch_ok);
    assert_int_equal(w->chunk_tokens, 110);
    assert_int_equal(w->batch_tokens, 111);
}

static void test_every_setting_comes_back(void **state)
{
    struct fleet f = {0};
    struct bt_journal_reader *reader;
    char error[256];

    (void)state;
    fleet_config(&f);
    settings_fill(&f);
    assert_int_equal(bt_journal_create(path, &f.config, NULL, 0, &f.writer),
                     BT_OK);
    assert_int_equal(bt_journal_close(f.writer), BT_OK);
    assert_int_equal(bt_journal_open(path, &reader, error, sizeof(error)),
                     BT_OK);
    check_settings(&f, bt_journal_config(reader));
    bt_journal_reader_close(reader);
    /* no room for the configuration: nothing is made */
    assert_int_equal(bt_journal_create(path, &f.config, NULL, 200, &f.writer),
                     BT_LIMIT);
}

static void replay(const char *policy, struct bt_replay_result *result)
{
    struct bt_replay_options options = {.top = 5};
    char error[256];

    if (policy != NULL)
        assert_int_equal(bt_policy_parse(policy, &options.other, options.knobs,
                                         error, sizeof(error)),
                         BT_OK);
    assert_int_equal(
        bt_replay_run(path, &options, result, error, sizeof(error)), BT_OK);
}

static void check_replay(bool topology)
{
    static struct bt_replay_result result;
    struct fleet f;

    record(&f, topology);
    fleet_stop(&f);
    replay(NULL, &result);
    assert_true(result.verified);
    assert_true(result.whole);
    assert_int_equal(result.requests, REQUESTS);
    assert_int_equal(result.events, 2 * WORKERS + 5 * REQUESTS);
    assert_int_equal(result.asked, 0);

    replay("joint", &result);
    assert_int_equal(result.asked, REQUESTS);
    assert_int_equal(result.same, REQUESTS);

    replay("round_robin", &result);
    assert_int_equal(result.asked, REQUESTS);
    assert_int_equal(result.same + result.changed_p + result.changed_d +
                         result.changed_both + result.changed_source,
                     REQUESTS);
    assert_true(result.same < REQUESTS);
    assert_true(result.top_count > 0 && result.top_count <= 5);
    assert_true(result.other_total_s >= result.recorded_total_s);
}

static void test_replay_repeats_the_effects(void **state)
{
    (void)state;
    check_replay(false);
    check_replay(true);
}

/* ---- stores of every kind ---- */

enum store_kind {
    STORE_CHAIN,
    STORE_CHILD,      /* goes on from a block that may be unknown */
    STORE_WINDOW,     /* a group without full attention, same hashes */
    STORE_MALFORMED,  /* one token short */
    STORE_OFFLOADED,  /* hashes only, another tier */
    STORE_OWN_PARENT, /* refused */
    STORE_KINDS
};

/* Blocks [first, last) of chain i, as an engine would tell of them. */
static void store_as(struct fleet *f, enum store_kind kind, uint32_t worker,
                     uint32_t i, uint32_t first, uint32_t last)
{
    uint64_t hashes[TOKENS / BLOCK];
    uint32_t tokens[TOKENS], n = last - first;
    struct bt_kv_store kv = {
        .hashes = hashes,
        .hash_count = n,
        .tokens = tokens + (size_t)first * BLOCK,
        .token_count = (size_t)n * BLOCK - (kind == STORE_MALFORMED),
        .block_tokens = BLOCK,
        .full_attention = kind != STORE_WINDOW,
        .has_parent = first > 0,
        .parent = first > 0 ? hash_of(i, first - 1) : 0,
    };
    struct bt_event event = {.type = BT_EV_KV_STORE};

    tokens_of(i, tokens);
    for (uint32_t b = first; b < last; b++)
        hashes[b - first] = hash_of(i, b);
    if (kind == STORE_OFFLOADED) {
        kv.tier = BT_TIER_HOST;
        kv.token_count = 0;
        kv.block_tokens = 0;
    } else if (kind == STORE_OWN_PARENT) {
        kv.has_parent = 1;
        kv.parent = hashes[0];
    }
    event.u.kv_store.worker = worker;
    event.u.kv_store.store = &kv;
    step_any(f, &event);
}

static void remove_some(struct fleet *f, uint32_t worker, uint32_t i,
                        uint32_t first, uint32_t last, enum bt_tier tier)
{
    uint64_t hashes[TOKENS / BLOCK];
    struct bt_event event = {.type = BT_EV_KV_REMOVE};

    for (uint32_t b = first; b < last; b++)
        hashes[b - first] = hash_of(i, b);
    event.u.kv_remove = (struct bt_ev_kv_remove){.worker = worker,
                                                 .hashes = hashes,
                                                 .count = last - first,
                                                 .tier = tier};
    step_any(f, &event);
}

static void change_something(struct fleet *f, struct bt_rng *rng)
{
    uint32_t worker = (uint32_t)bt_rng_below(rng, WORKERS);
    uint32_t i = (uint32_t)bt_rng_below(rng, 6);
    uint32_t first = (uint32_t)bt_rng_below(rng, TOKENS / BLOCK);
    uint32_t last =
        first + 1 + (uint32_t)bt_rng_below(rng, TOKENS / BLOCK - first);
    uint32_t action = (uint32_t)bt_rng_below(rng, STORE_KINDS + 3);

    if (action < STORE_KINDS)
        store_as(f, (enum store_kind)action, worker, i,
                 action == STORE_CHAIN ? 0 : first, last);
    else
        remove_some(f, worker, i, first, last,
                    action == STORE_KINDS ? BT_TIER_HOST : BT_TIER_DEVICE);
}

/* The same hash in several groups and tiers, with removals between: what the
 * index then counts decides how long a block is believed in. */
static void test_every_kind_of_store_is_repeated(void **state)
{
    static struct bt_replay_result result;

    (void)state;
    for (uint64_t seed = 1; seed <= 8; seed++) {
        struct bt_rng rng;
        struct fleet f = {.tiers = true};

        bt_rng_seed(&rng, seed);
        fleet_start(&f, false);
        for (uint32_t round = 0; round < 200; round++) {
            for (int k = 0; k < 4; k++)
                change_something(&f, &rng);
            serve_one(&f, (uint32_t)bt_rng_below(&rng, 6));
        }
        fleet_stop(&f);
        replay(NULL, &result);
        assert_true(result.whole);
        if (!result.verified)
            fail_msg("seed %llu: event %llu has other effects",
                     (unsigned long long)seed,
                     (unsigned long long)result.differs_at);
    }
}

/* A group without full attention tells of the same hashes and drops them
 * first: by the index's rule the hit is gone with the first removal. */
static void test_groups_of_one_hash(void **state)
{
    static struct bt_replay_result result;
    struct fleet f = {0};

    (void)state;
    fleet_start(&f, false);
    store_as(&f, STORE_CHAIN, 0, 0, 0, TOKENS / BLOCK);
    store_as(&f, STORE_WINDOW, 0, 0, 0, TOKENS / BLOCK);
    serve_one(&f, 0);
    assert_int_equal(f.last_overlap, TOKENS - 1);
    remove_some(&f, 0, 0, 0, TOKENS / BLOCK, BT_TIER_DEVICE);
    serve_one(&f, 0);
    assert_int_equal(f.last_overlap, 0);
    fleet_stop(&f);
    replay(NULL, &result);
    assert_true(result.whole);
    assert_true(result.verified);
}

static unsigned char *slurp(size_t *size_out)
{
    FILE *file = fopen(path, "rb");
    unsigned char *data;
    long size;

    assert_non_null(file);
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    size = ftell(file);
    rewind(file);
    data = malloc((size_t)size);
    assert_non_null(data);
    assert_int_equal(fread(data, 1, (size_t)size, file), size);
    fclose(file);
    *size_out = (size_t)size;
    return data;
}

static void spill(const unsigned char *data, size_t size)
{
    FILE *file = fopen(path, "wb");

    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, size, file), size);
    assert_int_equal(fclose(file), 0);
}

static void test_no_token_is_written(void **state)
{
    struct fleet f;
    unsigned char *data;
    size_t size;

    (void)state;
    record(&f, false);
    fleet_stop(&f);
    data = slurp(&size);
    for (uint32_t i = 0; i < REQUESTS; i++) {
        uint32_t tokens[TOKENS];

        tokens_of(i, tokens);
        for (uint32_t t = 0; t < TOKENS; t += 7)
            assert_null(memmem(data, size, &tokens[t], sizeof(tokens[t])));
    }
    free(data);
}

static void test_every_cut_is_said(void **state)
{
    static struct bt_replay_result result;
    struct bt_replay_options options = {0};
    struct fleet f;
    unsigned char *data;
    size_t size;

    (void)state;
    record(&f, true);
    fleet_stop(&f);
    data = slurp(&size);
    for (size_t cut = 0; cut < size; cut += 97) {
        char error[256] = "";
        enum bt_status status;

        spill(data, cut);
        status = bt_replay_run(path, &options, &result, error, sizeof(error));
        if (status == BT_OK) {
            assert_false(result.whole);
            assert_true(result.verified);
            assert_true(strstr(result.cut, "byte ") == result.cut);
        } else {
            assert_true(status == BT_INVALID || status == BT_TRUNCATED ||
                        status == BT_INCOMPATIBLE);
            assert_true(error[0] != '\0');
        }
    }
    free(data);
}

static void test_flipped_bits_are_found(void **state)
{
    static struct bt_replay_result result;
    struct bt_replay_options options = {0};
    struct fleet f;
    unsigned char *data;
    size_t size;

    (void)state;
    record(&f, true);
    fleet_stop(&f);
    data = slurp(&size);
    for (size_t at = 0; at < size; at += 61) {
        char error[256] = "";
        enum bt_status status;

        data[at] ^= 0x10;
        spill(data, size);
        data[at] ^= 0x10;
        status = bt_replay_run(path, &options, &result, error, sizeof(error));
        assert_true(status != BT_OK || !result.whole);
    }
    free(data);
}

static void test_full_file_ends_in_order(void **state)
{
    static struct bt_replay_result result;
    struct fleet f = {0};
    struct bt_event tick = {.type = BT_EV_TICK};
    enum bt_status status = BT_OK;

    (void)state;
    fleet_start(&f, false);
    assert_int_equal(bt_journal_close(f.writer), BT_OK);
    assert_int_equal(bt_journal_create(path, &f.config, NULL, 4096, &f.writer),
                     BT_OK);
    for (int i = 0; i < 1000 && status == BT_OK; i++) {
        f.effects.count = 0;
        status = bt_journal_event(f.writer, f.core, &tick, &f.effects);
    }
    assert_int_equal(status, BT_LIMIT);
    status = bt_journal_event(f.writer, f.core, &tick, &f.effects);
    assert_int_equal(status, BT_OK);
    assert_int_equal(bt_journal_left_out(f.writer), 2);
    fleet_stop(&f);
    replay(NULL, &result);
    assert_true(result.whole);
    assert_true(result.events > 10);
}

/* A disk that takes no more: said once, the rest is counted, and what is on it
 * reads up to its last whole record. */
static void test_failed_write_ends_it(void **state)
{
    static struct bt_replay_result result;
    struct fleet f = {0};
    struct bt_event tick = {.type = BT_EV_TICK};
    struct rlimit before, small;
    int failures = 0;

    (void)state;
    fleet_start(&f, false);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    small = before;
    small.rlim_cur = 20000;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    for (int i = 0; i < 2000; i++) {
        enum bt_status status;

        f.now += BT_NS_PER_MS;
        tick.now_ns = f.now;
        f.effects.count = 0;
        (void)bt_core_step(f.core, &tick, &f.effects);
        status = bt_journal_event(f.writer, f.core, &tick, &f.effects);
        failures += status != BT_OK;
        assert_true(status == BT_OK || status == BT_IO);
    }
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_int_equal(failures, 1);
    assert_true(bt_journal_left_out(f.writer) > 1000);
    assert_int_equal(bt_journal_close(f.writer), BT_IO);
    f.writer = NULL;
    fleet_stop(&f);
    replay(NULL, &result);
    assert_false(result.whole);
    assert_true(result.verified);
    assert_true(result.events > 300);
}

static void test_other_files_are_refused(void **state)
{
    static struct bt_replay_result result;
    struct bt_replay_options options = {0};
    char error[256];

    (void)state;
    spill((const unsigned char *)"{\"not\": \"a journal\"}\n", 21);
    assert_int_equal(
        bt_replay_run(path, &options, &result, error, sizeof(error)),
        BT_INVALID);
    assert_non_null(strstr(error, "not a baton journal"));
    assert_int_equal(bt_replay_run("/nonexistent/x", &options, &result, error,
                                   sizeof(error)),
                     BT_NOT_FOUND);
}

static int make_file(void **state)
{
    int fd = mkstemp(path);

    (void)state;
    if (fd < 0)
        return -1;
    close(fd);
    return 0;
}

static int drop_file(void **state)
{
    (void)state;
    return unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_configuration_comes_back),
        cmocka_unit_test(test_every_setting_comes_back),
        cmocka_unit_test(test_replay_repeats_the_effects),
        cmocka_unit_test(test_every_kind_of_store_is_repeated),
        cmocka_unit_test(test_groups_of_one_hash),
        cmocka_unit_test(test_no_token_is_written),
        cmocka_unit_test(test_every_cut_is_said),
        cmocka_unit_test(test_flipped_bits_are_found),
        cmocka_unit_test(test_full_file_ends_in_order),
        cmocka_unit_test(test_failed_write_ends_it),
        cmocka_unit_test(test_other_files_are_refused),
    };

    return cmocka_run_group_tests(tests, make_file, drop_file);
}
