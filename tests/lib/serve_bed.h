/* A bed for tests of `baton serve`: the real server and scripted workers on one
 * loop, a raw-socket client, deadlines on observable state. No real time is
 * asserted; a wait that outlasts BED_WAIT_S fails the test.
 */
#ifndef BATON_TESTS_SERVE_BED_H
#define BATON_TESTS_SERVE_BED_H

#include "baton/orchestrator/config.h"
#include "baton/orchestrator/httpd.h"
#include "baton/orchestrator/serve.h"
#include <ev.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define BED_WORKERS_MAX 6
#define BED_WAIT_S      10.0

struct bed;
struct bed_worker;

/* Script of a worker: gets each POST to /v1/completions or
 * /v1/chat/completions (and /tokenize); must answer req now or later. */
typedef void (*bed_script_fn)(struct bed_worker *w,
                              struct bt_httpd_request *req);

/* May answer a GET in the bed's stead: true when it did (or will). */
typedef bool (*bed_probe_fn)(struct bed_worker *w, struct bt_httpd_request *req,
                             const char *path);

struct bed_worker {
    struct bed *bed;
    struct bt_httpd *httpd;
    const char *name, *role;
    uint16_t port;
    bed_script_fn script; /* NULL: bed_well_behaved */
    bed_probe_fn probe;   /* NULL: the bed answers all probes */
    bool healthy;
    unsigned int posts;    /* POSTs of completions seen */
    unsigned int gone;     /* of them, closed by the other side early */
    unsigned int held;     /* hand-offs given, not yet used */
    char last_body[65536]; /* of the last completion */
    size_t last_body_bytes;
    char last_id[128]; /* its X-Request-Id */
    const char *model; /* what /v1/models lists */
    unsigned int block_size;
    unsigned int start_time;
    int n;                       /* free for scripts */
    const char *events, *replay; /* endpoints for the configuration */
    const char *keys;            /* more of it: "host: {rate: 1GB/s}" */
};

struct bed {
    struct ev_loop *loop;
    struct bed_worker workers[BED_WORKERS_MAX];
    size_t count;
    struct bt_config *config;
    struct bt_serve *serve;
    struct bt_serve_ports ports;
    unsigned int block_size; /* of the model, as configured */
    const char *model_keys;  /* more of it: "engine: {eagle: on}", or NULL */
};

struct bed_client {
    struct bed *bed;
    int fd;
    ev_io io;
    char *in; /* all bytes received, terminated */
    size_t used, size;
    bool eof;
    bool paused; /* does not read */
};

/* roles: "ppdd" etc.; extra: YAML lines added at top level (may be NULL). All
 * workers are in service when it returns. */
void bed_start(struct bed *bed, const char *roles, const char *extra);
/* The same in two steps: workers exist and may be changed in between, then the
 * server is started; nothing is waited for. */
void bed_workers(struct bed *bed, const char *roles);
void bed_serve(struct bed *bed, const char *extra);
void bed_ready(struct bed *bed);
void bed_stop(struct bed *bed);
/* Let a worker's listener go and take the same port again. */
void bed_worker_stop(struct bed_worker *w);
void bed_worker_start(struct bed_worker *w);
/* Turn the loop until ready(arg) holds; fails the test after BED_WAIT_S. */
void bed_until(struct bed *bed, bool (*ready)(void *arg), void *arg,
               const char *what);
/* Turn the loop for about this long (for "nothing happens" checks). */
void bed_turn(struct bed *bed, double seconds);

void bed_connect(struct bed *bed, struct bed_client *c, uint16_t port);
void bed_send(struct bed_client *c, const char *bytes, size_t count);
/* POST with JSON headers and Content-Length. */
void bed_post(struct bed_client *c, const char *path, const char *body);
void bed_close(struct bed_client *c);
/* Wait for one whole answer (by Content-Length, chunked end or EOF); returns
 * the HTTP status. The body (dechunked) is in bed_body. */
int bed_answer(struct bed_client *c);
const char *bed_body(struct bed_client *c);
/* One request on its own connection. */
int bed_request(struct bed *bed, const char *path, const char *body, char *out,
                size_t out_size);
/* GET from the admin or metrics listener into out. */
int bed_get(struct bed *bed, uint16_t port, const char *path, char *out,
            size_t out_size);
/* Wait until nothing is in flight and every ledger is empty. */
void bed_idle(struct bed *bed);
/* Value of a metric row ("name{labels}" exactly as exposed), -1 if absent. */
double bed_metric(struct bed *bed, const char *row);

/* ---- ready-made scripts ---- */
/* P: usage and params, counts held; D: streams "a" "b" [DONE], or JSON. */
void bed_well_behaved(struct bed_worker *w, struct bt_httpd_request *req);
void bed_refuse_500(struct bed_worker *w, struct bt_httpd_request *req);
void bed_hang(struct bed_worker *w, struct bt_httpd_request *req);
/* The kv_transfer_params that a well-behaved P of this bed returns. */
const char *bed_params(void);

#endif
