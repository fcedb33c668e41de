/* Who the workers are and whether they live: a small machine per worker that
 * asks one thing at a time.
 *
 *   pending --/health--> /v1/models --> /metrics --> READY
 *      ^  any wrong or missing answer: reason kept, asked again with back-off
 *   ready  --/health every health.interval, /metrics every stats_interval
 *      `fail` misses -> unhealthy -> (answers again) -> identified anew
 *   /metrics shows another process start -> new incarnation -> READY again
 *
 * A worker enters service only after it has said which models it serves and
 * with which block size; what does not fit the configuration is refused, loud.
 */
#include "serve_priv.h"

#include "baton/base/rng.h"
#include "baton/orchestrator/json.h"
#include "baton/orchestrator/promtext.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define REPLY_MAX         (4u << 20)
#define REASON_MAX        160
#define BACKOFF_MIN_S     0.1
#define INCARNATION_EMPTY 1u

enum ask { ASK_HEALTH, ASK_MODELS, ASK_VERSION, ASK_METRICS, ASK_COUNT };

static const char *const ask_paths[ASK_COUNT] = {"/health", "/v1/models",
                                                 "/version", "/metrics"};

struct scrape {
    uint32_t block_tokens;
    uint64_t blocks;
    double running, waiting, kv_usage, start_time;
    bool has_config;
};

struct worker {
    struct bt_serve *serve;
    uint32_t slot;
    enum ask ask;
    bool identifying; /* on the way to READY */
    bool ready, drained;
    bool cut;       /* the answer is larger than REPLY_MAX */
    uint64_t lives; /* times it came back without telling when it started */
    uint32_t misses, hits; /* in a row */
    double backoff_s;
    uint64_t incarnation;
    uint32_t events_tokens;      /* block size in its events, 0: fits */
    uint64_t events_incarnation; /* of the process that said so */
    int64_t health_due_ns;
    struct bt_call *call;
    char *reply;
    size_t used, size;
    char reason[REASON_MAX];
    char version[48];
    ev_timer timer;
};

struct workers {
    struct worker *at;
};

static void ask_next(struct worker *w, enum ask ask);

static void plan(struct worker *w, double delay_s)
{
    ev_timer_stop(w->serve->loop, &w->timer);
    ev_timer_set(&w->timer, delay_s, 0.);
    ev_timer_start(w->serve->loop, &w->timer);
}

static void tell(struct worker *w, enum bt_worker_state state,
                 const struct scrape *scrape)
{
    struct bt_event event = {.type = BT_EV_WORKER_STATE};

    event.u.worker_state = (struct bt_ev_worker_state){
        .worker = w->slot,
        .state = state,
        .incarnation = w->incarnation,
        .block_tokens = scrape == NULL ? 0 : scrape->block_tokens,
        .kv_capacity_tokens =
            scrape == NULL ? 0 : scrape->blocks * scrape->block_tokens,
    };
    serve_step(w->serve, &event);
}

static void set_reason(struct worker *w, const char *reason)
{
    snprintf(w->reason, sizeof(w->reason), "%s", reason);
}

/* Not (or no longer) in service; ask again later. */
static void hold_back(struct worker *w, enum bt_worker_state state,
                      const char *reason)
{
    bool changed = strcmp(w->reason, reason) != 0;
    double most = (double)w->serve->config->health.interval_ns / 1e9;

    if (changed || w->ready)
        bt_log(state == BT_WORKER_REFUSED ? BT_LOG_ERROR : BT_LOG_WARN,
               state == BT_WORKER_REFUSED ? "worker_refused"
                                          : "worker_not_ready",
               "worker=%s state=%s reason=\"%s\"",
               serve_worker_name(w->serve, w->slot),
               bt_worker_state_name(state), reason);
    set_reason(w, reason);
    if (w->ready || state == BT_WORKER_REFUSED || changed)
        tell(w, state, NULL);
    if (w->ready)
        bt_event_plane_lost(w->serve->events, w->slot);
    w->ready = false;
    w->identifying = true;
    w->backoff_s = fmin(w->backoff_s * 1.5, most);
    w->ask = ASK_HEALTH;
    plan(w, w->backoff_s);
}

static void missed(struct worker *w, const char *reason)
{
    w->hits = 0;
    w->misses++;
    if (w->ready && w->misses < w->serve->config->health.fail) {
        /* Look again sooner than the interval. */
        w->ask = ASK_HEALTH;
        plan(w, fmin(0.5, (double)w->serve->config->health.interval_ns / 1e9));
        return;
    }
    /* Pending until it has been in service once. */
    hold_back(w, w->incarnation != 0 ? BT_WORKER_UNHEALTHY : BT_WORKER_PENDING,
              reason);
}

/* ---- answers ---- */

static bool lists_model(const struct worker *w)
{
    const struct bt_config *config = w->serve->config;
    const char *want = config->models[config->workers[w->slot].model].name;
    struct bt_json root, data, entry, id;
    size_t cursor = 0;

    if (bt_json_parse(w->reply, w->used, &root, NULL) != BT_OK ||
        root.type != BT_JSON_OBJECT ||
        !bt_json_member(&root, "data", &data, NULL) ||
        data.type != BT_JSON_ARRAY)
        return false;
    while (bt_json_next(&data, &cursor, NULL, &entry))
        if (entry.type == BT_JSON_OBJECT &&
            bt_json_member(&entry, "id", &id, NULL) && bt_json_is(&id, want))
            return true;
    return false;
}

static void take_version(struct worker *w)
{
    struct bt_json root, version;
    size_t n = 0;

    w->version[0] = '\0';
    if (bt_json_parse(w->reply, w->used, &root, NULL) == BT_OK &&
        root.type == BT_JSON_OBJECT &&
        bt_json_member(&root, "version", &version, NULL) &&
        bt_json_string(&version, w->version, sizeof(w->version) - 1, &n) ==
            BT_OK)
        w->version[n] = '\0';
}

static void take_sample(void *arg, const struct bt_prom_sample *s)
{
    struct scrape *out = arg;
    char buf[32];

    if (bt_prom_is(s, "vllm:num_requests_running"))
        out->running += s->value;
    else if (bt_prom_is(s, "vllm:num_requests_waiting"))
        out->waiting += s->value;
    else if (bt_prom_is(s, "vllm:kv_cache_usage_perc") ||
             bt_prom_is(s, "vllm:gpu_cache_usage_perc"))
        out->kv_usage = s->value;
    else if (bt_prom_is(s, "process_start_time_seconds"))
        out->start_time = s->value;
    else if (bt_prom_is(s, "vllm:cache_config_info")) {
        out->has_config = true;
        if (bt_prom_label(s, "block_size", buf, sizeof(buf)))
            out->block_tokens = (uint32_t)strtoul(buf, NULL, 10);
        if (bt_prom_label(s, "num_gpu_blocks", buf, sizeof(buf)))
            out->blocks = strtoull(buf, NULL, 10);
    }
}

/* What tells one process of a worker from the next. Without a start time: the
 * same as long as it answers, another one after a silence. */
static uint64_t incarnation_of(struct worker *w, const struct scrape *s)
{
    uint64_t bits;

    if (s->start_time > 0) {
        memcpy(&bits, &s->start_time, sizeof(bits));
        return bt_mix64(bits) | INCARNATION_EMPTY;
    }
    if (w->ready)
        return w->incarnation;
    return bt_mix64(++w->lives) | INCARNATION_EMPTY;
}

static uint32_t as_count(double value)
{
    return value > 0 && value < 4e9 ? (uint32_t)value : 0;
}

/* What it says of itself, or its events do, against the configuration. */
static bool block_size_fits(const struct worker *w, const struct scrape *s,
                            char *reason, size_t size)
{
    const struct bt_config *config = w->serve->config;
    uint32_t want = config->models[config->workers[w->slot].model].block_size;
    bool events = w->events_tokens != 0 && w->events_tokens != want &&
                  w->events_incarnation == w->incarnation;

    if (s->block_tokens == want && !events)
        return true;
    snprintf(reason, size,
             "block size is %u tokens%s, the configuration says %u",
             events ? w->events_tokens : s->block_tokens,
             events ? " in its events" : "", want);
    return false;
}

static void enter_service(struct worker *w, const struct scrape *s)
{
    char reason[REASON_MAX];

    if (!block_size_fits(w, s, reason, sizeof(reason))) {
        w->incarnation = 0;
        hold_back(w, BT_WORKER_REFUSED, reason);
        return;
    }
    w->ready = true;
    w->identifying = false;
    w->misses = 0;
    w->backoff_s = BACKOFF_MIN_S;
    set_reason(w, "");
    bt_log(BT_LOG_INFO, "worker_ready",
           "worker=%s version=%s block_size=%u blocks=%llu",
           serve_worker_name(w->serve, w->slot),
           w->version[0] == '\0' ? "-" : w->version, s->block_tokens,
           (unsigned long long)s->blocks);
    tell(w, w->drained ? BT_WORKER_DRAINING : BT_WORKER_READY, s);
    warm_enter(w->serve, w->slot, w->incarnation);
    bt_event_plane_alive(w->serve->events, w->slot, w->incarnation, s->blocks);
}

static void on_scrape(struct worker *w)
{
    struct bt_event event = {.type = BT_EV_WORKER_STATS};
    struct scrape s = {0};
    uint64_t incarnation;

    bt_prom_read(w->reply, w->used, take_sample, &s);
    if (!s.has_config) {
        /* Says nothing about identity: neither a start nor a restart. */
        missed(w, "/metrics has no vllm:cache_config_info");
        return;
    }
    incarnation = incarnation_of(w, &s);
    if (w->identifying || incarnation != w->incarnation) {
        if (!w->identifying)
            bt_log(BT_LOG_WARN, "worker_restarted", "worker=%s",
                   serve_worker_name(w->serve, w->slot));
        w->incarnation = incarnation;
        enter_service(w, &s);
        if (!w->ready)
            return;
    }
    event.u.worker_stats = (struct bt_ev_worker_stats){
        .worker = w->slot,
        .running = as_count(s.running),
        .waiting = as_count(s.waiting),
        .kv_usage = s.kv_usage >= 0 && s.kv_usage <= 1 ? s.kv_usage : 0,
    };
    serve_step(w->serve, &event);
    bt_event_plane_busy(w->serve->events, w->slot,
                        event.u.worker_stats.running);
}

static void rest(struct worker *w)
{
    const struct bt_config *config = w->serve->config;
    int64_t now = serve_now_ns();

    w->ask = ASK_METRICS;
    if (now >= w->health_due_ns) {
        w->ask = ASK_HEALTH;
        w->health_due_ns = now + config->health.interval_ns;
    }
    plan(w, (double)config->health.stats_interval_ns / 1e9);
}

static void on_answer(struct worker *w)
{
    uint32_t need = w->serve->config->health.ok;

    switch (w->ask) {
    case ASK_HEALTH:
        w->misses = 0;
        w->hits++;
        if (!w->ready && w->incarnation != 0 && w->hits < need)
            plan(w, w->backoff_s); /* it comes back: be sure */
        else
            ask_next(w, w->identifying ? ASK_MODELS : ASK_METRICS);
        return;
    case ASK_MODELS:
        if (lists_model(w))
            ask_next(w, ASK_VERSION);
        else
            hold_back(w, BT_WORKER_REFUSED,
                      "/v1/models does not list the configured model");
        return;
    case ASK_VERSION:
        take_version(w);
        ask_next(w, ASK_METRICS);
        return;
    case ASK_METRICS:
        on_scrape(w);
        if (!ev_is_active(&w->timer)) /* else it was held back */
            rest(w);
        return;
    case ASK_COUNT:
        break;
    }
}

static enum bt_status on_data(void *arg, const char *bytes, size_t count)
{
    struct worker *w = arg;

    if (w->cut || count > REPLY_MAX - w->used) {
        w->cut = true;
        return BT_OK;
    }
    if (w->used + count > w->size) {
        size_t size = (w->used + count) * 2;
        char *grown = realloc(w->reply, size);

        if (grown == NULL) {
            w->cut = true;
            return BT_OK;
        }
        w->reply = grown;
        w->size = size;
    }
    memcpy(w->reply + w->used, bytes, count);
    w->used += count;
    return BT_OK;
}

static void on_done(void *arg, const struct bt_call_end *end)
{
    struct worker *w = arg;
    char reason[REASON_MAX];

    w->call = NULL;
    if (end->status != BT_OK) {
        snprintf(reason, sizeof(reason), "%s: %s", ask_paths[w->ask],
                 bt_status_text(end->status));
        missed(w, reason);
    } else if (end->http != 200 &&
               !(w->ask == ASK_VERSION && end->http == 404)) {
        snprintf(reason, sizeof(reason), "%s answers HTTP %d",
                 ask_paths[w->ask], end->http);
        missed(w, reason);
    } else if (w->cut) {
        snprintf(reason, sizeof(reason), "%s: the answer is too large",
                 ask_paths[w->ask]);
        missed(w, reason);
    } else {
        on_answer(w);
    }
}

static void ask_next(struct worker *w, enum ask ask)
{
    const struct bt_config *config = w->serve->config;
    char url[512];
    struct bt_call_spec spec = {
        .method = "GET",
        .url = url,
        .connect_timeout_ms = config->health.timeout_ns / BT_NS_PER_MS,
        .total_timeout_ms = config->health.timeout_ns / BT_NS_PER_MS,
        .data = on_data,
        .done = on_done,
        .arg = w,
    };

    w->ask = ask;
    w->used = 0;
    w->cut = false;
    snprintf(url, sizeof(url), "%s%s", config->workers[w->slot].url,
             ask_paths[ask]);
    if (bt_call_start(w->serve->upstream, &spec, &w->call) != BT_OK) {
        w->call = NULL;
        missed(w, "the request could not be started");
    }
}

static void on_timer(struct ev_loop *loop, ev_timer *timer, int events)
{
    struct worker *w = timer->data;

    (void)loop;
    (void)events;
    ask_next(w, w->ask);
}

/* ---- the set ---- */

enum bt_status workers_start(struct bt_serve *serve)
{
    uint32_t n = serve->config->worker_count;

    serve->workers = calloc(1, sizeof(*serve->workers));
    if (serve->workers == NULL)
        return BT_NO_MEMORY;
    serve->workers->at = calloc(n + 1, sizeof(struct worker));
    if (serve->workers->at == NULL)
        return BT_NO_MEMORY;
    for (uint32_t i = 0; i < n; i++) {
        struct worker *w = &serve->workers->at[i];

        w->serve = serve;
        w->slot = i;
        w->identifying = true;
        w->backoff_s = BACKOFF_MIN_S;
        ev_timer_init(&w->timer, on_timer, 0., 0.);
        w->timer.data = w;
        plan(w, 0.);
    }
    return BT_OK;
}

void workers_stop(struct bt_serve *serve)
{
    for (uint32_t i = 0;
         serve->workers->at != NULL && i < serve->config->worker_count; i++) {
        struct worker *w = &serve->workers->at[i];

        if (w->serve == NULL)
            continue;
        ev_timer_stop(serve->loop, &w->timer);
        if (w->call != NULL)
            bt_call_cancel(w->call);
        free(w->reply);
    }
    free(serve->workers->at);
    free(serve->workers);
    serve->workers = NULL;
}

void workers_set_drain(struct bt_serve *serve, uint32_t slot, bool drain)
{
    struct worker *w = &serve->workers->at[slot];

    if (w->drained == drain)
        return;
    w->drained = drain;
    bt_log(BT_LOG_INFO, drain ? "worker_draining" : "worker_undrained",
           "worker=%s", serve_worker_name(serve, slot));
    if (!w->ready)
        return;
    if (drain)
        tell(w, BT_WORKER_DRAINING, NULL);
    else
        w->identifying = true; /* the next scrape brings it back */
    /* A question that is out is answered first, as what it was. */
    if (!drain && w->call == NULL) {
        w->ask = ASK_METRICS;
        plan(w, 0.);
    }
}

void workers_block_size(struct bt_serve *serve, uint32_t slot,
                        uint32_t block_tokens)
{
    struct worker *w = &serve->workers->at[slot];

    w->events_tokens = block_tokens;
    w->events_incarnation = w->incarnation;
    if (!w->ready)
        return;
    w->identifying = true; /* the next scrape refuses it */
    if (w->call == NULL) {
        w->ask = ASK_METRICS;
        plan(w, 0.);
    }
}

const char *workers_reason(const struct bt_serve *serve, uint32_t slot)
{
    return serve->workers->at[slot].reason;
}

const char *workers_version(const struct bt_serve *serve, uint32_t slot)
{
    return serve->workers->at[slot].version;
}
