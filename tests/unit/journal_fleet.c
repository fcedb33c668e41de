/* The recorded fleet: see journal_fleet.h. */
#include "journal_fleet.h"

#include "baton/planner/block_hash.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

char fleet_path[] = "/tmp/baton-journal-XXXXXX";

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

void fleet_config(struct fleet *f)
{
    for (uint32_t i = 0; i < WORKERS; i++) {
        f->workers[i].roles = i < 2 ? BT_ROLE_PREFILL : BT_ROLE_DECODE;
        assert_int_equal(
            bt_compute_preset("h100-8b-tp1", &f->workers[i].compute), BT_OK);
        f->workers[i].decode_slots = 64;
        if (f->tiers)
            f->workers[i].host.rate_bytes_per_s = 50000000000u;
        if (f->ranks && i < 2)
            f->workers[i].ranks = 2;
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
        .index_blocks_max = f->small ? 48 : 4096,
        .index_holdings_max = f->small ? 70 : 8192,
        .prompt_blocks_max = 64,
        .attempts_max = 4,
        .retry_budget_ratio = 0.1,
        .retry_budget_min = 10,
        .expected_output_tokens = 32,
        .suspect_failures = 3,
        .seed = 7,
        .approx_blocks_max = f->ranks ? 128 : 0,
        .approx_ttl_ns = BT_NS_PER_S,
        .self_check = f->ranks,
    };
}

void fleet_step(struct fleet *f, struct bt_event *event)
{
    f->now += 3 * BT_NS_PER_MS;
    event->now_ns = f->now;
    f->effects.count = 0;
    assert_int_equal(bt_core_step(f->core, event, &f->effects), BT_OK);
    assert_int_equal(bt_journal_event(f->writer, f->core, event, &f->effects),
                     BT_OK);
}

/* Whatever the core says of the event. */
void fleet_step_any(struct fleet *f, struct bt_event *event)
{
    f->now += 3 * BT_NS_PER_MS;
    event->now_ns = f->now;
    f->effects.count = 0;
    (void)bt_core_step(f->core, event, &f->effects);
    assert_int_equal(bt_journal_event(f->writer, f->core, event, &f->effects),
                     BT_OK);
}

void fleet_start(struct fleet *f, bool topology)
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
    assert_int_equal(bt_journal_create(fleet_path, &f->config,
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
        fleet_step(f, &ready);
        stream.u.kv_stream =
            (struct bt_ev_kv_stream){.worker = i, .state = BT_STREAM_EXACT};
        fleet_step(f, &stream);
    }
}

void fleet_stop(struct fleet *f)
{
    assert_int_equal(bt_journal_close(f->writer), BT_OK);
    free(f->memory);
    free(f->topology_memory);
}

/* The effect of this type among those of the last step: there must be one. */
struct bt_effect fleet_effect(const struct fleet *f, enum bt_effect_type type)
{
    size_t i = 0;

    while (i < f->effects.count && f->items[i].type != type)
        i++;
    assert_true(i < f->effects.count);
    return f->items[i];
}

/* Tokens of request i: a shared half, then its own; values that would be found
 * in the file if they got there. */
void fleet_tokens(uint32_t i, uint32_t *tokens)
{
    for (uint32_t t = 0; t < TOKENS; t++)
        tokens[t] = 0x70617373u + (t < TOKENS / 2 ? i % 3 : i) * 1000 + t;
}

/* Engine hash of its block b. */
uint64_t fleet_hash(uint32_t i, uint32_t b)
{
    return b < TOKENS / BLOCK / 2 ? 100 * (i % 3) + b + 1 : 1000 + 100 * i + b;
}

void fleet_store(struct fleet *f, uint32_t worker, uint32_t i,
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
        hashes[b] = fleet_hash(i, b);
    event.u.kv_store.worker = worker;
    event.u.kv_store.store = &kv;
    fleet_step_any(f, &event);
}

void fleet_serve(struct fleet *f, uint32_t i)
{
    static uint64_t keys[REQUESTS][TOKENS / BLOCK];
    struct bt_event event = {.type = BT_EV_REQUEST};
    struct bt_effect leg;
    uint32_t tokens[TOKENS];
    size_t count;

    fleet_tokens(i, tokens);
    count = bt_block_keys(tokens, TOKENS, BLOCK, BT_NS_PLAIN, keys[i],
                          TOKENS / BLOCK);
    event.u.request = (struct bt_ev_request){.cookie = i + 1,
                                             .prompt_tokens = TOKENS,
                                             .tokens_known = true,
                                             .keys = keys[i],
                                             .key_count = count,
                                             .max_tokens = 16,
                                             .pd_allowed = true};
    fleet_step(f, &event);
    leg = fleet_effect(f, BT_FX_SEND_PREFILL);
    event = (struct bt_event){.type = BT_EV_PREFILL_DONE};
    event.u.prefill_done =
        (struct bt_ev_prefill_done){.request = leg.request,
                                    .attempt = leg.attempt,
                                    .has_params = true,
                                    .prompt_tokens = TOKENS,
                                    .cached_tokens = f->cached};
    fleet_step(f, &event);
    leg = fleet_effect(f, BT_FX_SEND_DECODE);
    fleet_store(f, bt_worker_slot(leg.worker), i, tokens);
    event = (struct bt_event){.type = BT_EV_FIRST_TOKEN};
    event.u.progress = (struct bt_ev_progress){
        .request = leg.request, .attempt = leg.attempt, .tokens = 1};
    fleet_step(f, &event);
    event.type = BT_EV_DECODE_DONE;
    event.u.progress.tokens = 16;
    fleet_step(f, &event);
    leg = fleet_effect(f, BT_FX_FINISHED);
    f->last_overlap = leg.decision->placement.chosen.terms.overlap_p;
    assert_int_equal(leg.cookie, i + 1);
}

void fleet_replay(const char *policy, struct bt_replay_result *result)
{
    struct bt_replay_options options = {.top = 5};
    char error[256];

    if (policy != NULL)
        assert_int_equal(bt_policy_parse(policy, &options.other, options.knobs,
                                         error, sizeof(error)),
                         BT_OK);
    assert_int_equal(
        bt_replay_run(fleet_path, &options, result, error, sizeof(error)),
        BT_OK);
}

void fleet_store_as(struct fleet *f, enum store_kind kind, uint32_t worker,
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
        .parent = first > 0 ? fleet_hash(i, first - 1) : 0,
    };
    struct bt_event event = {.type = BT_EV_KV_STORE};

    fleet_tokens(i, tokens);
    for (uint32_t b = first; b < last; b++)
        hashes[b - first] = fleet_hash(i, b);
    if (kind == STORE_OFFLOADED) {
        kv.tier = BT_TIER_HOST;
        kv.token_count = 0;
        kv.block_tokens = 0;
    } else if (kind == STORE_OWN_PARENT) {
        kv.has_parent = 1;
        kv.parent = hashes[0];
    }
    event.u.kv_store.worker = worker;
    event.u.kv_store.rank = f->rank;
    event.u.kv_store.store = &kv;
    fleet_step_any(f, &event);
}

void fleet_remove(struct fleet *f, uint32_t worker, uint32_t i, uint32_t first,
                  uint32_t last, enum bt_tier tier)
{
    uint64_t hashes[TOKENS / BLOCK];
    struct bt_event event = {.type = BT_EV_KV_REMOVE};

    for (uint32_t b = first; b < last; b++)
        hashes[b - first] = fleet_hash(i, b);
    event.u.kv_remove = (struct bt_ev_kv_remove){.worker = worker,
                                                 .rank = f->rank,
                                                 .hashes = hashes,
                                                 .count = last - first,
                                                 .tier = tier};
    fleet_step_any(f, &event);
}

int fleet_file_make(void **state)
{
    int fd = mkstemp(fleet_path);

    (void)state;
    if (fd < 0)
        return -1;
    close(fd);
    return 0;
}

int fleet_file_drop(void **state)
{
    (void)state;
    return unlink(fleet_path);
}
