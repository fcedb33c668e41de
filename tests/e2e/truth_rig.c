/* See truth_rig.h. Decides ports, configuration and the workload; what is true
 * about the samples is the tests' matter.
 */
#include "truth_rig.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include "baton/base/rng.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define GROUPS     24u
#define SESSIONS   48u
#define PROMPT_MAX 4096u
#define PACE_NS    4000000 /* between two requests */

int64_t truth_now_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

/* ---- processes ---- */

/* Its first line of stdout; stderr goes to FOLDER/NAME.log. */
static pid_t spawn(struct truth *t, const char *name, char *const argv[],
                   char *line, size_t size)
{
    char log[128];
    int fds[2];
    size_t used = 0;
    snprintf(log, sizeof(log), "%s/%s.log", t->folder, name);
    assert_int_equal(pipe2(fds, O_CLOEXEC), 0);
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        int err = open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        dup2(fds[1], 1);
        dup2(err, 2);
        execv(argv[0], argv);
        _exit(127);
    }
    close(fds[1]);
    while (used + 1 < size && read(fds[0], line + used, 1) == 1 &&
           line[used] != '\n') {
        used++;
    }
    close(fds[0]);
    line[used] = '\0';
    if (used == 0) {
        fail_msg("%s has ended before it was ready, see %s", name, log);
    }
    return pid;
}

static json_t *ready_line(const char *line)
{
    json_t *ready = json_loads(line, 0, NULL);
    assert_non_null(ready);
    assert_true(json_is_true(json_object_get(ready, "ready")));
    return ready;
}

static unsigned int number_of(const json_t *object, const char *name)
{
    return (unsigned int)json_integer_value(json_object_get(object, name));
}

static void copy_of(char *out, size_t size, const json_t *object,
                    const char *name)
{
    const char *text = json_string_value(json_object_get(object, name));
    snprintf(out, size, "%s", text != NULL ? text : "");
}

/* Ports 0 the first time, then those it had. */
static void start_engine(struct truth *t, int i)
{
    struct truth_engine *e = &t->engines[i];
    char name[32], role[32], port[32], events[200], replay[200], encoding[64],
        hash[64], blocks[48], line[1024];
    snprintf(name, sizeof(name), "--name=%s", e->name);
    snprintf(role, sizeof(role), "--role=%s", i < 2 ? "prefill" : "decode");
    snprintf(port, sizeof(port), "--port=%u", e->rig.http);
    snprintf(events, sizeof(events), "--events%s=%s",
             t->bind[0] ? "-connect" : "",
             t->bind[0]         ? t->bind
             : e->rig.events[0] ? e->rig.events
                                : "tcp://127.0.0.1:*");
    snprintf(replay, sizeof(replay), "--replay=%s",
             !t->replay         ? "none"
             : e->rig.replay[0] ? e->rig.replay
                                : "tcp://127.0.0.1:*");
    snprintf(encoding, sizeof(encoding), "--event-encoding=%s", e->encoding);
    snprintf(hash, sizeof(hash), "--event-hash=%s", e->hash);
    snprintf(blocks, sizeof(blocks), "--num-gpu-blocks=%u",
             i < 2 ? TRUTH_POOL : 4 * TRUTH_POOL);
    char *const with[] = {(char *)(uintptr_t)t->program,
                          (char[]){"engine"},
                          (char[]){"--die-with-parent"},
                          (char[]){"--speedup=50"},
                          name,
                          role,
                          port,
                          blocks,
                          events,
                          replay,
                          encoding,
                          hash,
                          t->events ? NULL : (char[]){"--no-events"},
                          NULL};
    e->rig.pid = spawn(t, e->name, with, line, sizeof(line));
    json_t *ready = ready_line(line);
    e->rig.http = number_of(ready, "http");
    copy_of(e->rig.events, sizeof(e->rig.events), ready, "events");
    copy_of(e->rig.replay, sizeof(e->rig.replay), ready, "replay");
    json_decref(ready);
}

static void write_config(const struct truth *t, const char *path)
{
    FILE *f = fopen(path, "we");
    assert_non_null(f);
    fprintf(f,
            "config_schema: 1\npolicy: joint\ntokenizer: bytes\nseed: 1\n"
            "listen: {address: 127.0.0.1, port: 0}\n"
            "metrics: {address: 127.0.0.1, port: 0}\n"
            "admin: {address: 127.0.0.1, port: 0}\n"
            "log: {level: info, format: text}\n"
            "decisions: {file: \"%s/decisions\", ring: 16}\n"
            "health: {interval: 200ms, timeout: 2s, ok: 1, fail: 3, "
            "stats_interval: 200ms}\n"
            "models:\n  - {name: demo, kv_bytes_per_token: 256, "
            "block_size: %u}\n",
            t->folder, TRUTH_BLOCK);
    if (t->bind[0]) {
        fprintf(f, "events: {bind: \"%s\"}\n", t->bind);
    }
    fprintf(f, "workers:\n");
    for (int i = 0; i < TRUTH_ENGINES; i++) {
        const struct truth_engine *e = &t->engines[i];
        fprintf(f,
                "  - {name: %s, role: %s, url: \"http://127.0.0.1:%u\", "
                "model: demo, compute: h100-8b-tp1, speedup: 50",
                e->name, i < 2 ? "prefill" : "decode", e->rig.http);
        if (t->bind[0]) {
            fprintf(f, ", events_topic: \"kv@127.0.0.1:%u@\"", e->rig.http);
        } else if (e->rig.events[0]) {
            fprintf(f, ", events: \"%s\"", e->rig.events);
        }
        if (e->rig.replay[0]) {
            fprintf(f, ", replay: \"%s\"", e->rig.replay);
        }
        fprintf(f, "}\n");
    }
    assert_int_equal(fclose(f), 0);
}

static void start_serve(struct truth *t)
{
    char path[128], config[160], line[1024];
    snprintf(path, sizeof(path), "%s/baton.yaml", t->folder);
    write_config(t, path);
    snprintf(config, sizeof(config), "--config=%s", path);
    char *const argv[] = {(char *)(uintptr_t)t->program, (char[]){"serve"},
                          config, (char[]){"--die-with-parent"}, NULL};
    t->serve = spawn(t, "serve", argv, line, sizeof(line));
    json_t *ready = ready_line(line);
    t->listen.http = number_of(ready, "listen");
    t->admin.http = number_of(ready, "admin");
    t->metrics.http = number_of(ready, "metrics");
    json_decref(ready);
    snprintf(path, sizeof(path), "%s/decisions", t->folder);
    t->log = open(path, O_RDONLY | O_CLOEXEC);
    assert_true(t->log >= 0);
}

/* A port that is free now. */
static void pick_bind(struct truth *t)
{
    struct sockaddr_in at = {.sin_family = AF_INET,
                             .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t size = sizeof(at);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&at, sizeof(at)), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&at, &size), 0);
    close(fd);
    snprintf(t->bind, sizeof(t->bind), "tcp://127.0.0.1:%u",
             ntohs(at.sin_port));
}

static bool in_service(struct truth *t)
{
    char state[32];
    for (int i = 0; i < TRUTH_ENGINES; i++) {
        truth_worker(t, i, "state", state, sizeof(state));
        if (strcmp(state, "ready") != 0) {
            return false;
        }
    }
    return true;
}

void truth_start(struct truth *t, const char *program,
                 const struct truth_setup *setup)
{
    static const char *const names[] = {"p0", "p1", "d0"};
    memset(t, 0, sizeof(*t));
    t->program = program;
    t->events = setup->events;
    t->replay = setup->replay;
    t->dice = 20260901;
    t->samples = calloc(TRUTH_SAMPLES_MAX, sizeof(*t->samples));
    assert_non_null(t->samples);
    snprintf(t->folder, sizeof(t->folder), "/tmp/baton-truth-XXXXXX");
    assert_non_null(mkdtemp(t->folder));
    if (setup->connect) {
        pick_bind(t);
    }
    for (int i = 0; i < TRUTH_ENGINES; i++) {
        bool array = (i == 0) != setup->swap;
        t->engines[i].name = names[i];
        t->engines[i].encoding = i == 2 ? "mapbatch" : array ? "array" : "map";
        t->engines[i].hash = i == 1 ? "bytes" : "int";
        start_engine(t, i);
    }
    for (size_t i = 0; i < TRUTH_CALLS; i++) {
        t->calls[i].fd = -1;
    }
    start_serve(t);
    int64_t until = truth_now_ns() + TRUTH_WAIT_S * 1000000000LL;
    while (!in_service(t)) {
        assert_true(truth_now_ns() < until);
        (void)poll(NULL, 0, 5);
    }
    t->start_ns = t->turn_ns = truth_now_ns();
}

static void end(pid_t pid, const char *name)
{
    int status = 0;
    assert_int_equal(kill(pid, SIGTERM), 0);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
        fail_msg("%s: wait status %d", name, status);
    }
}

void truth_stop(struct truth *t)
{
    DIR *dir;
    const struct dirent *entry;
    char path[400];
    truth_drain(t);
    end(t->serve, "serve");
    t->serve = 0;
    for (int i = 0; i < TRUTH_ENGINES; i++) {
        end(t->engines[i].rig.pid, t->engines[i].name);
        t->engines[i].rig.pid = 0;
    }
    close(t->log);
    free(t->samples);
    t->samples = NULL;
    dir = opendir(t->folder);
    assert_non_null(dir);
    while ((entry = readdir(dir)) != NULL) {
        snprintf(path, sizeof(path), "%s/%s", t->folder, entry->d_name);
        if (entry->d_name[0] != '.') {
            unlink(path);
        }
    }
    closedir(dir);
    rmdir(t->folder);
}

static void abandon(pid_t pid)
{
    if (pid > 0) {
        kill(pid, SIGKILL);
        waitpid(pid, NULL, 0);
    }
}

void truth_abandon(struct truth *t)
{
    abandon(t->serve);
    t->serve = 0;
    for (int i = 0; i < TRUTH_ENGINES; i++) {
        abandon(t->engines[i].rig.pid);
        t->engines[i].rig.pid = 0;
    }
    for (size_t i = 0; i < TRUTH_CALLS && t->samples != NULL; i++) {
        if (t->calls[i].fd >= 0) {
            close(t->calls[i].fd);
            answer_free(&t->calls[i].raw);
        }
    }
    free(t->samples);
    t->samples = NULL;
}

void truth_kill(struct truth *t, int engine)
{
    rig_kill(&t->engines[engine].rig);
    t->engines[engine].rig.pid = 0;
}

int64_t truth_start_again(struct truth *t, int engine)
{
    start_engine(t, engine);
    return truth_now_ns();
}

/* ---- workload ---- */

static uint64_t roll(struct truth *t, uint64_t sides)
{
    t->dice += 0x9e3779b97f4a7c15ULL;
    return bt_mix64(t->dice) % sides;
}

/* Printable bytes that are a function of (what, at). */
static size_t put_text(char *out, uint64_t what, size_t count)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz ABCDE";
    for (size_t i = 0; i < count; i++) {
        out[i] = letters[bt_mix64(what * 4099 + i) % 32];
    }
    return count;
}

/* A shared prefix of 10 to 33 blocks, the session's turns of 4 blocks each, one
 * question. The same prompt comes again at times, whole blocks long. */
static void make_body(struct truth *t, char *out, size_t size)
{
    char prompt[PROMPT_MAX + 1];
    uint64_t session = roll(t, SESSIONS), group = session % GROUPS;
    uint64_t turns = roll(t, 6), epoch = t->next_id / 400;
    size_t used = put_text(prompt, 7 + group, (10 + group) * TRUTH_BLOCK);
    used += put_text(prompt + used, 1000 + session * 100 + epoch * 100000,
                     turns * 4 * TRUTH_BLOCK);
    if (roll(t, 8) != 0) {
        used += put_text(prompt + used, 100000000 + t->next_id,
                         8 + roll(t, 3 * TRUTH_BLOCK));
    }
    prompt[used] = '\0';
    int n = snprintf(out, size,
                     "{\"model\":\"demo\",\"prompt\":\"%s\",\"max_tokens\":4,"
                     "\"stream\":false}",
                     prompt);
    assert_true(n > 0 && (size_t)n < size);
}

static void begin(struct truth *t, struct truth_call *c)
{
    char body[PROMPT_MAX + 256], head[256];
    struct sockaddr_in to = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)t->listen.http),
                             .sin_addr = {htonl(INADDR_LOOPBACK)}};
    assert_true(t->next_id < TRUTH_SAMPLES_MAX);
    make_body(t, body, sizeof(body));
    c->id = t->next_id++;
    c->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(c->fd >= 0);
    if (connect(c->fd, (struct sockaddr *)&to, sizeof(to)) != 0) {
        fail_msg("serve takes no connection: %s (see %s)", strerror(errno),
                 t->folder);
    }
    int n = snprintf(head, sizeof(head),
                     "POST /v1/completions HTTP/1.1\r\nHost: b\r\n"
                     "Content-Type: application/json\r\nConnection: close\r\n"
                     "X-Request-Id: t-%u\r\nContent-Length: %zu\r\n\r\n",
                     c->id, strlen(body));
    t->samples[c->id].worker = -1;
    t->samples[c->id].sent_ns = truth_now_ns();
    assert_int_equal(send(c->fd, head, (size_t)n, MSG_NOSIGNAL), n);
    assert_int_equal(send(c->fd, body, strlen(body), MSG_NOSIGNAL),
                     strlen(body));
}

static void finish(struct truth *t, struct truth_call *c)
{
    close(c->fd);
    c->fd = -1;
    rig_parse(&c->raw);
    t->failed += c->raw.status != 200;
    t->samples[c->id].ended_ns = truth_now_ns();
    answer_free(&c->raw);
    memset(&c->raw, 0, sizeof(c->raw));
}

static void read_decision(struct truth *t, const char *line)
{
    json_t *root = json_loads(line, 0, NULL);
    const char *id = json_string_value(json_object_get(root, "request_id"));
    assert_non_null(id);
    unsigned long n = strncmp(id, "t-", 2) == 0 ? strtoul(id + 2, NULL, 10)
                                                : TRUTH_SAMPLES_MAX;
    const char *prefill = json_string_value(json_object_get(root, "prefill"));
    if (n < t->next_id) {
        struct truth_sample *s = &t->samples[n];
        bool p = prefill != NULL && prefill[0] == 'p';
        /* Of a request whose prefill has ended. */
        if (p && json_is_number(json_object_get(root, "act_prefill_ms"))) {
            s->worker = prefill[1] == '1';
        }
        s->prompt = number_of(root, "input_tokens");
        s->predicted = number_of(root, "hit_p");
        s->actual = number_of(root, "cached_tokens_prefill");
        copy_of(s->source, sizeof(s->source), root, "overlap_source");
    }
    json_decref(root);
}

static void read_log(struct truth *t)
{
    for (;;) {
        ssize_t n = read(t->log, t->line + t->line_used,
                         sizeof(t->line) - 1 - t->line_used);
        if (n <= 0) {
            return;
        }
        t->line_used += (size_t)n;
        t->line[t->line_used] = '\0';
        char *from = t->line, *newline;
        while ((newline = strchr(from, '\n')) != NULL) {
            *newline = '\0';
            read_decision(t, from);
            from = newline + 1;
        }
        t->line_used -= (size_t)(from - t->line);
        memmove(t->line, from, t->line_used + 1);
        assert_true(t->line_used < sizeof(t->line) - 1);
    }
}

/* One turn: at most one new request, what has arrived. */
static void turn(struct truth *t, bool more)
{
    struct pollfd fds[TRUTH_CALLS];
    struct truth_call *of[TRUTH_CALLS];
    nfds_t count = 0;
    int64_t now = truth_now_ns();
    for (size_t i = 0; i < TRUTH_CALLS; i++) {
        struct truth_call *c = &t->calls[i];
        if (c->fd < 0 && more && now >= t->turn_ns) {
            begin(t, c);
            t->turn_ns = now + PACE_NS;
        }
        if (c->fd >= 0) {
            fds[count] = (struct pollfd){.fd = c->fd, .events = POLLIN};
            of[count++] = c;
        }
    }
    (void)poll(fds, count, 1);
    for (nfds_t i = 0; i < count; i++) {
        if (fds[i].revents != 0 && !rig_read(of[i]->fd, &of[i]->raw)) {
            finish(t, of[i]);
        }
    }
    read_log(t);
}

void truth_load(struct truth *t, uint32_t requests)
{
    uint32_t until = t->next_id + requests;
    while (t->next_id < until) {
        turn(t, true);
    }
}

void truth_load_until(struct truth *t, bool (*done)(struct truth *, void *),
                      void *arg, const char *what)
{
    int64_t until = truth_now_ns() + TRUTH_WAIT_S * 1000000000LL, ask = 0;
    for (;;) {
        int64_t now = truth_now_ns();
        if (now >= ask) {
            if (done(t, arg)) {
                return;
            }
            ask = now + 50000000;
        }
        if (now > until) {
            fail_msg("not within %d s: %s (see %s)", TRUTH_WAIT_S, what,
                     t->folder);
        }
        turn(t, true);
    }
}

static bool busy(const struct truth *t)
{
    for (size_t i = 0; i < TRUTH_CALLS; i++) {
        if (t->calls[i].fd >= 0) {
            return true;
        }
    }
    return false;
}

void truth_drain(struct truth *t)
{
    int64_t until = truth_now_ns() + TRUTH_WAIT_S * 1000000000LL;
    while (busy(t)) {
        assert_true(truth_now_ns() < until);
        turn(t, false);
    }
    read_log(t);
}

/* ---- what the processes say ---- */

static json_t *worker(json_t *root, const char *name)
{
    json_t *list = json_object_get(root, "workers");
    for (size_t i = 0; i < json_array_size(list); i++) {
        json_t *w = json_array_get(list, i);
        if (strcmp(json_string_value(json_object_get(w, "name")), name) == 0) {
            return w;
        }
    }
    return NULL;
}

static json_t *fetch(const struct rig *rig, const char *path)
{
    struct answer a = rig_call(rig, path, NULL);
    json_t *root = a.status == 200 ? json_loads(a.body, 0, NULL) : NULL;
    answer_free(&a);
    if (root == NULL) {
        fail_msg("GET %s: no JSON", path);
    }
    return root;
}

void truth_worker(struct truth *t, int engine, const char *member, char *out,
                  size_t size)
{
    json_t *root = fetch(&t->admin, "/admin/v1/workers");
    copy_of(out, size, worker(root, t->engines[engine].name), member);
    json_decref(root);
}

long long truth_worker_number(struct truth *t, int engine, const char *member)
{
    json_t *root = fetch(&t->admin, "/admin/v1/workers");
    json_t *value =
        json_object_get(worker(root, t->engines[engine].name), member);
    assert_true(json_is_number(value));
    long long n = (long long)json_number_value(value);
    json_decref(root);
    return n;
}

double truth_metric(struct truth *t, const char *name)
{
    struct answer a = rig_call(&t->metrics, "/metrics", NULL);
    size_t bytes = strlen(name);
    double sum = 0;
    assert_int_equal(a.status, 200);
    for (char *at = a.body; at != NULL && *at != '\0';) {
        char *end_of_line = strchr(at, '\n');
        char after = strncmp(at, name, bytes) == 0 ? at[bytes] : '\0';
        if (after == ' ' || after == '{') {
            char *end_of_labels = strstr(at, after == '{' ? "} " : " ");
            sum += strtod(end_of_labels + (after == '{' ? 2 : 1), NULL);
        }
        at = end_of_line != NULL ? end_of_line + 1 : NULL;
    }
    answer_free(&a);
    return sum;
}

long long truth_blocks(struct truth *t, int engine)
{
    json_t *root = fetch(&t->engines[engine].rig, "/admin/blocks");
    long long n = json_integer_value(json_object_get(root, "distinct"));
    json_decref(root);
    return n;
}

void truth_hold(struct truth *t, int engine, bool on)
{
    char path[64];
    snprintf(path, sizeof(path), "/admin/v1/workers/%s/%s",
             t->engines[engine].name, on ? "drain" : "undrain");
    struct answer a = rig_call(&t->admin, path, "");
    assert_int_equal(a.status, 200);
    answer_free(&a);
}

void truth_wipe(struct truth *t, int engine)
{
    struct answer a =
        rig_call(&t->engines[engine].rig, "/reset_prefix_cache", "");
    assert_int_equal(a.status, 200);
    answer_free(&a);
}

void truth_expect_exact(struct truth *t)
{
    int64_t until = truth_now_ns() + TRUTH_WAIT_S * 1000000000LL;
    long long has = -1, knows = -2;
    truth_drain(t);
    for (int i = 0; i < 2; i++) {
        has = truth_blocks(t, i);
        while ((knows = truth_worker_number(t, i, "index_blocks")) != has &&
               truth_now_ns() < until) {
            (void)poll(NULL, 0, 5);
        }
        if (knows != has) {
            fail_msg("%s holds %lld blocks, the index says %lld (see %s)",
                     t->engines[i].name, has, knows, t->folder);
        }
    }
}

/* ---- shares ---- */

struct truth_share truth_share(const struct truth *t, uint32_t from,
                               uint32_t to, int worker_index)
{
    struct truth_share out = {0};
    for (uint32_t i = from; i < to; i++) {
        const struct truth_sample *s = &t->samples[i];
        if (s->worker < 0 || (worker_index >= 0 && s->worker != worker_index)) {
            continue;
        }
        out.requests++;
        out.prompt += s->prompt;
        out.predicted += s->predicted;
        out.actual += s->actual;
        out.equal += s->predicted / TRUTH_BLOCK == s->actual / TRUTH_BLOCK;
        out.under += s->predicted / TRUTH_BLOCK < s->actual / TRUTH_BLOCK;
        out.over += s->predicted > s->actual + TRUTH_BLOCK;
        out.wrong += s->predicted > s->actual + TRUTH_BLOCK
                         ? s->predicted - s->actual
                         : 0;
    }
    return out;
}

double truth_percent(uint32_t part, uint32_t whole)
{
    return whole == 0 ? 0.0 : 100.0 * part / whole;
}
