/* `baton agent`: the transfer agent of a node as a service. Around the agent
 * library (transfer/agent.h) it has
 *
 *   probe region  "probe": known bytes that anyone let in may pull
 *   pool          "pool": KV blocks by 64-bit key, in host memory, with NVMe
 *                 below; peers pull keys, HTTP fills it
 *   HTTP          GET /healthz /readyz /metrics /v1/agent /v1/pool,
 *                 POST /v1/pool/pull, POST /v1/pool/drop
 *
 * All on one loop beside the agent's own thread; nothing blocks but creating.
 */
#ifndef BATON_ORCHESTRATOR_AGENT_SERVICE_H
#define BATON_ORCHESTRATOR_AGENT_SERVICE_H

#include "baton/base/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ev_loop;
struct bt_agent_service;

struct bt_agent_start;
struct bt_rail_config;

struct bt_agent_service_config {
    const char *name;
    const char *address; /* of transfers, numeric */
    uint16_t port;       /* 0 picks one */
    const char *http_address;
    uint16_t http_port;
    const char *fabric;                 /* "ucx", "verbs", "sim" */
    const char *transports;             /* UCX_TLS; NULL: default */
    const struct bt_rail_config *rails; /* <= 8, each with a name */
    uint32_t rail_count;
    const uint8_t *key; /* 32 bytes; NULL: none, loopback only */
    bool insecure;      /* listen beyond loopback without a key */
    bool require_rdma;  /* refuse to start when bytes would go by TCP */
    uint32_t chunk_bytes, inflight_max;  /* as in bt_agent_config, 0: its own */
    int64_t window_target_ns;            /* the same */
    const struct bt_agent_start *starts; /* what a probe measured; NULL */
    uint32_t start_count;                /* <= 256 */
    uint64_t probe_bytes;
    uint64_t host_pool_bytes; /* 0: no pool */
    const char *nvme_path;    /* NULL: no NVMe tier */
    uint64_t nvme_bytes;
    /* Layout of the pool's blocks: what peers must have as well. */
    uint64_t block_bytes, model_hash;
    uint32_t block_tokens, layout_version;
    /* Log lines: level 0 error, 1 warn, 2 info; an event word, "key=value" */
    void (*say)(void *arg, int level, const char *word, const char *text);
    void *arg;
};
/* Values of `baton agent` without options. */
void bt_agent_service_config_init(struct bt_agent_service_config *config);
/* Listeners are open when it returns; strings, rails and key of the
 * configuration stay the caller's and stay there. error_out (>= 200 bytes) says
 * what failed: BT_INVALID, BT_UNSUPPORTED (fabric, RDMA), BT_LIMIT (memory
 * locked or to be had), BT_EXISTS (port, NVMe file in use), BT_IO,
 * BT_NO_MEMORY. */
enum bt_status bt_agent_service_create(
    struct ev_loop *loop, const struct bt_agent_service_config *config,
    struct bt_agent_service **out, char *error_out, size_t error_size);
/* Ends transfers, stores nothing more, closes. */
void bt_agent_service_destroy(struct bt_agent_service *service);
uint16_t bt_agent_service_port(const struct bt_agent_service *service);
uint16_t bt_agent_service_http_port(const struct bt_agent_service *service);

#endif
