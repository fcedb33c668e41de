/* 10,000 requests against the whole program while engines are killed and
 * restarted, hang, refuse, fail at every phase, lose KV events and leases, and
 * clients leave. Afterwards: every request has ended within its time, no
 * answer was wrong, serve has nothing booked, engines hold no block.
 *
 *   BATON_SEED=n BATON_TORTURE_REQUESTS=n BATON_TORTURE_RATE=n  test BATON
 *   BATON_KEEP=1 keeps the logs of a good run
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "baton/base/rng.h"
#include "baton/bench/client.h"
#include "baton/bench/cluster.h"
#include "baton/bench/oracle.h"
#include "baton/orchestrator/json.h"
#include "baton/orchestrator/promtext.h"
#include "baton/planner/block_hash.h"
#include <dirent.h>
#include <ev.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define ENGINES    4u
#define KV_BYTES   64u
#define LAYERS     4u
#define TICK_NS    INT64_C(350000000)
#define REQUEST_NS 40000000000 /* none may take longer */
#define SETTLE_NS  60000000000

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define REQUESTS 1500
#define RATE     40
#else
#define REQUESTS 10000
#define RATE     200
#endif

static const char *program;

struct torture {
    struct ev_loop *loop;
    struct bt_cluster *cluster;
    struct bt_cluster_spec spec;
    struct bt_workload workload;
    struct bt_expected *expected;
    struct bt_client *client;
    struct bt_rng rng;   /* faults */
    uint64_t leave_seed; /* clients */
    int64_t tick_end_ns;
    int down; /* engine to restart in the next tick, or -1 */
    unsigned int kills, posts, restarts;
    char directory[64];
    char serve_extra[640];
};

static uint64_t from_environment(const char *name, uint64_t fallback)
{
    const char *text = getenv(name);

    return text && text[0] ? strtoull(text, NULL, 10) : fallback;
}

/* ---- faults ---- */

static const char *const phases[] = {"arrival",        "before_prefill",
                                     "during_prefill", "after_prefill",
                                     "before_decode",  "during_decode"};
#define PHASES (sizeof(phases) / sizeof(phases[0]))

static const char *const standing[] = {"slow", "events_drop", "events_delay",
                                       "events_reorder", "events_duplicate"};

static void post_fault(struct torture *t, uint32_t engine, const char *body)
{
    char url[128];

    snprintf(url, sizeof(url), "%s/admin/fault",
             bt_cluster_engine_url(t->cluster, engine));
    /* an engine that is just dying need not answer */
    if (bt_fetch(t->loop, url, body, 1000000000, NULL, NULL, NULL) == BT_OK)
        t->posts++;
}

static void one_shot(struct torture *t, uint32_t engine, const char *kind,
                     unsigned int count)
{
    char body[160];

    snprintf(body, sizeof(body),
             "{\"fault\":\"%s\",\"phase\":\"%s\",\"count\":%u}", kind,
             phases[bt_rng_below(&t->rng, PHASES)], count);
    post_fault(t, engine, body);
}

static void stand(struct torture *t, uint32_t engine)
{
    const char *kind = standing[bt_rng_below(&t->rng, 5)];
    char body[160];

    snprintf(body, sizeof(body), "{\"fault\":\"%s\",\"count\":0,\"factor\":%u}",
             kind, 5 + (unsigned int)bt_rng_below(&t->rng, 40));
    post_fault(t, engine, body);
}

static void clear_faults(struct torture *t, uint32_t engine)
{
    /* bt_fetch has no DELETE: restarting the process clears them too */
    if (bt_rng_below(&t->rng, 3) == 0) {
        bt_cluster_engine_kill(t->cluster, engine);
        t->kills++;
        t->down = (int)engine;
    }
}

/* Restart whatever is down: killed in the last tick, or dead by a fault. */
static void restart_dead(struct torture *t)
{
    for (uint32_t i = 0; i < ENGINES; i++) {
        if (bt_cluster_engine_spawn(t->cluster, i) == BT_OK)
            t->restarts++;
    }
    t->down = -1;
}

static void do_mischief(struct torture *t)
{
    uint32_t engine = (uint32_t)bt_rng_below(&t->rng, ENGINES);

    restart_dead(t);
    switch (bt_rng_below(&t->rng, 10)) {
    case 0:
    case 1:
        bt_cluster_engine_kill(t->cluster, engine);
        t->kills++;
        t->down = (int)engine;
        break;
    case 2:
        one_shot(t, engine, "die", 1);
        break;
    case 3:
        one_shot(t, engine, "hang", 1 + (unsigned int)bt_rng_below(&t->rng, 4));
        break;
    case 4:
        one_shot(t, engine, "refuse", 6);
        break;
    case 5:
        one_shot(t, engine, "error", 6);
        break;
    case 6:
        post_fault(t, engine, "{\"fault\":\"lease_expire\"}");
        break;
    case 7:
        clear_faults(t, engine);
        break;
    case 8:
        stand(t, engine);
        break;
    default:
        break; /* a quiet tick */
    }
}

/* ---- traffic ---- */

static uint32_t leave_after(void *arg, size_t request)
{
    const struct torture *t = arg;
    uint64_t draw = bt_mix64(t->leave_seed + request);

    return draw % 100 < 4 ? (uint32_t)(draw >> 32) % 6 : UINT32_MAX;
}

static void answer(void *arg, const uint32_t *prompt, size_t count,
                   uint32_t max_tokens, uint32_t *out)
{
    assert_int_equal(bt_oracle_output(arg, prompt, count, max_tokens, out),
                     BT_OK);
}

static void make_workload(struct torture *t, uint64_t seed)
{
    struct bt_workload_options options;
    struct bt_oracle oracle;

    bt_oracle_init(&oracle, t->spec.model, t->spec.seed, BT_NS_PLAIN);
    oracle.kv_bytes_per_token = KV_BYTES;
    oracle.layers = LAYERS;
    bt_workload_options_init(&options);
    options.seed = seed;
    options.requests =
        (size_t)from_environment("BATON_TORTURE_REQUESTS", REQUESTS);
    options.rate_per_s = (double)from_environment("BATON_TORTURE_RATE", RATE);
    options.system_tokens = 48;
    options.document_tokens_min = 64;
    options.document_tokens_max = 160;
    options.question_min = 4;
    options.question_max = 40;
    options.long_min = 48;
    options.long_max = 256;
    options.answer_min = 1;
    options.answer_max = 10;
    options.answer = answer;
    options.answer_arg = &oracle;
    assert_int_equal(bt_workload_generate(&options, &t->workload), BT_OK);
    assert_int_equal(bt_expected_create(&t->workload, &oracle, &t->expected),
                     BT_OK);
}

static void make_spec(struct torture *t)
{
    static const char *const extra[] = {"--lease=4s", "--pull-timeout=3s",
                                        NULL};
    static const char *const names[ENGINES] = {"p0", "p1", "d0", "d1"};
    struct bt_cluster_spec *s = &t->spec;

    for (uint32_t i = 0; i < ENGINES; i++) {
        snprintf(s->engines[i].name, sizeof(s->engines[i].name), "%s",
                 names[i]);
        s->engines[i].prefill = i < 2;
    }
    s->engine_count = ENGINES;
    s->program = program;
    s->directory = t->directory;
    s->model = "demo";
    s->compute = "h100-8b-tp1";
    s->speedup = 20;
    s->seed = 7;
    s->kv_bytes_per_token = KV_BYTES;
    s->block_tokens = 16;
    s->block_count = 4096;
    s->seqs_max = 256;
    s->policy = "joint";
    s->engine_extra = extra;
    snprintf(t->serve_extra, sizeof(t->serve_extra),
             "health: {interval: 100ms, timeout: 1s, ok: 1, fail: 2, "
             "stats_interval: 200ms}\n"
             "timeouts: {connect: 1s, queue: 5s, prefill: 3s, handoff: 3s, "
             "idle_stream: 3s}\n"
             "breaker: {failures: 3, suspect: 500ms}\n"
             "lease: {duration: 4s, margin: 1s}\n"
             "decisions: {file: \"%s/decisions.jsonl\", ring: 100}\n",
             t->directory);
    s->serve_extra = t->serve_extra;
}

static bool tick_is_over(void *arg)
{
    const struct torture *t = arg;
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return bt_client_is_done(t->client) ||
           now.tv_sec * INT64_C(1000000000) + now.tv_nsec >= t->tick_end_ns;
}

static bool client_is_done(void *arg)
{
    const struct torture *t = arg;

    return bt_client_is_done(t->client);
}

static void run_traffic(struct torture *t)
{
    size_t last = t->workload.count - 1;
    int64_t ticks = t->workload.requests[last].arrival_ns / TICK_NS;
    struct bt_client_spec spec;
    struct timespec now;

    memset(&spec, 0, sizeof(spec));
    spec.url = bt_cluster_url(t->cluster);
    spec.model = "demo";
    spec.workload = &t->workload;
    spec.request_timeout_ns = REQUEST_NS;
    spec.expect = bt_expected_text;
    spec.expect_arg = t->expected;
    spec.leave_after = leave_after;
    spec.arg = t;
    assert_int_equal(bt_client_create(t->loop, &spec, &t->client), BT_OK);
    bt_client_start(t->client);
    for (int64_t i = 0; i < ticks; i++) {
        clock_gettime(CLOCK_MONOTONIC, &now);
        t->tick_end_ns =
            now.tv_sec * INT64_C(1000000000) + now.tv_nsec + TICK_NS;
        assert_int_equal(bt_wait(t->loop, tick_is_over, t, TICK_NS * 20),
                         BT_OK);
        do_mischief(t);
    }
    restart_dead(t);
    assert_int_equal(
        bt_wait(t->loop, client_is_done, t, REQUEST_NS + SETTLE_NS), BT_OK);
}

/* ---- afterwards ---- */

static void check_records(const struct torture *t)
{
    size_t results[BT_CLIENT_RESULT_COUNT] = {0};
    int64_t longest = 0;

    for (size_t i = 0; i < t->workload.count; i++) {
        const struct bt_client_record *r = bt_client_record_at(t->client, i);

        results[r->result]++;
        longest = r->e2e_ns > longest ? r->e2e_ns : longest;
        if (r->result == BT_CLIENT_HTTP && r->http < 500 && r->http != 429)
            fail_msg("request %zu: HTTP %d", i, r->http);
    }
    for (int i = 0; i < BT_CLIENT_RESULT_COUNT; i++)
        print_message("%-10s %zu\n",
                      bt_client_result_name((enum bt_client_result)i),
                      results[i]);
    print_message("longest    %.2f s; %u kills, %u restarts, %u faults set; "
                  "first failure: %s\n",
                  (double)longest / 1e9, t->kills, t->restarts, t->posts,
                  bt_client_first_failure(t->client));
    assert_int_equal(results[BT_CLIENT_PENDING], 0);
    assert_int_equal(results[BT_CLIENT_WRONG], 0);
    assert_int_equal(results[BT_CLIENT_TIMEOUT], 0);
    assert_int_equal(results[BT_CLIENT_DROPPED], 0);
    assert_int_equal(results[BT_CLIENT_TRANSPORT], 0);
    assert_true(results[BT_CLIENT_OK] * 2 > t->workload.count);
}

static char *fetch(const struct torture *t, const char *url, const char *path,
                   size_t *bytes_out)
{
    char full[160], *body = NULL;
    int http = 0;

    snprintf(full, sizeof(full), "%s%s", url, path);
    if (bt_fetch(t->loop, full, NULL, 3000000000, &http, &body, bytes_out) !=
            BT_OK ||
        http != 200) {
        free(body);
        return NULL;
    }
    return body;
}

static uint64_t get_u64(const struct bt_json *object, const char *name)
{
    struct bt_json value;
    uint64_t number = UINT64_MAX;

    if (bt_json_member(object, name, &value, NULL))
        (void)bt_json_u64(&value, &number);
    return number;
}

/* Sum of all bookings of all workers; UINT64_MAX when not told. */
static uint64_t booked(const struct torture *t)
{
    static const char *const names[] = {"prefill_requests", "prefill_tokens",
                                        "decode_requests", "decode_tokens",
                                        "transfers"};
    struct bt_json root, list, worker;
    size_t bytes = 0, cursor = 0, seen = 0;
    uint64_t sum = 0;
    char *body =
        fetch(t, bt_cluster_admin_url(t->cluster), "/admin/v1/workers", &bytes);

    if (!body)
        return UINT64_MAX;
    assert_int_equal(bt_json_parse(body, bytes, &root, NULL), BT_OK);
    assert_true(bt_json_member(&root, "workers", &list, NULL));
    while (bt_json_next(&list, &cursor, NULL, &worker)) {
        for (size_t i = 0; i < 5; i++) {
            uint64_t value = get_u64(&worker, names[i]);

            assert_true(value != UINT64_MAX);
            sum += value;
        }
        seen++;
    }
    free(body);
    assert_int_equal(seen, ENGINES);
    return sum;
}

static bool serve_is_empty(void *arg)
{
    return booked(arg) == 0;
}

static bool engines_are_empty(void *arg)
{
    struct torture *t = arg;

    for (uint32_t i = 0; i < ENGINES; i++) {
        struct bt_cluster_engine_state state;

        if (bt_cluster_engine_state_get(t->cluster, i, &state) != BT_OK ||
            state.blocks_held || state.blocks_leased || state.leases ||
            state.busy)
            return false;
    }
    return true;
}

static void on_gauge(void *arg, const struct bt_prom_sample *sample)
{
    static const char *const names[] = {
        "baton_requests_in_flight",    "baton_queue_depth",
        "baton_http_body_bytes",       "baton_worker_prefill_requests",
        "baton_worker_prefill_tokens", "baton_worker_decode_requests",
        "baton_worker_decode_tokens",  "baton_worker_transfers"};
    unsigned int *seen = arg;

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (!bt_prom_is(sample, names[i]))
            continue;
        (*seen)++;
        if (sample->value != 0)
            fail_msg("gauge %s is %g after all traffic", names[i],
                     sample->value);
    }
}

static void describe_engines(struct torture *t)
{
    for (uint32_t i = 0; i < ENGINES; i++) {
        struct bt_cluster_engine_state s;

        (void)bt_cluster_engine_state_get(t->cluster, i, &s);
        print_message("%s: answered %d, held %llu, leased %llu, leases %llu, "
                      "busy %llu\n",
                      t->spec.engines[i].name, s.answered,
                      (unsigned long long)s.blocks_held,
                      (unsigned long long)s.blocks_leased,
                      (unsigned long long)s.leases, (unsigned long long)s.busy);
    }
}

/* Polls on observable state, at the top level: bt_wait's predicate must not
 * turn the loop itself. */
static bool becomes(struct torture *t, bool (*done)(void *arg))
{
    for (int i = 0; i < SETTLE_NS / 100000000; i++) {
        restart_dead(t); /* a fault of earlier may strike only now */
        if (done(t))
            return true;
        usleep(100000);
    }
    return false;
}

static void check_nothing_is_left(struct torture *t)
{
    unsigned int gauges = 0;
    size_t bytes = 0;
    char *text, words[BT_CLUSTER_ERROR_MIN];

    if (!bt_cluster_serve_is_up(t->cluster, words, sizeof(words)))
        fail_msg("%s", words);
    if (!becomes(t, serve_is_empty))
        fail_msg("serve still has %llu booked", (unsigned long long)booked(t));
    if (!becomes(t, engines_are_empty)) {
        describe_engines(t);
        fail_msg("engines still hold something");
    }
    text = fetch(t, bt_cluster_metrics_url(t->cluster), "/metrics", &bytes);
    assert_non_null(text);
    assert_int_equal(bt_prom_read(text, bytes, on_gauge, &gauges), 0);
    assert_true(gauges >= 2 + 5 * ENGINES);
    free(text);
}

static void clean_up(struct torture *t)
{
    DIR *directory = opendir(t->directory);
    const struct dirent *entry;

    if (!directory)
        return;
    while ((entry = readdir(directory)) != NULL) {
        if (entry->d_name[0] != '.')
            (void)unlinkat(dirfd(directory), entry->d_name, 0);
    }
    closedir(directory);
    (void)rmdir(t->directory);
}

static void test_torture(void **state)
{
    uint64_t seed = from_environment("BATON_SEED", 1);
    char error[BT_CLUSTER_ERROR_MIN] = "";
    struct torture t;

    (void)state;
    memset(&t, 0, sizeof(t));
    print_message("seed %llu (BATON_SEED)\n", (unsigned long long)seed);
    t.down = -1;
    t.loop = ev_loop_new(EVFLAG_AUTO);
    bt_rng_seed(&t.rng, bt_mix64(seed));
    t.leave_seed = bt_mix64(seed + 1);
    snprintf(t.directory, sizeof(t.directory), "/tmp/baton-torture-XXXXXX");
    assert_non_null(mkdtemp(t.directory));
    print_message("logs of a failed run: %s\n", t.directory);
    make_spec(&t);
    make_workload(&t, seed);
    if (bt_cluster_start(t.loop, &t.spec, &t.cluster, error, sizeof(error)) !=
        BT_OK)
        fail_msg("%s", error);
    run_traffic(&t);
    check_records(&t);
    bt_client_destroy(t.client);
    check_nothing_is_left(&t);
    bt_cluster_stop(t.cluster);
    ev_loop_destroy(t.loop);
    bt_expected_destroy(t.expected);
    bt_workload_fini(&t.workload);
    if (!getenv("BATON_KEEP"))
        clean_up(&t);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_torture),
    };

    if (argc != 2) {
        fprintf(stderr, "usage: %s BATON\n", argv[0]);
        return 2;
    }
    program = argv[1];
    signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
