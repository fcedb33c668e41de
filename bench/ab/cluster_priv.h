/* Private to bench/ab: a running cluster, and the texts its children get. */
#ifndef BENCH_AB_CLUSTER_PRIV_H
#define BENCH_AB_CLUSTER_PRIV_H

#include "baton/bench/cluster.h"
#include "baton/bench/process.h"
#include "baton/orchestrator/json.h"
#include <stdio.h>

#define URL_MAX 64

struct engine {
    struct bt_process process;
    char url[URL_MAX], events[URL_MAX], replay[URL_MAX];
    uint16_t http, kv; /* 0 until it was ready once */
};

struct bt_cluster {
    struct ev_loop *loop;
    struct bt_cluster_spec spec;
    char program[512];
    char config_path[512];
    struct engine engines[BT_CLUSTER_ENGINES_MAX];
    struct bt_process serve;
    char url[URL_MAX], admin_url[URL_MAX], metrics_url[URL_MAX];
};

/* Arguments of a child over one flat buffer. */
struct arguments {
    char *argv[BT_PROCESS_ARGS_MAX];
    size_t count;
    char bytes[8192];
    size_t used;
    bool overflow;
};

void arguments_engine(struct arguments *a, const struct bt_cluster *cluster,
                      uint32_t engine);
void arguments_serve(struct arguments *a, const struct bt_cluster *cluster);
/* On a bed: the words before the program, and its addresses. */
void netbed_before(struct arguments *a, const struct bt_cluster *cluster,
                   uint32_t engine);
void netbed_after(struct arguments *a, const struct bt_cluster *cluster,
                  uint32_t engine);
/* The address that others reach the engine at. */
void netbed_address(uint32_t engine, uint32_t rail, char *out, size_t size);
/* The bed as a topology file for serve. BT_IO. */
enum bt_status netbed_topology_write(const struct bt_cluster *cluster,
                                     const char *path);
/* GET url + path and parse it as an object; *body_out (the caller's, if OK)
 * holds its text. BT_PEER_ERROR: another status, or not an object. */
enum bt_status cluster_get_json(struct ev_loop *loop, const char *url,
                                const char *path, char **body_out,
                                struct bt_json *object_out);
/* One more argument. */
__attribute__((format(printf, 2, 3))) void
arguments_add(struct arguments *a, const char *format, ...);

/* The configuration of serve; the engines' ports are known. BT_IO. */
enum bt_status cluster_config_write(const struct bt_cluster *cluster,
                                    const char *path);
/* Take the ports out of a ready line of the engine at that address.
 * BT_INVALID. */
enum bt_status cluster_engine_ready(struct engine *engine, const char *address,
                                    const char *line);
/* Likewise of serve's. */
enum bt_status cluster_serve_ready(struct bt_cluster *cluster,
                                   const char *line);

#endif
