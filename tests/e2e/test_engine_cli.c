/* `baton engine` as a process: ready line, exit codes, bad options. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <jansson.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "engine_rig.h"

static const char *program;

/* Run it with its stdout in a pipe and stderr closed. */
static pid_t spawn(const char *const *options, int *out)
{
    const char *argv[16] = {program, "engine"};
    int fds[2];
    for (size_t i = 0; options[i] != NULL && i < 13; i++) {
        argv[i + 2] = options[i];
    }
    assert_int_equal(pipe(fds), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        dup2(fds[1], 1);
        close(fds[0]);
        close(fds[1]);
        close(2);
        execv(program, (char *const *)(uintptr_t)argv);
        _exit(99);
    }
    close(fds[1]);
    *out = fds[0];
    return pid;
}

static int exit_code(pid_t pid)
{
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static size_t read_line(int fd, char *line, size_t size)
{
    size_t used = 0;
    while (used < size - 1 && read(fd, line + used, 1) == 1 &&
           line[used] != '\n') {
        used++;
    }
    line[used] = '\0';
    return used;
}

static void ready_line_and_sigterm(void **state)
{
    (void)state;
    const char *const options[] = {"--name",
                                   "p7",
                                   "--role",
                                   "prefill",
                                   "--speedup",
                                   "1000",
                                   "--pace",
                                   "d1=200MB/s:slow:2ms",
                                   "--fault",
                                   "slow:factor=2",
                                   "--die-with-parent",
                                   NULL};
    char line[1024], extra[8];
    int out = -1;
    pid_t pid = spawn(options, &out);
    assert_true(read_line(out, line, sizeof(line)) > 0);
    json_t *ready = json_loads(line, 0, NULL);
    assert_non_null(ready);
    assert_true(json_is_true(json_object_get(ready, "ready")));
    assert_string_equal(json_string_value(json_object_get(ready, "name")),
                        "p7");
    assert_string_equal(json_string_value(json_object_get(ready, "role")),
                        "prefill");
    assert_true(json_integer_value(json_object_get(ready, "kv")) > 0);
    assert_int_equal(
        strlen(json_string_value(json_object_get(ready, "engine_id"))), 36);
    struct rig rig = {
        .pid = pid,
        .http = (unsigned)json_integer_value(json_object_get(ready, "http"))};
    struct answer a = rig_call(&rig, "/health", NULL);
    assert_int_equal(a.status, 200);
    answer_free(&a);
    json_decref(ready);
    assert_int_equal(kill(pid, SIGTERM), 0);
    assert_int_equal(exit_code(pid), 0);
    assert_int_equal(read(out, extra, 1), 0); /* one line, no more */
    close(out);
}

static void bad_options(void **state)
{
    (void)state;
    const char *const cases[][5] = {
        {"--role", "cook", NULL},
        {"--events", "nonsense", NULL},
        {"--replay", "tcp://127.0.0.1:x", NULL},
        {"--pace", "d1=1MB/s", "--pace", "d1=2MB/s", NULL},
        {"--preset", "abacus", NULL},
        {"--pace", "d1=fast", NULL},
        {"--block-size", "0", NULL},
        {"--kv-bytes-per-token", "13", NULL},
        {"--fault", "dye", NULL},
        {"--fabric", "pigeon", NULL},
        {"--transfer-rail", "r0", NULL},
        {"--transfer-rail", "=127.0.0.1", NULL},
        {"--transfer-rail", "r0=127.0.0.1,gid=256", NULL},
        {"--event-encoding", "xml", NULL},
        {"--event-hash", "md5", NULL},
        {"--event-hash", "sha256_cbor:", NULL},
        {"--replay-framing", "older", NULL},
        {"--events-connect", "nonsense", NULL},
        {"--events-connect", "tcp://127.0.0.1:70000", NULL},
        {"--events", "tcp://127.0.0.1:*", "--events-connect",
         "tcp://127.0.0.1:9", NULL},
        {"--speedup", "0", NULL},
        {"--port", "70000", NULL}};
    char line[64];
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        int out = -1;
        pid_t pid = spawn(cases[i], &out);
        assert_int_equal(read_line(out, line, sizeof(line)), 0);
        int code = exit_code(pid);
        if (code != 2) {
            fail_msg("%s %s: exit %d", cases[i][0], cases[i][1], code);
        }
        close(out);
    }
}

static void taken_port(void **state)
{
    (void)state;
    struct rig rig;
    struct bt_engine_config c;
    char port[16], line[64];
    const char *const options[] = {"--port", port, NULL};
    int out = -1;
    rig_config(&c, "e0");
    rig_start(&rig, &c);
    snprintf(port, sizeof(port), "%u", rig.http);
    pid_t pid = spawn(options, &out);
    assert_int_equal(read_line(out, line, sizeof(line)), 0);
    assert_int_equal(exit_code(pid), 1);
    close(out);
    rig_stop(&rig);
}

static void taken_events_port(void **state)
{
    (void)state;
    struct rig rig;
    struct bt_engine_config c;
    char line[64];
    rig_config(&c, "e0");
    rig_start(&rig, &c);
    const char *const names[] = {"--events", "--replay"};
    for (size_t i = 0; i < 2; i++) {
        const char *const options[] = {names[i], rig.events, NULL};
        int out = -1;
        pid_t pid = spawn(options, &out);
        assert_int_equal(read_line(out, line, sizeof(line)), 0);
        assert_int_equal(exit_code(pid), 1);
        close(out);
    }
    rig_stop(&rig);
}

/* ---- --die-with-parent ---- */

static bool answers(unsigned int port)
{
    struct sockaddr_in to = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)port),
                             .sin_addr = {htonl(INADDR_LOOPBACK)}};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    bool ok = connect(fd, (struct sockaddr *)&to, sizeof(to)) == 0;
    close(fd);
    return ok;
}

/* A shell starts it and waits, until it is killed. The pipe ends when the last
 * holder of it has gone. */
static void follows_its_parent(void **state)
{
    (void)state;
    char line[1024], extra[8];
    int fds[2];
    assert_int_equal(pipe(fds), 0);
    pid_t shell = fork();
    assert_true(shell >= 0);
    if (shell == 0) {
        dup2(fds[1], 1);
        close(fds[0]);
        close(fds[1]);
        execl("/bin/sh", "sh", "-c", "\"$0\" engine --die-with-parent & wait",
              program, (char *)NULL);
        _exit(99);
    }
    close(fds[1]);
    assert_true(read_line(fds[0], line, sizeof(line)) > 0);
    json_t *ready = json_loads(line, 0, NULL);
    assert_non_null(ready);
    unsigned int port =
        (unsigned)json_integer_value(json_object_get(ready, "http"));
    json_decref(ready);
    assert_true(answers(port));
    assert_int_equal(kill(shell, SIGKILL), 0);
    assert_int_equal(waitpid(shell, NULL, 0), shell);
    struct pollfd end = {.fd = fds[0], .events = POLLIN};
    assert_int_equal(poll(&end, 1, 10000), 1);
    assert_int_equal(read(fds[0], extra, sizeof(extra)), 0);
    assert_false(answers(port));
    close(fds[0]);
}

/* The parent has gone before the signal was asked for: its pid tells. */
static void parent_that_has_gone(void **state)
{
    (void)state;
    const char *const gone[] = {"1", "", "x"};
    const char *const options[] = {"--die-with-parent", NULL};
    char line[1024], mine[16];
    int out = -1;
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(setenv("BATON_PARENT_PID", gone[i], 1), 0);
        pid_t pid = spawn(options, &out);
        assert_int_equal(read_line(out, line, sizeof(line)), 0);
        assert_int_equal(exit_code(pid), 1);
        close(out);
    }
    snprintf(mine, sizeof(mine), "%d", (int)getpid());
    assert_int_equal(setenv("BATON_PARENT_PID", mine, 1), 0);
    pid_t pid = spawn(options, &out);
    assert_int_equal(unsetenv("BATON_PARENT_PID"), 0);
    assert_true(read_line(out, line, sizeof(line)) > 0);
    assert_int_equal(kill(pid, SIGTERM), 0);
    assert_int_equal(exit_code(pid), 0);
    close(out);
}

/* `baton serve` takes the same care, before it reads anything. */
static void serve_without_its_parent(void **state)
{
    (void)state;
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        close(2);
        setenv("BATON_PARENT_PID", "1", 1);
        execl(program, program, "serve", "--config", "/nonexistent",
              "--die-with-parent", (char *)NULL);
        _exit(99);
    }
    assert_int_equal(exit_code(pid), 1); /* not 3: bad configuration */
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ready_line_and_sigterm),
        cmocka_unit_test(bad_options),
        cmocka_unit_test(taken_port),
        cmocka_unit_test(taken_events_port),
        cmocka_unit_test(follows_its_parent),
        cmocka_unit_test(parent_that_has_gone),
        cmocka_unit_test(serve_without_its_parent),
    };
    program = argc > 1 ? argv[1] : "";
    return cmocka_run_group_tests(tests, NULL, NULL);
}
