/* The journal that `baton serve` keeps, and the keys of the deeper planner at
 * work in a server. Truth: what the clients got and the server counted; a
 * second run of the core over the file (`bt_replay_run`), whose effects must be
 * the recorded ones one by one; the topology's transfer time by hand. */
#include "serve_bed.h"

#include "baton/orchestrator/replay.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <dirent.h>
#include <fcntl.h>
#include <jansson.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zmq.h>

/* What must not be in a journal, in any form. */
#define SECRET "wherefore art thou"
#define SALT   "montague-capulet"
#define TOKEN  3735928559u

static const char *baton; /* argv[1] */
static struct bed bed;
static char out[262144], extra[4096], folder[64], file[96];
static struct bt_replay_result result;

/* ---- files ---- */

static int make_folder(void **state)
{
    (void)state;
    snprintf(folder, sizeof(folder), "/tmp/baton-journal-XXXXXX");
    if (mkdtemp(folder) == NULL)
        return -1;
    snprintf(file, sizeof(file), "%s/journal", folder);
    return 0;
}

/* All files of the folder go; how many there were. */
static int drop_folder(void **state)
{
    DIR *dir = opendir(folder);
    struct dirent *entry;
    char path[512];

    (void)state;
    if (dir == NULL)
        return -1;
    while ((entry = readdir(dir)) != NULL) {
        snprintf(path, sizeof(path), "%s/%s", folder, entry->d_name);
        if (entry->d_name[0] != '.')
            unlink(path);
    }
    closedir(dir);
    return rmdir(folder);
}

static char *slurp(const char *path, size_t *size_out)
{
    FILE *f = fopen(path, "rb");
    char *data = malloc(1 << 22);

    assert_non_null(f);
    assert_non_null(data);
    *size_out = fread(data, 1, (1 << 22) - 1, f);
    data[*size_out] = '\0';
    fclose(f);
    return data;
}

static void spill(const char *path, const char *text)
{
    FILE *f = fopen(path, "wx");

    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
}

static size_t count_of(const char *text, const char *word)
{
    size_t n = 0;

    for (; (text = strstr(text, word)) != NULL; text++)
        n++;
    return n;
}

static void with_journal(const char *rest)
{
    snprintf(extra, sizeof(extra), "journal: {file: %s}\n%s", file, rest);
}

static void replay(const char *path)
{
    struct bt_replay_options options = {0};
    char error[256];

    if (bt_replay_run(path, &options, &result, error, sizeof(error)) != BT_OK)
        fail_msg("%s", error);
    if (!result.verified)
        fail_msg("event %llu of %llu has other effects",
                 (unsigned long long)result.differs_at,
                 (unsigned long long)result.events);
    if (!result.whole)
        fail_msg("%s", result.cut);
}

/* ---- requests of many kinds ---- */

static int completions(const char *body)
{
    return bed_request(&bed, "/v1/completions", body, out, sizeof(out));
}

/* Prompts share their beginning; every fourth has a salt and a priority. */
static int tokens_request(int i)
{
    char body[1024];
    size_t n = (size_t)snprintf(
        body, sizeof(body), "{\"model\":\"%s\",\"stream\":%s,\"prompt\":[%u",
        i % 5 == 0 ? "lora-a" : "m", i % 2 == 0 ? "true" : "false", TOKEN);

    for (int t = 0; t < 40; t++)
        n += (size_t)snprintf(body + n, sizeof(body) - n, ",%d",
                              t < 32 ? t : 1000 * i + t);
    snprintf(body + n, sizeof(body) - n, "]%s}",
             i % 4 == 0 ? ",\"cache_salt\":\"" SALT "\",\"priority\":-3" : "");
    return completions(body);
}

static int text_request(const char *rest)
{
    char body[512];

    snprintf(
        body, sizeof(body),
        "{\"model\":\"m\",\"stream\":true,\"prompt\":\"Romeo, Romeo, " SECRET
        " Romeo? and more of it\"%s}",
        rest);
    return completions(body);
}

static void fails_once(struct bed_worker *w, struct bt_httpd_request *req)
{
    if (w->n++ == 0)
        bed_refuse_500(w, req);
    else
        bed_well_behaved(w, req);
}

static bool holds_one(void *arg)
{
    (void)arg;
    return bed.workers[0].posts + bed.workers[1].posts > 0;
}

/* A client that leaves while its prefill hangs. */
static void leave_early(void)
{
    struct bed_client c;

    bed.workers[0].posts = bed.workers[1].posts = 0;
    bed.workers[0].script = bed.workers[1].script = bed_hang;
    bed_connect(&bed, &c, bed.ports.listen);
    bed_post(&c, "/v1/completions",
             "{\"model\":\"m\",\"stream\":true,\"prompt\":\"" SECRET
             " and then some more\"}");
    bed_until(&bed, holds_one, NULL, "the prefill to be out");
    bed_close(&c);
    bed_idle(&bed);
    bed.workers[0].script = bed.workers[1].script = NULL;
}

/* All at once, so that they queue where requests are held back. */
static void burst(size_t count)
{
    static struct bed_client clients[16];
    char body[256];

    assert_true(count <= 16);
    for (size_t i = 0; i < count; i++) {
        bed_connect(&bed, &clients[i], bed.ports.listen);
        snprintf(body, sizeof(body),
                 "{\"model\":\"m\",\"stream\":true,\"prompt\":\"burst %zu of "
                 "requests, each in some blocks of its own\"}",
                 i);
        bed_post(&clients[i], "/v1/completions", body);
    }
    for (size_t i = 0; i < count; i++) {
        assert_int_equal(bed_answer(&clients[i]), 200);
        bed_close(&clients[i]);
    }
}

static void check_no_secret(const char *path)
{
    size_t size;
    char *data = slurp(path, &size);
    const uint32_t little = TOKEN, big = __builtin_bswap32(TOKEN);

    assert_true(size > 1000);
    assert_null(memmem(data, size, SECRET, strlen(SECRET)));
    assert_null(memmem(data, size, SALT, strlen(SALT)));
    assert_null(memmem(data, size, "lora-a", 6));
    assert_null(memmem(data, size, "3735928559", 10));
    assert_null(memmem(data, size, &little, sizeof(little)));
    assert_null(memmem(data, size, &big, sizeof(big)));
    free(data);
}

/* ---- `baton replay` on it ---- */

static json_t *run_replay(const char *path, const char *policy)
{
    int ends[2], status = 0;
    size_t used = 0;
    ssize_t n;
    pid_t child;
    json_t *root;

    assert_int_equal(pipe(ends), 0);
    child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        dup2(ends[1], STDOUT_FILENO);
        execl(baton, baton, "replay", path, "--policy", policy, "--output",
              "json", (char *)NULL);
        _exit(127);
    }
    close(ends[1]);
    while ((n = read(ends[0], out + used, sizeof(out) - 1 - used)) > 0)
        used += (size_t)n;
    close(ends[0]);
    out[used] = '\0';
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    root = json_loads(out, 0, NULL);
    assert_non_null(root);
    return root;
}

static json_int_t whole(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);

    assert_true(json_is_integer(value));
    return json_integer_value(value);
}

static void check_replay(json_int_t requests)
{
    json_t *root = run_replay(file, "round_robin"), *other;

    assert_true(json_is_true(json_object_get(root, "verified")));
    assert_true(json_is_true(json_object_get(root, "whole")));
    assert_int_equal(whole(root, "requests"), requests);
    assert_int_equal(whole(root, "workers"), 4);
    assert_string_equal(json_string_value(json_object_get(root, "policy")),
                        "joint");
    other = json_object_get(root, "other");
    assert_int_equal(whole(other, "asked") + whole(other, "held") +
                         whole(other, "refused") + whole(other, "no_worker"),
                     requests);
    assert_true(whole(other, "asked") > 0);
    assert_true(whole(other, "same") < whole(other, "asked"));
    json_decref(root);
}

/* ---- tests ---- */

static void records_what_it_decided(void **state)
{
    struct stat info;
    double accepted;

    (void)state;
    with_journal("policy: 'joint:guard=0'\n"
                 "planner: {hold: on, lead: 0us, patience: 50ms, ask_max: 4}\n"
                 "slo: {ttft: 100ms, ttft_factor: 2, tpot: 50ms}\n"
                 "retry: {budget_min: 1000}");
    bed_start(&bed, "ppdd", extra);
    for (int i = 0; i < 24; i++)
        assert_int_equal(tokens_request(i), 200);
    assert_int_equal(text_request(",\"n\":2"), 200); /* one worker, no P/D */
    burst(12);
    bed.workers[0].script = bed.workers[1].script = fails_once;
    bed.workers[2].script = fails_once;
    assert_int_equal(text_request(""), 200);
    assert_int_equal(tokens_request(77), 200);
    bed.workers[0].script = bed.workers[1].script = bed_refuse_500;
    bed.workers[2].script = bed.workers[3].script = bed_refuse_500;
    assert_int_equal(text_request(""), 502);
    bed.workers[2].script = bed.workers[3].script = NULL;
    leave_early();
    bed_idle(&bed);
    assert_int_equal(bed_get(&bed, bed.ports.admin,
                             "/admin/v1/decisions?limit=100", out, sizeof(out)),
                     200);
    /* the burst was held: some were asked about more than once */
    assert_true(count_of(out, "\"asks\":") > count_of(out, "\"asks\":1,"));
    accepted = bed_metric(&bed, "baton_requests_accepted_total");
    assert_true(accepted >= 40);
    assert_true(bed_metric(&bed, "baton_retries_total") > 0);
    assert_true(
        bed_metric(&bed, "baton_requests_total{outcome=\"cancelled\"}") == 1);
    bed_stop(&bed);

    replay(file);
    assert_true(result.requests == (uint64_t)accepted);
    assert_int_equal(result.worker_count, 4);
    assert_string_equal(result.policy, "joint");
    assert_int_equal(stat(file, &info), 0);
    assert_int_equal(info.st_mode & 07777, 0600);
    check_no_secret(file);
    check_replay((json_int_t)accepted);
}

/* Who asked, and how urgently, is in the decision: the salt tells tenants
 * apart, vLLM's priority counts the other way round. */
static void tenants_and_priorities_are_told(void **state)
{
    (void)state;
    bed_start(&bed, "pd", "slo: {ttft: 750ms}");
    assert_int_equal(
        completions("{\"model\":\"m\",\"prompt\":\"plain, of some length\"}"),
        200);
    bed_idle(&bed);
    bed_get(&bed, bed.ports.admin, "/admin/v1/decisions?limit=1", out,
            sizeof(out));
    assert_null(strstr(out, "\"tenant\""));
    assert_null(strstr(out, "\"priority\""));
    assert_non_null(strstr(out, "\"ttft_slo_ms\":750.000"));
    assert_int_equal(
        completions("{\"model\":\"m\",\"prompt\":\"plain, of some length\","
                    "\"cache_salt\":\"" SALT "\",\"priority\":-4}"),
        200);
    bed_idle(&bed);
    bed_get(&bed, bed.ports.admin, "/admin/v1/decisions?limit=1", out,
            sizeof(out));
    assert_non_null(strstr(out, "\"tenant\":\""));
    assert_non_null(strstr(out, "\"priority\":4,"));
    assert_null(strstr(out, SALT));
    bed_stop(&bed);
}

/* ---- a journal that ends early ---- */

struct captured {
    int kept, fd;
    char path[128];
};

static void capture(struct captured *c)
{
    snprintf(c->path, sizeof(c->path), "%s/stderr", folder);
    fflush(stderr);
    c->kept = dup(STDERR_FILENO);
    c->fd = open(c->path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    assert_true(c->kept >= 0 && c->fd >= 0);
    assert_int_equal(dup2(c->fd, STDERR_FILENO), STDERR_FILENO);
}

static char *captured_text(struct captured *c)
{
    size_t size;

    fflush(stderr);
    assert_int_equal(dup2(c->kept, STDERR_FILENO), STDERR_FILENO);
    close(c->kept);
    close(c->fd);
    return slurp(c->path, &size);
}

static void full_journal_ends_in_order(void **state)
{
    struct captured captured;
    struct stat info;
    char *log;

    (void)state;
    snprintf(extra, sizeof(extra),
             "log: {level: info, format: json}\n"
             "journal: {file: %s, max: 16KiB}",
             file);
    capture(&captured);
    bed_start(&bed, "ppdd", extra);
    for (int i = 0; i < 200; i++)
        assert_int_equal(tokens_request(i), 200);
    bed_idle(&bed);
    bed_stop(&bed);
    log = captured_text(&captured);
    assert_int_equal(count_of(log, "\"journal_started\""), 1);
    assert_int_equal(count_of(log, "\"journal_stopped\""), 1);
    assert_int_equal(count_of(log, "journal.max is reached"), 1);
    assert_int_equal(count_of(log, "\"journal_closed\""), 1);
    free(log);
    assert_int_equal(stat(file, &info), 0);
    assert_true(info.st_size <= 16 * 1024 && info.st_size > 15 * 1024);
    replay(file);
    assert_true(result.requests > 5 && result.requests < 200);
}

static void files_are_kept(void **state)
{
    char second[128], third[128];
    size_t size;
    char *text;

    (void)state;
    snprintf(second, sizeof(second), "%s.1", file);
    snprintf(third, sizeof(third), "%s.2", file);
    spill(file, "precious");
    for (int i = 0; i < 2; i++) {
        with_journal("");
        bed_start(&bed, "pd", extra);
        assert_int_equal(tokens_request(i), 200);
        bed_idle(&bed);
        bed_stop(&bed);
    }
    text = slurp(file, &size);
    assert_string_equal(text, "precious");
    free(text);
    replay(second);
    assert_int_equal(result.requests, 1);
    replay(third);
    assert_int_equal(result.requests, 1);
}

/* ---- servers that do not come up ---- */

static struct bt_config *config_of(const char *text)
{
    struct bt_config *config = NULL;
    char path[128], error[512];

    snprintf(path, sizeof(path), "%s/baton.yaml", folder);
    unlink(path);
    spill(path, text);
    if (bt_config_load(path, &config, error, sizeof(error)) != BT_OK)
        fail_msg("%s", error);
    return config;
}

static void check_refused(const char *yaml, enum bt_status expected,
                          const char *says)
{
    struct ev_loop *loop = ev_loop_new(EVFLAG_AUTO);
    struct bt_config *config = config_of(yaml);
    struct bt_serve *serve = NULL;
    char error[512] = "";

    assert_int_equal(
        bt_serve_create(loop, config, &serve, error, sizeof(error)), expected);
    if (strstr(error, says) == NULL)
        fail_msg("no \"%s\" in \"%s\"", says, error);
    assert_int_not_equal(access(file, F_OK), 0);
    bt_config_destroy(config);
    ev_loop_destroy(loop);
}

#define FLEET                                                                  \
    "log: {level: error}\n"                                                    \
    "metrics: {port: 0}\nadmin: {port: 0}\nmodels: [{name: m}]\n"              \
    "workers: [{name: w, url: 'http://127.0.0.1:1'}]\n"

static void failures_leave_no_file(void **state)
{
    struct bed other;
    char text[1024];

    (void)state;
    snprintf(text, sizeof(text),
             FLEET "listen: {port: 0}\njournal: {file: %s/none/j}\n", folder);
    check_refused(text, BT_IO, "/none/j: No such file or directory");
    bed_start(&other, "pd", NULL); /* its port is taken now */
    snprintf(text, sizeof(text),
             FLEET "listen: {port: %u}\njournal: {file: %s}\n",
             other.ports.listen, file);
    check_refused(text, BT_EXISTS, "");
    bed_stop(&other);
    /* 300 workers have 300 configurations, more than 16 KiB. */
    size_t n = (size_t)snprintf(out, sizeof(out),
                                "log: {level: error}\nlisten: {port: 0}\n"
                                "metrics: {port: 0}\nadmin: {port: 0}\n"
                                "journal: {file: %s, max: 16KiB}\n"
                                "models: [{name: m}]\nworkers:\n",
                                file);
    for (int i = 0; i < 300; i++)
        n += (size_t)snprintf(out + n, sizeof(out) - n,
                              "  - {name: w%d, url: 'http://127.0.0.1:%d'}\n",
                              i, 10000 + i);
    check_refused(out, BT_LIMIT, "journal.max has no room");
}

/* ---- topology ---- */

/* 1 MB/s out of w0's node, 4 ms per transfer: 41 prompt tokens at 256 bytes
 * take 4 ms + 10.496 ms and 1 us per run of blocks. The links would say 1 ms.
 */
static const char *const MAP =
    "racks: [{name: r0}, {name: r1}]\n"
    "nodes:\n"
    "  - {name: n0, rack: r0, rails: 1, rail_rate: 1MB/s}\n"
    "  - {name: n1, rack: r1, rails: 1, rail_rate: 1GB/s}\n"
    "workers:\n"
    "  - {name: w0, node: n0}\n"
    "  - {name: w1, node: n1}\n"
    "classes:\n"
    "  pod: {setup: 4ms, descriptor: 1us}\n";

static void topology_is_served(void **state)
{
    char path[128];
    json_t *root, *chosen;
    double transfer;

    (void)state;
    snprintf(path, sizeof(path), "%s/map.yaml", folder);
    spill(path, MAP);
    snprintf(extra, sizeof(extra), "journal: {file: %s}\ntopology: %s", file,
             path);
    bed_start(&bed, "pd", extra);
    assert_int_equal(tokens_request(1), 200);
    bed_idle(&bed);
    assert_int_equal(bed_get(&bed, bed.ports.admin,
                             "/admin/v1/decisions?limit=1", out, sizeof(out)),
                     200);
    root = json_loads(out, 0, NULL);
    assert_non_null(root);
    chosen = json_array_get(json_object_get(root, "decisions"), 0);
    transfer = json_number_value(json_object_get(chosen, "pred_transfer_ms"));
    if (transfer < 16.2875 || transfer > 16.2915)
        fail_msg("%f ms: %s", transfer, out);
    json_decref(root);
    for (int i = 2; i < 10; i++)
        assert_int_equal(tokens_request(i), 200);
    bed_idle(&bed);
    bed_stop(&bed);
    replay(file);
    assert_int_equal(result.requests, 9);
}

/* ---- KV events ---- */

/* [ts, [[BlockStored, [1001], null, [1,2,3,4], 4, null, MEDIUM, null]], 0] and
 * its removal; frames and forms as in engine-wire.md 1.14. */
#define STORED(medium)                                                         \
    "\x93\xcb\x3f\xf0\0\0\0\0\0\0\x91\x98\xab"                                 \
    "BlockStored\x91\xcd\x03\xe9\xc0\x94\x01\x02\x03\x04\x04\xc0\xa3" medium   \
    "\xc0\0"
#define REMOVED(medium)                                                        \
    "\x93\xcb\x3f\xf0\0\0\0\0\0\0\x91\x93\xac"                                 \
    "BlockRemoved\x91\xcd\x03\xe9\xa3" medium "\0"
#define PUBLISH(payload) publish(payload, sizeof(payload) - 1)

struct plane {
    void *context, *pub;
    char events[64];
    uint64_t next;
    bool subscribed;
};
static struct plane plane;

static bool is_subscribed(void *arg)
{
    unsigned char bytes[16];

    (void)arg;
    plane.subscribed =
        plane.subscribed ||
        zmq_recv(plane.pub, bytes, sizeof(bytes), ZMQ_DONTWAIT) > 0;
    return plane.subscribed;
}

static void publish(const char *payload, size_t bytes)
{
    unsigned char be[8];

    for (int i = 0; i < 8; i++)
        be[i] = (unsigned char)(plane.next >> (56 - 8 * i));
    plane.next++;
    zmq_send(plane.pub, "kv", 2, ZMQ_SNDMORE);
    zmq_send(plane.pub, be, 8, ZMQ_SNDMORE);
    zmq_send(plane.pub, payload, bytes, 0);
}

/* The prefill worker tells of its blocks and has a host tier. */
static void plane_start(void)
{
    size_t size = sizeof(plane.events);
    int linger = 0;

    memset(&plane, 0, sizeof(plane));
    plane.context = zmq_ctx_new();
    plane.pub = zmq_socket(plane.context, ZMQ_XPUB);
    assert_non_null(plane.pub);
    zmq_setsockopt(plane.pub, ZMQ_LINGER, &linger, sizeof(linger));
    assert_int_equal(zmq_bind(plane.pub, "tcp://127.0.0.1:*"), 0);
    assert_int_equal(
        zmq_getsockopt(plane.pub, ZMQ_LAST_ENDPOINT, plane.events, &size), 0);
    bed_workers(&bed, "pd");
    bed.block_size = bed.workers[0].block_size = bed.workers[1].block_size = 4;
    bed.workers[0].events = plane.events;
    bed.workers[0].keys = "host: {rate: 50GB/s, setup: 1us}";
    with_journal("");
    bed_serve(&bed, extra);
    bed_ready(&bed);
    bed_until(&bed, is_subscribed, NULL, "the subscription");
}

static const char *wanted_row;
static double wanted_value;

static bool has_value(void *arg)
{
    double value = bed_metric(&bed, wanted_row);

    (void)arg;
    return value >= wanted_value && value <= wanted_value;
}

static void until_row(const char *row, double value)
{
    wanted_row = row;
    wanted_value = value;
    bed_until(&bed, has_value, NULL, row);
}

/* The last decision holds these words, or not. */
static void decide(const char *words, bool expected)
{
    assert_int_equal(
        completions("{\"model\":\"m\",\"stream\":true,\"prompt\":[1,2,3,4,5,6,"
                    "7,8,9,10]}"),
        200);
    bed_idle(&bed);
    bed_get(&bed, bed.ports.admin, "/admin/v1/decisions?limit=1", out,
            sizeof(out));
    if ((strstr(out, words) != NULL) != expected)
        fail_msg("%s \"%s\" in %s", expected ? "no" : "a", words, out);
}

/* What engines say of their blocks is decided on, and repeated from the file. A
 * block in host memory is loaded by the engine itself: nothing in the body of
 * leg P asks for it. */
static void kv_events_are_repeated(void **state)
{
    static const char blocks[] =
        "baton_worker_index_blocks{worker=\"w0\",role=\"prefill\"}";
    static const char stored[] = "baton_kv_events_total{type=\"stored\"}";
    static char before[65536];

    (void)state;
    plane_start();
    decide("\"hit_p\":0,", true);
    memcpy(before, bed.workers[0].last_body, sizeof(before));
    PUBLISH(STORED("GPU"));
    until_row(blocks, 1);
    decide("\"hit_p\":4,", true);
    PUBLISH(STORED("CPU"));
    until_row(stored, 2);
    decide("\"hit_p\":4,", true);
    decide("\"source\"", false);
    PUBLISH(REMOVED("GPU"));
    until_row("baton_kv_events_total{type=\"removed\"}", 1);
    decide("\"source\":\"w0\",\"source_tier\":\"host\",\"source_tokens\":4",
           true);
    assert_string_equal(bed.workers[0].last_body, before);
    PUBLISH(REMOVED("CPU"));
    until_row(blocks, 0);
    decide("\"hit_p\":0,", true);
    bed_stop(&bed);
    zmq_close(plane.pub);
    zmq_ctx_term(plane.context);
    replay(file);
    assert_int_equal(result.requests, 6);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(records_what_it_decided, make_folder,
                                        drop_folder),
        cmocka_unit_test(tenants_and_priorities_are_told),
        cmocka_unit_test_setup_teardown(full_journal_ends_in_order, make_folder,
                                        drop_folder),
        cmocka_unit_test_setup_teardown(files_are_kept, make_folder,
                                        drop_folder),
        cmocka_unit_test_setup_teardown(failures_leave_no_file, make_folder,
                                        drop_folder),
        cmocka_unit_test_setup_teardown(kv_events_are_repeated, make_folder,
                                        drop_folder),
        cmocka_unit_test_setup_teardown(topology_is_served, make_folder,
                                        drop_folder),
    };

    assert_true(argc == 2);
    baton = argv[1];
    return cmocka_run_group_tests(tests, NULL, NULL);
}
