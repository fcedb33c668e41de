/* Life of a cluster: start in order, wait for readiness, kill and restart
 * engines, stop. Decides timeouts and the order; cluster_args.c knows what the
 * children are told. Invariant: when start fails, no child is left. */
#include "cluster_priv.h"
#include <assert.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define START_DEFAULT_NS 20000000000
#define STOP_NS          2000000000
#define PROBE_NS         1000000000

static void log_path(const struct bt_cluster *c, const char *name, char *out,
                     size_t size)
{
    out[0] = '\0';
    if (!c->spec.verbose)
        snprintf(out, size, "%s/%s.log", c->spec.directory, name);
}

static enum bt_status spawn_engine(struct bt_cluster *c, uint32_t i)
{
    const char *name = c->spec.engines[i].name;
    struct arguments args;
    char log[512];

    if (c->spec.engines[i].url) {
        snprintf(c->engines[i].url, sizeof(c->engines[i].url), "%s",
                 c->spec.engines[i].url);
        return BT_OK;
    }
    arguments_engine(&args, c, i);
    if (args.overflow)
        return BT_TOO_LARGE;
    log_path(c, name, log, sizeof(log));
    return bt_process_spawn(&c->engines[i].process, c->loop, name, log,
                            args.argv);
}

/* A child said its line, or is gone and never will. */
static bool engines_settled(void *arg)
{
    struct bt_cluster *c = arg;
    bool all = true;

    for (uint32_t i = 0; i < c->spec.engine_count; i++) {
        const struct bt_process *p = &c->engines[i].process;

        if (p->eof && !p->have_line)
            return true;
        all = all && (p->have_line || c->spec.engines[i].url);
    }
    return all;
}

static bool serve_settled(void *arg)
{
    struct bt_cluster *c = arg;

    return c->serve.have_line || c->serve.eof;
}

/* Wait until a closed stdout has become a collected child. */
static bool is_gone(void *arg)
{
    return bt_process_is_gone(arg);
}

static enum bt_status blame(struct bt_cluster *c, struct bt_process *p,
                            enum bt_status status, char *error_out,
                            size_t error_size)
{
    if (status == BT_CANCELLED) {
        snprintf(error_out, error_size, "interrupted");
        return status;
    }
    if (p->eof && !bt_cluster_interrupted())
        (void)bt_wait(c->loop, is_gone, p, PROBE_NS);
    bt_process_describe(p, error_out, error_size);
    return status;
}

static enum bt_status start_engines(struct bt_cluster *c, int64_t timeout_ns,
                                    char *error_out, size_t error_size)
{
    enum bt_status status = BT_OK;

    for (uint32_t i = 0; i < c->spec.engine_count; i++) {
        status = spawn_engine(c, i);
        if (status != BT_OK) {
            snprintf(error_out, error_size, "cannot start engine %s: %s",
                     c->spec.engines[i].name, strerror(errno));
            return status;
        }
    }
    status = bt_wait(c->loop, engines_settled, c, timeout_ns);
    for (uint32_t i = 0; i < c->spec.engine_count; i++) {
        struct engine *e = &c->engines[i];
        char address[32] = "127.0.0.1";

        if (c->spec.engines[i].url)
            continue;
        if (c->spec.netbed)
            netbed_address(i, 0, address, sizeof(address));
        if (!e->process.have_line ||
            cluster_engine_ready(e, address, e->process.line) != BT_OK)
            return blame(c, &e->process, status ? status : BT_PEER_DEAD,
                         error_out, error_size);
    }
    return BT_OK;
}

/* GET /readyz until 200. */
static enum bt_status wait_in_service(struct bt_cluster *c, int64_t timeout_ns)
{
    char url[URL_MAX + 16];
    double end;
    int http = 0;

    snprintf(url, sizeof(url), "%s/readyz", c->url);
    ev_now_update(c->loop);
    end = ev_now(c->loop) + (double)timeout_ns / 1e9;
    while (ev_now(c->loop) < end && !c->serve.eof) {
        enum bt_status status =
            bt_fetch(c->loop, url, NULL, PROBE_NS, &http, NULL, NULL);

        if (status == BT_CANCELLED)
            return status;
        if (status == BT_OK && http == 200)
            return BT_OK;
        usleep(10000);
        ev_now_update(c->loop);
    }
    return c->serve.eof ? BT_PEER_DEAD : BT_TIMEOUT;
}

static enum bt_status start_serve(struct bt_cluster *c, int64_t timeout_ns,
                                  char *error_out, size_t error_size)
{
    enum bt_status status;
    struct arguments args;
    char log[512];

    snprintf(c->config_path, sizeof(c->config_path), "%s/serve-%s.yaml",
             c->spec.directory, c->spec.policy);
    if (c->spec.netbed) {
        snprintf(log, sizeof(log), "%s/topology.yaml", c->spec.directory);
        status = netbed_topology_write(c, log);
        if (status != BT_OK) {
            snprintf(error_out, error_size, "%s: %s", log, strerror(errno));
            return status;
        }
    }
    status = cluster_config_write(c, c->config_path);
    if (status != BT_OK) {
        snprintf(error_out, error_size, "%s: %s", c->config_path,
                 strerror(errno));
        return status;
    }
    arguments_serve(&args, c);
    log_path(c, "serve", log, sizeof(log));
    status = bt_process_spawn(&c->serve, c->loop, "serve", log, args.argv);
    if (status != BT_OK) {
        snprintf(error_out, error_size, "cannot start serve: %s",
                 strerror(errno));
        return status;
    }
    status = bt_wait(c->loop, serve_settled, c, timeout_ns);
    if (status == BT_OK)
        status = c->serve.have_line ? cluster_serve_ready(c, c->serve.line)
                                    : BT_PEER_DEAD;
    if (status == BT_OK)
        status = wait_in_service(c, timeout_ns);
    if (status != BT_OK)
        return blame(c, &c->serve, status, error_out, error_size);
    return BT_OK;
}

static enum bt_status find_program(struct bt_cluster *c)
{
    ssize_t bytes;

    if (c->spec.program) {
        snprintf(c->program, sizeof(c->program), "%s", c->spec.program);
        return BT_OK;
    }
    bytes = readlink("/proc/self/exe", c->program, sizeof(c->program) - 1);
    if (bytes <= 0)
        return BT_IO;
    c->program[bytes] = '\0';
    return BT_OK;
}

enum bt_status bt_cluster_start(struct ev_loop *loop,
                                const struct bt_cluster_spec *spec,
                                struct bt_cluster **out, char *error_out,
                                size_t error_size)
{
    struct bt_cluster *c = calloc(1, sizeof(*c));
    int64_t timeout_ns =
        spec->start_timeout_ns ? spec->start_timeout_ns : START_DEFAULT_NS;
    enum bt_status status;

    assert(spec->engine_count <= BT_CLUSTER_ENGINES_MAX);
    assert(spec->link_count <= BT_CLUSTER_LINKS_MAX);
    if (!c) {
        snprintf(error_out, error_size, "out of memory");
        return BT_NO_MEMORY;
    }
    c->loop = loop;
    c->spec = *spec;
    c->serve.out = -1;
    for (uint32_t i = 0; i < BT_CLUSTER_ENGINES_MAX; i++)
        c->engines[i].process.out = -1;
    status = find_program(c);
    if (status == BT_OK)
        status = start_engines(c, timeout_ns, error_out, error_size);
    if (status == BT_OK)
        status = start_serve(c, timeout_ns, error_out, error_size);
    if (status != BT_OK) {
        bt_cluster_stop(c);
        return status;
    }
    *out = c;
    return BT_OK;
}

static bool all_gone(struct bt_cluster *c)
{
    bool gone = bt_process_is_gone(&c->serve);

    for (uint32_t i = 0; i < c->spec.engine_count; i++)
        gone = bt_process_is_gone(&c->engines[i].process) && gone;
    return gone;
}

/* Not bt_wait: this also runs after an interruption. */
void bt_cluster_stop(struct bt_cluster *cluster)
{
    struct timespec nap = {0, 5000000};

    if (!cluster)
        return;
    bt_process_signal(&cluster->serve, SIGTERM);
    for (uint32_t i = 0; i < cluster->spec.engine_count; i++)
        bt_process_signal(&cluster->engines[i].process, SIGTERM);
    for (int64_t waited = 0; !all_gone(cluster) && waited < STOP_NS;
         waited += nap.tv_nsec)
        nanosleep(&nap, NULL);
    bt_process_kill(&cluster->serve);
    for (uint32_t i = 0; i < cluster->spec.engine_count; i++)
        bt_process_kill(&cluster->engines[i].process);
    free(cluster);
}

const char *bt_cluster_url(const struct bt_cluster *cluster)
{
    return cluster->url;
}

const char *bt_cluster_admin_url(const struct bt_cluster *cluster)
{
    return cluster->admin_url;
}

const char *bt_cluster_metrics_url(const struct bt_cluster *cluster)
{
    return cluster->metrics_url;
}

const char *bt_cluster_engine_url(const struct bt_cluster *cluster,
                                  uint32_t engine)
{
    assert(engine < cluster->spec.engine_count);
    return cluster->engines[engine].url;
}

pid_t bt_cluster_serve_pid(const struct bt_cluster *cluster)
{
    return cluster->serve.pid;
}

pid_t bt_cluster_engine_pid(const struct bt_cluster *cluster, uint32_t engine)
{
    assert(engine < cluster->spec.engine_count);
    return cluster->engines[engine].process.pid;
}

void bt_cluster_engine_kill(struct bt_cluster *cluster, uint32_t engine)
{
    assert(engine < cluster->spec.engine_count);
    bt_process_kill(&cluster->engines[engine].process);
}

enum bt_status bt_cluster_engine_spawn(struct bt_cluster *cluster,
                                       uint32_t engine)
{
    assert(engine < cluster->spec.engine_count);
    if (!bt_process_is_gone(&cluster->engines[engine].process))
        return BT_EXISTS;
    bt_process_close(&cluster->engines[engine].process);
    return spawn_engine(cluster, engine);
}

bool bt_cluster_serve_is_up(struct bt_cluster *cluster, char *error_out,
                            size_t error_size)
{
    if (!bt_process_is_gone(&cluster->serve))
        return true;
    bt_process_describe(&cluster->serve, error_out, error_size);
    return false;
}
