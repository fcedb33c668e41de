/* See index_rig.h. */
#include "index_rig.h"

#include "baton/orchestrator/bytes_tokenizer.h"
#include "baton/planner/block_hash.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define ARGS_MAX     40
#define WAIT_MS      15000
#define PROMPT_BYTES 400
#define BLOCK        16

const char *rig_program;

/* ---- processes ---- */

static pid_t spawn(const char *const *argv, int *out)
{
    int fds[2];

    fflush(NULL);
    assert_int_equal(pipe(fds), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        dup2(fds[1], 1);
        close(fds[0]);
        close(fds[1]);
        execv(rig_program, (char *const *)(uintptr_t)argv);
        _exit(99);
    }
    close(fds[1]);
    *out = fds[0];
    return pid;
}

/* The ready line as JSON. */
static json_t *start(struct process *p, const char *const *argv)
{
    char line[1024];
    size_t used = 0;
    int out = -1;

    p->rig.pid = spawn(argv, &out);
    while (used < sizeof(line) - 1 && read(out, line + used, 1) == 1 &&
           line[used] != '\n')
        used++;
    line[used] = '\0';
    close(out);
    json_t *ready = json_loads(line, 0, NULL);
    if (ready == NULL)
        fail_msg("%s does not start", argv[1]);
    const char *port =
        json_object_get(ready, "admin") != NULL ? "admin" : "http";
    p->rig.http =
        (unsigned int)json_integer_value(json_object_get(ready, port));
    p->metrics =
        (unsigned int)json_integer_value(json_object_get(ready, "metrics"));
    assert_true(p->rig.http > 0);
    return ready;
}

static size_t add(const char **argv, size_t n, const char *name,
                  const char *value)
{
    assert_true(n + 3 < ARGS_MAX);
    argv[n++] = name;
    if (value != NULL)
        argv[n++] = value;
    argv[n] = NULL;
    return n;
}

void engine_start(struct process *e, const char *name, const char *encoding)
{
    const char *argv[ARGS_MAX] = {rig_program, "engine"};
    char port[16];
    size_t n = 2;

    n = add(argv, n, "--name", name);
    n = add(argv, n, "--event-encoding", encoding);
    n = add(argv, n, "--num-gpu-blocks", "64");
    n = add(argv, n, "--speedup", "1000");
    if (e->name != NULL) { /* once more, in place */
        snprintf(port, sizeof(port), "%u", e->rig.http);
        n = add(argv, n, "--port", port);
        n = add(argv, n, "--events", e->rig.events);
        (void)add(argv, n, "--replay", e->rig.replay);
    }
    e->name = name;
    e->encoding = encoding;
    json_t *ready = start(e, argv);
    snprintf(e->rig.events, sizeof(e->rig.events), "%s",
             json_string_value(json_object_get(ready, "events")));
    snprintf(e->rig.replay, sizeof(e->rig.replay), "%s",
             json_string_value(json_object_get(ready, "replay")));
    json_decref(ready);
}

static size_t index_options(const char **argv, const char *const *extra)
{
    size_t n = 2;

    for (size_t i = 0; extra != NULL && extra[i] != NULL; i++)
        n = add(argv, n, extra[i], NULL);
    return n;
}

void index_start(struct process *x, const char *const *extra)
{
    const char *argv[ARGS_MAX] = {rig_program, "index"};
    size_t n = index_options(argv, extra);

    n = add(argv, n, "--listen", "127.0.0.1:0");
    n = add(argv, n, "--idle-check", "200ms");
    (void)add(argv, n, "--blocks", "4096");
    json_decref(start(x, argv));
    x->name = "index";
}

void serve_start(struct process *x, const char *config)
{
    const char *argv[ARGS_MAX] = {rig_program, "serve", "--config", config};

    json_decref(start(x, argv));
    x->name = "serve";
}

int process_end(struct process *p, int signal)
{
    int status = 0;

    assert_int_equal(kill(p->rig.pid, signal), 0);
    assert_int_equal(waitpid(p->rig.pid, &status, 0), p->rig.pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

int index_exit_code(const char *const *options)
{
    const char *argv[ARGS_MAX] = {rig_program, "index"};
    int out = -1, status = 0;
    pid_t pid;

    (void)index_options(argv, options);
    pid = spawn(argv, &out);
    close(out);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* ---- the index ---- */

long index_post(const struct process *x, const char *path, const char *body,
                json_t **out)
{
    struct answer a = rig_call(&x->rig, path, body);
    long status = a.status;

    if (out != NULL) {
        *out = json_loads(a.body, 0, NULL);
        if (*out == NULL)
            fail_msg("%s: %ld '%.200s'", path, status, a.body);
    }
    answer_free(&a);
    return status;
}

json_t *index_get(const struct process *x, const char *path)
{
    struct answer a = rig_call(&x->rig, path, NULL);
    json_t *root = json_loads(a.body, 0, NULL);

    if (a.status != 200 || root == NULL)
        fail_msg("%s: %ld '%.200s'", path, a.status, a.body);
    answer_free(&a);
    return root;
}

long long index_stat(const struct process *x, const char *name)
{
    json_t *root = index_get(x, "/stats");
    json_t *value = json_object_get(root, name);
    long long number = json_integer_value(value);

    assert_true(json_is_integer(value));
    json_decref(root);
    return number;
}

json_t *stream_of(json_t *workers, const char *instance)
{
    for (size_t i = 0; i < json_array_size(workers); i++) {
        json_t *w = json_array_get(workers, i);
        const char *id = json_string_value(json_object_get(w, "instance_id"));

        if (id != NULL && strcmp(id, instance) == 0)
            return json_array_get(json_object_get(w, "streams"), 0);
    }
    return NULL;
}

static long long now_ms(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (long long)ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

static bool is_caught_up(const struct process *x, const struct process *engine,
                         char *seen, size_t size)
{
    long long sent = rig_state(&engine->rig, "events_next");
    json_t *workers = index_get(x, "/workers");
    json_t *stream = stream_of(workers, engine->name);
    const char *state = json_string_value(json_object_get(stream, "state"));
    long long next = json_integer_value(json_object_get(stream, "next"));
    bool done = state != NULL && strcmp(state, "exact") == 0 && next == sent;

    snprintf(seen, size, "%s next=%lld of %lld",
             state == NULL ? "(none)" : state, next, sent);
    json_decref(workers);
    return done;
}

void index_wait(const struct process *x, const struct process *engine)
{
    long long until = now_ms() + WAIT_MS;
    char seen[128];

    while (!is_caught_up(x, engine, seen, sizeof(seen))) {
        if (now_ms() > until)
            fail_msg("%s: %s", engine->name, seen);
        (void)poll(NULL, 0, 5);
    }
}

/* ---- the engine ---- */

void engine_ask(const struct process *e, unsigned int variant)
{
    char prompt[PROMPT_BYTES + 1], body[2048];

    make_prompt(prompt, PROMPT_BYTES, variant);
    body_plain(body, sizeof(body), prompt, 8);
    struct answer a = rig_call(&e->rig, "/v1/completions", body);
    assert_int_equal(a.status, 200);
    answer_free(&a);
}

static size_t prompt_tokens(unsigned int variant, uint32_t *out)
{
    char prompt[PROMPT_BYTES + 1];
    size_t count = 0;

    make_prompt(prompt, PROMPT_BYTES, variant);
    assert_int_equal(
        bt_bytes_tokenize_text(prompt, PROMPT_BYTES, out, PROMPT_BYTES, &count),
        BT_OK);
    return count;
}

static bool has(const json_t *own, uint64_t key)
{
    char text[17];

    snprintf(text, sizeof(text), "%016llx", (unsigned long long)key);
    for (size_t i = 0; i < json_array_size(own); i++)
        if (strcmp(json_string_value(json_array_get(own, i)), text) == 0)
            return true;
    return false;
}

long long engine_truth(const struct process *e, unsigned int variant)
{
    uint32_t tokens[PROMPT_BYTES];
    uint64_t keys[PROMPT_BYTES / BLOCK];
    size_t count = prompt_tokens(variant, tokens), depth = 0;
    size_t blocks =
        bt_block_keys(tokens, count, BLOCK, bt_ns_seed(NULL, 0, NULL, 0), keys,
                      sizeof(keys) / sizeof(keys[0]));
    struct answer a = rig_call(&e->rig, "/admin/blocks?list=1", NULL);
    json_t *root = json_loads(a.body, 0, NULL);
    json_t *own = json_object_get(root, "own");

    assert_true(json_is_array(own));
    while (depth < blocks && has(own, keys[depth]))
        depth++;
    json_decref(root);
    answer_free(&a);
    return (long long)depth * BLOCK;
}

void query_body(char *out, size_t size, const char *model, unsigned int variant,
                const char *more)
{
    uint32_t tokens[PROMPT_BYTES];
    size_t count = prompt_tokens(variant, tokens);
    size_t used =
        (size_t)snprintf(out, size, "{\"%s\":\"demo\",\"token_ids\":[", model);

    for (size_t i = 0; i < count && used < size; i++)
        used += (size_t)snprintf(out + used, size - used, "%s%u",
                                 i > 0 ? "," : "", tokens[i]);
    assert_true(used < size);
    used += (size_t)snprintf(out + used, size - used, "],\"block_size\":16%s}",
                             more);
    assert_true(used < size);
}

long long index_says(const struct process *x, const char *instance,
                     unsigned int variant)
{
    char body[8192];
    json_t *root = NULL, *in;

    query_body(body, sizeof(body), "model_name", variant, "");
    assert_int_equal(index_post(x, "/query", body, &root), 200);
    in = json_object_get(json_object_get(root, "instances"), instance);
    assert_non_null(in);
    long long tokens = json_integer_value(json_object_get(in, "gpu"));
    if (!json_is_true(json_object_get(in, "exact")))
        tokens = -1;
    json_decref(root);
    return tokens;
}
