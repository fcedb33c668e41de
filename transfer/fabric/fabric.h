/* Insides of a fabric, shared by the files of this folder: the transport, its
 * sources and sinks, the lanes (paced links) and the meters. */
#ifndef BATON_TRANSFER_FABRIC_FABRIC_H
#define BATON_TRANSFER_FABRIC_FABRIC_H

#include "baton/transfer/kv.h"
#include "baton/transfer/pacing.h"
#include "baton/transfer/wire.h"
#include "transport.h"

#include <ev.h>
#include <sys/queue.h>

#define BT_FABRIC_RULES_MAX 64
#define BT_FABRIC_CLASS_MAX 32
/* Silent for so many heartbeats: a source is dead to its sink; a source
 * forgets a sink later, as nothing of it waits. */
#define BT_FABRIC_SILENT_SOURCE 5
#define BT_FABRIC_SILENT_SINK   25

/* ---- pace.c: who may fetch the next chunk, and when ---- */

/* A pull as a lane sees it. */
struct bt_flow {
    TAILQ_ENTRY(bt_flow) entry;
    bool queued;
    int64_t gate_ns; /* no chunk before: set-up time */
    /* Bytes of the next chunk; 0: not now (too many gets out). */
    uint32_t (*peek)(struct bt_flow *flow, uint32_t chunk_max);
    /* Start that chunk; false: it was the last one. */
    bool (*issue)(struct bt_flow *flow, uint32_t chunk_max);
};

/* A link: paced by a rule, or a single peer's own, unpaced. */
struct bt_lane {
    struct bt_fabric *fabric;
    TAILQ_HEAD(, bt_flow) flows; /* head is served next */
    struct bt_pace pace;
    uint32_t chunk_max;
    int64_t setup_ns;
    ev_timer wake;
    char peer[BT_KV_NAME_MAX];
    char link_class[BT_FABRIC_CLASS_MAX];
};

void bt_lane_init(struct bt_lane *lane, struct bt_fabric *fabric);
void bt_lane_fini(struct bt_lane *lane);
void bt_lane_add(struct bt_lane *lane, struct bt_flow *flow);
void bt_lane_remove(struct bt_lane *lane, struct bt_flow *flow);
/* Start what may start now, arm the timer for the rest. */
void bt_lane_pump(struct bt_lane *lane);
/* The rule for a peer, or NULL. */
struct bt_lane *bt_lane_find(struct bt_fabric *fabric, const char *peer);

/* ---- the fabric ---- */

struct bt_fabric {
    struct ev_loop *loop;
    struct bt_transport *transport;
    int64_t heartbeat_ns;
    uint32_t chunk_bytes, inflight_max;
    ev_timer heartbeat;
    LIST_HEAD(, bt_kv_source) sources;
    LIST_HEAD(, bt_kv_sink) sinks;
    struct bt_lane *rules[BT_FABRIC_RULES_MAX];
    size_t rule_count;
    struct bt_fabric_meter meters[BT_FABRIC_RULES_MAX + 1];
    size_t meter_count;
    uint8_t scratch[BT_WIRE_FRAME_MAX]; /* one frame being encoded */
};

/* A fabric over a transport, which it owns from then on; NULL: no memory. */
struct bt_fabric *bt_fabric_new(struct ev_loop *loop,
                                struct bt_transport *transport,
                                const struct bt_fabric_config *config);
int64_t bt_fabric_now(void); /* CLOCK_MONOTONIC */
/* (Re)start a one-shot timer, counted from the true now: the loop's may be old
 * after a long call-back, which would cut a time-out short. */
void bt_fabric_timer(struct bt_fabric *fabric, ev_timer *timer, int64_t ns);
/* Encode and send; a frame that does not encode is a bug. */
void bt_fabric_send(struct bt_fabric *fabric, struct bt_tconn *conn,
                    const struct bt_wire_frame *frame);
/* Turn the transport until done(arg) or limit_ns has passed. */
void bt_fabric_settle(struct bt_fabric *fabric, bool (*done)(void *arg),
                      void *arg, int64_t limit_ns);
/* Numeric address, or "localhost". BT_INVALID. */
enum bt_status bt_fabric_address(const char *host, uint16_t port,
                                 struct sockaddr_storage *out,
                                 socklen_t *size_out);

/* ---- meter.c ---- */
void bt_meter_note(struct bt_fabric *fabric, const char *link_class,
                   const struct bt_kv_pull_end *end);
/* Make the class's row; BT_LIMIT. */
enum bt_status bt_meter_add(struct bt_fabric *fabric, const char *link_class);

/* ---- kv_source.c, kv_sink.c ---- */
void bt_kv_source_heartbeat(struct bt_fabric *fabric);
void bt_kv_sink_heartbeat(struct bt_fabric *fabric);
void bt_kv_sources_stop(struct bt_fabric *fabric);
void bt_kv_sinks_stop(struct bt_fabric *fabric);

#endif
