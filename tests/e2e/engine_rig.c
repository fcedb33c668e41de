/* See engine_rig.h. */
#include "engine_rig.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include "baton/planner/block_hash.h"

#include <arpa/inet.h>
#include <ev.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define WAIT_S 10

void rig_config(struct bt_engine_config *config, const char *name)
{
    bt_engine_config_init(config);
    config->name = name;
    config->compute.speedup = 1000;
    config->block_count = 64;
}

/* ---- child ---- */

static void on_term(struct ev_loop *loop, ev_signal *w, int revents)
{
    (void)w;
    (void)revents;
    ev_break(loop, EVBREAK_ALL);
}

static void child(int fd, const struct bt_engine_config *config)
{
    char error[256] = "", line[512];
    struct bt_engine *engine = NULL;
    ev_signal term;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    signal(SIGPIPE, SIG_IGN);
    struct ev_loop *loop = ev_loop_new(EVFLAG_AUTO);
    ev_signal_init(&term, on_term, SIGTERM);
    ev_signal_start(loop, &term);
    if (bt_engine_create(loop, config, &engine, error, sizeof(error)) !=
        BT_OK) {
        fprintf(stderr, "engine: %s\n", error);
        _exit(1);
    }
    const char *events = bt_engine_events_endpoint(engine);
    const char *replay = bt_engine_replay_endpoint(engine);
    int n =
        snprintf(line, sizeof(line), "%u %s %s\n", bt_engine_http_port(engine),
                 *events ? events : "-", *replay ? replay : "-");
    if (write(fd, line, (size_t)n) != n) {
        _exit(1);
    }
    close(fd);
    ev_run(loop, 0);
    bt_engine_destroy(engine);
    ev_signal_stop(loop, &term);
    ev_loop_destroy(loop);
    exit(0);
}

void rig_start(struct rig *rig, const struct bt_engine_config *config)
{
    int fds[2];
    char line[512];
    size_t used = 0;
    fflush(NULL);
    assert_int_equal(pipe(fds), 0);
    rig->pid = fork();
    assert_true(rig->pid >= 0);
    if (rig->pid == 0) {
        close(fds[0]);
        child(fds[1], config);
    }
    close(fds[1]);
    ssize_t n;
    while (used < sizeof(line) - 1 &&
           (n = read(fds[0], line + used, sizeof(line) - 1 - used)) > 0) {
        used += (size_t)n;
    }
    close(fds[0]);
    line[used] = '\0';
    char *space = NULL;
    rig->http = (unsigned int)strtoul(line, &space, 10);
    assert_true(rig->http > 0 && *space == ' ');
    assert_int_equal(sscanf(space, "%159s %159s", rig->events, rig->replay), 2);
}

void rig_stop(struct rig *rig)
{
    int status = 0;
    assert_int_equal(kill(rig->pid, SIGTERM), 0);
    assert_int_equal(waitpid(rig->pid, &status, 0), rig->pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

void rig_kill(struct rig *rig)
{
    kill(rig->pid, SIGKILL);
    waitpid(rig->pid, NULL, 0);
}

/* ---- client ---- */

int rig_open(const struct rig *rig, const char *path, const char *body)
{
    char head[512];
    struct sockaddr_in to = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)rig->http),
                             .sin_addr = {htonl(INADDR_LOOPBACK)}};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    size_t bytes = body != NULL ? strlen(body) : 0;
    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof(to)), 0);
    int n = snprintf(head, sizeof(head),
                     "%s %s HTTP/1.1\r\nHost: e\r\nConnection: close\r\n"
                     "Content-Length: %zu\r\n\r\n",
                     body != NULL ? "POST" : "GET", path, bytes);
    assert_int_equal(send(fd, head, (size_t)n, MSG_NOSIGNAL), n);
    if (bytes > 0) {
        assert_int_equal(send(fd, body, bytes, MSG_NOSIGNAL), bytes);
    }
    return fd;
}

/* Room kept for so many bytes and a terminator: powers of two. */
static size_t room_for(size_t bytes)
{
    size_t room = 16384;
    while (room < bytes + 1) {
        room *= 2;
    }
    return room;
}

bool rig_read(int fd, struct answer *raw)
{
    char part[16384];
    ssize_t n = recv(fd, part, sizeof(part), 0);
    if (n <= 0) {
        return false;
    }
    char *grown = raw->body;
    size_t room = room_for(raw->bytes + (size_t)n);
    if (grown == NULL || room != room_for(raw->bytes)) {
        grown = realloc(grown, room);
        assert_non_null(grown);
    }
    memcpy(grown + raw->bytes, part, (size_t)n);
    raw->body = grown;
    raw->bytes += (size_t)n;
    raw->body[raw->bytes] = '\0';
    return true;
}

/* Join the chunks in place; false: the last one is missing. */
static bool join_chunks(struct answer *a)
{
    size_t from = 0, to = 0;
    while (from < a->bytes) {
        char *end = NULL;
        size_t size = strtoul(a->body + from, &end, 16);
        from = (size_t)(end - a->body) + 2;
        if (size == 0 || from + size > a->bytes) {
            a->bytes = to;
            a->body[to] = '\0';
            return size == 0;
        }
        memmove(a->body + to, a->body + from, size);
        to += size;
        from += size + 2;
    }
    return false;
}

void rig_parse(struct answer *a)
{
    char *end = a->body != NULL ? strstr(a->body, "\r\n\r\n") : NULL;
    if (end == NULL || strncmp(a->body, "HTTP/1.1 ", 9) != 0) {
        free(a->body);
        a->body = calloc(1, 1);
        a->bytes = 0;
        return;
    }
    *end = '\0';
    long status = strtol(a->body + 9, NULL, 10);
    bool chunked = strcasestr(a->body, "Transfer-Encoding: chunked") != NULL;
    const char *announced = strcasestr(a->body, "Content-Length: ");
    size_t head = (size_t)(end - a->body) + 4;
    a->bytes -= head;
    memmove(a->body, a->body + head, a->bytes + 1);
    bool whole = chunked ? join_chunks(a) : announced != NULL;
    a->status = whole ? status : 0;
}

struct answer rig_call(const struct rig *rig, const char *path,
                       const char *body)
{
    struct answer a = {0};
    const struct timeval limit = {.tv_sec = 30};
    int fd = rig_open(rig, path, body);
    (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    while (rig_read(fd, &a)) {
    }
    close(fd);
    rig_parse(&a);
    return a;
}

void answer_free(struct answer *a)
{
    free(a->body);
    a->body = NULL;
}

void rig_fault(const struct rig *rig, const char *json)
{
    struct answer a = rig_call(rig, "/admin/fault", json);
    assert_int_equal(a.status, 200);
    answer_free(&a);
}

/* ---- state ---- */

static json_t *state_root(const struct rig *rig)
{
    struct answer a = rig_call(rig, "/admin/state", NULL);
    json_t *root = json_loads(a.body, 0, NULL);
    answer_free(&a);
    assert_non_null(root);
    return root;
}

long long rig_state(const struct rig *rig, const char *path)
{
    char first[64];
    json_t *root = state_root(rig);
    const char *dot = strchr(path, '.');
    snprintf(first, sizeof(first), "%.*s",
             (int)(dot ? dot - path : (long)strlen(path)), path);
    json_t *value = json_object_get(root, first);
    value = dot ? json_object_get(value, dot + 1) : value;
    assert_true(json_is_integer(value));
    long long v = json_integer_value(value);
    json_decref(root);
    return v;
}

static int64_t now_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

static void wait_for(const struct rig *rig, const char *path, long long value,
                     bool least)
{
    int64_t until = now_ns() + WAIT_S * 1000000000LL;
    long long v = rig_state(rig, path);
    while (now_ns() < until && !(least ? v >= value : v == value)) {
        (void)poll(NULL, 0, 2);
        v = rig_state(rig, path);
    }
    if (!(least ? v >= value : v == value)) {
        fail_msg("%s is %lld, not %lld", path, v, value);
    }
}

void rig_wait(const struct rig *rig, const char *path, long long value)
{
    wait_for(rig, path, value, false);
}

void rig_wait_least(const struct rig *rig, const char *path, long long value)
{
    wait_for(rig, path, value, true);
}

long long rig_bytes_pulled(const struct rig *rig)
{
    json_t *root = state_root(rig), *kv = json_object_get(root, "kv");
    long long bytes = 0;
    for (size_t i = 0; i < json_array_size(kv); i++) {
        bytes +=
            json_integer_value(json_object_get(json_array_get(kv, i), "bytes"));
    }
    json_decref(root);
    return bytes;
}

/* ---- bodies and texts ---- */

void body_plain(char *out, size_t size, const char *prompt, int max_tokens)
{
    snprintf(out, size,
             "{\"model\":\"demo\",\"prompt\":\"%s\",\"max_tokens\":%d}", prompt,
             max_tokens);
}

void body_prefill(char *out, size_t size, const char *prompt)
{
    snprintf(out, size,
             "{\"model\":\"demo\",\"prompt\":\"%s\",\"stream\":false,"
             "\"max_tokens\":1,\"kv_transfer_params\":{\"do_remote_decode\":"
             "true,\"do_remote_prefill\":false,\"remote_engine_id\":null,"
             "\"remote_block_ids\":null,\"remote_host\":null,"
             "\"remote_port\":null}}",
             prompt);
}

void body_decode(char *out, size_t size, const char *prompt, int max_tokens,
                 const char *params)
{
    snprintf(out, size,
             "{\"model\":\"demo\",\"prompt\":\"%s\",\"max_tokens\":%d,"
             "\"kv_transfer_params\":%s}",
             prompt, max_tokens, params);
}

/* Append the text of one JSON answer or chunk, choice 0 only. */
static void add_text(const char *json, size_t bytes, char *out, size_t size)
{
    json_t *root = json_loadb(json, bytes, 0, NULL);
    json_t *choice = json_array_get(json_object_get(root, "choices"), 0);
    json_t *text = json_object_get(choice, "text");
    json_t *part = json_object_get(choice, "message");
    part = part != NULL ? part : json_object_get(choice, "delta");
    text = text != NULL ? text : json_object_get(part, "content");
    if (json_integer_value(json_object_get(choice, "index")) == 0 &&
        json_is_string(text)) {
        size_t used = strlen(out);
        (void)snprintf(out + used, size - used, "%s", json_string_value(text));
    }
    json_decref(root);
}

void answer_text(const struct answer *a, char *out, size_t size)
{
    out[0] = '\0';
    if (strncmp(a->body, "data: ", 6) != 0) {
        add_text(a->body, a->bytes, out, size);
        return;
    }
    for (size_t at = 0; at + 6 < a->bytes;) {
        size_t rest = a->bytes - at;
        const char *end =
            memmem(a->body + at, rest < 2048 ? rest : 2048, "\n\n", 2);
        if (end == NULL) {
            break;
        }
        size_t bytes = (size_t)(end - a->body) - at;
        add_text(a->body + at + 6, bytes - 6, out, size);
        at += bytes + 2;
    }
}

char *answer_params(const struct answer *a)
{
    json_t *root = json_loadb(a->body, a->bytes, 0, NULL);
    json_t *params = json_object_get(root, "kv_transfer_params");
    assert_true(json_is_object(params));
    char *text = json_dumps(params, JSON_COMPACT);
    json_decref(root);
    return text;
}

void oracle_text(const char *prompt, const char *salt, int n, char *out)
{
    struct bt_oracle o;
    size_t count = 0, max = strlen(prompt);
    uint32_t *tokens = malloc(max * sizeof(*tokens));
    uint32_t *expected = malloc((size_t)n * sizeof(*expected));
    bt_oracle_init(&o, "demo", 0,
                   bt_ns_seed(NULL, 0, salt, salt ? strlen(salt) : 0));
    assert_int_equal(bt_bytes_tokenize_text(prompt, max, tokens, max, &count),
                     BT_OK);
    assert_int_equal(bt_oracle_output(&o, tokens, count, (size_t)n, expected),
                     BT_OK);
    for (int i = 0; i < n; i++) {
        out[i] = (char)expected[i];
    }
    out[n] = '\0';
    free(tokens);
    free(expected);
}

void make_prompt(char *out, size_t bytes, unsigned int variant)
{
    static const char letters[] = "etaoin shrdlucmfwypvbgkjqxz";
    for (size_t i = 0; i < bytes; i++) {
        out[i] = letters[(i * 7 + i / 11 + (i + 1) * variant) % 27];
    }
    out[bytes] = '\0';
}
