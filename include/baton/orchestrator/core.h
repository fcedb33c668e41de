/* The orchestrator core: event in, effects out, time inside the event.
 *
 * bt_core_step() is a function of (core, event): no clock, socket, malloc, log
 * or thread. A shell (live server, simulator, replay) performs the effects and
 * reports back as further events. Same seed and events: same effects.
 *
 * Life of a request (core/request_states.c holds the table):
 *
 *   received -> queued -> placed -> prefilling -> handing_off -> decoding ->
 * done \         \          |  \           |             |-> failed
 *                   \-> shed  \-> decoding (no P leg)  |             \->
 * cancelled (any live state may end failed or cancelled)
 *
 *   received     parsed, not yet looked at       queued   waits for a worker
 *   placed       chosen and booked, leg not sent prefilling  leg P is out
 *   handing_off  leg P answered, leg D is out, no token yet
 *   decoding     first token seen (or leg D of a plain request is out)
 *
 * Every booking (ledger.h) is made in the step that chooses and released
 * exactly once on every path. Each request ends with exactly one
 * BT_FX_FINISHED that carries the decision record.
 */
#ifndef BATON_ORCHESTRATOR_CORE_H
#define BATON_ORCHESTRATOR_CORE_H

#include "baton/base/arena.h"
#include "baton/base/ids.h"
#include "baton/base/status.h"
#include "baton/planner/approx_index.h"
#include "baton/planner/cost.h"
#include "baton/planner/place.h"
#include "baton/planner/prefix_index.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- configuration (copied at init; link and model arrays are kept by
 * pointer and must outlive the core) ---- */

struct bt_core_worker_config {
    unsigned int roles; /* bits of enum bt_role */
    uint32_t model;     /* index of the base model it serves */
    struct bt_compute_model compute;
    uint32_t decode_slots;           /* batch limit */
    uint64_t kv_capacity_tokens;     /* 0: take what the worker reports */
    struct bt_tier_model host, disk; /* own slower tiers; rate 0: none */
    bool local_ok;         /* may serve whole requests beside a pool */
    bool fetch_ok;         /* understands SEND_PREFILL with a fetch */
    uint32_t chunk_tokens; /* prefill chunk beside decodes; 0: whole */
    uint32_t batch_tokens; /* max_num_batched_tokens; 0 unknown */
    uint32_t ranks;        /* data-parallel ranks, each with a cache of its own;
                              0 counts as 1; <= 64 */
};

struct bt_core_link_config {
    struct bt_link_model model;
    uint32_t class_index; /* shell's table of class names */
};

struct bt_core_model_config {
    uint64_t kv_bytes_per_token;
    uint32_t block_tokens; /* expected; a worker that differs is
                              refused by the shell */
    struct bt_engine_mode mode;
};

/* Holding requests back for late dispatch (cost-models.md section 17). A
 * policy that never answers BT_AGAIN is not affected. */
struct bt_core_hold_config {
    bool enabled;
    int64_t lead_ns;         /* dispatched work a worker keeps before it */
    int64_t patience_ns;     /* then the veto is lifted */
    uint32_t ask_max;        /* policy calls per drain, > 0 */
    double ageing, fairness; /* order.h */
    double oldest_share;     /* of dispatched work, for the longest waiting; 0:
                                none, late requests may starve; order.h */
    bool prefetch; /* a held request's prefix goes to its likely worker */
};

/* TTFT limit of a request: base + factor * unloaded prefill of its whole
 * prompt on the fastest worker of its model. All 0: no limits. */
struct bt_core_slo_config {
    int64_t ttft_base_ns;
    double ttft_factor;
    int64_t tpot_ns;
};

struct bt_core_config {
    const struct bt_policy *policy;
    bool knobs_set; /* else the policy's defaults */
    double knobs[BT_POLICY_KNOBS_MAX];
    const struct bt_topology *topology; /* kept; NULL: pairs only */
    struct bt_place_prices prices;
    struct bt_core_hold_config hold;
    struct bt_core_slo_config slo;
    bool calibrate; /* learn compute and links from what is observed */
    const struct bt_core_worker_config *workers;
    uint32_t worker_count;
    const struct bt_core_link_config *links; /* [p * worker_count + d] */
    const struct bt_core_model_config *models;
    uint32_t model_count;
    uint32_t requests_max; /* live requests, queued included */
    uint32_t queue_max;    /* of them, waiting for a worker */
    uint32_t index_blocks_max, index_holdings_max;
    /* Where a worker's events cannot be believed, its blocks are guessed from
     * our own placements (approx_index.h). 0 blocks: never. */
    uint32_t approx_blocks_max;
    int64_t approx_ttl_ns;
    bool self_check; /* hold predicted hits against what engines report */
    uint32_t prompt_blocks_max;      /* keys looked at per request */
    uint32_t attempts_max;           /* legs P + legs D of one request, >= 2 */
    double retry_budget_ratio;       /* retries per request, e.g. 0.1 */
    uint32_t retry_budget_min;       /* retries always allowed per 10 s */
    bool pd_required;                /* false: plain request to D when no P */
    uint32_t pd_min_tokens;          /* shorter prompts skip leg P; 0 = never */
    uint32_t expected_output_tokens; /* reserve when max_tokens is larger */
    int64_t lease_ns, lease_margin_ns;
    int64_t queue_timeout_ns, prefill_timeout_ns, handoff_timeout_ns,
        idle_stream_timeout_ns; /* per phase, see the diagram */
    int64_t suspect_ns;         /* pair or worker is avoided for this */
    uint32_t suspect_failures;  /* consecutive transport failures */
    uint64_t seed;
};

/* ---- events ---- */

enum bt_leg { BT_LEG_PREFILL, BT_LEG_DECODE };

#define BT_WORKER_STATE_LIST(X)                                                \
    X(BT_WORKER_PENDING, "pending") /* has not said who it is */               \
    X(BT_WORKER_READY, "ready")                                                \
    X(BT_WORKER_UNHEALTHY, "unhealthy") /* health checks fail */               \
    X(BT_WORKER_DRAINING, "draining")   /* no new choices */                   \
    X(BT_WORKER_REFUSED, "refused")     /* identity does not fit: loud */
enum bt_worker_state {
#define X(code, name) code,
    BT_WORKER_STATE_LIST(X)
#undef X
};
const char *bt_worker_state_name(enum bt_worker_state state);

#define BT_STREAM_STATE_LIST(X)                                                \
    X(BT_STREAM_ABSENT, "absent") /* no events from it */                      \
    X(BT_STREAM_SYNCING, "syncing")                                            \
    X(BT_STREAM_EXACT, "exact")                                                \
    X(BT_STREAM_PARTIAL, "partial")   /* may miss blocks, never invents */     \
    X(BT_STREAM_DEGRADED, "degraded") /* may believe in evicted blocks */      \
    X(BT_STREAM_SUSPECT, "suspect")   /* its hits do not come true */
enum bt_stream_state {
#define X(code, name) code,
    BT_STREAM_STATE_LIST(X)
#undef X
};
const char *bt_stream_state_name(enum bt_stream_state state);

/* Why a stream is in its state. */
#define BT_STREAM_CAUSE_LIST(X)                                                \
    X(BT_CAUSE_NONE, "none")                                                   \
    X(BT_CAUSE_NO_EVENTS, "no_events") /* none configured */                   \
    X(BT_CAUSE_SILENT, "silent")       /* nothing has come yet */              \
    X(BT_CAUSE_FROM_START, "from_start")                                       \
    X(BT_CAUSE_REPLAYED, "replayed")                                           \
    X(BT_CAUSE_RESUMED, "resumed")         /* snapshot, then without a hole */ \
    X(BT_CAUSE_JOINED_LATE, "joined_late") /* no replay back to the start */   \
    X(BT_CAUSE_FIRST_CONTACT, "first_contact")                                 \
    X(BT_CAUSE_GAP, "gap")                                                     \
    X(BT_CAUSE_RECONNECT, "reconnect")                                         \
    X(BT_CAUSE_RESTART, "restart")                                             \
    X(BT_CAUSE_NO_REPLAY, "no_replay")         /* a hole, and no socket */     \
    X(BT_CAUSE_REPLAY_SHORT, "replay_short")   /* the buffer began later */    \
    X(BT_CAUSE_REPLAY_FAILED, "replay_failed") /* no answer, holes in it */    \
    X(BT_CAUSE_BUFFER_FULL, "buffer_full")     /* ours, while replaying */     \
    X(BT_CAUSE_DECODE_ERRORS, "decode_errors") /* over 1 % of the events */    \
    X(BT_CAUSE_AGED_OUT, "aged_out")       /* what the hole left is gone */    \
    X(BT_CAUSE_BUSY_SILENT, "busy_silent") /* works, says nothing */           \
    X(BT_CAUSE_LATE, "late")     /* nothing missed, but all of it old */       \
    X(BT_CAUSE_GROUPS, "groups") /* hybrid model, kinds not told */            \
    X(BT_CAUSE_BLOCK_SIZE, "block_size")   /* not the model's */               \
    X(BT_CAUSE_DISPROVED, "disproved")     /* engine's cached tokens differ */ \
    X(BT_CAUSE_RANKS_MIXED, "ranks_mixed") /* several on one socket */
enum bt_stream_cause {
#define X(code, name) code,
    BT_STREAM_CAUSE_LIST(X)
#undef X
        BT_STREAM_CAUSE_COUNT
};
const char *bt_stream_cause_name(enum bt_stream_cause cause);

/* Where a decision's overlap came from. */
#define BT_PREFIX_SOURCE_LIST(X)                                               \
    X(BT_PREFIX_UNKNOWN, "none")          /* no tokens, or nobody to know */   \
    X(BT_PREFIX_EVENTS, "events")         /* KV events of the worker */        \
    X(BT_PREFIX_APPROX, "approximate")    /* our own placements */             \
    X(BT_PREFIX_DISCOUNTED, "discounted") /* events, less what proved wrong */
enum bt_overlap_source {
#define X(code, name) code,
    BT_PREFIX_SOURCE_LIST(X)
#undef X
        BT_PREFIX_SOURCE_COUNT
};
const char *bt_overlap_source_name(enum bt_overlap_source source);

enum bt_event_type {
    BT_EV_TICK,         /* time passes; at least every 100 ms */
    BT_EV_WORKER_STATE, /* health, identity, drain */
    BT_EV_WORKER_STATS, /* telemetry: kept apart from the own ledger */
    BT_EV_KV_STORE,
    BT_EV_KV_REMOVE,
    BT_EV_KV_CLEAR,  /* one rank, or a new incarnation */
    BT_EV_KV_STREAM, /* state of the event stream changed */
    BT_EV_KV_COUNTING,
    BT_EV_REQUEST, /* a client's request, parsed */
    BT_EV_CLIENT_GONE,
    BT_EV_PREFILL_DONE, /* leg P answered 2xx and was understood */
    BT_EV_LEG_FAILED,   /* either leg */
    BT_EV_FIRST_TOKEN,  /* leg D: first non-empty token seen */
    BT_EV_TOKENS,       /* leg D: progress (resets the idle timer) */
    BT_EV_DECODE_DONE   /* leg D ended well */
};

/* How a leg failed. HTTP carries the status; the rest are transport. */
enum bt_leg_failure {
    BT_FAIL_REFUSED,  /* connection refused: never delivered */
    BT_FAIL_RESET,    /* lost before the end */
    BT_FAIL_TIMEOUT,  /* the shell's own connect timer */
    BT_FAIL_HTTP,     /* status >= 400 */
    BT_FAIL_BODY,     /* 2xx but unparsable, {"error":..}, empty stream */
    BT_FAIL_TRUNCATED /* stream ended without its end mark */
};

struct bt_ev_worker_state {
    uint32_t worker; /* slot */
    enum bt_worker_state state;
    uint64_t incarnation;        /* READY: changes when the process did */
    uint32_t block_tokens;       /* READY: as reported */
    uint64_t kv_capacity_tokens; /* READY: as reported, 0 unknown */
};
struct bt_ev_worker_stats {
    uint32_t worker, running, waiting;
    double kv_usage; /* 0..1 */
};
struct bt_ev_kv_store {
    uint32_t worker, rank;
    const struct bt_kv_store *store;
};
struct bt_ev_kv_remove {
    uint32_t worker, rank;
    const uint64_t *hashes;
    const uint32_t *remaining; /* copies left of each, or NULL */
    size_t count;
    enum bt_tier tier;
};
struct bt_ev_kv_clear {
    uint32_t worker, rank;
    bool all_ranks;
    bool has_tier; /* only this tier of the one rank */
    enum bt_tier tier;
};
/* A rank's stream changed. Into DEGRADED: its entries are aged and, with an
 * approximate index, seed that; out of it with cause AGED_OUT: what is aged
 * still is dropped. A worker's state is the worst of its ranks'. */
struct bt_ev_kv_stream {
    uint32_t worker, rank;
    enum bt_stream_state state;
    enum bt_stream_cause cause;
};
/* How the rank's stores count from now on (prefix_index.h). */
struct bt_ev_kv_counting {
    uint32_t worker, rank;
    enum bt_kv_counting counting;
};
struct bt_ev_request {
    uint64_t cookie;        /* the shell's handle, returned in effects */
    uint32_t model;         /* index */
    uint64_t ns;            /* namespace seed */
    uint32_t prompt_tokens; /* exact, or an estimate if !tokens_known */
    bool tokens_known;      /* keys are valid */
    const uint64_t *keys;   /* own keys; must live until FINISHED */
    size_t key_count;
    uint32_t max_tokens; /* 0 = not given */
    bool pd_allowed;     /* false: one worker must serve all of it */
    uint64_t body_bytes;
    int64_t tokenize_ns; /* spent before this event; for the record */
    uint64_t tenant;     /* for fairness; hash, 0 = all alike */
    int32_t priority;    /* larger first, 0 normal */
    bool whole_answer;   /* the answer comes in one piece: no token events
                            before DECODE_DONE (stream: false) */
};
struct bt_ev_prefill_done {
    struct bt_request_id request;
    uint32_t attempt;       /* of the effect it answers */
    bool has_params;        /* usable kv_transfer_params came back */
    uint32_t prompt_tokens; /* usage, 0 unknown */
    uint32_t cached_tokens; /* usage, 0 unknown */
};
struct bt_ev_leg_failed {
    struct bt_request_id request;
    uint32_t attempt;
    enum bt_leg leg;
    enum bt_leg_failure how;
    int status;      /* BT_FAIL_HTTP */
    bool bytes_sent; /* answer bytes went to the client */
};
struct bt_ev_progress { /* FIRST_TOKEN, TOKENS, DECODE_DONE */
    struct bt_request_id request;
    uint32_t attempt;
    uint32_t tokens;        /* so far; DECODE_DONE: total if known */
    uint32_t cached_tokens; /* DECODE_DONE: usage, 0 unknown */
};

struct bt_event {
    enum bt_event_type type;
    int64_t now_ns; /* monotonic, never decreasing from event to event */
    union {
        struct bt_ev_worker_state worker_state;
        struct bt_ev_worker_stats worker_stats;
        struct bt_ev_kv_store kv_store;
        struct bt_ev_kv_remove kv_remove;
        struct bt_ev_kv_clear kv_clear;
        struct bt_ev_kv_stream kv_stream;
        struct bt_ev_kv_counting kv_counting;
        struct bt_ev_request request;
        struct bt_request_id client_gone;
        struct bt_ev_prefill_done prefill_done;
        struct bt_ev_leg_failed leg_failed;
        struct bt_ev_progress progress;
    } u;
};

/* ---- decision record ---- */

#define BT_OUTCOME_LIST(X)                                                     \
    X(BT_OUTCOME_OK, "ok")                                                     \
    X(BT_OUTCOME_CLIENT_ERROR, "client_error") /* worker's 4xx passed on */    \
    X(BT_OUTCOME_UPSTREAM_ERROR, "upstream_error")                             \
    X(BT_OUTCOME_TRUNCATED, "truncated") /* died after bytes were sent */      \
    X(BT_OUTCOME_CANCELLED, "cancelled") /* client left */                     \
    X(BT_OUTCOME_SHED, "shed")           /* queue or limit full */             \
    X(BT_OUTCOME_NO_WORKER, "no_worker")                                       \
    X(BT_OUTCOME_DEADLINE, "deadline")
enum bt_outcome {
#define X(code, name) code,
    BT_OUTCOME_LIST(X)
#undef X
        BT_OUTCOME_COUNT
};
const char *bt_outcome_name(enum bt_outcome outcome);

/* Named ways in which a request was served other than planned. */
#define BT_FALLBACK_LIST(X)                                                    \
    X(BT_FALLBACK_NONE, "none")                                                \
    X(BT_FALLBACK_NO_PREFILL, "no_prefill") /* no P ready */                   \
    X(BT_FALLBACK_NO_PARAMS, "no_params")   /* P gave no hand-off */           \
    X(BT_FALLBACK_PREFILL_FAILED, "prefill_failed")                            \
    X(BT_FALLBACK_HANDOFF_FAILED, "handoff_failed") /* D could not load KV */  \
    X(BT_FALLBACK_LEASE_EXPIRED, "lease_expired")
enum bt_fallback {
#define X(code, name) code,
    BT_FALLBACK_LIST(X)
#undef X
        BT_FALLBACK_COUNT
};
const char *bt_fallback_name(enum bt_fallback fallback);

#define BT_REQUEST_STATE_LIST(X)                                               \
    X(BT_REQUEST_RECEIVED, "received")                                         \
    X(BT_REQUEST_QUEUED, "queued")                                             \
    X(BT_REQUEST_PLACED, "placed")                                             \
    X(BT_REQUEST_PREFILLING, "prefilling")                                     \
    X(BT_REQUEST_HANDING_OFF, "handing_off")                                   \
    X(BT_REQUEST_DECODING, "decoding")                                         \
    X(BT_REQUEST_DONE, "done")                                                 \
    X(BT_REQUEST_FAILED, "failed")                                             \
    X(BT_REQUEST_CANCELLED, "cancelled")                                       \
    X(BT_REQUEST_SHED, "shed")
enum bt_request_state {
#define X(code, name) code,
    BT_REQUEST_STATE_LIST(X)
#undef X
        BT_REQUEST_STATE_COUNT
};
const char *bt_request_state_name(enum bt_request_state state);

#define BT_ATTEMPTS_KEPT 8
struct bt_attempt {
    enum bt_leg leg;
    struct bt_worker_id worker;
    int64_t sent_ns, ended_ns; /* absolute; ended 0 = still out */
    bool ok;
    enum bt_leg_failure how; /* when !ok */
    int status;
};

#define BT_CANDIDATES_KEPT 16

struct bt_decision {
    uint64_t cookie;
    struct bt_request_id request;
    uint64_t ns;
    uint32_t model;
    uint32_t prompt_tokens, output_tokens, max_tokens;
    uint64_t body_bytes;
    bool tokens_known;
    enum bt_stream_state index_state; /* worst among the candidates' streams */
    enum bt_stream_cause index_cause; /* of that one */
    enum bt_overlap_source overlap_source; /* of the worker that prefills */
    uint32_t overlap_raw_tokens;           /* before credit was taken off */
    uint32_t overlap_rank;  /* of its ranks, the one with the overlap */
    double credit;          /* 0..1, what its hits were worth lately */
    uint32_t common_tokens; /* that every candidate for P holds anyway */
    uint32_t copies;        /* workers with the deepest block it holds */
    const struct bt_policy *policy;
    struct bt_placement placement; /* p, d: worker SLOTS, not view positions;
                                      the placement that was last used */
    int64_t total_p90_ns;          /* of that placement when it was made: see
                                      bt_core_total_p90_ns() */
    uint32_t placements;           /* choices made, > 1 after retries */
    uint32_t asks;                 /* of the policy, > 1 when it was held */
    struct bt_place_candidate provisional; /* first assignment of a held
                                              request; d NONE: was not held */
    bool prefetched;    /* its prefix was sent ahead while it was held */
    bool handoff_moved; /* d was chosen anew when the KV lay on p */
    uint64_t tenant;
    int32_t priority;
    int64_t ttft_slo_ns; /* 0 none */
    /* The best candidates of that placement, best first; slots. */
    struct bt_place_candidate candidates[BT_CANDIDATES_KEPT];
    uint32_t candidate_count;
    enum bt_reason reason;
    enum bt_fallback fallback;
    enum bt_outcome outcome;
    enum bt_request_state phase; /* last live state before the end */
    int status;                  /* HTTP status for the client */
    /* absolute ns, 0 = did not happen */
    int64_t received_ns, placed_ns, prefill_sent_ns, prefill_done_ns,
        decode_sent_ns, first_token_ns, second_token_ns, finished_ns;
    int64_t tokenize_ns;
    uint32_t prefill_cached_tokens, decode_cached_tokens; /* engine's usage */
    uint32_t attempt_count; /* all; the first BT_ATTEMPTS_KEPT kept */
    struct bt_attempt attempts[BT_ATTEMPTS_KEPT];
};

/* ---- effects ---- */

enum bt_effect_type {
    BT_FX_ACCEPTED,        /* the request has an id now */
    BT_FX_SEND_PREFILL,    /* send leg P to worker */
    BT_FX_SEND_DECODE,     /* send leg D to worker; with_params: P's bytes */
    BT_FX_RELEASE_HANDOFF, /* deliver leg D with params to worker, then close:
                              frees P's blocks; its answer is ignored */
    BT_FX_ABORT,           /* close the connection of this leg's attempt */
    BT_FX_FINISHED,        /* exactly one per request: answer the client per
                              outcome and status if it was not answered yet,
                              write decision, forget. `decision` lives until
                              the next step. */
    BT_FX_PREFETCH         /* the request is held, worker is likely to prefill
                              it: worker pulls the prefix of source, from a
                              peer, into its cache now, without a leg. At most
                              once per request and only to workers with
                              fetch_ok. Nothing is reported back: what arrives
                              is seen by KV events. A leg to the same worker
                              joins what is still on the way; a leg elsewhere,
                              or FINISHED, ends it. */
};

struct bt_effect {
    enum bt_effect_type type;
    struct bt_request_id request;
    uint64_t cookie;
    uint32_t attempt; /* SEND_*, ABORT: number to quote in events */
    enum bt_leg leg;  /* ABORT */
    struct bt_worker_id worker;
    bool with_params; /* SEND_DECODE */
    /* SEND_DECODE with_params: what the placement counts for the transfer from
     * now on; 0: nothing. Told to d, so that it can hold its own against it. */
    int64_t transfer_ns;
    /* SEND_PREFILL, and SEND_DECODE of a local prefill: prefix to load or
     * fetch before (worker: a slot), tokens 0: none. Only to workers with
     * fetch_ok or own tiers. PREFETCH: what to fetch. */
    struct bt_place_source source;
    /* SEND_PREFILL to a worker with ranks, when one of them holds a prefix of
     * the prompt: that one should get the leg. */
    bool has_rank;
    uint32_t rank;
    /* SEND_PREFILL: the d that is booked, for engines that push while they
     * prefill (mode.overlap, mode.allocate_first). */
    struct bt_worker_id peer;
    const struct bt_decision *decision; /* FINISHED */
};

/* Caller-owned; the step appends. capacity >= 64. A step that would overflow
 * leaves work for the next tick, it never drops. */
struct bt_effects {
    struct bt_effect *items;
    size_t count, capacity;
};

/* ---- the core ---- */

struct bt_core;

/* Bytes of arena that bt_core_init needs at most for this configuration. */
size_t bt_core_bytes(const struct bt_core_config *config);
/* NULL: the arena is too small or a limit is out of range. Workers start as
 * pending. Owner of the arena: the caller, for the core's life. */
struct bt_core *bt_core_init(struct bt_arena *arena,
                             const struct bt_core_config *config);

/* One event. BT_OK, or what was wrong with it: BT_STALE (late or unknown
 * request or attempt: counted, ignored), BT_INVALID. BT_LIMIT for a REQUEST
 * beyond requests_max (then nothing was accepted, no effects). Never blocks. */
enum bt_status bt_core_step(struct bt_core *core, const struct bt_event *event,
                            struct bt_effects *effects);

/* ---- looking at it (between steps) ---- */

struct bt_core_worker_info {
    struct bt_worker_id id;
    enum bt_worker_state state;
    enum bt_stream_state stream;
    unsigned int roles;
    uint32_t model;
    uint32_t prefill_requests, decode_requests, transfers; /* own ledger */
    uint64_t prefill_tokens, decode_tokens;
    uint32_t index_blocks;
    uint32_t running, waiting; /* telemetry */
    double kv_usage;
    int64_t stats_at_ns; /* 0 = never */
    int64_t suspect_until_ns;
    uint32_t failures; /* consecutive transport failures */
    uint64_t block_tokens, kv_capacity_tokens;
    /* Observations given to its models, 0 unless the core calibrates. */
    uint64_t prefill_samples, decode_samples;
    double prefill_error;       /* relative sigma of prefill estimates */
    enum bt_stream_cause cause; /* of stream */
    /* Self-check: prompt tokens predicted to be cached, found cached by the
     * engine, found though not predicted; and what hits are worth, 0..1. */
    uint64_t hit_predicted, hit_actual, hit_unforeseen, hit_checks;
    uint64_t hit_unforeseen_checks; /* a block found or more, none predicted */
    double credit;
    uint32_t approx_blocks; /* guessed, approximate index */
    uint32_t ranks;
};

struct bt_core_counters {
    uint64_t requests, outcomes[BT_OUTCOME_COUNT], fallbacks[BT_FALLBACK_COUNT],
        decisions[BT_REASON_COUNT];
    uint64_t retries, retries_denied, late_events, stranded_handoffs,
        guard_kept_baseline, differs_from_baseline;
    /* Sent ahead; of those, for requests that went to that worker, and that did
     * not. The rest are still held. */
    uint64_t prefetches, prefetches_used, prefetches_wasted;
    uint32_t live[BT_REQUEST_STATE_COUNT]; /* gauge per live state */
};

uint32_t bt_core_worker_count(const struct bt_core *core);
enum bt_status bt_core_worker_get(const struct bt_core *core, uint32_t slot,
                                  struct bt_core_worker_info *out);
const struct bt_core_counters *bt_core_counters_get(const struct bt_core *core);
void bt_core_index_stats(const struct bt_core *core,
                         struct bt_prefix_index_stats *out);
/* Models in force after calibration, and the relative sigma of the next
 * prefill estimate. BT_NOT_FOUND. */
enum bt_status bt_core_worker_model(const struct bt_core *core, uint32_t slot,
                                    struct bt_compute_model *model_out,
                                    double *sigma_out);
/* What nine in ten requests stay below, from their placement to the first
 * token, when total_ns is predicted: total_ns times the 90 % quantile of
 * realised over predicted. Of about the last 200 whose prediction was as long
 * (below 100 ms, 400 ms, 1.6 s, longer) and that were placed for the same
 * reason, else for any; before 32 have been seen, or when the core does not
 * calibrate, of a spread of 30 %: 1 + 1.2816 * 0.3. */
int64_t bt_core_total_p90_ns(const struct bt_core *core, uint32_t model,
                             enum bt_reason reason, int64_t total_ns);
/* Own flows and link rates in force; NULL without a topology. */
const struct bt_network *bt_core_network(const struct bt_core *core);
/* What another policy would choose now for such a request as its first
 * placement, with nothing held back (replay): nothing is booked or changed.
 * knobs NULL: its defaults. Policies with memory of their own start with none.
 * Positions in the answer are worker slots. BT_INVALID: the request; BT_LIMIT:
 * a policy that is not in the table wants more memory than any that is;
 * BT_NO_WORKER. */
enum bt_status bt_core_ask(const struct bt_core *core,
                           const struct bt_policy *policy, const double *knobs,
                           const struct bt_ev_request *request,
                           struct bt_placement *placement_out);
/* Depths of a chain by (worker, rank), the rows of the index: depths_out[row *
 * BT_TIERS + tier], cumulative over tiers as bt_prefix_index_match_tiers, in
 * blocks, as events tell, without credit; rows of other models are 0. The rows
 * of a worker follow each other by rank. */
uint32_t bt_core_row_count(const struct bt_core *core);
uint32_t bt_core_row_of(const struct bt_core *core, uint32_t worker,
                        uint32_t rank);
void bt_core_match(const struct bt_core *core, uint32_t model,
                   const uint64_t *keys, size_t count, uint32_t *depths_out);
/* Of the approximate index; zeros without one. */
void bt_core_approx_stats(const struct bt_core *core,
                          struct bt_approx_stats *out);
/* The index itself, to read: its workers are those rows, its ranks 0. */
const struct bt_prefix_index *bt_core_index(const struct bt_core *core);
/* Own key an engine hash stands for in the index (journal). BT_NOT_FOUND. */
enum bt_status bt_core_own_key(const struct bt_core *core, uint32_t worker,
                               uint32_t rank, uint64_t hash, uint64_t *key_out);
/* Quiescence: no live request and every ledger cell zero. */
bool bt_core_is_idle(const struct bt_core *core);
/* What-if: the candidate table for a prompt, nothing booked. keys may be NULL.
 * Positions p, d in the result are worker slots. Returns feasible pairs. */
size_t bt_core_explain(const struct bt_core *core, int64_t now_ns,
                       uint32_t model, uint32_t prompt_tokens,
                       const uint64_t *keys, size_t key_count,
                       uint32_t max_tokens, struct bt_placement *placement_out,
                       struct bt_place_candidate *table, size_t table_max);

#endif
