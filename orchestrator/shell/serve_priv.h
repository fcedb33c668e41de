/* Private to orchestrator/shell: the server's parts and how they reach each
 * other. Everything here runs on the one loop thread.
 */
#ifndef BATON_SHELL_SERVE_PRIV_H
#define BATON_SHELL_SERVE_PRIV_H

#include "baton/base/histogram.h"
#include "baton/base/units.h"
#include "baton/orchestrator/config.h"
#include "baton/orchestrator/core.h"
#include "baton/orchestrator/event_plane.h"
#include "baton/orchestrator/httpd.h"
#include "baton/orchestrator/json.h"
#include "baton/orchestrator/log.h"
#include "baton/orchestrator/openai.h"
#include "baton/orchestrator/promtext.h"
#include "baton/orchestrator/serve.h"
#include "baton/orchestrator/sse.h"
#include "baton/orchestrator/upstream.h"
#include <ev.h>

struct exchange;
struct release;
struct workers;
struct decision_ring;
struct tokenizer;
struct recorder;
struct warm;
struct kv_watch;

enum route_index {
    ROUTE_COMPLETIONS,
    ROUTE_CHAT,
    ROUTE_MODELS,
    ROUTE_HEALTH,
    ROUTE_OTHER,
    ROUTE_COUNT
};

/* What the shell counts itself; the core's counters come on top. */
struct shell_counters {
    uint64_t client_params_removed;
    uint64_t tokenize_ok, tokenize_late, tokenize_failed, tokenize_busy;
    uint64_t hidden[BT_HIDDEN_MEMBER + 1]; /* prompts, by what hides */
    uint64_t pd_bypass;
    uint64_t disconnects[BT_REQUEST_STATE_COUNT];
    uint64_t input_tokens, output_tokens, cached_tokens;
    uint64_t overlap_tokens, prompt_tokens_placed;
    uint64_t decisions_dropped;
    uint64_t healing_legs;
    uint64_t upstream_answers[6]; /* by status class; [0] transport */
    struct bt_prom_histogram ttft, ttst, itl, duration, plan, loop_lag;
    struct bt_histogram plan_ns; /* for exact quantiles in the summary */
};

struct bt_serve {
    struct ev_loop *loop;
    const struct bt_config *config;
    struct bt_core *core;
    void *core_memory;
    size_t core_bytes;
    struct bt_core_worker_config *core_workers;
    struct bt_core_link_config *core_links;
    struct bt_core_model_config *core_models;
    const char **link_classes; /* config's strings, by class index */
    uint32_t link_class_count;
    struct bt_httpd *front, *metrics, *admin;
    struct bt_upstream *upstream;
    struct workers *workers;
    struct bt_event_plane *events; /* sources are slots */
    struct warm *warm;             /* NULL: no index.snapshot */
    struct kv_watch *kv_watch;
    struct decision_ring *decisions;
    struct tokenizer *tokenizer;
    struct recorder *recorder; /* NULL: no journal */
    struct shell_counters counters;
    struct bt_sse sse; /* lent to one stream at a time: said.h */
    ev_timer tick;
    int64_t last_tick_ns;
    int64_t started_ns;
    /* effects not yet performed: a ring that grows up to its limit */
    struct bt_effect *pending;
    size_t pending_count;
    bool performing;
    struct exchange *exchanges; /* live ones, doubly linked */
    uint32_t exchange_count;
    struct release *releases; /* hand-offs being given back, doubly linked */
    uint32_t release_calls;   /* how many */
    uint64_t next_id;
    uint64_t id_seed;
    bool draining, cut;
    ev_timer drain_timer;
};

int64_t serve_now_ns(void);

/* Run one event through the core and perform what it asks for (nested calls
 * leave performing to the outermost). */
enum bt_status serve_step(struct bt_serve *serve, struct bt_event *event);
/* Perform what is pending, in order. */
void serve_perform(struct bt_serve *serve);
/* Called when the last exchange of a draining server has ended. */
void serve_drain_check(struct bt_serve *serve);
bool serve_is_ready(const struct bt_serve *serve, const char **reason_out);
const char *serve_worker_name(const struct bt_serve *serve, uint32_t slot);

/* front.c */
void front_handle(void *arg, struct bt_httpd_request *req);
/* prompt.c: keys of the model's whole blocks into keys_out, which has room for
 * count / block_size; how many. */
size_t prompt_keys(const struct bt_model_config *model, const uint32_t *tokens,
                   size_t count, uint64_t ns, uint64_t *keys_out);
/* Say at the start which models' blocks are so small that events are many. */
void prompt_warn(const struct bt_config *config);
/* exchange.c: perform one effect of the core */
void exchange_perform(struct bt_serve *serve, const struct bt_effect *effect);
/* Called by serve_step for each new effect: a FINISHED's decision is only good
 * until the core's next step, which may come before it is performed. */
void exchange_keep_decision(struct bt_effect *effect);
/* On each tick: a stream that waits for its client is no idle worker. */
void exchange_tick_all(struct bt_serve *serve);
/* End what a drain has left: an error to each client, its legs aborted. */
void exchange_cut_all(struct bt_serve *serve);
/* Forget the hand-offs that are being given back (the server ends). */
void handoff_release_stop(struct bt_serve *serve);

/* workers.c: identity, health, telemetry */
enum bt_status workers_start(struct bt_serve *serve);
void workers_stop(struct bt_serve *serve);
void workers_set_drain(struct bt_serve *serve, uint32_t slot, bool drain);
/* The worker's events are of blocks of this size: refused, if that is not the
 * model's, until it is another process. */
void workers_block_size(struct bt_serve *serve, uint32_t slot,
                        uint32_t block_tokens);
const char *workers_reason(const struct bt_serve *serve, uint32_t slot);
const char *workers_version(const struct bt_serve *serve, uint32_t slot);

/* event_plane.c: KV events of the workers into the core */
enum bt_status event_plane_start(struct bt_serve *serve);
void event_plane_stop(struct bt_serve *serve);
/* Add a worker's source (start does), or again after bt_event_plane_remove. */
enum bt_status event_plane_add_worker(struct bt_serve *serve, uint32_t slot);

/* kv_watch.c: what the self-check finds is said, and acted on, on each tick. */
enum bt_status kv_watch_start(struct bt_serve *serve);
void kv_watch_stop(struct bt_serve *serve);
void kv_watch_tick(struct bt_serve *serve, int64_t now_ns);
/* Are prefills to ask the worker to announce their blocks again? */
bool kv_watch_heals(const struct bt_serve *serve, uint32_t slot);

/* warm.c: index.snapshot. After event_plane_start; stop saves, before
 * event_plane_stop, once what was loaded is used up. */
enum bt_status warm_start(struct bt_serve *serve);
void warm_stop(struct bt_serve *serve);
/* The worker enters service as this process, the core knows: it takes up what
 * the snapshot has of it. Before bt_event_plane_alive. */
void warm_enter(struct bt_serve *serve, uint32_t slot, uint64_t incarnation);

/* decisions.c */
enum bt_status decisions_start(struct bt_serve *serve, char *error,
                               size_t error_size);
void decisions_stop(struct bt_serve *serve);
void decisions_record(struct bt_serve *serve, const struct exchange *exchange,
                      const struct bt_decision *decision);
/* JSON line of a request id, or NULL; valid until the next record. */
const char *decisions_find(const struct bt_serve *serve, const char *id);
/* i-th newest line (0 = newest), or NULL. */
const char *decisions_recent(const struct bt_serve *serve, size_t i);

struct bt_text;
struct bt_place_candidate;
/* One candidate with its terms as a JSON object. */
void decisions_candidate(struct bt_text *text, const struct bt_serve *serve,
                         const struct bt_place_candidate *candidate);

/* metrics.c, admin.c */
void metrics_handle(void *arg, struct bt_httpd_request *req);
void metrics_init(struct shell_counters *counters);
void admin_handle(void *arg, struct bt_httpd_request *req);
/* ask.c: POST /query, /query_by_hash */
void ask_handle(struct bt_serve *serve, struct bt_httpd_request *req,
                bool by_hash);

/* Small helpers shared by the handlers. */
void reply_json(struct bt_httpd_request *req, int status, const char *body,
                size_t bytes);
void reply_error(struct bt_httpd_request *req, int status, const char *message);
char *text_alloc(struct bt_text *text, size_t size); /* NULL: no memory */

#endif
