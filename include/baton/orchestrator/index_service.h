/* `baton index`: prefix indexes of many engines as a service of its own, for
 * several orchestrators. One libev loop: an event plane, one prefix index per
 * scope, an HTTP front, snapshots. No threads; every call is on the loop's.
 *
 *   POST /register      Mooncake's or Dynamo's fields; 201, 409 when there
 *   POST /unregister    {instance_id, model..., dp_rank?}; 200, 404
 *   GET  /workers       what is registered, with each stream's state
 *   POST /query, /query_by_hash    index_query.h
 *   GET  /dump[?limit=N]    engine hashes, own keys and tiers, N <= 100000
 *   GET  /health, /stats, /metrics
 *
 * A scope is (model, block size, tenant, additional salt, routing group); an
 * answer never has instances of another one. Each (instance, rank) is a row of
 * its scope's index. Errors are {"error":{"message":...}} with 400, 404, 405,
 * 409, 413, 429 (a limit) or 503 (no memory).
 *
 * There is no health check of engines here: a restart is told by its connection
 * (event_plane.h, gone_ns), by the events (sequence) or, of a quiet engine, by
 * asking for its last batch again (idle_check_ns), which needs its replay
 * socket. An engine that connects to us is known by the last two only.
 */
#ifndef BATON_ORCHESTRATOR_INDEX_SERVICE_H
#define BATON_ORCHESTRATOR_INDEX_SERVICE_H

#include "baton/base/status.h"
#include "baton/orchestrator/event_plane.h"
#include "baton/orchestrator/index_query.h"
#include <stddef.h>
#include <stdint.h>

struct ev_loop;
struct bt_index_service;

/* Strings are kept by pointer. */
struct bt_index_service_config {
    const char *address;               /* numeric; 127.0.0.1 */
    uint16_t port;                     /* 0 picks one */
    uint32_t scopes_max;               /* 16; memory is theirs: */
    uint32_t blocks_max, holdings_max; /* per scope: 2^20, 2^21 */
    uint32_t workers_max; /* rows (instance, rank) per scope, and registrations
                             in all: 1024, at most 65535 */
    uint32_t items_max;   /* tokens or hashes of one query: 2^20 */
    const char *snapshot; /* file, NULL none */
    int64_t snapshot_interval_ns; /* 30 s; 0: only at the end */
    /* A stream that was quiet for so long is asked for its last batch (replay):
     * 10 s; 0: never. A broken connection that is not back after three times
     * this (0: after 30 s) means: nothing of the engine is believed. */
    int64_t idle_check_ns;
    struct bt_event_plane_config plane; /* sources_max is ours */
    /* A line for the log, as bt_event_sink.say. NULL: silent. */
    void (*say)(void *arg, int level, const char *word, const char *text);
    void *say_arg;
};
void bt_index_service_config_init(struct bt_index_service_config *config);

/* One registration; strings are copied, "" = none. */
struct bt_index_instance {
    char instance[BT_INDEX_TEXT_MAX], model[BT_INDEX_TEXT_MAX];
    char tenant[BT_INDEX_TEXT_MAX], additional_salt[BT_INDEX_TEXT_MAX];
    char routing_group[BT_INDEX_TEXT_MAX];
    char lora[BT_INDEX_TEXT_MAX]; /* of events that name none */
    char endpoint[BT_INDEX_TEXT_MAX], replay[BT_INDEX_TEXT_MAX];
    char topic[BT_INDEX_TEXT_MAX]; /* instead of endpoint, with plane.bind */
    char type[BT_INDEX_TEXT_MAX];  /* "vLLM", "SGLang", "Mooncake" or "" */
    uint32_t block_tokens;
    uint32_t first_rank, ranks; /* dp_rank; endpoints are of this rank */
    enum bt_removals removals;
    enum bt_engine_hash hash;
    const char *hash_seed; /* NULL; kept by pointer */
    /* Its blocks are Eagle windows (block_hash.h), so that queries are hashed
     * like that for it; need not be told: the first event of pairs shows it. */
    bool eagle;
};
/* All "" and 0 but tenant (BT_INDEX_TENANT), ranks 1. */
void bt_index_instance_init(struct bt_index_instance *instance);

/* Reads the snapshot, if there is one, and starts to listen; queries see what
 * is registered. A snapshot that is refused is said, moved to FILE.bad, and the
 * start is cold. Failures: error_out (>= 256 bytes) says what. */
enum bt_status bt_index_service_create(
    struct ev_loop *loop, const struct bt_index_service_config *config,
    struct bt_index_service **out, char *error_out, size_t error_size);
/* As POST /register. Before bt_index_service_begin: what a configuration file
 * has; it is not kept in snapshots, only its blocks are. BT_EXISTS, BT_LIMIT,
 * BT_INVALID, BT_NO_MEMORY. */
enum bt_status bt_index_service_register(struct bt_index_service *service,
                                         const struct bt_index_instance *in,
                                         char *error_out, size_t error_size);
/* After those: registers again what came by POST and was in the snapshot. */
void bt_index_service_begin(struct bt_index_service *service);
uint16_t bt_index_service_port(const struct bt_index_service *service);
/* Write a snapshot now and wait for it. BT_OK without a file, too. */
enum bt_status bt_index_service_save(struct bt_index_service *service);
void bt_index_service_destroy(struct bt_index_service *service);

#endif
