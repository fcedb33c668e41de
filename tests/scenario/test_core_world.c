/* The fleet around one core: see test_core_world.h. */
#include "test_core_world.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MS 1000000LL

/* Earliest first token over all pairs, lowest slots on a tie: no guard, no
 * random tie break, so that the tests can name the workers. */
static enum bt_status place_earliest(struct bt_policy_state *state,
                                     const struct bt_place_view *view,
                                     struct bt_placement *out)
{
    const struct bt_place_candidate none = {.p = BT_PLACE_NONE,
                                            .d = BT_PLACE_NONE};
    struct bt_place_candidate c = none;

    (void)state;
    *out = (struct bt_placement){.chosen = none,
                                 .second = none,
                                 .baseline = none,
                                 .reason = BT_REASON_JOINT};
    out->chosen.terms.total_ns = BT_COST_INFINITE;
    for (c.p = 0; c.p < view->worker_count; c.p++) {
        for (c.d = 0; c.d < view->worker_count; c.d++) {
            if (!view->workers[c.p].prefill_ok || !view->workers[c.d].decode_ok)
                continue;
            bt_place_terms(view, c.p, c.d, &c.terms);
            if (c.terms.total_ns < out->chosen.terms.total_ns)
                out->chosen = c;
        }
    }
    return out->chosen.d == BT_PLACE_NONE ? BT_NO_WORKER : BT_OK;
}

static const struct bt_policy earliest = {
    .name = "earliest", .summary = "for tests", .place = place_earliest};

void world_init(struct world *w)
{
    struct bt_compute_model compute = {.prefill_a_ms = 1,
                                       .prefill_b_ms = 0.1,
                                       .decode_a_ms = 10,
                                       .speedup = 1};

    memset(w, 0, sizeof(*w));
    for (uint32_t i = 0; i < WORLD_WORKERS; i++)
        w->workers[i] = (struct bt_core_worker_config){
            .roles = i < 2 ? BT_ROLE_PREFILL : BT_ROLE_DECODE,
            .compute = compute,
            .decode_slots = 64,
        };
    for (size_t i = 0; i < WORLD_WORKERS * WORLD_WORKERS; i++)
        w->links[i].model =
            (struct bt_link_model){.rate_bytes_per_s = 10000000000u};
    for (size_t i = 0; i < 2; i++)
        w->models[i] = (struct bt_core_model_config){
            .kv_bytes_per_token = 100000, .block_tokens = WORLD_BLOCK};
    w->config = (struct bt_core_config){
        .policy = &earliest,
        .workers = w->workers,
        .worker_count = 4,
        .links = w->links,
        .models = w->models,
        .model_count = 1,
        .requests_max = 256,
        .queue_max = 200,
        .index_blocks_max = 1024,
        .index_holdings_max = 4096,
        .prompt_blocks_max = 1024,
        .attempts_max = 4,
        .retry_budget_min = 100,
        .expected_output_tokens = 100,
        .lease_ns = 30000 * MS,
        .lease_margin_ns = 5000 * MS,
        .queue_timeout_ns = 5000 * MS,
        .prefill_timeout_ns = 20000 * MS,
        .handoff_timeout_ns = 10000 * MS,
        .idle_stream_timeout_ns = 15000 * MS,
        .suspect_ns = 30000 * MS,
        .suspect_failures = 3,
        .seed = 1,
    };
    w->now_ms = WORLD_START_MS;
}

void world_start_pending(struct world *w)
{
    size_t bytes = bt_core_bytes(&w->config);

    w->memory = calloc(1, bytes);
    assert_non_null(w->memory);
    bt_arena_init(&w->arena, w->memory, bytes);
    w->core = bt_core_init(&w->arena, &w->config);
    assert_non_null(w->core);
    w->fx.items = w->items;
    w->fx.capacity = WORLD_EFFECTS;
}

void world_start(struct world *w)
{
    world_start_pending(w);
    for (uint32_t i = 0; i < w->config.worker_count; i++) {
        assert_string_equal(world_ready(w, i, 1, WORLD_BLOCK), "");
        world_stream(w, i, BT_STREAM_EXACT);
    }
}

void world_fini(struct world *w)
{
    free(w->memory);
}

static void __attribute__((format(printf, 2, 3)))
append(struct world *w, const char *format, ...)
{
    size_t used = strlen(w->line);
    va_list args;

    va_start(args, format);
    (void)vsnprintf(w->line + used, sizeof(w->line) - used, format, args);
    va_end(args);
}

static void write_source(struct world *w, const struct bt_place_source *source)
{
    if (source->tokens > 0)
        append(w, "<%u:%u", source->worker, source->tokens);
}

static void write_effect(struct world *w, const struct bt_effect *e)
{
    unsigned int cookie = (unsigned int)e->cookie;
    unsigned int slot = bt_worker_slot(e->worker);

    assert_true(cookie < WORLD_COOKIES);
    assert_int_equal(w->finished[cookie], 0);
    append(w, "%s", w->line[0] == '\0' ? "" : " ");
    switch (e->type) {
    case BT_FX_ACCEPTED:
        w->ids[cookie] = e->request;
        append(w, "A%u", cookie);
        break;
    case BT_FX_SEND_PREFILL:
        append(w, "P%u#%u@%u", cookie, e->attempt, slot);
        write_source(w, &e->source);
        break;
    case BT_FX_SEND_DECODE:
        append(w, "D%u#%u@%u%s", cookie, e->attempt, slot,
               e->with_params ? "+kv" : "");
        write_source(w, &e->source);
        break;
    case BT_FX_RELEASE_HANDOFF:
        append(w, "R%u@%u", cookie, slot);
        break;
    case BT_FX_ABORT:
        append(w, "X%u#%u@%u", cookie, e->attempt, slot);
        break;
    case BT_FX_PREFETCH:
        append(w, "W%u@%u", cookie, slot);
        write_source(w, &e->source);
        break;
    case BT_FX_FINISHED:
        w->finished[cookie]++;
        w->decisions[cookie] = *e->decision;
        append(w, "F%u:%s/%d", cookie, bt_outcome_name(e->decision->outcome),
               e->decision->status);
        break;
    }
    assert_int_equal(w->ids[cookie].v, e->request.v);
}

uint32_t world_live(const struct world *w)
{
    const struct bt_core_counters *c = bt_core_counters_get(w->core);
    uint32_t live = 0;

    for (int i = 0; i < BT_REQUEST_STATE_COUNT; i++)
        live += c->live[i];
    return live;
}

static void check_counters(const struct world *w)
{
    const struct bt_core_counters *c = bt_core_counters_get(w->core);
    uint64_t ended = 0;

    for (int i = 0; i < BT_OUTCOME_COUNT; i++)
        ended += c->outcomes[i];
    assert_int_equal(c->requests, ended + world_live(w));
}

const char *world_step(struct world *w, const struct bt_event *event)
{
    struct bt_event timed = *event;

    timed.now_ns = w->now_ms * MS;
    w->fx.count = 0;
    w->line[0] = '\0';
    w->status = bt_core_step(w->core, &timed, &w->fx);
    for (size_t i = 0; i < w->fx.count; i++)
        write_effect(w, &w->fx.items[i]);
    check_counters(w);
    return w->line;
}

const char *world_tick(struct world *w, int64_t advance_ms)
{
    struct bt_event e = {.type = BT_EV_TICK};

    w->now_ms += advance_ms;
    return world_step(w, &e);
}

const char *world_worker(struct world *w, uint32_t slot,
                         enum bt_worker_state state)
{
    struct bt_event e = {.type = BT_EV_WORKER_STATE,
                         .u.worker_state = {.worker = slot, .state = state}};

    return world_step(w, &e);
}

const char *world_ready(struct world *w, uint32_t slot, uint64_t incarnation,
                        uint32_t block_tokens)
{
    struct bt_event e = {.type = BT_EV_WORKER_STATE,
                         .u.worker_state = {.worker = slot,
                                            .state = BT_WORKER_READY,
                                            .incarnation = incarnation,
                                            .block_tokens = block_tokens}};

    return world_step(w, &e);
}

void world_stream(struct world *w, uint32_t slot, enum bt_stream_state state)
{
    struct bt_event e = {.type = BT_EV_KV_STREAM,
                         .u.kv_stream = {.worker = slot, .state = state}};

    assert_string_equal(world_step(w, &e), "");
}

struct bt_ev_request world_ask(uint64_t cookie)
{
    struct bt_ev_request ask = {.cookie = cookie,
                                .ns = 1337,
                                .prompt_tokens = 100,
                                .tokens_known = true,
                                .max_tokens = 10,
                                .pd_allowed = true};

    return ask;
}

const char *world_send(struct world *w, const struct bt_ev_request *ask)
{
    struct bt_event e = {.type = BT_EV_REQUEST, .u.request = *ask};

    return world_step(w, &e);
}

const char *world_request(struct world *w, uint64_t cookie)
{
    struct bt_ev_request ask = world_ask(cookie);

    return world_send(w, &ask);
}

const char *world_gone(struct world *w, uint64_t cookie)
{
    struct bt_event e = {.type = BT_EV_CLIENT_GONE,
                         .u.client_gone = w->ids[cookie]};

    return world_step(w, &e);
}

const char *world_prefilled(struct world *w, uint64_t cookie, uint32_t attempt,
                            bool params)
{
    struct bt_event e = {.type = BT_EV_PREFILL_DONE,
                         .u.prefill_done = {.request = w->ids[cookie],
                                            .attempt = attempt,
                                            .has_params = params}};

    return world_step(w, &e);
}

const char *world_answered(struct world *w, uint64_t cookie, uint32_t attempt,
                           uint32_t prompt_tokens, uint32_t cached_tokens)
{
    struct bt_event e = {.type = BT_EV_PREFILL_DONE,
                         .u.prefill_done = {.request = w->ids[cookie],
                                            .attempt = attempt,
                                            .has_params = true,
                                            .prompt_tokens = prompt_tokens,
                                            .cached_tokens = cached_tokens}};

    return world_step(w, &e);
}

static const char *leg_failed(struct world *w,
                              const struct bt_ev_leg_failed *failed)
{
    struct bt_event e = {.type = BT_EV_LEG_FAILED, .u.leg_failed = *failed};

    return world_step(w, &e);
}

const char *world_http(struct world *w, uint64_t cookie, uint32_t attempt,
                       enum bt_leg leg, int status)
{
    struct bt_ev_leg_failed failed = {.request = w->ids[cookie],
                                      .attempt = attempt,
                                      .leg = leg,
                                      .how = BT_FAIL_HTTP,
                                      .status = status};

    return leg_failed(w, &failed);
}

const char *world_fail(struct world *w, uint64_t cookie, uint32_t attempt,
                       enum bt_leg leg, enum bt_leg_failure how)
{
    struct bt_ev_leg_failed failed = {
        .request = w->ids[cookie], .attempt = attempt, .leg = leg, .how = how};

    return leg_failed(w, &failed);
}

const char *world_cut(struct world *w, uint64_t cookie, uint32_t attempt,
                      enum bt_leg_failure how)
{
    struct bt_ev_leg_failed failed = {.request = w->ids[cookie],
                                      .attempt = attempt,
                                      .leg = BT_LEG_DECODE,
                                      .how = how,
                                      .bytes_sent = true};

    return leg_failed(w, &failed);
}

static const char *progress(struct world *w, enum bt_event_type type,
                            uint64_t cookie, uint32_t attempt, uint32_t tokens)
{
    struct bt_event e = {.type = type,
                         .u.progress = {.request = w->ids[cookie],
                                        .attempt = attempt,
                                        .tokens = tokens}};

    return world_step(w, &e);
}

const char *world_first(struct world *w, uint64_t cookie, uint32_t attempt)
{
    return progress(w, BT_EV_FIRST_TOKEN, cookie, attempt, 1);
}

const char *world_tokens(struct world *w, uint64_t cookie, uint32_t attempt,
                         uint32_t tokens)
{
    return progress(w, BT_EV_TOKENS, cookie, attempt, tokens);
}

const char *world_done(struct world *w, uint64_t cookie, uint32_t attempt)
{
    return progress(w, BT_EV_DECODE_DONE, cookie, attempt, 10);
}

struct bt_core_worker_info world_info(const struct world *w, uint32_t slot)
{
    struct bt_core_worker_info info;

    assert_int_equal(bt_core_worker_get(w->core, slot, &info), BT_OK);
    return info;
}
