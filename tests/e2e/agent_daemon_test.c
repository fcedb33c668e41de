/* `baton agent` as a process, with engines beside it: what it refuses, its
 * pool in two tiers between engines (the oracle says what the text must be),
 * agent to agent, wrong keys, and a peer that dies. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "baton/transfer/agent.h"
#include "baton/transfer/probe.h"
#include "engine_rig.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define BODY   16384
#define OUT    24
#define KEYS   64
#define WAIT_S 20

static const char *program;

struct agent {
    struct rig rig; /* pid and http */
    unsigned int port;
};

/* ---- processes ---- */

static pid_t spawn(const char *const *options, int *out)
{
    const char *argv[32] = {program, "agent", "--die-with-parent"};
    int fds[2];

    for (size_t i = 0; options[i] != NULL && i < 28; i++)
        argv[i + 3] = options[i];
    assert_int_equal(pipe(fds), 0);
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        dup2(fds[1], 1);
        close(fds[0]);
        close(fds[1]);
        execv(program, (char *const *)(uintptr_t)argv);
        _exit(99);
    }
    close(fds[1]);
    *out = fds[0];
    return pid;
}

static void agent_start(struct agent *a, const char *const *options)
{
    char line[1024];
    size_t used = 0;
    int out = -1;

    a->rig.pid = spawn(options, &out);
    while (used < sizeof(line) - 1 && read(out, line + used, 1) == 1 &&
           line[used] != '\n')
        used++;
    line[used] = '\0';
    close(out);
    json_t *ready = json_loads(line, 0, NULL);
    assert_non_null(ready);
    assert_true(json_is_true(json_object_get(ready, "ready")));
    a->rig.http =
        (unsigned int)json_integer_value(json_object_get(ready, "http"));
    a->port =
        (unsigned int)json_integer_value(json_object_get(ready, "transfer"));
    assert_true(a->port > 0 && a->rig.http > 0);
    json_decref(ready);
}

static int refused(const char *const *options)
{
    char rest[64];
    int out = -1, status = 0;
    pid_t pid = spawn(options, &out);

    assert_int_equal(read(out, rest, sizeof(rest)), 0); /* says nothing */
    close(out);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static json_t *get_json(const struct rig *rig, const char *path,
                        const char *body, long *status_out)
{
    struct answer a = rig_call(rig, path, body);
    json_t *root = json_loads(a.body, 0, NULL);

    if (status_out != NULL)
        *status_out = a.status;
    else
        assert_int_equal(a.status, 200);
    answer_free(&a);
    assert_non_null(root);
    return root;
}

static long long number(const json_t *root, const char *name)
{
    const json_t *value = json_object_get(root, name);

    if (!json_is_integer(value))
        fail_msg("no number '%s'", name);
    return json_integer_value(value);
}

static long long pool_number(const struct agent *a, const char *name)
{
    json_t *root = get_json(&a->rig, "/v1/pool", NULL, NULL);
    long long value = number(root, name);

    json_decref(root);
    return value;
}

static void pool_wait(const struct agent *a, const char *name, long long value)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    time_t until = now.tv_sec + WAIT_S;

    while (pool_number(a, name) != value) {
        clock_gettime(CLOCK_MONOTONIC, &now);
        if (now.tv_sec > until)
            fail_msg("%s is %lld, not %lld", name, pool_number(a, name), value);
        (void)poll(NULL, 0, 2);
    }
}

/* ---- through the pool ---- */

/* Leg P of a prompt; its parameters as a tree. */
static json_t *leg_p(const struct rig *p, const char *prompt)
{
    char body[BODY];

    body_prefill(body, sizeof(body), prompt);
    struct answer a = rig_call(p, "/v1/completions", body);
    assert_int_equal(a.status, 200);
    char *text = answer_params(&a);
    json_t *params = json_loads(text, 0, NULL);
    answer_free(&a);
    free(text);
    assert_non_null(params);
    return params;
}

static json_t *blocks_of(const json_t *params)
{
    json_t *ids = json_object_get(params, "remote_block_ids");
    json_t *first = json_array_get(ids, 0);

    return json_is_array(first) ? first : ids;
}

/* Keys of 63 bits: not to be mistaken for blocks. */
static json_t *keys_for(size_t count, uint64_t from)
{
    json_t *keys = json_array();

    for (size_t i = 0; i < count; i++)
        json_array_append_new(
            keys, json_integer((json_int_t)(0x7000000000000000 + from + i)));
    return keys;
}

static char *fill_body(unsigned int port, const char *region, const char *id,
                       json_t *blocks, json_t *keys)
{
    json_t *root =
        json_pack("{s:s, s:i, s:s, s:s, s:O, s:O, s:i}", "host", "127.0.0.1",
                  "port", (int)port, "region", region, "request_id", id,
                  "blocks", blocks, "keys", keys, "deadline_ms", 15000);
    char *text = json_dumps(root, JSON_COMPACT);

    json_decref(root);
    assert_non_null(text);
    return text;
}

static json_t *fill_from_engine(const struct agent *a, const json_t *params,
                                json_t *keys, long *status_out)
{
    char *body = fill_body(
        (unsigned int)number(params, "remote_port"), "kv",
        json_string_value(json_object_get(params, "remote_request_id")),
        blocks_of(params), keys);
    json_t *answer = get_json(&a->rig, "/v1/pool/pull", body, status_out);

    free(body);
    return answer;
}

/* Leg D from the agent's pool; the text must be the oracle's. */
static void leg_d(const struct rig *d, const struct agent *a,
                  const char *prompt, json_t *keys)
{
    char body[BODY], got[256], want[OUT + 1];
    json_t *params = json_pack(
        "{s:b, s:b, s:s, s:s, s:s, s:i, s:s, s:[O]}", "do_remote_decode", 0,
        "do_remote_prefill", 1, "remote_engine_id", "agent",
        "remote_request_id", prompt, "remote_host", "127.0.0.1", "remote_port",
        (int)a->port, "remote_region", "pool", "remote_block_ids", keys);
    char *text = NULL;

    json_object_set_new(params, "remote_request_id", json_string("d"));
    text = json_dumps(params, JSON_COMPACT);
    body_decode(body, sizeof(body), prompt, OUT, text);
    struct answer answer = rig_call(d, "/v1/completions", body);
    if (answer.status != 200)
        fail_msg("leg D: %ld %s", answer.status, answer.body);
    answer_text(&answer, got, sizeof(got));
    oracle_text(prompt, NULL, OUT, want);
    assert_string_equal(got, want);
    answer_free(&answer);
    json_decref(params);
    free(text);
}

static void model_hash(const struct rig *engine, char *out, size_t size)
{
    json_t *root = get_json(engine, "/admin/state", NULL, NULL);
    json_t *layout =
        json_object_get(json_object_get(root, "transfer"), "layout");

    snprintf(out, size, "%s",
             json_string_value(json_object_get(layout, "model_hash")));
    assert_int_equal(strlen(out), 16);
    json_decref(root);
}

static void engine_start(struct rig *rig, const char *name)
{
    struct bt_engine_config c;

    rig_config(&c, name);
    rig_start(rig, &c);
}

/* ---- tests ---- */

static void serves_and_ends(void **state)
{
    const char *const options[] = {"--name", "a0", NULL};
    const char *const paths[] = {"/healthz", "/readyz", "/metrics"};
    struct agent a;
    long status;

    (void)state;
    agent_start(&a, options);
    for (size_t i = 0; i < 3; i++) {
        struct answer answer = rig_call(&a.rig, paths[i], NULL);
        assert_int_equal(answer.status, 200);
        if (i == 2)
            assert_non_null(strstr(answer.body, "\nbaton_agent_rails_up 1\n"));
        answer_free(&answer);
    }
    json_t *root = get_json(&a.rig, "/v1/agent", NULL, NULL);
    assert_string_equal(json_string_value(json_object_get(root, "name")), "a0");
    assert_int_equal(number(root, "port"), a.port);
    assert_true(json_is_false(json_object_get(root, "authenticated")));
    json_t *region = json_array_get(json_object_get(root, "regions"), 0);
    assert_string_equal(json_string_value(json_object_get(region, "name")),
                        "probe");
    assert_int_equal(number(region, "blocks"), 16384);
    json_decref(root);
    json_decref(get_json(&a.rig, "/v1/pool", NULL, &status));
    assert_int_equal(status, 404); /* none was asked for */
    json_decref(get_json(&a.rig, "/v1/nothing", NULL, &status));
    assert_int_equal(status, 404);
    json_decref(get_json(&a.rig, "/v1/agent", "{}", &status));
    assert_int_equal(status, 405);
    rig_stop(&a.rig);
}

static void bad_starts(void **state)
{
    const char *const cases[][6] = {
        {"--listen", "0.0.0.0:0", NULL},
        {"--http", "0.0.0.0:0", NULL},
        {"--require-rdma", NULL},
        {"--require-rdma", "--fabric", "sim", NULL},
        {"--nvme", "agent_x.kv:1MiB", NULL},
        {"--key-file", "no/such/file", NULL},
        {"--host-pool", "1MiB", "--block-bytes", "100B", NULL},
        {"--probe-size", "1KiB", NULL},
        {"--block-tokens", "0", NULL},
        /* addresses of documentation: no machine has them */
        {"--listen", "198.51.100.9:0", "--insecure", NULL},
        {"--rail", "r0=198.51.100.9", NULL},
        /* settings of a port, without one */
        {"--rail", "r0=127.0.0.1,gid=3", NULL},
        {"--fabric", "sim", "--rail", "r0=127.0.0.1,mtu=1024", NULL},
    };
    const char *const usages[][4] = {
        {"--listen", "nonsense", NULL},  {"--http", "127.0.0.1", NULL},
        {"--fabric", "pigeon", NULL},    {"--rail", "noaddress", NULL},
        {"--nvme", "nocolon", NULL},     {"--model-hash", "xyz", NULL},
        {"--rail", "=127.0.0.1", NULL},  {"--name", "", NULL},
        {"--host-pool", "lots", NULL},   {"--no-such", NULL},
        {"--rail", "r0=@m,mtu=1", NULL},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        int code = refused(cases[i]);
        if (code != 3)
            fail_msg("case %zu: exit %d, not 3", i, code);
    }
    for (size_t i = 0; i < sizeof(usages) / sizeof(usages[0]); i++) {
        int code = refused(usages[i]);
        if (code != 2)
            fail_msg("usage %zu: exit %d, not 2", i, code);
    }
}

static void taken_port(void **state)
{
    const char *const options[] = {NULL};
    char listen[64];
    struct agent a;

    (void)state;
    agent_start(&a, options);
    snprintf(listen, sizeof(listen), "127.0.0.1:%u", a.port);
    const char *const again[] = {"--listen", listen, NULL};
    assert_int_equal(refused(again), 1);
    snprintf(listen, sizeof(listen), "127.0.0.1:%u", a.rig.http);
    const char *const http[] = {"--http", listen, NULL};
    assert_int_equal(refused(http), 1);
    rig_stop(&a.rig);
}

static void bad_bodies(void **state)
{
    const char *const options[] = {"--host-pool", "64KiB", NULL};
    const char *const bodies[] = {
        "",
        "[]",
        "{}",
        "{\"host\":\"127.0.0.1\"}",
        "{\"host\":\"127.0.0.1\",\"port\":0,\"request_id\":\"r\","
        "\"blocks\":[1],\"keys\":[1]}",
        "{\"host\":\"127.0.0.1\",\"port\":9,\"request_id\":\"r\","
        "\"blocks\":[1,2],\"keys\":[1]}",
        "{\"host\":\"127.0.0.1\",\"port\":9,\"request_id\":\"r\","
        "\"blocks\":[1.5],\"keys\":[1]}",
        "{\"host\":\"127.0.0.1\",\"port\":9,\"request_id\":\"\","
        "\"blocks\":[1],\"keys\":[1]}",
        "{\"host\":\"127.0.0.1\",\"port\":9,\"request_id\":\"r\","
        "\"blocks\":[1],\"keys\":[1],\"deadline_ms\":0}",
    };
    struct agent a;
    long status;

    (void)state;
    agent_start(&a, options);
    for (size_t i = 0; i < sizeof(bodies) / sizeof(bodies[0]); i++) {
        json_decref(get_json(&a.rig, "/v1/pool/pull", bodies[i], &status));
        assert_int_equal(status, 400);
    }
    json_decref(get_json(&a.rig, "/v1/pool/drop", "{\"keys\":7}", &status));
    assert_int_equal(status, 400);
    /* more blocks than slots: refused, and nothing stays taken */
    json_t *keys = keys_for(17, 0);
    char *body = fill_body(9, "kv", "r", keys, keys);
    json_decref(get_json(&a.rig, "/v1/pool/pull", body, &status));
    assert_int_equal(status, 429);
    free(body);
    json_decref(keys);
    assert_int_equal(pool_number(&a, "landing"), 0);
    rig_stop(&a.rig);
}

/* Prompts through a pool of `slots` slots, with NVMe below if `path`. */
static void between_engines(unsigned int slots, const char *path)
{
    char pool[32], nvme[128], hash[32], prompt[4][256];
    struct rig p, d;
    struct agent a;
    json_t *keys[4];

    engine_start(&p, "p0");
    engine_start(&d, "d0");
    model_hash(&p, hash, sizeof(hash));
    snprintf(pool, sizeof(pool), "%uKiB", slots * 4);
    snprintf(nvme, sizeof(nvme), "%s:4MiB", path != NULL ? path : "");
    const char *const options[] = {"--name",
                                   "a0",
                                   "--host-pool",
                                   pool,
                                   "--model-hash",
                                   hash,
                                   path ? "--nvme" : NULL,
                                   nvme,
                                   NULL};
    agent_start(&a, options);
    for (unsigned int i = 0; i < 4; i++) {
        make_prompt(prompt[i], 100, 20 + i); /* 7 blocks each */
        json_t *params = leg_p(&p, prompt[i]);
        keys[i] = keys_for(json_array_size(blocks_of(params)), i * 1000);
        json_t *answer = fill_from_engine(&a, params, keys[i], NULL);
        assert_int_equal(number(answer, "pulled"), 7);
        json_decref(answer);
        json_decref(params);
        rig_wait(&p, "leases", 0); /* the agent said DONE */
        if (path != NULL)
            pool_wait(&a, "storing", 0);
    }
    for (unsigned int i = 0; i < 4; i++) {
        leg_d(&d, &a, prompt[i], keys[i]);
        pool_wait(&a, "pinned", 0); /* readers let go */
    }
    if (path != NULL)
        assert_true(pool_number(&a, "hits_nvme") >= 14);
    else
        assert_int_equal(pool_number(&a, "hits_host"), 28);
    for (unsigned int i = 0; i < 4; i++)
        json_decref(keys[i]);
    rig_stop(&a.rig);
    rig_stop(&p);
    rig_stop(&d);
}

static void pool_in_host_memory(void **state)
{
    (void)state;
    between_engines(64, NULL);
}

static void pool_over_nvme(void **state)
{
    char path[64];

    (void)state;
    snprintf(path, sizeof(path), "agent_daemon_%d.kv", (int)getpid());
    between_engines(14, path);
    unlink(path);
}

/* A key that no tier has, another model's pool. */
static void refusals(void **state)
{
    const char *const options[] = {"--host-pool", "1MiB", "--model-hash",
                                   "1234", NULL};
    struct rig p;
    struct agent a;
    char prompt[256];
    long status;

    (void)state;
    engine_start(&p, "p0");
    agent_start(&a, options);
    make_prompt(prompt, 100, 3);
    json_t *params = leg_p(&p, prompt), *keys = keys_for(7, 0);
    json_t *answer = fill_from_engine(&a, params, keys, &status);
    assert_int_equal(status, 502);
    json_t *transfer = json_object_get(answer, "transfer");
    assert_string_equal(json_string_value(json_object_get(transfer, "status")),
                        "incompatible");
    assert_non_null(strstr(
        json_string_value(json_object_get(transfer, "detail")), "model"));
    json_decref(answer);
    assert_int_equal(pool_number(&a, "landing"), 0);
    assert_int_equal(pool_number(&a, "held"), 0);
    /* from its own pool: a key that is not there */
    char *body = fill_body(a.port, "pool", "r", keys, keys);
    answer = get_json(&a.rig, "/v1/pool/pull", body, &status);
    assert_int_equal(status, 404);
    json_decref(answer);
    free(body);
    json_decref(keys);
    json_decref(params);
    rig_stop(&a.rig);
    rig_stop(&p);
}

static void key_file(char *path, size_t size, char digit)
{
    char hex[65];

    snprintf(path, size, "agent_key_%c_%d", digit, (int)getpid());
    memset(hex, digit, 64);
    hex[64] = '\n';
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_int_equal(fwrite(hex, 1, 65, f), 65);
    assert_int_equal(fclose(f), 0);
    assert_int_equal(chmod(path, 0600), 0);
}

/* Agent to agent by key; one with another key is refused, and so is one that
 * has none. */
/* What carried the bytes is said per peer, not only what was asked for. */
static void assert_carrier(const struct agent *a, const char *carrier)
{
    char label[64];
    json_t *root = get_json(&a->rig, "/v1/agent", NULL, NULL);
    json_t *peer = json_array_get(json_object_get(root, "peers"), 0);
    const char *said = json_string_value(json_object_get(peer, "transport"));

    assert_non_null(said);
    assert_non_null(strstr(said, carrier));
    json_decref(root);
    struct answer metrics = rig_call(&a->rig, "/metrics", NULL);
    snprintf(label, sizeof(label), "transport=\"%s", carrier);
    assert_non_null(strstr(metrics.body, label));
    answer_free(&metrics);
}

static void agent_to_agent(void **state)
{
    char files[2][64];
    struct agent a, b, stranger, open;
    struct rig p;
    char prompt[256], hash[32];
    static uint8_t key[32];
    struct bt_engine_config c;
    long status;

    (void)state;
    key_file(files[0], sizeof(files[0]), '1');
    key_file(files[1], sizeof(files[1]), '2');
    memset(key, 0x11, sizeof(key));
    rig_config(&c, "p0");
    c.transfer_key = key;
    rig_start(&p, &c);
    model_hash(&p, hash, sizeof(hash));
    const char *const good[] = {"--host-pool", "1MiB",       "--model-hash",
                                hash,          "--key-file", files[0],
                                NULL};
    const char *const bad[] = {"--host-pool", "1MiB",       "--model-hash",
                               hash,          "--key-file", files[1],
                               NULL};
    const char *const none[] = {"--host-pool", "1MiB", "--model-hash", hash,
                                NULL};
    agent_start(&a, good);
    agent_start(&b, good);
    agent_start(&stranger, bad);
    agent_start(&open, none);
    make_prompt(prompt, 100, 3);
    json_t *params = leg_p(&p, prompt), *keys = keys_for(7, 0);
    json_decref(fill_from_engine(&a, params, keys, NULL));
    char *body = fill_body(a.port, "pool", "r", keys, keys);
    json_t *answer = get_json(&b.rig, "/v1/pool/pull", body, NULL);
    assert_int_equal(number(answer, "pulled"), 7);
    assert_int_equal(number(json_object_get(answer, "transfer"), "bytes"),
                     7 * 4096);
    json_decref(answer);
    answer = get_json(&b.rig, "/v1/pool/pull", body, NULL);
    assert_int_equal(number(answer, "pulled"), 0); /* all there */
    json_decref(answer);
    assert_carrier(&b, "tcp/lo");
    json_decref(get_json(&stranger.rig, "/v1/pool/pull", body, &status));
    assert_int_equal(status / 100, 5);
    json_decref(get_json(&open.rig, "/v1/pool/pull", body, &status));
    assert_int_equal(status / 100, 5);
    assert_int_equal(pool_number(&stranger, "held"), 0);
    assert_int_equal(pool_number(&open, "held"), 0);
    free(body);
    json_decref(keys);
    json_decref(params);
    rig_stop(&open.rig);
    rig_stop(&stranger.rig);
    rig_stop(&b.rig);
    rig_stop(&a.rig);
    rig_stop(&p);
    unlink(files[0]);
    unlink(files[1]);
}

/* The source stands still while it is asked, then dies: an error within the
 * deadline, and the pool has its slots back. */
static void peer_dies(void **state)
{
    const char *const options[] = {"--host-pool", "1MiB", NULL};
    struct agent a, b;
    struct answer raw = {0};

    (void)state;
    agent_start(&a, options);
    agent_start(&b, options);
    json_t *keys = keys_for(7, 0);
    char *body = fill_body(a.port, "pool", "r", keys, keys);
    assert_int_equal(kill(a.rig.pid, SIGSTOP), 0);
    int fd = rig_open(&b.rig, "/v1/pool/pull", body);
    pool_wait(&b, "landing", 7);
    rig_kill(&a.rig);
    while (rig_read(fd, &raw))
        ;
    rig_parse(&raw);
    assert_true(raw.status >= 500);
    answer_free(&raw);
    close(fd);
    assert_int_equal(pool_number(&b, "landing"), 0);
    assert_int_equal(pool_number(&b, "held"), 0);
    free(body);
    json_decref(keys);
    rig_stop(&b.rig);
}

#define PROBE_BLOCKS 512u

/* Anyone may read the probe region, under any id, and knows its bytes. Last of
 * all: UCX in this process does not survive a fork. */
static void probe_region(void **state)
{
    const char *const options[] = {"--probe-size", "2MiB", NULL};
    const struct bt_agent_config c = {.api_version = BT_AGENT_API_VERSION,
                                      .name = "probe",
                                      .checksums = true};
    static uint64_t refs[PROBE_BLOCKS];
    static uint32_t local[PROBE_BLOCKS];
    uint64_t *memory =
        aligned_alloc(4096, (size_t)PROBE_BLOCKS * BT_PROBE_BLOCK_BYTES);
    struct bt_agent_region r = {.name = "probe",
                                .base = memory,
                                .block_count = PROBE_BLOCKS,
                                .layout = bt_probe_layout()};
    struct bt_agent *agent = NULL;
    struct bt_agent_event event;
    struct agent a;
    uint32_t region;
    uint64_t id;
    char error[200];

    (void)state;
    assert_non_null(memory);
    agent_start(&a, options);
    assert_int_equal(bt_agent_open(&c, &agent, error, 200), BT_OK);
    assert_int_equal(bt_agent_region(agent, &r, &region, error, 200), BT_OK);
    for (uint32_t i = 0; i < PROBE_BLOCKS; i++) {
        local[i] = i;
        refs[i] = PROBE_BLOCKS - 1 - i;
    }
    const struct bt_agent_pull pull = {.host = "127.0.0.1",
                                       .port = (uint16_t)a.port,
                                       .request_id = BT_PROBE_REQUEST,
                                       .remote = refs,
                                       .local = local,
                                       .count = PROBE_BLOCKS,
                                       .deadline_ns = 20000000000LL};
    assert_int_equal(bt_agent_pull(agent, &pull, &id), BT_OK);
    struct pollfd p = {.fd = bt_agent_fd(agent), .events = POLLIN};
    do { /* the rail that came up is told first */
        assert_int_equal(poll(&p, 1, WAIT_S * 1000), 1);
        assert_int_equal(bt_agent_progress(agent, &event, 1), 1);
    } while (event.kind == BT_AGENT_RAIL);
    assert_int_equal(event.status, BT_OK);
    for (uint64_t i = 0; i < PROBE_BLOCKS * 512u; i++)
        assert_int_equal(memory[i],
                         bt_probe_word(refs[i / 512] * 512 + i % 512));
    bt_agent_close(agent);
    free(memory);
    rig_stop(&a.rig);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(serves_and_ends),
        cmocka_unit_test(bad_starts),
        cmocka_unit_test(taken_port),
        cmocka_unit_test(bad_bodies),
        cmocka_unit_test(pool_in_host_memory),
        cmocka_unit_test(pool_over_nvme),
        cmocka_unit_test(refusals),
        cmocka_unit_test(agent_to_agent),
        cmocka_unit_test(peer_dies),
        cmocka_unit_test(probe_region),
    };

    if (argc < 2)
        return 2;
    program = argv[1];
    setenv("UCX_NET_DEVICES", "lo", 0); /* nothing leaves the machine */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
