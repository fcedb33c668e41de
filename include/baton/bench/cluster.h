/* A small cluster as child processes: emulated engines and one `baton serve` in
 * front of them, all on loopback, or each engine on a host of a shaped bed
 * (tests/e2e/netbed). Used by `baton demo`, `baton bench http` and
 * the tests of the whole program. Children die with their parent.
 *
 * The calls here may block: they turn the loop until what they wait for has
 * come or their time is over. bt_cluster_interrupt (from a signal watcher of
 * the same loop) ends every wait early with BT_CANCELLED.
 */
#ifndef BATON_BENCH_CLUSTER_H
#define BATON_BENCH_CLUSTER_H

#include "baton/base/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct ev_loop;
struct bt_cluster;

#define BT_CLUSTER_ENGINES_MAX 32
#define BT_CLUSTER_LINKS_MAX   64
#define BT_CLUSTER_CLASSES_MAX 8
#define BT_CLUSTER_NAME_MAX    16
#define BT_CLUSTER_ERROR_MIN   1024 /* bytes an error buffer needs */

struct bt_cluster_engine {
    char name[BT_CLUSTER_NAME_MAX];
    bool prefill;    /* else decode */
    const char *url; /* a worker that runs elsewhere (no events); NULL: one is
                        started here */
    uint64_t nic_bytes_per_s; /* its host's link, each way; netbed only */
};
/* KV of prefill engine `from` to decode engine `to`. */
struct bt_cluster_link {
    uint32_t from, to; /* engine indices */
    char link_class[BT_CLUSTER_NAME_MAX];
    uint64_t rate_bytes_per_s;
    int64_t setup_ns;
};

struct bt_cluster_spec {
    const char *program;   /* of baton; NULL: this very program */
    const char *directory; /* for logs and the configuration, exists */
    bool verbose;          /* children write to our stderr, not to a log */
    struct bt_cluster_engine engines[BT_CLUSTER_ENGINES_MAX];
    uint32_t engine_count;
    struct bt_cluster_link links[BT_CLUSTER_LINKS_MAX]; /* each engine pair */
    uint32_t link_count;
    /* Name of a bed: engine i runs in the namespace NAME-h<i + 1>, with its
     * addresses 10.<81 + rail>.0.<i + 1>; serve stays in the caller's
     * namespace, which must reach them. No links then: serve is given a
     * topology file of the hosts. NULL: loopback. */
    const char *netbed;
    uint32_t rails;                  /* of a bed's host, 1 or 2 */
    int64_t setup_ns, descriptor_ns; /* of a transfer there */
    const char *model;
    const char *compute; /* preset */
    double speedup;
    uint64_t seed; /* of the model's content and of serve */
    uint32_t kv_bytes_per_token, block_tokens, block_count, seqs_max;
    const char *policy;                /* of serve */
    const char *serve_extra;           /* more lines of YAML, NULL = none */
    const char *const *engine_extra;   /* more arguments, NULL-ended or NULL */
    uint16_t port;                     /* of serve, 0 picks one */
    uint16_t metrics_port, admin_port; /* likewise */
    int64_t start_timeout_ns;          /* 0: 20 s */
};

/* Start engines, wait for all of them, start serve, wait until it is ready and
 * each engine is in service. On failure nothing is left running and error_out
 * says which child, and its last words. BT_TIMEOUT, BT_PEER_DEAD, BT_IO,
 * BT_CANCELLED. The spec is copied; its strings must outlive the cluster. */
enum bt_status bt_cluster_start(struct ev_loop *loop,
                                const struct bt_cluster_spec *spec,
                                struct bt_cluster **out, char *error_out,
                                size_t error_size);
/* Ask all children to end (SIGTERM), kill what is left after 2 s, free. */
void bt_cluster_stop(struct bt_cluster *cluster);

/* "http://127.0.0.1:PORT"; live as long as the cluster. */
const char *bt_cluster_url(const struct bt_cluster *cluster);
const char *bt_cluster_admin_url(const struct bt_cluster *cluster);
const char *bt_cluster_metrics_url(const struct bt_cluster *cluster);
const char *bt_cluster_engine_url(const struct bt_cluster *cluster,
                                  uint32_t engine);
pid_t bt_cluster_serve_pid(const struct bt_cluster *cluster);
/* 0 while it is down. */
pid_t bt_cluster_engine_pid(const struct bt_cluster *cluster, uint32_t engine);
/* Kill an engine at once (SIGKILL) and collect it; no-op when it is down. */
void bt_cluster_engine_kill(struct bt_cluster *cluster, uint32_t engine);
/* Start it again on the same ports; returns without waiting for its readiness.
 * BT_EXISTS when it runs. */
enum bt_status bt_cluster_engine_spawn(struct bt_cluster *cluster,
                                       uint32_t engine);
/* False when serve has died; its last words go to error_out. */
bool bt_cluster_serve_is_up(struct bt_cluster *cluster, char *error_out,
                            size_t error_size);

/* Totals of the engines, from their admin listeners. */
struct bt_cluster_class {
    char name[32];
    uint64_t bytes, pulls;
};
struct bt_cluster_engine_state {
    bool answered;
    uint64_t blocks_held, blocks_leased, leases;
    uint64_t busy; /* requests running, waiting, pulling, hung */
    uint64_t prefill_computed, prefill_cached, generated;
    struct bt_cluster_class classes[BT_CLUSTER_CLASSES_MAX];
    uint32_t class_count;
};
enum bt_status bt_cluster_engine_state_get(struct bt_cluster *cluster,
                                           uint32_t engine,
                                           struct bt_cluster_engine_state *out);

/* ---- plumbing, also of use on its own ---- */

/* Whole answer of a GET (body NULL) or POST; body_out is terminated and the
 * caller's to free. BT_TIMEOUT, BT_REFUSED, BT_RESET, BT_CANCELLED,
 * BT_TOO_LARGE (> 16 MiB), BT_NO_MEMORY. */
enum bt_status bt_fetch(struct ev_loop *loop, const char *url, const char *body,
                        int64_t timeout_ns, int *http_out, char **body_out,
                        size_t *bytes_out);
/* Turn the loop until done(arg) is true, asking at least every 20 ms.
 * BT_TIMEOUT, BT_CANCELLED. */
enum bt_status bt_wait(struct ev_loop *loop, bool (*done)(void *arg), void *arg,
                       int64_t timeout_ns);
/* End all waits, now and from now on; async-signal-safe. */
void bt_cluster_interrupt(void);
bool bt_cluster_interrupted(void);

#endif
