/* `baton serve` with index.snapshot, as a process in front of two real engines:
 * killed and started again it knows what the engines have without reading all
 * of their events; not when an engine is another process, or the configuration
 * another one. And its admin listener answers queries as `baton index` does. */
#include "index_rig.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PROMPTS 7u
#define TRIES   3000

struct world {
    struct process e0, e1, serve;
    char folder[64], snapshot[96], config[96];
};

static void write_config(const struct world *w, unsigned int block_size)
{
    FILE *f = fopen(w->config, "w");
    const struct process *engines[] = {&w->e0, &w->e1};

    assert_non_null(f);
    fprintf(f,
            "config_schema: 1\n"
            "tokenizer: bytes\n"
            "listen: {port: 0}\nmetrics: {port: 0}\nadmin: {port: 0}\n"
            "health: {interval: 100ms, stats_interval: 50ms}\n"
            "index: {snapshot: \"%s\", snapshot_interval: 50ms}\n"
            "models:\n  - {name: demo, kv_bytes_per_token: 256, block_size: "
            "%u}\nworkers:\n",
            w->snapshot, block_size);
    for (int i = 0; i < 2; i++)
        fprintf(f,
                "  - {name: e%d, role: %s, url: \"http://127.0.0.1:%u\", "
                "model: demo, compute: h100-8b-tp1, events: \"%s\", "
                "replay: \"%s\"}\n",
                i, i == 0 ? "prefill" : "decode", engines[i]->rig.http,
                engines[i]->rig.events, engines[i]->rig.replay);
    assert_int_equal(fclose(f), 0);
}

static void world_start(struct world *w)
{
    memset(w, 0, sizeof(*w));
    snprintf(w->folder, sizeof(w->folder), "/tmp/bt-warm-XXXXXX");
    assert_non_null(mkdtemp(w->folder));
    snprintf(w->snapshot, sizeof(w->snapshot), "%s/snapshot", w->folder);
    snprintf(w->config, sizeof(w->config), "%s/config.yaml", w->folder);
    engine_start(&w->e0, "e0", "array");
    engine_start(&w->e1, "e1", "map");
    write_config(w, 16);
    for (unsigned int v = 0; v < 4; v++)
        engine_ask(&w->e0, v);
    for (unsigned int v = 2; v < 6; v++)
        engine_ask(&w->e1, v);
}

static void world_stop(struct world *w)
{
    char name[160];

    assert_int_equal(process_end(&w->e0, SIGTERM), 0);
    assert_int_equal(process_end(&w->e1, SIGTERM), 0);
    snprintf(name, sizeof(name), "%s.bad", w->snapshot);
    unlink(name);
    snprintf(name, sizeof(name), "%s.tmp", w->snapshot);
    unlink(name);
    unlink(w->snapshot);
    unlink(w->config);
    assert_int_equal(rmdir(w->folder), 0);
}

/* First prompt that is not answered right, PROMPTS when all are. */
static unsigned int first_wrong(const struct world *w, const struct process *e)
{
    unsigned int v = 0;

    while (v < PROMPTS &&
           index_says(&w->serve, e->name, v) == engine_truth(e, v))
        v++;
    return v;
}

static void wait_right(const struct world *w, const struct process *e)
{
    for (int tries = 0; tries < TRIES; tries++) {
        if (first_wrong(w, e) == PROMPTS)
            return;
        (void)poll(NULL, 0, 5);
    }
    unsigned int v = first_wrong(w, e);
    fail_msg("%s has %lld of prompt %u, the index says %lld", e->name,
             engine_truth(e, v), v, index_says(&w->serve, e->name, v));
}

/* Two files later: the second began after now. */
static void wait_snapshot(const struct world *w)
{
    struct stat st = {0};
    ino_t last = 0;
    int seen = -1; /* the first is the one that is there */

    for (int tries = 0; tries < TRIES && seen < 2; tries++) {
        if (stat(w->snapshot, &st) == 0 && st.st_ino != last) {
            last = st.st_ino;
            seen++;
        }
        (void)poll(NULL, 0, 3);
    }
    assert_int_equal(seen, 2);
}

static long long metric(const struct world *w, const char *name)
{
    struct rig metrics = {.http = w->serve.metrics};
    struct answer a = rig_call(&metrics, "/metrics", NULL);
    char line[128];
    const char *at;
    long long value;

    snprintf(line, sizeof(line), "\n%s ", name);
    at = strstr(a.body, line);
    assert_non_null(at);
    value = strtoll(at + strlen(line), NULL, 10);
    answer_free(&a);
    return value;
}

static void killed_and_warm(void **state)
{
    struct world w;

    (void)state;
    world_start(&w);
    serve_start(&w.serve, w.config);
    wait_right(&w, &w.e0);
    wait_right(&w, &w.e1);
    assert_true(engine_truth(&w.e0, 3) > 0 && engine_truth(&w.e1, 5) > 0);
    long long all = metric(&w, "baton_kv_event_batches_total");
    assert_true(all > 8);
    wait_snapshot(&w);
    assert_int_equal(process_end(&w.serve, SIGKILL), -1);

    long long before = rig_state(&w.e0.rig, "events_next");
    engine_ask(&w.e0, 6);
    long long more = rig_state(&w.e0.rig, "events_next") - before;
    serve_start(&w.serve, w.config);
    wait_right(&w, &w.e0);
    wait_right(&w, &w.e1);
    /* What is new, and a batch of overlap each. */
    assert_true(more > 0 && more + 2 < all);
    assert_in_range(metric(&w, "baton_kv_event_batches_total"), more, more + 2);
    assert_int_equal(process_end(&w.serve, SIGTERM), 0);

    /* What SIGTERM left does as well. */
    serve_start(&w.serve, w.config);
    wait_right(&w, &w.e0);
    wait_right(&w, &w.e1);
    assert_in_range(metric(&w, "baton_kv_event_batches_total"), 0, 2);
    assert_int_equal(process_end(&w.serve, SIGTERM), 0);
    world_stop(&w);
}

static void another_process_is_cold(void **state)
{
    struct world w;

    (void)state;
    world_start(&w);
    serve_start(&w.serve, w.config);
    wait_right(&w, &w.e0);
    wait_right(&w, &w.e1);
    assert_int_equal(process_end(&w.serve, SIGTERM), 0);
    assert_int_equal(process_end(&w.e1, SIGKILL), -1);
    engine_start(&w.e1, "e1", "map");
    engine_ask(&w.e1, 0);
    serve_start(&w.serve, w.config);
    wait_right(&w, &w.e0);
    wait_right(&w, &w.e1);
    assert_int_equal(engine_truth(&w.e1, 5), 0);
    assert_true(engine_truth(&w.e1, 0) > 0);
    assert_int_equal(process_end(&w.serve, SIGTERM), 0);
    world_stop(&w);
}

static void another_block_size_is_refused(void **state)
{
    struct world w;
    char bad[120];

    (void)state;
    world_start(&w);
    serve_start(&w.serve, w.config);
    wait_right(&w, &w.e0);
    assert_int_equal(process_end(&w.serve, SIGTERM), 0);
    snprintf(bad, sizeof(bad), "%s.bad", w.snapshot);
    assert_int_not_equal(access(bad, F_OK), 0);
    write_config(&w, 32);
    serve_start(&w.serve, w.config);
    assert_int_equal(access(bad, F_OK), 0);
    assert_int_equal(process_end(&w.serve, SIGTERM), 0);
    world_stop(&w);
}

static void queries_are_refused_clearly(void **state)
{
    static const struct {
        const char *path, *body;
        long status;
    } rows[] = {
        {"/query", "[]", 400},
        {"/admin/v1/index/query", "{\"model\":\"demo\"}", 400},
        {"/query", "{\"model\":\"demo\",\"token_ids\":[1],\"block_size\":8}",
         400},
        {"/query", "{\"model\":\"x\",\"token_ids\":[1]}", 404},
        {"/query", "{\"model\":\"demo\",\"token_ids\":[1],\"tenant_id\":\"x\"}",
         404},
        {"/query_by_hash",
         "{\"model\":\"demo\",\"seq_hashes\":[1],\"cache_salt\":\"s\"}", 400},
        {"/admin/v1/index/query_by_hash",
         "{\"model\":\"demo\",\"seq_hashes\":[1]}", 200},
        {"/admin/v1/index/query",
         "{\"model\":\"demo\",\"token_ids\":[1],\"instance_id\":\"e1\"}", 200},
    };
    struct world w;

    (void)state;
    world_start(&w);
    serve_start(&w.serve, w.config);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        json_t *root = NULL;
        long status = index_post(&w.serve, rows[i].path, rows[i].body, &root);

        if (status != rows[i].status)
            fail_msg("row %zu: %ld", i, status);
        if (status == 200)
            assert_int_equal(json_object_size(json_object_get(root, "default")),
                             i + 1 == sizeof(rows) / sizeof(rows[0]) ? 1 : 2);
        json_decref(root);
    }
    assert_int_equal(process_end(&w.serve, SIGTERM), 0);
    world_stop(&w);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(killed_and_warm),
        cmocka_unit_test(another_process_is_cold),
        cmocka_unit_test(another_block_size_is_refused),
        cmocka_unit_test(queries_are_refused_clearly),
    };

    if (argc != 2)
        return 2;
    rig_program = argv[1];
    return cmocka_run_group_tests(tests, NULL, NULL);
}
