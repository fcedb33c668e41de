/* Why a request went where it went: the admin API's candidate table and `baton
 * explain`, which prints it. The terms must add up to the total shown, the
 * chosen pair must be the one that got the legs, and the prediction must follow
 * from the configured model by hand. */
#include "serve_bed.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *baton; /* argv[1] */
static struct bed bed;
static char out[65536];

static double term(const json_t *candidate, const char *name)
{
    const json_t *value = json_object_get(candidate, name);

    assert_true(json_is_number(value));
    return json_number_value(value);
}

static void check_sums(const json_t *c)
{
    double arrival =
        term(c, "queue_ms") + term(c, "prefill_ms") + term(c, "transfer_ms");
    double total = fmax(arrival, term(c, "slot_ms")) + term(c, "step_ms");

    /* printed with three digits: at most half a microsecond off per term */
    assert_true(fabs(arrival - term(c, "arrival_ms")) < 0.0021);
    assert_true(fabs(total - term(c, "total_ms")) < 0.0041);
}

/* 1,600 tokens: 100 whole blocks. */
static void ask(const char *id)
{
    static char body[32768];
    struct bed_client c;
    char head[256];
    size_t n = (size_t)snprintf(body, sizeof(body),
                                "{\"model\":\"m\",\"stream\":true,"
                                "\"max_tokens\":10,\"prompt\":[1");
    int h;

    for (int i = 1; i < 1600; i++)
        n += (size_t)snprintf(body + n, sizeof(body) - n, ",%d", i);
    n += (size_t)snprintf(body + n, sizeof(body) - n, "]}");
    bed_connect(&bed, &c, bed.ports.listen);
    h = snprintf(head, sizeof(head),
                 "POST /v1/completions HTTP/1.1\r\nHost: x\r\nX-Request-Id: "
                 "%s\r\nContent-Length: %zu\r\n\r\n",
                 id, n);
    bed_send(&c, head, (size_t)h);
    bed_send(&c, body, n);
    assert_int_equal(bed_answer(&c), 200);
    bed_close(&c);
    bed_idle(&bed);
}

static const char *links = "links:\n"
                           "  - {from: w0, to: w2, class: slow, rate: 1MB/s, "
                           "setup: 2ms, descriptor: 1us}\n"
                           "  - {from: \"*\", to: \"*\", class: fast, rate: "
                           "100MB/s, setup: 1ms, descriptor: 1us}";

static json_t *decision(const char *id)
{
    char path[128];
    json_t *root;

    snprintf(path, sizeof(path), "/admin/v1/decisions/%s", id);
    assert_int_equal(bed_get(&bed, bed.ports.admin, path, out, sizeof(out)),
                     200);
    root = json_loads(out, 0, NULL);
    assert_non_null(root);
    return root;
}

static void terms_add_up(void **state)
{
    json_t *root, *list, *c;
    const char *p, *d;
    size_t i;
    bool chosen_seen = false;

    (void)state;
    bed_start(&bed, "ppdd", links);
    ask("sum-1");
    root = decision("sum-1");
    list = json_object_get(root, "candidates");
    assert_int_equal(json_array_size(list), 4);
    p = json_string_value(json_object_get(root, "prefill"));
    d = json_string_value(json_object_get(root, "decode"));
    json_array_foreach(list, i, c)
    {
        bool slow =
            strcmp(json_string_value(json_object_get(c, "prefill")), "w0") ==
                0 &&
            strcmp(json_string_value(json_object_get(c, "decode")), "w2") == 0;
        /* h100-8b-tp1: 0.47 + 0.01984 n + 3.8e-7 n^2 ms; 1,600 tokens of 256 B
         * in 100 runs of one block; step 6.35 + 0.006 + 3.95e-5 * 1,600 ms. */
        double prefill = 0.47 + 0.01984 * 1600 + 3.8e-7 * 1600 * 1600;
        double bytes = 1600 * 256.0;
        double transfer =
            slow ? 2 + 0.1 + bytes / 1e6 * 1e3 : 1 + 0.1 + bytes / 100e6 * 1e3;

        check_sums(c);
        assert_true(fabs(term(c, "prefill_ms") - prefill) < 0.002);
        assert_true(fabs(term(c, "transfer_ms") - transfer) < 0.002);
        assert_true(fabs(term(c, "step_ms") - 6.4192) < 0.002);
        assert_string_equal(json_string_value(json_object_get(c, "path_class")),
                            slow ? "slow" : "fast");
        if (strcmp(json_string_value(json_object_get(c, "prefill")), p) == 0 &&
            strcmp(json_string_value(json_object_get(c, "decode")), d) == 0) {
            chosen_seen = true;
            assert_false(slow);
            assert_true(term(c, "total_ms") == term(root, "pred_total_ms"));
        }
    }
    assert_true(chosen_seen);
    for (size_t w = 0; w < 4; w++)
        assert_int_equal(bed.workers[w].posts,
                         strcmp(bed.workers[w].name, p) == 0 ||
                             strcmp(bed.workers[w].name, d) == 0);
    json_decref(root);
    bed_stop(&bed);
}

/* ---- the command, as a process of its own ---- */

struct child {
    pid_t pid;
    int status;
    bool ended;
};

static bool child_ended(void *arg)
{
    struct child *c = arg;

    if (!c->ended && waitpid(c->pid, &c->status, WNOHANG) == c->pid)
        c->ended = true;
    return c->ended;
}

/* Run `baton explain --admin URL ARGS...` with its stdout in out. */
static int explain(const char *first, const char *second)
{
    char path[] = "/tmp/baton-explain-XXXXXX", url[64];
    int fd = mkstemp(path);
    struct child c = {0};
    ssize_t n;

    assert_true(fd >= 0);
    snprintf(url, sizeof(url), "http://127.0.0.1:%u", bed.ports.admin);
    c.pid = fork();
    assert_true(c.pid >= 0);
    if (c.pid == 0) {
        dup2(fd, STDOUT_FILENO);
        dup2(fd, STDERR_FILENO);
        execl(baton, baton, "explain", "--admin", url, first, second,
              (char *)NULL);
        _exit(127);
    }
    bed_until(&bed, child_ended, &c, "baton explain");
    n = pread(fd, out, sizeof(out) - 1, 0);
    assert_true(n >= 0);
    out[n] = '\0';
    close(fd);
    unlink(path);
    return WEXITSTATUS(c.status);
}

static void the_command_prints_it(void **state)
{
    const char *line;
    double queue, prefill, transfer, slot, step, total;

    (void)state;
    bed_start(&bed, "ppdd", links);
    ask("cmd-1");
    assert_int_equal(explain("cmd-1", NULL), 0);
    assert_non_null(strstr(out, "request cmd-1  policy joint"));
    assert_non_null(strstr(out, "4 pairs considered"));
    line = strstr(out, "chosen");
    assert_non_null(line);
    while (line > out && line[-1] != '\n')
        line--;
    assert_int_equal(sscanf(line,
                            "%*s %*s %*s %*s %*s %*s %lf %lf %lf %lf "
                            "%lf %lf",
                            &queue, &prefill, &transfer, &slot, &step, &total),
                     6);
    assert_true(fabs(fmax(queue + prefill + transfer, slot) + step - total) <
                0.0041);
    assert_int_equal(explain("--tokens", "8000"), 0);
    assert_non_null(strstr(out, "what if"));
    assert_int_equal(explain("no-such-id", NULL), 1);
    assert_non_null(strstr(out, "no decision of that request id"));
    assert_int_equal(explain("--output=json", "cmd-1"), 0);
    assert_non_null(strstr(out, "\"request_id\":\"cmd-1\""));
    bed_stop(&bed);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(terms_add_up),
        cmocka_unit_test(the_command_prints_it),
    };

    if (argc < 2)
        return 2;
    baton = argv[1];
    return cmocka_run_group_tests(tests, NULL, NULL);
}
