/* What the files of the engine share: its state, calls (HTTP requests),
 * sequences (one prompt and its answer), leases.
 *
 *   api.c     HTTP -> bt_call + bt_seq        reply.c   progress -> JSON / SSE
 *   seq.c     blocks and content of one seq   compute.c who runs when
 *   handoff.c leases, pulls                   admin.c   state, faults, metrics,
 *   handoff_report.c what pulls took                    cached blocks
 *   engine.c  life
 *
 * A sequence is in exactly one list:
 *
 *   WAITING -> PREFILLING -> DECODING -> DONE
 *           -> PULLING    -> DECODING
 *   any -> HUNG (fault), any -> DONE (end, failure, abort)
 *
 * Ownership: a call owns its sequences. When the client has gone or the answer
 * has ended, the call is put on the reap list and freed at the next kick; only
 * a sequence whose pull is still ending outlives it (call == NULL).
 */
#ifndef BATON_BENCH_ENGINE_PRIV_H
#define BATON_BENCH_ENGINE_PRIV_H

#include "block_names.h"
#include "block_pool.h"
#include "events.h"
#include "faults.h"
#include "metrics.h"
#include "scheduler.h"

#include "baton/bench/engine.h"
#include "baton/bench/oracle.h"
#include "baton/orchestrator/httpd.h"
#include "baton/transfer/agent.h"

#include <ev.h>
#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define BT_ENGINE_SEQS_MAX     16384 /* alive, all states */
#define BT_ENGINE_PROMPTS_MAX  1024  /* of one request, times n */
#define BT_ENGINE_LEASES_MAX   16384
#define BT_ENGINE_ADAPTERS_MAX 64
#define BT_ENGINE_NAME_MAX     128
#define BT_ENGINE_PULLS_SHOWN  16   /* in /admin/state */
#define BT_ENGINE_PULLS_KEPT   4096 /* in /admin/pulls */

enum bt_seq_state {
    BT_SEQ_WAITING,
    BT_SEQ_PULLING,
    BT_SEQ_PREFILLING,
    BT_SEQ_DECODING,
    BT_SEQ_HUNG,
    BT_SEQ_DONE
};

/* What was said of a pull's time beforehand, and what it took. */
struct bt_pull_times {
    uint64_t estimate_ns; /* by the orchestrator, 0: not said */
    int64_t predicted_ns; /* by the agent, 0: knew nothing of the path yet */
    int64_t took_ns;
    uint64_t bytes;
};

/* Where the KV of a prompt is to be pulled from. */
struct bt_remote {
    char host[64];
    uint16_t port;
    char request_id[BT_KV_REQUEST_MAX + 1];
    char region[BT_KV_NAME_MAX]; /* "": as ours */
    uint64_t *blocks;            /* malloc'd; indices, or keys of the region */
    size_t block_count;
    uint64_t estimate_ns; /* what the orchestrator foresees; 0: not said */
};

struct bt_seq_list {
    struct bt_seq *head, *tail;
    uint32_t count;
};

struct bt_seq {
    struct bt_engine *engine;
    struct bt_call *call; /* NULL: orphaned, its pull is ending */
    struct bt_seq *prev, *next;
    struct bt_seq_list *list; /* NULL in PREFILLING and DONE */
    enum bt_seq_state state;
    uint64_t serial; /* order of arrival */
    uint32_t index;  /* choice index */
    /* prompt, then output: prompt_count + max_tokens */
    uint32_t *tokens;
    uint32_t prompt_count, max_tokens, out_count;
    uint32_t sent;  /* output tokens handed to the stream */
    uint64_t *keys; /* of each full block, as far as known */
    uint64_t chain; /* after the last token that has a row */
    uint64_t output_state;
    struct bt_oracle oracle; /* with this sequence's namespace */
    int adapter;             /* index, -1: base model */
    const char *salt;        /* the call's, NULL: none */
    size_t salt_bytes;
    uint32_t *blocks;
    uint32_t block_count, hit_blocks, reserved;
    uint32_t pulled_tokens;
    bool in_step;       /* part of the running decode step */
    bool remote_decode; /* hold the blocks for a peer */
    bool leased;
    bool failed;
    bool role_sent; /* first chunk of a chat stream */
    bool has_remote;
    struct bt_remote remote;
    bool pulling;
    uint64_t pull_id;
    char lease_id[BT_KV_REQUEST_MAX + 1];
    int64_t arrived_ns, scheduled_ns, first_ns, last_ns;
};

struct bt_call {
    struct bt_engine *engine;
    struct bt_httpd_request *http; /* NULL once gone or closed */
    struct bt_call *next_reap;
    struct bt_call *prev, *next; /* all calls */
    char id[112];                /* "cmpl-..." / "chatcmpl-..." */
    const char *model;           /* the engine's */
    bool chat, stream, include_usage, continuous_usage;
    bool begun, blocked, ended, reaping;
    long long created_s;
    char salt[256];
    size_t salt_bytes;
    struct bt_seq **seqs;
    uint32_t seq_count, done_count, copies; /* n */
};

/* Blocks that a peer may still pull; the agent says when that is over. */
struct bt_lease {
    struct bt_lease *prev, *next;
    uint32_t *blocks;
    uint32_t block_count;
};

struct bt_engine {
    struct ev_loop *loop;
    char name[BT_KV_NAME_MAX], address[64], id[40], error[160];
    enum bt_engine_role role;
    char model[BT_ENGINE_NAME_MAX]; /* needs no escaping, checked */
    char adapters[BT_ENGINE_ADAPTERS_MAX][BT_ENGINE_NAME_MAX];
    size_t adapter_count;
    struct bt_oracle oracle; /* plain namespace */
    uint64_t block_bytes;
    uint32_t seqs_max, model_len_max;
    int64_t lease_ns, pull_timeout_ns;
    bool recompute, stream_eager, stopping;
    double start_time_s;
    unsigned char *region;
    size_t region_bytes;
    struct bt_pool pool;
    struct bt_block_names names;
    struct bt_sched sched;
    struct bt_faults faults;
    struct bt_engine_metrics metrics;
    struct bt_engine_state totals; /* counters only */
    struct bt_httpd *httpd;
    struct bt_events *events; /* NULL: off */
    struct bt_agent *agent;
    uint32_t region_id; /* of the pool, at the agent */
    struct bt_kv_layout layout;
    ev_io agent_io;
    char rail_names[BT_RAILS_MAX][32];
    uint32_t rail_count;
    struct bt_agent_event pulls[BT_ENGINE_PULLS_SHOWN];    /* ended, ring */
    struct bt_pull_times pull_times[BT_ENGINE_PULLS_KEPT]; /* likewise */
    uint64_t pull_count;
    int64_t setup_ns, queued_ns, moved_ns; /* of all of them */
    uint64_t rail_bytes[BT_RAILS_MAX];
    struct bt_seq_list waiting, waiting_pull, pulling, decoding, hung;
    struct bt_seq *prefilling;
    enum bt_fault_kind job_fault; /* fires when the running prefill ends */
    uint32_t seq_count;
    uint64_t serial;
    struct bt_call *calls, *reap;
    struct bt_lease *leases;
    uint32_t lease_count;
    uint64_t leased_blocks;
    int timer_fd;
    ev_io timer_io;
    ev_idle kick; /* never started; fed */
    ev_timer beat_timer;
};

int64_t bt_engine_now(void); /* CLOCK_MONOTONIC */
/* Do what is due (reap, schedule, publish) before the loop sleeps again. */
void bt_engine_kick(struct bt_engine *e);

/* ---- seq.c ---- */
void bt_seq_move(struct bt_seq *seq, struct bt_seq_list *to,
                 enum bt_seq_state state);
/* NULL: no memory. Tokens are copied; keys are computed. */
struct bt_seq *bt_seq_create(struct bt_call *call, const uint32_t *tokens,
                             uint32_t count, uint32_t max_tokens, uint64_t ns);
void bt_seq_free(struct bt_seq *seq);
/* Blocks for prompt and growth, sharing what is cached; false: no room now. */
bool bt_seq_allocate(struct bt_seq *seq);
void bt_seq_release_blocks(struct bt_seq *seq);
uint32_t bt_seq_prompt_blocks(const struct bt_seq *seq);
/* Most blocks it can come to hold. */
uint32_t bt_seq_blocks_max(const struct bt_seq *seq);
/* Write the rows of prompt tokens from..prompt_count. */
void bt_seq_fill(struct bt_seq *seq, uint32_t from);
/* Make full prompt blocks from `from` on findable and announce them. */
void bt_seq_announce(struct bt_seq *seq, uint32_t from);
/* Read the prompt's blocks: the state that gives the first token. */
void bt_seq_start_output(struct bt_seq *seq);
/* Next output token, appending the row of the one before. */
void bt_seq_next_token(struct bt_seq *seq);
uint64_t bt_seq_context(const struct bt_seq *seq);

/* ---- compute.c ---- */
void bt_engine_submit(struct bt_seq *seq);
void bt_engine_advance(struct bt_engine *e);
/* The sequence ends without (more) output; its call is told. */
void bt_engine_fail(struct bt_seq *seq, int http_status, const char *message);
/* Nobody wants it any more: frees blocks, tells the peer. It is DONE, or
 * orphaned when a pull must end first. */
void bt_engine_abort(struct bt_seq *seq);
/* Carry out a fault on a sequence; true: the sequence is out of the way. */
bool bt_engine_inject(struct bt_seq *seq, enum bt_fault_kind kind);

/* ---- handoff.c ---- */
enum bt_status bt_handoff_start(struct bt_engine *e,
                                const struct bt_engine_config *config,
                                char *error_out, size_t error_size);
void bt_handoff_stop(struct bt_engine *e);
/* Take over the blocks of a finished sequence. False: no memory or limit. */
bool bt_handoff_lease(struct bt_seq *seq);
/* Blocks are allocated: fetch those not held. */
void bt_handoff_pull(struct bt_seq *seq);
/* It will not be pulled. */
void bt_handoff_release(struct bt_seq *seq);
void bt_handoff_expire_all(struct bt_engine *e);

/* ---- handoff_report.c ---- */
/* A pull ended well. */
void bt_handoff_note(struct bt_engine *e, const struct bt_agent_event *event);
/* Figures, rails, paths and the last pulls; NULL: out of memory. */
json_t *bt_handoff_state(struct bt_engine *e);
json_t *bt_handoff_meters(struct bt_engine *e);
/* Times of the last BT_ENGINE_PULLS_KEPT pulls; NULL: out of memory. */
json_t *bt_handoff_pulls(const struct bt_engine *e);
/* Metrics that vLLM has not. */
void bt_handoff_metrics(struct bt_engine *e, FILE *out);

/* ---- api.c, reply.c, admin.c, admin_blocks.c ---- */
void bt_api_handle(void *arg, struct bt_httpd_request *req);
void bt_call_watch(struct bt_call *call);
void bt_call_reap(struct bt_engine *e);
/* A sequence has new tokens or is done. */
void bt_call_progress(struct bt_call *call);
void bt_call_fail(struct bt_call *call, int http_status, const char *message);
void bt_reply_error(struct bt_httpd_request *req, int http_status,
                    const char *message, const char *param);
void bt_reply_json(struct bt_httpd_request *req, int http_status,
                   const char *json, size_t bytes);
/* 200 with the tree, which is given up; NULL or out of memory: 503. */
void bt_reply_tree(struct bt_httpd_request *req, json_t *root);
/* True: the route was one of admin's. */
bool bt_admin_handle(struct bt_engine *e, struct bt_httpd_request *req,
                     const char *method, const char *path);
void bt_admin_blocks(struct bt_engine *e, struct bt_httpd_request *req);
void bt_admin_metrics(struct bt_engine *e, struct bt_httpd_request *req);
void bt_admin_apply_faults(struct bt_engine *e);
uint32_t bt_engine_announced_block(const struct bt_engine *e);

#endif
