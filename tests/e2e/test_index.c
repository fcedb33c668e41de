/* `baton index` as a process, fed by two real engines (events as arrays and as
 * maps): what it answers against what the engines have; tenants; kill and warm
 * restart; an engine that was another process meanwhile; a damaged snapshot. */
#include "index_rig.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#define PROMPTS 7u
#define BODY    8192

struct world {
    struct process e0, e1, index;
    char folder[64], snapshot[96];
};

static void register_both(struct world *w)
{
    char body[1024];

    /* Mooncake's fields, then Dynamo's. */
    snprintf(body, sizeof(body),
             "{\"endpoint\":\"%s\",\"replay_endpoint\":\"%s\","
             "\"type\":\"vLLM\",\"modelname\":\"demo\",\"lora_name\":null,"
             "\"tenant_id\":\"default\",\"instance_id\":\"e0\","
             "\"block_size\":16,\"dp_rank\":0,\"additionalsalt\":\"\"}",
             w->e0.rig.events, w->e0.rig.replay);
    assert_int_equal(index_post(&w->index, "/register", body, NULL), 201);
    assert_int_equal(index_post(&w->index, "/register", body, NULL), 409);
    snprintf(body, sizeof(body),
             "{\"instance_id\":\"e1\",\"endpoint\":\"%s\","
             "\"model_name\":\"demo\",\"block_size\":16,"
             "\"replay_endpoint\":\"%s\"}",
             w->e1.rig.events, w->e1.rig.replay);
    assert_int_equal(index_post(&w->index, "/register", body, NULL), 201);
}

static void world_start(struct world *w, const char *const *options)
{
    memset(w, 0, sizeof(*w));
    snprintf(w->folder, sizeof(w->folder), "/tmp/bt-index-XXXXXX");
    assert_non_null(mkdtemp(w->folder));
    snprintf(w->snapshot, sizeof(w->snapshot), "%s/snapshot", w->folder);
    engine_start(&w->e0, "e0", "array");
    engine_start(&w->e1, "e1", "map");
    index_start(&w->index, options);
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
    assert_int_equal(rmdir(w->folder), 0);
}

static void ask_both(const struct world *w)
{
    for (unsigned int v = 0; v < 4; v++)
        engine_ask(&w->e0, v);
    for (unsigned int v = 2; v < 6; v++)
        engine_ask(&w->e1, v);
}

static void wait_both(const struct world *w)
{
    index_wait(&w->index, &w->e0);
    index_wait(&w->index, &w->e1);
}

/* ---- answers against the truth ---- */

static json_t *mooncake(const struct world *w, unsigned int variant,
                        const char *more)
{
    char body[BODY];
    json_t *root = NULL;

    query_body(body, sizeof(body), "model", variant, more);
    assert_int_equal(index_post(&w->index, "/query", body, &root), 200);
    return root;
}

static void compare_one(const struct world *w, const struct process *e,
                        unsigned int variant)
{
    char body[BODY];
    json_t *root = NULL, *in;
    long long truth = engine_truth(e, variant);

    query_body(body, sizeof(body), "model_name", variant, "");
    assert_int_equal(index_post(&w->index, "/query", body, &root), 200);
    in = json_object_get(json_object_get(root, "instances"), e->name);
    if (json_integer_value(json_object_get(in, "gpu")) != truth)
        fail_msg("%s has %lld tokens of prompt %u, the index says %lld",
                 e->name, truth, variant,
                 (long long)json_integer_value(json_object_get(in, "gpu")));
    assert_int_equal(
        json_integer_value(json_object_get(
            json_object_get(json_object_get(root, "scores"), e->name), "0")),
        truth);
    assert_true(json_is_true(json_object_get(in, "exact")));
    json_decref(root);
    root = mooncake(w, variant, "");
    in = json_object_get(json_object_get(root, "default"), e->name);
    assert_int_equal(json_integer_value(json_object_get(in, "GPU")), truth);
    assert_int_equal(json_integer_value(json_object_get(in, "longest_matched")),
                     truth);
    json_decref(root);
}

/* Returns the sum of what both hold of all prompts. */
static long long compare_all(const struct world *w)
{
    long long sum = 0;

    for (unsigned int v = 0; v < PROMPTS; v++) {
        compare_one(w, &w->e0, v);
        compare_one(w, &w->e1, v);
        sum += engine_truth(&w->e0, v) + engine_truth(&w->e1, v);
    }
    return sum;
}

static void answers_are_the_engines_truth(void **state)
{
    struct world w;

    (void)state;
    world_start(&w, NULL);
    ask_both(&w); /* before anybody listens: replay */
    register_both(&w);
    wait_both(&w);
    assert_true(compare_all(&w) > 0);
    ask_both(&w); /* live, with evictions: the pool holds two prompts */
    engine_ask(&w.e1, 6);
    wait_both(&w);
    assert_true(compare_all(&w) > 0);
    struct answer a = rig_call(&w.e0.rig, "/reset_prefix_cache", "");
    answer_free(&a);
    wait_both(&w);
    assert_int_equal(engine_truth(&w.e0, 3), 0);
    (void)compare_all(&w);
    assert_int_equal(process_end(&w.index, SIGTERM), 0);
    world_stop(&w);
}

/* Name and labels of a sample, up to its value. */
static size_t series_bytes(const char *line)
{
    const char *end = strchr(line, '\n'), *at = end;

    assert_non_null(end);
    while (at > line && *at != ' ')
        at--;
    return (size_t)(at - line);
}

static void check_unique(const char *text)
{
    const char *lines[1024];
    size_t count = 0;

    for (const char *at = text; *at != '\0'; at = strchr(at, '\n') + 1) {
        if (*at == '#')
            continue;
        for (size_t i = 0; i < count; i++)
            if (series_bytes(lines[i]) == series_bytes(at) &&
                memcmp(lines[i], at, series_bytes(at)) == 0)
                fail_msg("twice: %.*s", (int)series_bytes(at), at);
        assert_true(count < 1024);
        lines[count++] = at;
    }
    assert_true(count > 40);
}

/* The same figures from all reports. */
static void reports_agree(void **state)
{
    static const char *const quiet[] = {
        "errors_total{reason=\"msgpack\"}",
        "errors_total{reason=\"block_size\"}",
        "errors_total{reason=\"rank\"}",
        "hash_checks_total{result=\"other\"}",
        "parked_total{fate=\"dropped\"}",
    };
    struct world w;
    char row[200];
    json_t *root, *entries;

    (void)state;
    world_start(&w, NULL);
    register_both(&w);
    ask_both(&w);
    wait_both(&w);
    long long cached = rig_state(&w.e0.rig, "blocks.cached");
    assert_true(cached > 0);
    root = index_get(&w.index, "/health");
    assert_int_equal(json_integer_value(json_object_get(root, "exact")), 2);
    json_decref(root);
    root = index_get(&w.index, "/dump?limit=1000");
    entries = json_object_get(
        json_array_get(json_object_get(root, "workers"), 0), "entries");
    assert_int_equal(json_array_size(entries), cached);
    assert_true(json_is_false(json_object_get(root, "truncated")));
    json_decref(root);
    root = index_get(&w.index, "/dump?limit=3");
    entries = json_object_get(
        json_array_get(json_object_get(root, "workers"), 0), "entries");
    assert_int_equal(json_array_size(entries), 3);
    assert_true(json_is_true(json_object_get(root, "truncated")));
    json_decref(root);
    struct answer a = rig_call(&w.index.rig, "/metrics", NULL);
    assert_int_equal(a.status, 200);
    snprintf(row, sizeof(row),
             "\nbaton_worker_index_blocks{worker=\"e0\",rank=\"0\","
             "model=\"demo\",tenant=\"default\",block_size=\"16\","
             "additional_salt=\"\",routing_group=\"\"} %lld\n",
             cached);
    assert_non_null(strstr(a.body, row));
    assert_non_null(strstr(a.body, "\nbaton_index_workers 2\n"));
    for (size_t i = 0; i < sizeof(quiet) / sizeof(quiet[0]); i++) {
        snprintf(row, sizeof(row), "\nbaton_kv_event_%s 0\n", quiet[i]);
        if (strstr(a.body, row) == NULL)
            fail_msg("no row %s in %s", row, a.body);
    }
    assert_non_null(strstr(a.body, "\nbaton_kv_event_bytes_total "));
    assert_null(strstr(a.body, "\nbaton_kv_event_bytes_total 0\n"));
    check_unique(a.body);
    answer_free(&a);
    assert_int_equal(process_end(&w.index, SIGTERM), 0);
    world_stop(&w);
}

static void tenants_do_not_meet(void **state)
{
    struct world w;
    char body[1024];
    json_t *root;

    (void)state;
    world_start(&w, NULL);
    register_both(&w);
    snprintf(body, sizeof(body),
             "{\"instance_id\":\"e0\",\"endpoint\":\"%s\","
             "\"model_name\":\"demo\",\"block_size\":16,"
             "\"tenant_id\":\"other\",\"replay_endpoint\":\"%s\"}",
             w.e0.rig.events, w.e0.rig.replay);
    assert_int_equal(index_post(&w.index, "/register", body, NULL), 201);
    root = mooncake(&w, 0, ",\"tenant_id\":\"other\"");
    assert_int_equal(json_object_size(root), 1);
    assert_int_equal(json_object_size(json_object_get(root, "other")), 1);
    json_decref(root);
    root = mooncake(&w, 0, "");
    assert_int_equal(json_object_size(root), 1);
    assert_int_equal(json_object_size(json_object_get(root, "default")), 2);
    json_decref(root);
    root = mooncake(&w, 0, ",\"instance_id\":\"e1\"");
    assert_int_equal(json_object_size(json_object_get(root, "default")), 1);
    json_decref(root);
    assert_int_equal(index_post(&w.index, "/unregister", body, NULL), 200);
    assert_int_equal(index_post(&w.index, "/unregister", body, NULL), 404);
    assert_int_equal(process_end(&w.index, SIGTERM), 0);
    world_stop(&w);
}

/* One instance in several scopes at the same time. */
static void series_are_unique(void **state)
{
    static const char *const more[] = {
        "\"block_size\":16",
        "\"block_size\":32",
        "\"block_size\":16,\"additionalsalt\":\"a\"",
        "\"block_size\":16,\"routing_group\":\"a\"",
        "\"block_size\":16,\"tenant_id\":\"a\"",
        "\"block_size\":16,\"dp_rank\":1",
    };
    struct world w;
    char body[512];

    (void)state;
    world_start(&w, NULL);
    for (size_t i = 0; i < sizeof(more) / sizeof(more[0]); i++) {
        snprintf(body, sizeof(body),
                 "{\"instance_id\":\"e0\",\"model_name\":\"demo\","
                 "\"endpoint\":\"%s\",%s}",
                 w.e0.rig.events, more[i]);
        assert_int_equal(index_post(&w.index, "/register", body, NULL), 201);
    }
    struct answer a = rig_call(&w.index.rig, "/metrics", NULL);
    check_unique(a.body);
    answer_free(&a);
    assert_int_equal(process_end(&w.index, SIGTERM), 0);
    world_stop(&w);
}

static void faults_are_answered(void **state)
{
    static const struct {
        const char *path, *body;
        long status;
    } rows[] = {
        {"/query", "{", 400},
        {"/query", "{\"model\":\"demo\",\"token_ids\":[1],\"block_size\":32}",
         400},
        {"/query", "{\"model\":\"other\",\"token_ids\":[1]}", 404},
        {"/query",
         "{\"model\":\"demo\",\"token_ids\":[1],\"tenant_id\":\"nobody\"}",
         404},
        {"/query_by_hash",
         "{\"model\":\"demo\",\"seq_hashes\":[1],\"cache_salt\":\"s\"}", 400},
        {"/query_by_hash", "{\"model_name\":\"demo\",\"block_hashes\":[-1]}",
         200},
        {"/register", "{\"instance_id\":\"x\",\"model_name\":\"demo\"}", 400},
        {"/register",
         "{\"instance_id\":\"x\",\"model_name\":\"demo\",\"block_size\":16,"
         "\"endpoint\":\"tcp://127.0.0.1:70000\"}",
         400},
        {"/register",
         "{\"instance_id\":\"x\",\"model_name\":\"demo\",\"block_size\":16,"
         "\"endpoint\":\"tcp://127.0.0.1:5557\",\"type\":\"llama\"}",
         400},
        {"/unregister", "{\"instance_id\":\"x\",\"model_name\":\"demo\"}", 404},
        {"/workers", "", 405},
        {"/nothing", "", 404},
    };
    struct world w;

    (void)state;
    world_start(&w, NULL);
    register_both(&w);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        json_t *root = NULL;
        long status = index_post(&w.index, rows[i].path, rows[i].body, &root);

        if (status != rows[i].status)
            fail_msg("row %zu: %ld", i, status);
        if (status != 200)
            assert_non_null(json_string_value(
                json_object_get(json_object_get(root, "error"), "message")));
        json_decref(root);
    }
    assert_int_equal(process_end(&w.index, SIGTERM), 0);
    world_stop(&w);
}

/* ---- restarts ---- */

/* A snapshot that began after now is there. */
static void wait_snapshot(const struct world *w)
{
    long long had = index_stat(&w->index, "snapshots");

    for (int tries = 0; tries < 3000; tries++) {
        if (index_stat(&w->index, "snapshots") >= had + 2)
            return;
        (void)poll(NULL, 0, 5);
    }
    fail_msg("no snapshot is written");
}

static long long stream_number(const struct world *w, const char *instance,
                               const char *what)
{
    json_t *workers = index_get(&w->index, "/workers");
    json_t *value = json_object_get(stream_of(workers, instance), what);
    long long number = json_integer_value(value);

    assert_true(json_is_integer(value));
    json_decref(workers);
    return number;
}

static void warm_restarts(void **state)
{
    struct world w;
    char snapshot[96];
    const char *options[] = {"--snapshot", snapshot, "--snapshot-interval",
                             "50ms", NULL};

    (void)state;
    world_start(&w, NULL);
    assert_int_equal(process_end(&w.index, SIGTERM), 0);
    memcpy(snapshot, w.snapshot, sizeof(snapshot));
    index_start(&w.index, options);
    register_both(&w);
    ask_both(&w);
    wait_both(&w);
    assert_true(compare_all(&w) > 0);
    wait_snapshot(&w);
    long long mark0 = stream_number(&w, "e0", "next");
    long long mark1 = stream_number(&w, "e1", "next");
    assert_int_equal(process_end(&w.index, SIGKILL), -1);

    /* e0 goes on meanwhile, e1 is idle; registrations come back, too. */
    engine_ask(&w.e0, 6);
    engine_ask(&w.e0, 0);
    index_start(&w.index, options);
    wait_both(&w);
    assert_true(compare_all(&w) > 0);
    assert_true(index_stat(&w.index, "resumed_entries") > 0);
    /* Only what is new was read, and one batch of overlap. */
    long long sent = rig_state(&w.e0.rig, "events_next");
    assert_true(mark0 > 4 && sent > mark0);
    assert_in_range(stream_number(&w, "e0", "batches"), sent - mark0,
                    sent - mark0 + 1);
    assert_true(mark1 > 4);
    assert_in_range(stream_number(&w, "e1", "batches"), 0, 1);

    /* Both index and e1 die; e1 is back first, empty, at the same place. */
    wait_snapshot(&w);
    assert_int_equal(process_end(&w.index, SIGKILL), -1);
    assert_int_equal(process_end(&w.e1, SIGKILL), -1);
    engine_start(&w.e1, "e1", "map");
    engine_ask(&w.e1, 6);
    index_start(&w.index, options);
    wait_both(&w);
    for (unsigned int v = 0; v < 6; v++)
        assert_int_equal(engine_truth(&w.e1, v), 0);
    assert_true(engine_truth(&w.e1, 6) > 0);
    assert_true(compare_all(&w) > 0);
    assert_int_equal(process_end(&w.index, SIGTERM), 0);
    world_stop(&w);
}

/* Nobody asks the new process for anything: it is found by being asked. */
static void a_quiet_restart_is_noticed(void **state)
{
    struct world w;

    (void)state;
    world_start(&w, NULL);
    register_both(&w);
    ask_both(&w);
    wait_both(&w);
    assert_true(engine_truth(&w.e1, 5) > 0);
    assert_int_equal(process_end(&w.e1, SIGKILL), -1);
    engine_start(&w.e1, "e1", "map");
    wait_both(&w);
    assert_int_equal(engine_truth(&w.e1, 5), 0);
    assert_true(compare_all(&w) > 0);
    assert_int_equal(process_end(&w.index, SIGTERM), 0);
    world_stop(&w);
}

/* Depth that the index says, exact or not; *exact_out: does it vouch. */
static long long says(const struct world *w, const char *name,
                      unsigned int variant, bool *exact_out)
{
    json_t *root = mooncake(w, variant, "");
    json_t *in = json_object_get(json_object_get(root, "default"), name);
    long long tokens = json_integer_value(json_object_get(in, "GPU"));

    assert_non_null(in);
    *exact_out = json_is_true(json_object_get(in, "exact"));
    json_decref(root);
    return tokens;
}

static bool state_is(const struct world *w, const char *name, const char *state)
{
    json_t *workers = index_get(&w->index, "/workers");
    bool is = strcmp(json_string_value(
                         json_object_get(stream_of(workers, name), "state")),
                     state) == 0;

    json_decref(workers);
    return is;
}

static void wait_state(const struct world *w, const char *name,
                       const char *state)
{
    for (int tries = 0; tries < 3000; tries++) {
        if (state_is(w, name, state))
            return;
        (void)poll(NULL, 0, 5);
    }
    fail_msg("%s is never %s", name, state);
}

/* Killed: not vouched for, then forgotten, and read anew when it is back. */
static void a_dead_engine(bool with_replay)
{
    struct world w;
    char body[1024], replay[200] = "";
    bool exact;

    world_start(&w, NULL);
    if (with_replay)
        snprintf(replay, sizeof(replay), ",\"replay_endpoint\":\"%s\"",
                 w.e0.rig.replay);
    snprintf(body, sizeof(body),
             "{\"instance_id\":\"e0\",\"endpoint\":\"%s\","
             "\"model_name\":\"demo\",\"block_size\":16%s}",
             w.e0.rig.events, replay);
    assert_int_equal(index_post(&w.index, "/register", body, NULL), 201);
    if (with_replay)
        index_wait(&w.index, &w.e0);
    for (int tries = 0; !state_is(&w, "e0", "exact"); tries++) {
        assert_true(tries < 200); /* it may begin before we listen */
        struct answer a = rig_call(&w.e0.rig, "/reset_prefix_cache", "");
        answer_free(&a);
        engine_ask(&w.e0, (unsigned int)tries % 2);
    }
    engine_ask(&w.e0, 2);
    index_wait(&w.index, &w.e0);
    assert_true(says(&w, "e0", 2, &exact) > 0);
    assert_true(exact);
    assert_int_equal(process_end(&w.e0, SIGKILL), -1);
    for (int tries = 0; says(&w, "e0", 2, &exact) >= 0 && exact; tries++) {
        assert_true(tries < 400);
        (void)poll(NULL, 0, 5);
    }
    wait_state(&w, "e0", "absent");
    assert_int_equal(says(&w, "e0", 2, &exact), 0);
    assert_false(exact);
    engine_start(&w.e0, "e0", "array");
    if (with_replay)
        wait_state(&w, "e0", "exact");
    assert_int_equal(process_end(&w.index, SIGTERM), 0);
    world_stop(&w);
}

static void a_dead_engine_is_not_believed(void **state)
{
    (void)state;
    a_dead_engine(true);
    a_dead_engine(false);
}

static void damage(const char *path)
{
    FILE *f = fopen(path, "r+b");

    assert_non_null(f);
    assert_int_equal(fseek(f, 40, SEEK_SET), 0);
    int c = fgetc(f);
    assert_int_equal(fseek(f, 40, SEEK_SET), 0);
    assert_int_not_equal(fputc(c ^ 1, f), EOF);
    assert_int_equal(fclose(f), 0);
}

/* SIGTERM writes one; what was changed in it is refused and kept aside. */
static void a_damaged_snapshot_is_a_cold_start(void **state)
{
    struct world w;
    char snapshot[96], bad[120];
    const char *options[] = {"--snapshot", snapshot, "--snapshot-interval",
                             "0s", NULL};

    (void)state;
    world_start(&w, NULL);
    assert_int_equal(process_end(&w.index, SIGTERM), 0);
    memcpy(snapshot, w.snapshot, sizeof(snapshot));
    snprintf(bad, sizeof(bad), "%s.bad", snapshot);
    index_start(&w.index, options);
    register_both(&w);
    ask_both(&w);
    wait_both(&w);
    assert_int_equal(process_end(&w.index, SIGTERM), 0);
    assert_int_equal(access(snapshot, F_OK), 0);

    index_start(&w.index, options);
    assert_true(index_stat(&w.index, "resumed_entries") > 0);
    wait_both(&w);
    (void)compare_all(&w);
    assert_int_equal(process_end(&w.index, SIGTERM), 0);

    damage(snapshot);
    index_start(&w.index, options);
    assert_int_equal(index_stat(&w.index, "workers"), 0);
    assert_int_equal(index_stat(&w.index, "resumed_entries"), 0);
    assert_int_equal(access(bad, F_OK), 0);
    assert_int_not_equal(access(snapshot, F_OK), 0);
    register_both(&w);
    wait_both(&w);
    assert_true(compare_all(&w) > 0);
    assert_int_equal(process_end(&w.index, SIGTERM), 0);
    world_stop(&w);
}

/* ---- command line ---- */

static void a_serve_configuration_will_do(void **state)
{
    struct world w;
    char path[96];
    const char *options[] = {"--config", path, NULL};
    FILE *f;

    (void)state;
    world_start(&w, NULL);
    assert_int_equal(process_end(&w.index, SIGTERM), 0);
    snprintf(path, sizeof(path), "%s/baton.yaml", w.folder);
    f = fopen(path, "w");
    assert_non_null(f);
    fprintf(f,
            "config_schema: 1\n"
            "models:\n  - {name: demo, kv_bytes_per_token: 256, block_size: "
            "16}\n"
            "workers:\n"
            "  - {name: e0, role: prefill, url: \"http://127.0.0.1:%u\", "
            "model: demo, compute: h100-8b-tp1, events: \"%s\", "
            "replay: \"%s\"}\n"
            "  - {name: e1, role: decode, url: \"http://127.0.0.1:%u\", "
            "model: demo, compute: h100-8b-tp1, events: \"%s\", "
            "replay: \"%s\"}\n",
            w.e0.rig.http, w.e0.rig.events, w.e0.rig.replay, w.e1.rig.http,
            w.e1.rig.events, w.e1.rig.replay);
    assert_int_equal(fclose(f), 0);
    index_start(&w.index, options);
    ask_both(&w);
    wait_both(&w);
    assert_true(compare_all(&w) > 0);
    assert_int_equal(process_end(&w.index, SIGTERM), 0);
    unlink(path);
    world_stop(&w);
}

static void exit_codes(void **state)
{
    const char *no_port[] = {"--listen", "127.0.0.1", NULL};
    const char *no_blocks[] = {"--blocks", "0", NULL};
    const char *no_file[] = {"--config", "/nowhere/at/all", NULL};
    const char *no_address[] = {"--listen", "nowhere:1", NULL};
    const char *too_many[] = {"--blocks", "4294967295", NULL};
    const char *no_folder[] = {"--snapshot", "/nowhere/at/all", NULL};
    const char *a_folder[] = {"--snapshot", "/tmp", NULL};

    (void)state;
    assert_int_equal(index_exit_code(no_port), 2);
    assert_int_equal(index_exit_code(no_blocks), 2);
    assert_int_equal(index_exit_code(no_file), 3);
    assert_int_equal(index_exit_code(no_address), 1);
    assert_int_equal(index_exit_code(too_many), 2);
    assert_int_equal(index_exit_code(no_folder), 3);
    assert_int_equal(index_exit_code(a_folder), 3);
}

/* A file limit costs the snapshot, neither the process nor the folder. */
static void a_file_limit_is_survived(void **state)
{
    struct world w;
    char snapshot[96], temporary[120];
    const char *options[] = {"--snapshot", snapshot, "--snapshot-interval",
                             "20ms", NULL};
    struct rlimit was, small;

    (void)state;
    world_start(&w, NULL);
    assert_int_equal(process_end(&w.index, SIGTERM), 0);
    memcpy(snapshot, w.snapshot, sizeof(snapshot));
    snprintf(temporary, sizeof(temporary), "%s.tmp", snapshot);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &was), 0);
    small = was;
    small.rlim_cur = 200;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    index_start(&w.index, options);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &was), 0);
    register_both(&w);
    ask_both(&w);
    wait_both(&w);
    for (int tries = 0; index_stat(&w.index, "snapshot_failures") < 2;
         tries++) {
        assert_true(tries < 3000);
        (void)poll(NULL, 0, 5);
    }
    assert_int_equal(process_end(&w.index, SIGTERM), 1);
    assert_int_not_equal(access(temporary, F_OK), 0);
    world_stop(&w);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_are_the_engines_truth),
        cmocka_unit_test(reports_agree),
        cmocka_unit_test(tenants_do_not_meet),
        cmocka_unit_test(series_are_unique),
        cmocka_unit_test(faults_are_answered),
        cmocka_unit_test(warm_restarts),
        cmocka_unit_test(a_quiet_restart_is_noticed),
        cmocka_unit_test(a_dead_engine_is_not_believed),
        cmocka_unit_test(a_file_limit_is_survived),
        cmocka_unit_test(a_damaged_snapshot_is_a_cold_start),
        cmocka_unit_test(a_serve_configuration_will_do),
        cmocka_unit_test(exit_codes),
    };

    if (argc != 2)
        return 2;
    rig_program = argv[1];
    return cmocka_run_group_tests(tests, NULL, NULL);
}
