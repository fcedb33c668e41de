/* What the files of the agent service share.
 *
 *   service.c  life, events of the agent   routes.c  HTTP
 *   asks.c     keys that peers ask for     fill.c    pulls into the pool
 *   pool.c     the pool                    report.c  JSON and metrics
 *   probe.c    measuring pulls
 */
#ifndef BATON_ORCHESTRATOR_AGENT_SERVICE_PRIV_H
#define BATON_ORCHESTRATOR_AGENT_SERVICE_PRIV_H

#include "pool.h"

#include "baton/orchestrator/agent_service.h"
#include "baton/orchestrator/httpd.h"
#include "baton/orchestrator/json.h"
#include "baton/transfer/agent.h"
#include "baton/transfer/probe.h"

#include <ev.h>
#include <sys/queue.h>

#define SERVICE_ASKS_MAX   1024u
#define SERVICE_FILLS_MAX  256u
#define SERVICE_LAST       64u
#define SERVICE_PATHS      256u
#define SERVICE_REGION     "pool"
#define SERVICE_BLOCKS_MAX 65536u /* of one fill */

/* A peer that reads keys of the pool. */
struct ask {
    TAILQ_ENTRY(ask) entry;
    struct bt_agent_service *service;
    uint64_t id; /* the agent's */
    struct pool_hold hold;
};

/* A pull into the pool. */
struct fill {
    TAILQ_ENTRY(fill) entry;
    struct bt_agent_service *service;
    struct bt_httpd_request *http; /* NULL: the client has gone */
    uint64_t *refs, *keys;         /* malloc'd, one each; then slots */
    uint32_t *slots;
    char peer[BT_KV_NAME_MAX]; /* host:port, until it has said its name */
    uint32_t listed, count;    /* in the request; of those not here already */
    bool started;
};

/* A transfer that ended, either way round. */
struct last {
    enum bt_status status;
    char peer[BT_KV_NAME_MAX], request_id[BT_KV_REQUEST_MAX + 1];
    char region[BT_KV_NAME_MAX], detail[160];
    uint64_t bytes, rail_bytes[BT_RAILS_MAX];
    uint64_t predicted_ns, estimate_ns; /* the agent's; the planner's or 0 */
    uint32_t descriptors, retries;
    int64_t setup_ns, queued_ns, moved_ns, duration_ns;
};

struct bt_agent_service {
    struct ev_loop *loop;
    struct bt_agent_service_config config; /* strings are copies */
    char name[BT_KV_NAME_MAX], address[64];
    struct bt_rail_config rails[BT_RAILS_MAX];
    char rail_names[BT_RAILS_MAX][32];
    struct bt_agent *agent;
    ev_io agent_io;
    struct bt_httpd *httpd;
    unsigned char *probe;
    size_t probe_bytes;
    struct service_probe *probing; /* probe.c's; NULL until it is asked */
    struct pool *pool;             /* NULL: none */
    uint32_t pool_region;          /* at the agent */
    TAILQ_HEAD(, ask) asks;
    TAILQ_HEAD(, fill) fills;
    uint32_t ask_count, fill_count;
    struct last last[SERVICE_LAST]; /* ring */
    uint64_t last_count;
    uint64_t asked, asks_refused, fills_done, fills_failed;
    int64_t setup_ns, queued_ns, moved_ns; /* of all fills */
    uint64_t rail_bytes[BT_RAILS_MAX];
    char not_rdma[96]; /* "": as require_rdma wants it */
    bool stopping;
};

void service_say(struct bt_agent_service *s, int level, const char *word,
                 const char *format, ...) __attribute__((format(printf, 4, 5)));

/* ---- asks.c ---- */
void service_asked(struct bt_agent_service *s,
                   const struct bt_agent_event *event);
void service_left(struct bt_agent_service *s,
                  const struct bt_agent_event *event);
void service_asks_end(struct bt_agent_service *s);

/* ---- fill.c ---- */
void service_fill(struct bt_agent_service *s, struct bt_httpd_request *req);
void service_filled(struct bt_agent_service *s,
                    const struct bt_agent_event *event);
void service_fills_end(struct bt_agent_service *s);
/* Keep it as the last of the transfers that ended. */
void service_note_last(struct bt_agent_service *s,
                       const struct bt_agent_event *e, const char *region);
void service_drop(struct bt_agent_service *s, struct bt_httpd_request *req);

/* ---- probe.c ---- */
void service_probe(struct bt_agent_service *s, struct bt_httpd_request *req);
void service_probe_clock(struct bt_agent_service *s,
                         struct bt_httpd_request *req);
/* False: not a pull of a probe. */
bool service_probed(struct bt_agent_service *s,
                    const struct bt_agent_event *event);
/* The agent is closed: nothing lands any more. */
void service_probes_end(struct bt_agent_service *s);

/* ---- routes.c ---- */
void service_handle(void *arg, struct bt_httpd_request *req);
void service_refuse(struct bt_httpd_request *req, int status,
                    const char *message);
/* Answers with what is in the text, or 500 when it did not fit; frees buf. */
void service_send(struct bt_httpd_request *req, const char *type, char *buf,
                  const struct bt_text *text);

/* ---- report.c ---- */
void service_report(struct bt_agent_service *s, struct bt_httpd_request *req);
void service_report_pool(struct bt_agent_service *s,
                         struct bt_httpd_request *req);
void service_metrics(struct bt_agent_service *s, struct bt_httpd_request *req);
void service_last_json(struct bt_text *t, const struct bt_agent_service *s,
                       const struct last *last);

#endif
