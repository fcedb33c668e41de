/* The demo itself: one policy after the other on a fresh cluster, the same
 * workload each time, then the report. Decides order, messages and exit code;
 * figures of fleet and workload are demo_setup.c's. Invariant: at most one
 * cluster runs, and none is left when bt_demo_run returns. */
#include "baton/base/units.h"
#include "baton/orchestrator/upstream.h"
#include "demo_priv.h"
#include <dirent.h>
#include <errno.h>
#include <ev.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define EXIT_FAILED      1
#define EXIT_CONFIG      3
#define EXIT_PEER        4
#define NETBED_PORT      8000
#define NETBED_METRICS   9464
#define NETBED_ADMIN     9465
#define BAR_WIDTH        30
#define LINE_MAX_COLUMNS 79
#define DRAIN_NS         (60 * BT_NS_PER_S) /* after the last arrival */

struct run {
    struct demo *demo;
    struct bt_client *client;
};

/* ---- progress ---- */

/* Columns that a line may fill without wrapping. */
static int terminal_width(void)
{
    struct winsize size;

    if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0)
        return 79;
    return size.ws_col > LINE_MAX_COLUMNS ? LINE_MAX_COLUMNS : size.ws_col - 1;
}

static void draw(const struct demo *demo, size_t done, size_t total)
{
    char line[LINE_MAX_COLUMNS + 1];
    size_t runs = demo->options->policy_count;
    size_t filled =
        total ? (demo->running * total + done) * BAR_WIDTH / (runs * total) : 0;
    char bar[BAR_WIDTH + 1];

    if (!demo->options->progress)
        return;
    memset(bar, '.', BAR_WIDTH);
    memset(bar, '#', filled > BAR_WIDTH ? BAR_WIDTH : filled);
    bar[BAR_WIDTH] = '\0';
    snprintf(line, sizeof(line), "%zu/%zu %-13s %zu/%zu requests [%s]",
             demo->running + 1, runs, demo->options->policies[demo->running],
             done, total, bar);
    fprintf(stderr, "\r%.*s", terminal_width(), line);
}

static void clear_line(const struct demo *demo)
{
    if (demo->options->progress)
        fprintf(stderr, "\r%*s\r", terminal_width(), "");
}

static void on_progress(void *arg, size_t ended, size_t total)
{
    struct run *run = arg;

    draw(run->demo, ended, total);
}

/* ---- directory ---- */

static enum bt_status make_directory(struct demo *demo)
{
    const char *base = getenv("TMPDIR");
    const char *wanted = demo->options->directory;

    if (wanted) {
        if (strlen(wanted) >= sizeof(demo->directory) ||
            strpbrk(wanted, "\"\\\n\r")) {
            fprintf(stderr, "baton demo: --dir: too long, or it has a quote, "
                            "backslash or line end\n");
            return BT_INVALID;
        }
        snprintf(demo->directory, sizeof(demo->directory), "%s", wanted);
        if (mkdir(wanted, 0700) != 0 && errno != EEXIST) {
            fprintf(stderr, "baton demo: %s: %s\n", wanted, strerror(errno));
            return BT_IO;
        }
        if (access(wanted, W_OK | X_OK) != 0) {
            fprintf(stderr, "baton demo: %s: %s\n", wanted, strerror(errno));
            return BT_IO;
        }
        return BT_OK;
    }
    snprintf(demo->directory, sizeof(demo->directory), "%.400s/baton-XXXXXX",
             base && base[0] && !strpbrk(base, "\"\\\n\r") ? base : "/tmp");
    if (!mkdtemp(demo->directory)) {
        fprintf(stderr, "baton demo: %s: %s\n", demo->directory,
                strerror(errno));
        return BT_IO;
    }
    demo->temporary = true;
    return BT_OK;
}

static void remove_directory(const struct demo *demo)
{
    DIR *directory = opendir(demo->directory);
    const struct dirent *entry;

    if (!directory)
        return;
    while ((entry = readdir(directory)) != NULL) {
        if (entry->d_name[0] != '.')
            (void)unlinkat(dirfd(directory), entry->d_name, 0);
    }
    closedir(directory);
    (void)rmdir(demo->directory);
}

/* ---- one policy ---- */

static void dump_requests(const struct demo *demo, const char *policy,
                          const struct bt_client *client)
{
    char path[600];
    FILE *to;

    if (demo->temporary)
        return;
    snprintf(path, sizeof(path), "%s/requests-%s.jsonl", demo->directory,
             policy);
    to = fopen(path, "we");
    if (!to || bt_client_dump(client, to) != BT_OK)
        fprintf(stderr, "baton demo: %s: %s\n", path, strerror(errno));
    if (to)
        fclose(to);
}

static enum bt_status keep_result(struct demo *demo, struct run *run,
                                  struct bt_demo_result *result)
{
    const struct bt_client_slo slo = {demo->options->slo_ttft_ns,
                                      demo->options->slo_tpot_ns};
    size_t count = demo->workload.count;

    snprintf(result->first_failure, sizeof(result->first_failure), "%s",
             bt_client_first_failure(run->client));
    result->ttft_ms = calloc(count + 1, sizeof(*result->ttft_ms));
    if (!result->ttft_ms)
        return BT_NO_MEMORY;
    for (size_t i = 0; i < count; i++) {
        const struct bt_client_record *r = bt_client_record_at(run->client, i);
        bool answered = r->result == BT_CLIENT_OK && r->ttft_ns >= 0;

        result->ttft_ms[i] = answered ? (double)r->ttft_ns / 1e6 : -1;
    }
    return bt_client_summarise(run->client, &slo, &result->client);
}

static bool is_done(void *arg)
{
    const struct run *run = arg;

    return bt_client_is_done(run->client);
}

static enum bt_status replay(struct demo *demo, struct bt_cluster *cluster,
                             struct bt_demo_result *result)
{
    struct run run = {demo, NULL};
    struct bt_client_spec spec;
    enum bt_status status;
    char prefix[64];

    memset(&spec, 0, sizeof(spec));
    snprintf(prefix, sizeof(prefix), "demo-%s", result->policy);
    spec.url = bt_cluster_url(cluster);
    spec.model = demo->spec.model;
    spec.id_prefix = prefix;
    spec.workload = &demo->workload;
    spec.request_timeout_ns = DRAIN_NS;
    spec.expect = bt_expected_text;
    spec.expect_arg = demo->expected;
    spec.progress = on_progress;
    spec.arg = &run;
    status = bt_client_create(demo->loop, &spec, &run.client);
    if (status != BT_OK)
        return status;
    bt_client_start(run.client);
    status = bt_wait(demo->loop, is_done, &run,
                     demo->report->workload.span_ns + DRAIN_NS + DRAIN_NS / 2);
    if (status == BT_OK)
        status = keep_result(demo, &run, result);
    if (status == BT_OK) {
        dump_requests(demo, result->policy, run.client);
        demo_collect(demo, cluster, result);
        demo_predictions(demo, cluster, result);
    }
    bt_client_destroy(run.client);
    return status;
}

/* serve adds to a log: what an earlier run left is not of this one. */
static void forget_decisions(const struct demo *demo, const char *policy)
{
    char path[600];

    snprintf(path, sizeof(path), "%s/decisions-%s.jsonl", demo->directory,
             policy);
    if (unlink(path) != 0 && errno != ENOENT)
        fprintf(stderr, "baton demo: %s: %s\n", path, strerror(errno));
}

static void configure(struct demo *demo, const char *policy)
{
    demo->spec.policy = policy;
    demo->spec.directory = demo->directory;
    snprintf(demo->serve_extra, sizeof(demo->serve_extra),
             "health: {interval: 200ms, timeout: 2s, ok: 1, fail: 3, "
             "stats_interval: 200ms}\n"
             "planner: {expected_output: 32}\n"
             "decisions: {file: \"%s/decisions-%s.jsonl\", ring: 10000}\n",
             demo->directory, policy);
    demo->spec.serve_extra = demo->serve_extra;
}

static int interrupted(const struct demo *demo)
{
    clear_line(demo);
    fprintf(stderr, "baton demo: interrupted\n");
    return EXIT_FAILED;
}

/* Start, replay; the cluster stays up for the caller to stop. */
static int run_policy(struct demo *demo, const char *policy,
                      struct bt_cluster **cluster_out)
{
    struct bt_demo_result *result = &demo->report->results[demo->report->count];
    char error[BT_CLUSTER_ERROR_MIN] = "";
    enum bt_status status;

    configure(demo, policy);
    forget_decisions(demo, policy);
    draw(demo, 0, demo->workload.count);
    status = bt_cluster_start(demo->loop, &demo->spec, cluster_out, error,
                              sizeof(error));
    if (bt_cluster_interrupted())
        return interrupted(demo);
    if (status != BT_OK) {
        clear_line(demo);
        fprintf(stderr,
                "baton demo: policy %s: the cluster did not start (%s): %s\n",
                policy, bt_status_text(status), error);
        return EXIT_PEER;
    }
    result->policy = policy;
    demo->report->count++;
    status = replay(demo, *cluster_out, result);
    if (bt_cluster_interrupted())
        return interrupted(demo);
    if (!bt_cluster_serve_is_up(*cluster_out, error, sizeof(error))) {
        clear_line(demo);
        fprintf(stderr, "baton demo: policy %s: %s\n", policy, error);
        return EXIT_PEER;
    }
    if (status != BT_OK) {
        clear_line(demo);
        fprintf(stderr, "baton demo: policy %s: %s\n", policy,
                bt_status_text(status));
        return EXIT_FAILED;
    }
    return 0;
}

/* ---- --keep ---- */

static bool never(void *arg)
{
    struct bt_cluster *cluster = arg;
    char words[BT_CLUSTER_ERROR_MIN];

    if (bt_cluster_serve_is_up(cluster, words, sizeof(words)))
        return false;
    fprintf(stderr, "baton demo: %s\n", words);
    return true;
}

static void keep_up(struct demo *demo, struct bt_cluster *cluster)
{
    fprintf(stderr,
            "\nThe cluster is up under policy %s. Ctrl-C ends it.\n"
            "  API      %s/v1 (base URL for clients)\n"
            "  metrics  %s/metrics\n"
            "  admin    %s/admin/v1/workers\n"
            "  logs     %s\n\n"
            "Try:\n"
            "  curl -si %s/v1/completions -H 'Content-Type: application/json' "
            "-d '{\"model\":\"%s\",\"prompt\":\"Where does the KV cache "
            "go?\",\"max_tokens\":24}'\n"
            "  baton explain --admin %s REQUEST-ID    (the answer's "
            "x-request-id)\n",
            demo->spec.policy, bt_cluster_url(cluster),
            bt_cluster_metrics_url(cluster), bt_cluster_admin_url(cluster),
            demo->directory, bt_cluster_url(cluster), demo->spec.model,
            bt_cluster_admin_url(cluster));
    (void)bt_wait(demo->loop, never, cluster,
                  INT64_C(365) * 86400 * 1000000000);
}

/* ---- the whole ---- */

static int print_report(struct demo *demo)
{
    struct bt_demo_report *report = demo->report;
    int code = 0;

    clear_line(demo);
    bt_demo_compare(report, demo->options->seed);
    if (demo->options->json)
        (void)bt_demo_print_json(report, stdout);
    else
        (void)bt_demo_print_table(report, stdout);
    if (fflush(stdout) != 0) {
        fprintf(stderr, "baton demo: standard output: %s\n", strerror(errno));
        code = EXIT_FAILED;
    }
    for (size_t i = 0; i < report->count; i++) {
        const struct bt_demo_result *r = &report->results[i];

        if (r->client.wrong == 0 && r->client.errors == 0)
            continue;
        fprintf(stderr,
                "baton demo: policy %s: %zu wrong outputs, %zu errors; first: "
                "%s\n",
                r->policy, r->client.wrong, r->client.errors, r->first_failure);
        code = EXIT_FAILED;
    }
    return code;
}

static int run_all(struct demo *demo)
{
    const struct bt_demo_options *o = demo->options;
    struct timespec from, to;
    int code = 0;

    clock_gettime(CLOCK_MONOTONIC, &from);
    for (size_t i = 0; i < o->policy_count && code == 0; i++) {
        struct bt_cluster *cluster = NULL;
        bool last = i + 1 == o->policy_count;

        demo->running = i;
        code = run_policy(demo, o->policies[i], &cluster);
        if (code == 0 && last) {
            clock_gettime(CLOCK_MONOTONIC, &to);
            demo->report->wall_s = (double)(to.tv_sec - from.tv_sec) +
                                   (double)(to.tv_nsec - from.tv_nsec) / 1e9;
            code = print_report(demo);
            if (o->keep && !ferror(stdout))
                keep_up(demo, cluster);
        }
        bt_cluster_stop(cluster);
    }
    return code;
}

static void on_signal(struct ev_loop *loop, struct ev_signal *watcher,
                      int events)
{
    (void)events;
    (void)watcher;
    bt_cluster_interrupt();
    ev_break(loop, EVBREAK_ONE);
}

/* Fixed ports where nobody else can have them, so that a script finds them. */
static enum bt_status go_to_bed(struct demo *demo)
{
    struct bt_cluster_spec *s = &demo->spec;

    s->netbed = demo->options->netbed;
    s->rails = demo->options->rails;
    if (!s->netbed)
        return BT_OK;
    s->port = s->port ? s->port : NETBED_PORT;
    s->metrics_port = NETBED_METRICS;
    s->admin_port = NETBED_ADMIN;
    return demo_netbed_enter(s->netbed, s->engine_count + 1);
}

static enum bt_status make_fleet(struct demo *demo)
{
    enum bt_status status = BT_OK;

    demo_topology(demo->options, &demo->spec);
    if (demo->options->cluster)
        status = demo_cluster_read(demo->options, &demo->cluster, &demo->spec);
    return status;
}

/* What shapes a bed, one host a line. */
static int print_hosts(struct demo *demo)
{
    if (make_fleet(demo) != BT_OK)
        return EXIT_CONFIG;
    for (uint32_t i = 0; i < demo->spec.engine_count; i++)
        printf("%u %s %llu\n", i + 1, demo->spec.engines[i].name,
               (unsigned long long)demo->spec.engines[i].nic_bytes_per_s);
    return fflush(stdout) == 0 ? 0 : EXIT_FAILED;
}

static int run_in_directory(struct demo *demo)
{
    int code = EXIT_CONFIG;

    if (make_fleet(demo) == BT_OK && go_to_bed(demo) == BT_OK &&
        demo_workload_make(demo) == BT_OK) {
        demo_workload_dump(demo);
        code = run_all(demo);
    }
    bt_expected_destroy(demo->expected);
    bt_workload_fini(&demo->workload);
    if (demo->temporary && (code == 0 || bt_cluster_interrupted()))
        remove_directory(demo);
    else if (demo->temporary && code != EXIT_CONFIG)
        fprintf(stderr, "baton demo: logs are in %s\n", demo->directory);
    else if (demo->temporary)
        remove_directory(demo);
    return code;
}

int bt_demo_run(const struct bt_demo_options *options)
{
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP};
    struct bt_demo_report report;
    struct ev_signal signals[3];
    struct demo demo;
    int code;

    memset(&demo, 0, sizeof(demo));
    memset(&report, 0, sizeof(report));
    report.options = *options;
    demo.options = options;
    demo.report = &report;
    demo.loop = ev_loop_new(EVFLAG_AUTO);
    if (!demo.loop) {
        fprintf(stderr, "baton demo: no event loop\n");
        return EXIT_FAILED;
    }
    signal(SIGPIPE, SIG_IGN);
    for (size_t i = 0; i < 3; i++) {
        ev_signal_init(&signals[i], on_signal, numbers[i]);
        ev_signal_start(demo.loop, &signals[i]);
    }
    if (options->hosts)
        code = print_hosts(&demo);
    else
        code = make_directory(&demo) == BT_OK ? run_in_directory(&demo)
                                              : EXIT_CONFIG;
    for (size_t i = 0; i < 3; i++)
        ev_signal_stop(demo.loop, &signals[i]);
    ev_loop_destroy(demo.loop);
    bt_demo_report_fini(&report);
    return code;
}
