/* `baton bench http`: what serve adds between a client and a worker. Decides
 * the runs: latency with one connection (added = quantile through the proxy
 * minus the same quantile direct), requests per second and per CPU second with
 * many, memory idle and with open streams. With two CPUs or more the proxy has
 * one to itself; load and worker share another. */
#include "baton/base/units.h"
#include "baton/bench/cluster.h"
#include "baton/bench/micro.h"
#include "baton/bench/stats.h"
#include "fake_worker.h"
#include "load.h"
#include "reference.h"
#include <dirent.h>
#include <ev.h>
#include <fcntl.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define SIZES 2
static const size_t sizes[SIZES] = {1024, 40960};
static const char *const size_names[SIZES] = {"1 KB", "40 KB"};

struct http_bench {
    const struct bt_micro_http_options *options;
    struct bt_micro_report *report;
    struct ev_loop *loop;
    char directory[64];
    char *error;
    size_t error_size;
    int proxy_core, load_core; /* -1: not pinned */
    struct fake_worker worker[2];
    double direct_p50[SIZES], direct_p99[SIZES];
};

void bt_micro_http_options_init(struct bt_micro_http_options *options)
{
    memset(options, 0, sizeof(*options));
    options->latency_requests = 4000;
    options->throughput_ns = 2 * BT_NS_PER_S;
    options->connections = 32;
    options->streams = 1000;
}

static void say(const struct http_bench *b, const char *what)
{
    if (b->options->progress)
        fprintf(stderr, "baton bench http: %s\n", what);
}

static enum bt_status failed(const struct http_bench *b, enum bt_status status,
                             const char *what)
{
    if (!b->error[0])
        snprintf(b->error, b->error_size, "%s: %s", what,
                 bt_status_text(status));
    return status;
}

/* ---- readings of /proc ---- */

static double cpu_seconds(pid_t pid)
{
    unsigned long long user = 0, system_time = 0;
    char path[64], line[1024], *at;
    FILE *file;

    snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    file = fopen(path, "re");
    if (!file)
        return -1;
    if (!fgets(line, sizeof(line), file))
        line[0] = '\0';
    fclose(file);
    at = strrchr(line, ')'); /* fields 3.. follow the name */
    if (!at)
        return -1;
    for (int field = 2; field < 14 && at; field++)
        at = strchr(at + 1, ' ');
    if (!at)
        return -1;
    user = strtoull(at, &at, 10);
    system_time = strtoull(at, &at, 10);
    return (double)(user + system_time) / (double)sysconf(_SC_CLK_TCK);
}

static double resident_mib(pid_t pid)
{
    char path[64], line[256];
    double kib = -1;
    FILE *file;

    snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
    file = fopen(path, "re");
    if (!file)
        return -1;
    while (fgets(line, sizeof(line), file)) {
        if (strncmp(line, "VmRSS:", 6) == 0)
            kib = strtod(line + 6, NULL);
    }
    fclose(file);
    return kib < 0 ? -1 : kib / 1024;
}

/* ---- runs ---- */

static enum bt_status run_latency(struct http_bench *b, uint16_t port,
                                  const char *members, size_t size,
                                  double *p50_out, double *p99_out)
{
    struct load_spec spec = {.port = port, .connections = 1};
    struct load_result result;
    enum bt_status status;
    char *request = load_request_make(size, members, &spec.request_bytes);

    if (!request)
        return BT_NO_MEMORY;
    spec.request = request;
    spec.requests = 200; /* warm up */
    status = load_run(&spec, &result);
    if (status == BT_OK) {
        free(result.latency_us);
        spec.requests = b->options->latency_requests;
        status = load_run(&spec, &result);
    }
    free(request);
    if (status != BT_OK)
        return status;
    *p50_out = bt_stat_quantile(result.latency_us, result.count, 0.5);
    *p99_out = bt_stat_quantile(result.latency_us, result.count, 0.99);
    if (result.errors)
        bt_micro_note(b->report, "%zu errors in a latency run.\n",
                      result.errors);
    free(result.latency_us);
    return BT_OK;
}

static enum bt_status run_throughput(struct http_bench *b, uint16_t port,
                                     const char *members, size_t size,
                                     pid_t pid, double *per_s_out,
                                     double *per_cpu_s_out)
{
    struct load_spec spec = {.port = port,
                             .connections = b->options->connections,
                             .duration_ns = b->options->throughput_ns};
    struct load_result result;
    enum bt_status status;
    double before = cpu_seconds(pid), used;
    char *request = load_request_make(size, members, &spec.request_bytes);

    if (!request)
        return BT_NO_MEMORY;
    spec.request = request;
    status = load_run(&spec, &result);
    free(request);
    if (status != BT_OK)
        return status;
    used = cpu_seconds(pid) - before;
    *per_s_out = (double)result.count / result.elapsed_s;
    *per_cpu_s_out = used > 0 ? (double)result.count / used : 0;
    if (result.errors)
        bt_micro_note(b->report, "%zu errors in a throughput run.\n",
                      result.errors);
    free(result.latency_us);
    return BT_OK;
}

#define PLAIN ",\"max_tokens\":2"

static void name_row(char *out, const char *who, const char *what,
                     const char *size)
{
    snprintf(out, BT_MICRO_NAME_MAX, "%s: %s, %s", who, what, size);
}

static void add_row(struct http_bench *b, const char *who, const char *base,
                    const char *what, size_t i, double value, const char *unit)
{
    char name[BT_MICRO_NAME_MAX], baseline[BT_MICRO_NAME_MAX];

    name_row(name, who, what, size_names[i]);
    if (base)
        name_row(baseline, base, what, size_names[i]);
    bt_micro_add(b->report, name, value, unit, base ? baseline : NULL);
}

/* All rows of one proxy. */
static enum bt_status measure(struct http_bench *b, const char *who,
                              const char *base, uint16_t port, pid_t pid)
{
    for (size_t i = 0; i < SIZES; i++) {
        double p50 = 0, p99 = 0, per_s = 0, per_cpu_s = 0;
        enum bt_status status =
            run_latency(b, port, PLAIN, sizes[i], &p50, &p99);

        if (status == BT_OK)
            status = run_throughput(b, port, PLAIN, sizes[i], pid, &per_s,
                                    &per_cpu_s);
        if (status != BT_OK)
            return failed(b, status, who);
        add_row(b, who, base, "added p50", i, p50 - b->direct_p50[i], "us");
        add_row(b, who, base, "added p99", i, p99 - b->direct_p99[i], "us");
        add_row(b, who, base, "requests", i, per_s, "1/s");
        add_row(b, who, base, "requests per CPU second", i, per_cpu_s,
                "1/cpu-s");
    }
    return BT_OK;
}

static enum bt_status measure_direct(struct http_bench *b)
{
    say(b, "direct");
    for (size_t i = 0; i < SIZES; i++) {
        enum bt_status status =
            run_latency(b, b->worker[0].port, PLAIN, sizes[i],
                        &b->direct_p50[i], &b->direct_p99[i]);

        if (status != BT_OK)
            return failed(b, status, "direct");
        add_row(b, "direct", NULL, "p50", i, b->direct_p50[i], "us");
        add_row(b, "direct", NULL, "p99", i, b->direct_p99[i], "us");
    }
    return BT_OK;
}

/* True when a reference ran; its rows are the baselines of serve's. */
static enum bt_status measure_reference(struct http_bench *b,
                                        const char **name_out)
{
    struct reference reference;
    enum bt_status status;
    char words[BT_CLUSTER_ERROR_MIN] = "";

    *name_out = NULL;
    stay_on(b->proxy_core);
    status = reference_start(&reference, b->loop, b->directory,
                             b->worker[0].port, words, sizeof(words));
    stay_on(b->load_core);
    if (status == BT_NOT_FOUND) {
        bt_micro_note(b->report, "Neither nginx nor haproxy is installed: no "
                                 "reference in this run.\n");
        return BT_OK;
    }
    if (status != BT_OK) {
        bt_micro_note(b->report, "No reference in this run: %s\n", words);
        return BT_OK;
    }
    say(b, reference.name);
    status =
        measure(b, reference.name, NULL, reference.port, reference.process.pid);
    reference_stop(&reference);
    if (status == BT_OK)
        *name_out = reference.name;
    return status;
}

static uint16_t port_of(const char *url)
{
    const char *colon = strrchr(url, ':');

    return colon ? (uint16_t)strtoul(colon + 1, NULL, 10) : 0;
}

static void add_worker(struct bt_cluster_spec *spec, const char *name,
                       bool prefill, const char *url)
{
    struct bt_cluster_engine *e = &spec->engines[spec->engine_count++];

    snprintf(e->name, sizeof(e->name), "%s", name);
    e->prefill = prefill;
    e->url = url;
}

static enum bt_status start_serve(struct http_bench *b, bool two_pools,
                                  struct bt_cluster **out)
{
    struct bt_cluster_spec spec;
    enum bt_status status;

    memset(&spec, 0, sizeof(spec));
    spec.program = b->options->program;
    spec.directory = b->directory;
    spec.verbose = b->options->verbose;
    spec.model = "demo";
    spec.compute = "h100-8b-tp1";
    spec.speedup = 1;
    spec.seed = 1;
    spec.kv_bytes_per_token = 131072;
    spec.block_tokens = 16;
    spec.seqs_max = 4096;
    spec.policy = "joint";
    spec.serve_extra = "health: {interval: 1s, timeout: 2s, ok: 1, fail: 3}\n"
                       "limits: {per_worker_connections: 4096}\n";
    if (two_pools)
        add_worker(&spec, "p0", true, b->worker[1].url);
    add_worker(&spec, "d0", false, b->worker[0].url);
    stay_on(b->proxy_core);
    status = bt_cluster_start(b->loop, &spec, out, b->error, b->error_size);
    stay_on(b->load_core);
    return status;
}

/* ---- memory ---- */

static enum bt_status measure_streams(struct http_bench *b,
                                      struct bt_cluster *cluster)
{
    uint32_t count = b->options->streams;
    struct load_spec spec = {.port = port_of(bt_cluster_url(cluster))};
    pid_t pid = bt_cluster_serve_pid(cluster);
    enum bt_status status;
    char name[BT_MICRO_NAME_MAX];
    int *fds = malloc((count + 1) * sizeof(*fds));
    char *request = load_request_make(
        1024, ",\"stream\":true,\"max_tokens\":" FAKE_HOLD_TOKENS,
        &spec.request_bytes);

    if (!fds || !request) {
        free(fds);
        free(request);
        return BT_NO_MEMORY;
    }
    for (uint32_t i = 0; i < count; i++)
        fds[i] = -1;
    spec.request = request;
    status = load_hold(&spec, count, fds);
    if (status == BT_OK) {
        snprintf(name, sizeof(name), "serve: resident with %u streams", count);
        bt_micro_add(b->report, name, resident_mib(pid), "MiB",
                     "serve: resident idle");
    } else {
        bt_micro_note(b->report, "%u streams could not be held open: %s\n",
                      count, bt_status_text(status));
    }
    for (uint32_t i = 0; i < count; i++) {
        if (fds[i] >= 0)
            close(fds[i]);
    }
    free(fds);
    free(request);
    return BT_OK;
}

static enum bt_status measure_serve(struct http_bench *b, const char *base)
{
    struct bt_cluster *cluster = NULL;
    enum bt_status status = start_serve(b, false, &cluster);
    pid_t pid;

    if (status != BT_OK)
        return failed(b, status, "serve");
    say(b, "serve, one worker (comparable with a plain proxy)");
    pid = bt_cluster_serve_pid(cluster);
    bt_micro_add(b->report, "serve: resident idle", resident_mib(pid), "MiB",
                 NULL);
    status = measure(b, "serve", base, port_of(bt_cluster_url(cluster)), pid);
    if (status == BT_OK) {
        say(b, "serve, open streams");
        status = measure_streams(b, cluster);
    }
    bt_cluster_stop(cluster);
    return status;
}

static enum bt_status measure_pools(struct http_bench *b)
{
    struct bt_cluster *cluster = NULL;
    enum bt_status status = start_serve(b, true, &cluster);

    if (status != BT_OK)
        return failed(b, status, "serve with two pools");
    say(b, "serve, prefill and decode (two requests upstream for each)");
    status = measure(b, "serve P+D", "serve", port_of(bt_cluster_url(cluster)),
                     bt_cluster_serve_pid(cluster));
    bt_cluster_stop(cluster);
    return status;
}

/* ---- the whole ---- */

/* Two CPUs this process may use, or none. */
static void pick_cores(struct http_bench *b, cpu_set_t *mine)
{
    b->proxy_core = b->load_core = -1;
    CPU_ZERO(mine);
    if (sched_getaffinity(0, sizeof(*mine), mine) != 0)
        return;
    for (int i = 0; i < CPU_SETSIZE; i++) {
        if (!CPU_ISSET(i, mine))
            continue;
        if (b->load_core < 0) {
            b->load_core = i;
        } else {
            b->proxy_core = i;
            return;
        }
    }
    b->load_core = -1;
}

/* Files and the empty folders that nginx makes. */
static void remove_directory(const char *path)
{
    DIR *directory = opendir(path);
    const struct dirent *entry;

    if (!directory)
        return;
    while ((entry = readdir(directory)) != NULL) {
        if (entry->d_name[0] == '.')
            continue;
        if (unlinkat(dirfd(directory), entry->d_name, 0) != 0)
            (void)unlinkat(dirfd(directory), entry->d_name, AT_REMOVEDIR);
    }
    closedir(directory);
    (void)rmdir(path);
}

static enum bt_status run_all(struct http_bench *b)
{
    const char *base = NULL;
    enum bt_status status = fake_worker_start(&b->worker[0], b->load_core);

    if (status == BT_OK)
        status = fake_worker_start(&b->worker[1], b->load_core);
    if (status != BT_OK)
        return failed(b, status, "cannot start the fake worker");
    stay_on(b->load_core);
    status = measure_direct(b);
    if (status == BT_OK)
        status = measure_reference(b, &base);
    if (status == BT_OK)
        status = measure_serve(b, base);
    if (status == BT_OK)
        status = measure_pools(b);
    return status;
}

static void raise_files(void)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        limit.rlim_cur = limit.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &limit);
    }
}

enum bt_status bt_micro_http(const struct bt_micro_http_options *options,
                             struct bt_micro_report *report, char *error_out,
                             size_t error_size)
{
    struct http_bench b;
    enum bt_status status;
    cpu_set_t mine;

    memset(&b, 0, sizeof(b));
    b.options = options;
    b.report = report;
    b.error = error_out;
    b.error_size = error_size;
    error_out[0] = '\0';
    b.loop = ev_loop_new(EVFLAG_AUTO);
    snprintf(b.directory, sizeof(b.directory), "/tmp/baton-bench-XXXXXX");
    if (!b.loop || !mkdtemp(b.directory))
        return failed(&b, BT_IO, "cannot make a temporary directory");
    raise_files();
    pick_cores(&b, &mine);
    status = run_all(&b);
    fake_worker_stop(&b.worker[0]);
    fake_worker_stop(&b.worker[1]);
    (void)sched_setaffinity(0, sizeof(mine), &mine);
    remove_directory(b.directory);
    ev_loop_destroy(b.loop);
    bt_micro_note(report,
                  "Bodies of requests have 1 KB or 40 KB (prompts as token "
                  "ids), answers are small.\nAdded: the quantile through the "
                  "proxy minus the same quantile direct, %u requests,\none "
                  "connection. Requests: %u connections, each waits for its "
                  "answer.\n%s\n",
                  options->latency_requests, options->connections,
                  b.proxy_core >= 0
                      ? "The proxy has a CPU of its own."
                      : "Only one CPU: load, worker and proxy share it.");
    return status;
}
