/* `baton demo` as a user runs it: report, exit codes, messages, --keep, no
 * child left behind.   test BATON */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "baton/bench/cluster.h"
#include "baton/orchestrator/json.h"
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <ev.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define OUTPUT_MAX 65536
#define LIMIT_MS   90000

static char *program;
/* What a killed or failing demo leaves behind goes there. */
static char directory[] = "/tmp/baton-e2e-demo-XXXXXX";
static char directory_option[64];

struct child {
    pid_t pid;
    int out, err;
    char stdout_text[OUTPUT_MAX], stderr_text[OUTPUT_MAX];
    size_t stdout_bytes, stderr_bytes;
    int exit_code;
};

static void spawn(struct child *c, char *const argv[])
{
    int out[2], err[2];

    memset(c, 0, sizeof(*c));
    assert_int_equal(pipe2(out, O_CLOEXEC), 0);
    assert_int_equal(pipe2(err, O_CLOEXEC), 0);
    c->pid = fork();
    assert_true(c->pid >= 0);
    if (c->pid == 0) {
        dup2(out[1], STDOUT_FILENO);
        dup2(err[1], STDERR_FILENO);
        execv(argv[0], argv);
        _exit(127);
    }
    close(out[1]);
    close(err[1]);
    c->out = out[0];
    c->err = err[0];
}

/* False at its end. */
static bool take(int *fd, char *text, size_t *bytes)
{
    char scrap[4096];
    size_t room = OUTPUT_MAX - 1 - *bytes;
    ssize_t count =
        room ? read(*fd, text + *bytes, room) : read(*fd, scrap, sizeof(scrap));

    if (count <= 0) {
        close(*fd);
        *fd = -1;
        return false;
    }
    if (room)
        *bytes += (size_t)count;
    text[*bytes] = '\0';
    return true;
}

/* Read until both ends are closed, or until stderr has the words. */
static void read_until(struct child *c, const char *words)
{
    while (c->out >= 0 || c->err >= 0) {
        struct pollfd fds[2] = {{.fd = c->out, .events = POLLIN},
                                {.fd = c->err, .events = POLLIN}};

        if (poll(fds, 2, LIMIT_MS) <= 0) {
            kill(c->pid, SIGKILL);
            fail_msg("nothing for %d ms; stderr: %s", LIMIT_MS, c->stderr_text);
        }
        if (fds[0].revents)
            (void)take(&c->out, c->stdout_text, &c->stdout_bytes);
        if (fds[1].revents)
            (void)take(&c->err, c->stderr_text, &c->stderr_bytes);
        if (words && strstr(c->stderr_text, words))
            return;
    }
}

static void collect(struct child *c)
{
    int status = 0;

    assert_int_equal(waitpid(c->pid, &status, 0), c->pid);
    c->exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    if (c->out >= 0)
        close(c->out);
    if (c->err >= 0)
        close(c->err);
}

static struct child *run(char *const argv[])
{
    struct child *c = malloc(sizeof(*c));

    assert_non_null(c);
    spawn(c, argv);
    read_until(c, NULL);
    collect(c);
    return c;
}

#define RUN(...) run((char *[]){program, (char[]){"demo"}, __VA_ARGS__, NULL})
#define ARG(text)                                                              \
    (char[])                                                                   \
    {                                                                          \
        text                                                                   \
    }

static void get(const struct bt_json *object, const char *name,
                struct bt_json *out)
{
    if (!bt_json_member(object, name, out, NULL))
        fail_msg("no member '%s'", name);
}

static double number(const struct bt_json *object, const char *name)
{
    struct bt_json value;
    double out = 0;

    get(object, name, &value);
    assert_int_equal(bt_json_double(&value, &out), BT_OK);
    return out;
}

static void check_policy(const struct bt_json *policy, double requests)
{
    struct bt_json inner;

    assert_true(number(policy, "requests") == requests);
    assert_true(number(policy, "wrong_outputs") == 0);
    assert_true(number(policy, "errors") == 0);
    get(policy, "ttft_ms", &inner);
    assert_true(number(&inner, "mean") > 0);
    assert_true(number(&inner, "p50") <= number(&inner, "p95"));
    assert_true(number(&inner, "p95") <= number(&inner, "p99"));
    get(policy, "ttst_ms", &inner);
    assert_true(number(&inner, "mean") > 0);
    get(policy, "tpot_ms", &inner);
    assert_true(number(&inner, "p99") > 0);
    assert_true(number(policy, "prefix_overlap_ratio") > 0);
    assert_true(number(policy, "prefill_tokens_saved") > 0);
    assert_true(number(policy, "goodput_rps") >= 0);
    get(policy, "kv_bytes", &inner);
    assert_true(number(&inner, "fast") > 0);
    get(policy, "imbalance", &inner);
    assert_true(number(&inner, "prefill") >= 1);
    assert_true(number(&inner, "decode") >= 1);
    get(policy, "routing_us", &inner);
    assert_true(number(&inner, "p99") > 0);
}

static void test_report_as_json(void **state)
{
    static const char *const names[] = {"round_robin", "least_loaded",
                                        "prefix_load", "joint"};
    struct bt_json root, list, policy, value;
    size_t cursor = 0;
    double slow[4];
    struct child *c = RUN(ARG("--output=json"), ARG("--requests=40"),
                          ARG("--rate=20"), ARG("--seed=3"));

    (void)state;
    if (c->exit_code != 0)
        fail_msg("exit %d: %s", c->exit_code, c->stderr_text);
    assert_int_equal(
        bt_json_parse(c->stdout_text, c->stdout_bytes, &root, NULL), BT_OK);
    get(&root, "policies", &list);
    for (size_t i = 0; i < 4; i++) {
        assert_true(bt_json_next(&list, &cursor, NULL, &policy));
        get(&policy, "policy", &value);
        assert_true(bt_json_is(&value, names[i]));
        check_policy(&policy, 40);
        get(&policy, "kv_bytes", &value);
        slow[i] = number(&value, "slow");
    }
    /* Round robin sends every fourth request over the slow pair; who sees the
     * cost of the move must send far less. */
    assert_true(slow[0] > 0);
    assert_true(slow[3] < slow[0] / 2);
    get(&root, "comparison", &value);
    assert_true(number(&value, "pairs") == 40);
    free(c);
}

/* Predictions are of this run, whatever an earlier one left in the directory;
 * every fourth pull goes over the slow pair and was foreseen. */
static void test_predictions_of_this_run(void **state)
{
    struct bt_json root, list, policy, value;
    char path[128], line[16384];
    size_t cursor = 0, lines = 0;
    struct child *c;
    FILE *log;

    (void)state;
    snprintf(path, sizeof(path), "%s/decisions-round_robin.jsonl", directory);
    log = fopen(path, "w");
    assert_non_null(log);
    fprintf(log, "{\"of\":\"an earlier run\"}\n");
    fclose(log);
    c = RUN(ARG("--output=json"), ARG("--requests=12"), ARG("--rate=20"),
            ARG("--policy=round_robin"), directory_option);
    if (c->exit_code != 0)
        fail_msg("exit %d: %s", c->exit_code, c->stderr_text);
    log = fopen(path, "r");
    assert_non_null(log);
    while (fgets(line, sizeof(line), log)) {
        lines++;
        assert_null(strstr(line, "an earlier run"));
    }
    fclose(log);
    assert_int_equal(lines, 12);
    assert_int_equal(
        bt_json_parse(c->stdout_text, c->stdout_bytes, &root, NULL), BT_OK);
    get(&root, "policies", &list);
    assert_true(bt_json_next(&list, &cursor, NULL, &policy));
    get(&policy, "predicted_transfer", &value);
    assert_true(number(&value, "count") >= 3);
    get(&policy, "predicted_pull", &value);
    assert_true(number(&value, "count") >= 3);
    assert_true(number(&value, "realised_ms") > 0);
    assert_true(number(&value, "error_mean_ms") > 0);
    free(c);
}

static void test_trace(void **state)
{
    char path[] = "/tmp/baton-e2e-trace-XXXXXX", option[64];
    int fd = mkstemp(path);
    FILE *file = fdopen(fd, "w");
    struct child *c;

    (void)state;
    assert_non_null(file);
    for (int i = 0; i < 6; i++)
        fprintf(file,
                "{\"timestamp\": 0, \"input_length\": 1500, "
                "\"output_length\": 64, \"hash_ids\": [0, %d, %d]}\n",
                i / 2 + 1, i + 10);
    fclose(file);
    snprintf(option, sizeof(option), "--trace=%s", path);
    c = RUN(option, ARG("--policy=joint"), ARG("--trace-tokens=16"),
            ARG("--trace-scale=3"));
    if (c->exit_code != 0)
        fail_msg("exit %d: %s", c->exit_code, c->stderr_text);
    assert_non_null(strstr(c->stdout_text, "wrong outputs"));
    assert_non_null(strstr(c->stdout_text, "6 requests"));
    free(c);
    file = fopen(path, "a");
    assert_non_null(file);
    fprintf(file, "{\"timestamp\": 0}\n");
    fclose(file);
    c = RUN(option);
    assert_int_equal(c->exit_code, 3);
    assert_non_null(strstr(c->stderr_text, ":7:1: 'input_length' is missing"));
    assert_int_equal(c->stdout_bytes, 0);
    free(c);
    unlink(path);
}

static void test_usage(void **state)
{
    struct child *c = RUN(ARG("--policy=nonsense"));

    (void)state;
    assert_int_equal(c->exit_code, 2);
    assert_non_null(strstr(c->stderr_text, "no policy 'nonsense'"));
    assert_non_null(strstr(c->stderr_text, "joint"));
    free(c);
    c = RUN(ARG("--output=xml"));
    assert_int_equal(c->exit_code, 2);
    free(c);
    c = RUN(ARG("--rate=0"));
    assert_int_equal(c->exit_code, 2);
    free(c);
    c = RUN(ARG("extra"));
    assert_int_equal(c->exit_code, 2);
    free(c);
    c = RUN(ARG("--trace=/nonexistent/trace.jsonl"));
    assert_int_equal(c->exit_code, 3);
    assert_non_null(strstr(c->stderr_text, "/nonexistent/trace.jsonl"));
    free(c);
}

static int listen_on(uint16_t *port_out)
{
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t bytes = sizeof(address);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    assert_true(fd >= 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof(address)), 0);
    assert_int_equal(listen(fd, 1), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &bytes), 0);
    *port_out = ntohs(address.sin_port);
    return fd;
}

/* serve cannot have the port: the message quotes serve's own words. */
static void test_a_child_that_does_not_start(void **state)
{
    uint16_t port = 0;
    int fd = listen_on(&port);
    char option[32];
    struct child *c;

    (void)state;
    snprintf(option, sizeof(option), "--port=%u", port);
    c = RUN(option, ARG("--requests=5"), ARG("--policy=joint"),
            directory_option);
    if (c->exit_code != 4)
        fail_msg("exit %d: %s", c->exit_code, c->stderr_text);
    assert_non_null(strstr(c->stderr_text, "the cluster did not start"));
    assert_non_null(strstr(c->stderr_text, "last words"));
    close(fd);
    free(c);
}

static bool refuses(uint16_t port)
{
    struct sockaddr_in address = {.sin_family = AF_INET};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool refused;

    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    assert_true(fd >= 0);
    refused = connect(fd, (struct sockaddr *)&address, sizeof(address)) != 0 &&
              errno == ECONNREFUSED;
    close(fd);
    return refused;
}

/* The first "http://127.0.0.1:PORT" after the words. */
static uint16_t port_after(const char *text, const char *words)
{
    const char *at = strstr(text, words);

    assert_non_null(at);
    at = strstr(at, "http://127.0.0.1:");
    assert_non_null(at);
    return (uint16_t)strtoul(at + strlen("http://127.0.0.1:"), NULL, 10);
}

static void check_curl_line(const char *text)
{
    struct ev_loop *loop = ev_loop_new(EVFLAG_AUTO);
    char url[64], body[512], *answer = NULL;
    const char *from = strstr(text, "-d '"), *to;
    size_t bytes = 0;
    int http = 0;

    assert_non_null(loop);
    assert_non_null(from);
    from += 4;
    to = strchr(from, '\'');
    assert_true(to && (size_t)(to - from) < sizeof(body));
    memcpy(body, from, (size_t)(to - from));
    body[to - from] = '\0';
    snprintf(url, sizeof(url), "http://127.0.0.1:%u/v1/completions",
             port_after(text, "curl -s"));
    assert_int_equal(
        bt_fetch(loop, url, body, 20000000000, &http, &answer, &bytes), BT_OK);
    assert_int_equal(http, 200);
    assert_non_null(strstr(answer, "\"text\""));
    free(answer);
    ev_loop_destroy(loop);
}

static void wait_refused(uint16_t port)
{
    for (int i = 0; i < 100; i++) {
        if (refuses(port))
            return;
        usleep(100000);
    }
    fail_msg("port %u still accepts", port);
}

/* --keep: what it prints works; a killed demo leaves no child; Ctrl-C ends
 * everything. */
static void test_keep(void **state)
{
    static const int signals[] = {SIGKILL, SIGINT};
    char *argv[] = {program,
                    ARG("demo"),
                    ARG("--keep"),
                    ARG("--requests=4"),
                    ARG("--policy=joint"),
                    directory_option,
                    NULL};

    (void)state;
    for (size_t i = 0; i < 2; i++) {
        struct child *c = malloc(sizeof(*c));
        uint16_t api, admin;

        assert_non_null(c);
        spawn(c, argv);
        read_until(c, "\"max_tokens\":24}'\n");
        api = port_after(c->stderr_text, "API");
        admin = port_after(c->stderr_text, "admin");
        check_curl_line(c->stderr_text);
        assert_false(refuses(admin));
        kill(c->pid, signals[i]);
        read_until(c, NULL);
        collect(c);
        assert_int_equal(c->exit_code, signals[i] == SIGINT ? 0 : -1);
        wait_refused(api);
        wait_refused(admin);
        free(c);
    }
}

/* Ctrl-C in the middle of a run: a word, exit 1, nothing on stdout. */
static void test_interrupt(void **state)
{
    char *argv[] = {program, ARG("demo"), ARG("--requests=1000"),
                    ARG("--verbose"), NULL};
    struct child *c = malloc(sizeof(*c));

    (void)state;
    assert_non_null(c);
    spawn(c, argv);
    read_until(c, "worker_ready");
    kill(c->pid, SIGINT);
    read_until(c, NULL);
    collect(c);
    assert_int_equal(c->exit_code, 1);
    assert_non_null(strstr(c->stderr_text, "baton demo: interrupted"));
    assert_int_equal(c->stdout_bytes, 0);
    free(c);
}

/* The benchmarks run, name their rows and leave nothing but their report. */
static void check_bench(char *const argv[], const char *name,
                        const char *const *rows)
{
    struct child *c = run(argv);
    struct bt_json root, list;
    size_t cursor = 0, count = 0;
    struct bt_json row;

    if (c->exit_code != 0)
        fail_msg("exit %d: %s", c->exit_code, c->stderr_text);
    assert_int_equal(
        bt_json_parse(c->stdout_text, c->stdout_bytes, &root, NULL), BT_OK);
    get(&root, name, &list);
    while (bt_json_next(&list, &cursor, NULL, &row)) {
        (void)number(&row, "value");
        count++;
    }
    assert_true(count >= 10);
    for (size_t i = 0; rows[i]; i++) {
        if (!strstr(c->stdout_text, rows[i]))
            fail_msg("no row '%s' in %s", rows[i], c->stdout_text);
    }
    assert_null(strstr(c->stdout_text, "errors in a"));
    assert_null(strstr(c->stdout_text, "could not be held"));
    free(c);
}

static void test_bench(void **state)
{
    static const char *const http_rows[] = {
        "\"serve: added p50, 1 KB\"",
        "\"serve: added p99, 40 KB\"",
        "\"serve: requests, 1 KB\"",
        "\"serve: requests per CPU second, 40 KB\"",
        "\"serve: resident idle\"",
        "\"serve: resident with 50 streams\"",
        "\"serve P+D: added p50, 1 KB\"",
        NULL};
    static const char *const place_rows[] = {
        "\"hash 8192 tokens into 512 keys\"",
        "\"look up 512 keys, 64 workers\"", "\"place joint, 8x8\"",
        "\"decisions_per_s\"", NULL};
    char *http[] = {program,
                    ARG("bench"),
                    ARG("http"),
                    ARG("--output=json"),
                    ARG("--requests=50"),
                    ARG("--duration=200ms"),
                    ARG("--connections=4"),
                    ARG("--streams=50"),
                    NULL};
    char *place[] = {program,
                     ARG("bench"),
                     ARG("place"),
                     ARG("--output=json"),
                     ARG("--largest=8"),
                     NULL};
    char *wrong[] = {program, ARG("bench"), ARG("nonsense"), NULL};
    struct child *c = run(wrong);

    (void)state;
    assert_int_equal(c->exit_code, 2);
    free(c);
    check_bench(http, "results", http_rows);
    check_bench(place, "rows", place_rows);
}

static int make_directory(void **state)
{
    (void)state;
    if (!mkdtemp(directory))
        return -1;
    snprintf(directory_option, sizeof(directory_option), "--dir=%s", directory);
    return 0;
}

static int remove_directory(void **state)
{
    DIR *entries = opendir(directory);
    const struct dirent *entry;

    (void)state;
    if (!entries)
        return -1;
    while ((entry = readdir(entries)) != NULL) {
        if (entry->d_name[0] != '.')
            (void)unlinkat(dirfd(entries), entry->d_name, 0);
    }
    closedir(entries);
    return rmdir(directory);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_usage),
        cmocka_unit_test(test_report_as_json),
        cmocka_unit_test(test_predictions_of_this_run),
        cmocka_unit_test(test_trace),
        cmocka_unit_test(test_a_child_that_does_not_start),
        cmocka_unit_test(test_keep),
        cmocka_unit_test(test_interrupt),
        cmocka_unit_test(test_bench),
    };

    if (argc != 2) {
        fprintf(stderr, "usage: %s BATON\n", argv[0]);
        return 2;
    }
    program = argv[1];
    signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests(tests, make_directory, remove_directory);
}
