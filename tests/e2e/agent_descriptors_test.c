/* A source that runs out of file descriptors (field-failures E21): whoever is
 * inside is served, who comes anew hears at once that nobody listens, it is
 * counted, and it is over when there are descriptors again. The limit is put
 * over a running `baton agent` from outside. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine_rig.h"

#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#define WAIT_S 20
#define LEFT   12 /* some, but fewer than an agent keeps (METRICS.md: 32) */

static const char *program;

struct agent {
    struct rig rig;
    unsigned int port;
};

static void agent_start(struct agent *a, const char *name)
{
    char line[1024];
    size_t used = 0;
    int fds[2];

    assert_int_equal(pipe(fds), 0);
    fflush(NULL);
    a->rig.pid = fork();
    assert_true(a->rig.pid >= 0);
    if (a->rig.pid == 0) {
        dup2(fds[1], 1);
        close(fds[0]);
        close(fds[1]);
        execl(program, program, "agent", "--die-with-parent", "--name", name,
              "--probe-size", "1MiB", (char *)NULL);
        _exit(99);
    }
    close(fds[1]);
    while (used < sizeof(line) - 1 && read(fds[0], line + used, 1) == 1 &&
           line[used] != '\n')
        used++;
    line[used] = '\0';
    close(fds[0]);
    json_t *ready = json_loads(line, 0, NULL);
    assert_non_null(ready);
    a->rig.http =
        (unsigned int)json_integer_value(json_object_get(ready, "http"));
    a->port =
        (unsigned int)json_integer_value(json_object_get(ready, "transfer"));
    assert_true(a->port > 0 && a->rig.http > 0);
    json_decref(ready);
}

/* `to` pulls 64 KiB; how it ended. */
static void pull(const struct agent *from, const struct agent *to,
                 char status_out[32])
{
    char body[160];

    snprintf(body, sizeof(body),
             "{\"host\":\"127.0.0.1\",\"port\":%u,\"bytes\":65536,"
             "\"descriptors\":1,\"count\":1}",
             from->port);
    struct answer a = rig_call(&to->rig, "/v1/probe", body);
    json_t *root = json_loads(a.body, 0, NULL);
    const json_t *one = json_array_get(json_object_get(root, "pulls"), 0);
    const char *text = json_string_value(
        json_object_get(json_object_get(one, "transfer"), "status"));
    if (text == NULL)
        fail_msg("no pull in %ld %s", a.status, a.body);
    snprintf(status_out, 32, "%s", text);
    json_decref(root);
    answer_free(&a);
}

static long long doors_shut(const struct agent *a)
{
    struct answer answer = rig_call(&a->rig, "/v1/agent", NULL);
    json_t *root = json_loads(answer.body, 0, NULL);
    const json_t *value =
        json_object_get(json_object_get(root, "transfers"), "doors_shut");

    assert_true(json_is_integer(value));
    long long count = json_integer_value(value);
    json_decref(root);
    answer_free(&answer);
    return count;
}

static time_t now_s(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec;
}

/* So low a limit that LEFT descriptors are free below it: some that are in use
 * may be above, inherited from whoever runs the test. */
static struct rlimit leave_few(const struct agent *a)
{
    char path[64];
    struct rlimit was, few;
    unsigned int left = LEFT;

    assert_int_equal(prlimit(a->rig.pid, RLIMIT_NOFILE, NULL, &was), 0);
    few = was;
    for (few.rlim_cur = 0; left > 0; few.rlim_cur++) {
        assert_true(few.rlim_cur < 1000);
        snprintf(path, sizeof(path), "/proc/%d/fd/%d", (int)a->rig.pid,
                 (int)few.rlim_cur);
        left -= faccessat(AT_FDCWD, path, F_OK, AT_SYMLINK_NOFOLLOW) != 0;
    }
    assert_int_equal(prlimit(a->rig.pid, RLIMIT_NOFILE, &few, NULL), 0);
    return was;
}

static void descriptors_run_out(void **state)
{
    struct agent source, inside, outside;
    char status[32];

    (void)state;
    agent_start(&source, "source");
    agent_start(&inside, "inside");
    agent_start(&outside, "outside");
    pull(&source, &inside, status);
    assert_string_equal(status, "ok");
    assert_int_equal(doors_shut(&source), 0);
    struct rlimit was = leave_few(&source);
    time_t until = now_s() + WAIT_S;
    while (doors_shut(&source) == 0) {
        assert_true(now_s() < until);
        (void)poll(NULL, 0, 5);
    }
    pull(&source, &outside, status);
    assert_string_equal(status, "refused");
    pull(&source, &inside, status);
    assert_string_equal(status, "ok");
    assert_int_equal(prlimit(source.rig.pid, RLIMIT_NOFILE, &was, NULL), 0);
    until = now_s() + WAIT_S;
    for (pull(&source, &outside, status); strcmp(status, "ok") != 0;
         pull(&source, &outside, status)) {
        if (now_s() > until)
            fail_msg("still %s", status);
        (void)poll(NULL, 0, 20);
    }
    pull(&source, &inside, status);
    assert_string_equal(status, "ok");
    assert_int_equal(doors_shut(&source), 1);
    rig_stop(&outside.rig);
    rig_stop(&inside.rig);
    rig_stop(&source.rig);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(descriptors_run_out),
    };

    if (argc < 2)
        return 2;
    program = argv[1];
    return cmocka_run_group_tests(tests, NULL, NULL);
}
