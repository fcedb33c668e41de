/* An emulated vLLM worker: HTTP API, KV events, paged pool with real bytes,
 * hand-off over transfer/. `baton engine` runs one per process; tests and the
 * demo may run several on one loop.
 *
 * All call-backs run on the loop; nothing blocks. Engines sharing a loop share
 * nothing else.
 */
#ifndef BATON_BENCH_ENGINE_H
#define BATON_BENCH_ENGINE_H

#include "baton/base/status.h"
#include "baton/planner/cost.h"
#include "baton/planner/engine_hash.h"
#include "baton/transfer/kv.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ev_loop;
struct bt_engine;

/* Reported, and what an orchestrator should use it for. As in vLLM the role is
 * per request: any engine serves any leg. */
enum bt_engine_role { BT_ENGINE_PREFILL, BT_ENGINE_DECODE, BT_ENGINE_BOTH };

/* Encodings of KV event batches: A, B and C of engine-wire.md 1.5. */
enum bt_engine_event_form {
    BT_ENGINE_EVENTS_ARRAY,
    BT_ENGINE_EVENTS_MAP,
    BT_ENGINE_EVENTS_MAP_BATCH
};

/* Pulls from this peer (its --name) share a link. */
struct bt_engine_pace {
    const char *peer;
    const char *link_class; /* NULL: "default" */
    uint64_t rate_bytes_per_s;
    int64_t setup_ns;
};

struct bt_engine_config {
    const char *name; /* < 64 bytes of [A-Za-z0-9._-] */
    enum bt_engine_role role;
    const char *address; /* numeric, of every listener */
    uint16_t port;       /* HTTP; 0 picks one */
    const char *model;
    const char *const *adapters;
    size_t adapter_count;            /* <= 64 */
    struct bt_compute_model compute; /* its speedup divides every time */
    uint32_t block_tokens, block_count;
    uint32_t seqs_max;      /* sequences in prefill, pull or decode */
    uint32_t model_len_max; /* tokens; 0: min(pool, 131072) */
    uint32_t kv_bytes_per_token, layers;
    uint32_t kv_layout_version;
    uint64_t seed;           /* of the model's content */
    int64_t lease_ns;        /* P holds blocks this long without a beat */
    int64_t pull_timeout_ns; /* whole pull */
    bool recompute;    /* a failed pull is computed here instead of failing */
    bool stream_eager; /* 200 before the first token, as vLLM sends it */
    bool events;
    enum bt_engine_event_form event_form;
    bool event_hash_bytes; /* hashes as 32 bytes; false: as integers */
    /* NONE: opaque. Else vLLM's own, reproducible, with PYTHONHASHSEED; as
     * integers only. */
    enum bt_engine_hash event_hash;
    const char *event_hash_seed;
    const char *events_endpoint; /* "tcp://127.0.0.1:*", bound */
    const char *events_connect;  /* not NULL: connect there instead */
    const char *replay_endpoint; /* bound; NULL: no replay */
    bool replay_bare; /* replies without a frame for the topic, as vLLM did
                         before 0.26 and SGLang does */
    const char *events_topic; /* NULL: "kv-events", and for events_connect
                                 "kv@ADDRESS:PORT@MODEL" */
    uint32_t event_buffer;    /* batches kept for replay, <= 1,000,000 */
    const struct bt_engine_pace *paces;
    size_t pace_count;         /* <= 64 */
    const char *const *faults; /* specs, see bt_engine_fault */
    size_t fault_count;
    const char *transports; /* UCX_TLS; NULL: the fabric's default */
    const char *fabric;     /* "ucx", "verbs", "sim"; NULL: "ucx" */
    const struct bt_rail_config *rails; /* NULL, 0: one, any device */
    uint32_t rail_count;
    const uint8_t *transfer_key; /* 32 bytes that all peers hold; NULL: none */
};

/* Values of `baton engine` without options (preset h100-8b-tp1 if the planner
 * knows it). */
void bt_engine_config_init(struct bt_engine_config *config);

/* Listeners are open when it returns. Strings and arrays are read during the
 * call only. error_out (>= 160 bytes) says what failed. */
enum bt_status bt_engine_create(struct ev_loop *loop,
                                const struct bt_engine_config *config,
                                struct bt_engine **out, char *error_out,
                                size_t error_size);
/* Ends every request, pull and lease. Not from inside a call-back of it. */
void bt_engine_destroy(struct bt_engine *engine);

uint16_t bt_engine_http_port(const struct bt_engine *engine);
uint16_t bt_engine_kv_port(const struct bt_engine *engine);
/* Endpoints as bound or connected to; "" when they are off. Live as long as the
 * engine. */
const char *bt_engine_events_endpoint(const struct bt_engine *engine);
const char *bt_engine_replay_endpoint(const struct bt_engine *engine);
/* UUID of this incarnation. */
const char *bt_engine_id(const struct bt_engine *engine);

/* Set a fault: KIND[@PHASE][:count=N][:factor=X].
 * Kinds at a phase: die hang refuse error (phases arrival before_prefill
 *   during_prefill after_prefill before_decode during_decode; default arrival;
 *   `all` for hang and refuse covers every route but /admin; `now` for die).
 * Standing: slow (factor), events_drop events_reorder events_duplicate
 *   (factor = percent), events_delay (factor = ms), wrong_block_size (factor
 *   times the announced size, default 2).
 * At once: lease_expire, corrupt_block (count blocks, 0 = all with content).
 * count: how often it fires, 0 or absent = until cleared. BT_INVALID; BT_LIMIT
 * (32). */
enum bt_status bt_engine_fault(struct bt_engine *engine, const char *spec);
void bt_engine_faults_clear(struct bt_engine *engine);

/* For leak checks and tables; also GET /admin/state. */
struct bt_engine_state {
    uint32_t blocks_total, blocks_free; /* free includes cached */
    uint32_t blocks_cached;             /* reusable, by anyone or no one */
    uint32_t blocks_held;               /* by live sequences, pulls ending */
    uint32_t blocks_leased;
    uint32_t running, waiting, pulling, hung, leases;
    uint64_t requests, finished, aborted, failed;
    uint64_t prefill_tokens_computed, prefill_tokens_cached;
    uint64_t prefill_tokens_pulled, generated_tokens;
    uint64_t leases_expired, pulls_failed, blocks_pulled;
};
void bt_engine_state_get(const struct bt_engine *engine,
                         struct bt_engine_state *out);

#endif
