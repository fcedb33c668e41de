/* Many at once: stale connections (A12), bodies and clients that do not read
 * within fixed memory (A13, A14), a retry storm within its budget (B03), a
 * worker that dies under 200 streams, clients that leave at any moment.
 * Truth: counts at the workers, the outcomes' sum, empty ledgers. */
#include "serve_bed.h"

#include "baton/base/rng.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <time.h>
#include <unistd.h>

#define TEXT   "\"prompt\":\"a prompt that is certainly longer than two blocks\""
#define STREAM "{\"model\":\"m\"," TEXT ",\"stream\":true}"
#define CHUNK  "data: {\"choices\":[{\"index\":0,\"text\":\"a\"}]}\n\n"

static struct bed bed;
static char out[262144];

static size_t occurrences(const char *text, const char *word)
{
    size_t n = 0;

    for (const char *at = text; (at = strstr(at, word)) != NULL; at++)
        n++;
    return n;
}

/* Every gauge of something held is zero; every request has an outcome. */
static void check_nothing_held(void)
{
    static const char *const held[] = {"baton_requests_in_flight{",
                                       "baton_worker_prefill_requests{",
                                       "baton_worker_prefill_tokens{",
                                       "baton_worker_decode_requests{",
                                       "baton_worker_decode_tokens{",
                                       "baton_worker_transfers{",
                                       "baton_queue_depth ",
                                       "baton_http_body_bytes ",
                                       "baton_requests_accepted_total ",
                                       "baton_requests_total{"};
    double accepted = 0, ended = 0;
    size_t rows = 0;

    bed_idle(&bed);
    bed_get(&bed, bed.ports.metrics, "/metrics", out, sizeof(out));
    for (char *line = out, *end; (end = strchr(line, '\n')) != NULL;
         line = end + 1) {
        *end = '\0';
        for (size_t i = 0; i < sizeof(held) / sizeof(held[0]); i++) {
            double value;

            if (strncmp(line, held[i], strlen(held[i])) != 0)
                continue;
            value = strtod(strrchr(line, ' '), NULL);
            rows++;
            if (i == 8)
                accepted += value;
            else if (i == 9)
                ended += value;
            else if (value > 0 || value < 0)
                fail_msg("not given back: %s", line);
        }
    }
    assert_true(rows >= 20);
    assert_true(accepted > 0);
    assert_int_equal(accepted, ended);
}

/* ---- A12 ---- */

/* Workers close their idle connections between requests, noticed or not. */
static void stale_connections(void **state)
{
    (void)state;
    bed_start(&bed, "pd", "health: {interval: 5s, stats_interval: 5s}");
    for (int i = 0; i < 200; i++) {
        if (i % 4 == 0)
            for (int w = 0; w < 2; w++) {
                bed_worker_stop(&bed.workers[w]);
                bed_worker_start(&bed.workers[w]);
            }
        if (i % 8 == 0)
            bed_turn(&bed, 0.005);
        if (bed_request(&bed, "/v1/completions", STREAM, out, sizeof(out)) !=
                200 ||
            strstr(out, "[DONE]") == NULL)
            fail_msg("request %d: %s", i, out);
    }
    assert_int_equal(bed.workers[0].posts, 200);
    assert_int_equal(bed.workers[1].posts, 200);
    assert_int_equal(bed_metric(&bed, "baton_retries_total"), 0);
    check_nothing_held();
    bed_stop(&bed);
}

/* ---- memory ---- */

static size_t resident(void)
{
    FILE *f = fopen("/proc/self/statm", "r");
    unsigned long size = 0, pages = 0;

    assert_non_null(f);
    assert_int_equal(fscanf(f, "%lu %lu", &size, &pages), 2);
    fclose(f);
    return pages * (size_t)sysconf(_SC_PAGESIZE);
}

static void check_growth(size_t before, size_t most)
{
    size_t now = resident();

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    (void)most; /* a sanitizer keeps freed memory */
    (void)before;
    (void)now;
#else
    if (now > before + most)
        fail_msg("grew by %zu KiB", (now - before) / 1024);
#endif
}

struct flood {
    struct bt_httpd_request *req;
    struct bed_worker *w;
    uint64_t sent;
};
static char piece[16384];

static void pour(void *arg)
{
    struct flood *f = arg;

    while (f->sent < (64u << 20)) {
        if (bt_httpd_stream_write(f->req, piece, sizeof(piece)) != BT_OK)
            return;
        f->sent += sizeof(piece);
    }
}

static void flood_over(void *arg)
{
    struct flood *f = arg;

    f->w->gone++;
    free(f);
}

static void d_flood(struct bed_worker *w, struct bt_httpd_request *req)
{
    struct flood *f = calloc(1, sizeof(*f));

    assert_non_null(f);
    f->req = req;
    f->w = w;
    memset(piece, 'x', sizeof(piece));
    memcpy(piece, "data: {\"choices\":[{\"text\":\"", 26);
    memcpy(piece + sizeof(piece) - 6, "\"}]}\n\n", 6);
    bt_httpd_watch(req, flood_over, flood_over, f);
    bt_httpd_stream_begin(req, 200, "text/event-stream", pour, f);
    pour(f);
}

#define READERS 50

static bool all_gone(void *arg)
{
    return ((struct bed_worker *)arg)->gone == READERS;
}

static void clients_that_do_not_read(void **state)
{
    static struct bed_client c[READERS];
    size_t before;

    (void)state;
    bed_start(&bed, "pd", "timeouts: {client_send: 2s}");
    bed.workers[1].script = d_flood;
    before = resident();
    for (int i = 0; i < READERS; i++) {
        bed_connect(&bed, &c[i], bed.ports.listen);
        ev_io_stop(bed.loop, &c[i].io);
        bed_post(&c[i], "/v1/completions", STREAM);
    }
    bed_turn(&bed, 1.0);
    /* Per client: a ring of 512 KiB for 256 KiB of content here, the same at
     * the scripted worker, the sanitizer's share and change; 64 MiB were
     * offered to each. */
    check_growth(before, (size_t)READERS * 2048 * 1024);
    bed_until(&bed, all_gone, &bed.workers[1], "all slow clients are cut");
    for (int i = 0; i < READERS; i++)
        bed_close(&c[i]);
    assert_int_equal(bed_metric(&bed, "baton_http_slow_clients_total"),
                     READERS);
    check_nothing_held();
    bed_stop(&bed);
}

#define BODIES 64

static struct bt_httpd_request *waiting[BODIES];
static int waiting_count;

static void p_keep(struct bed_worker *w, struct bt_httpd_request *req)
{
    (void)w;
    assert_true(waiting_count < BODIES);
    waiting[waiting_count++] = req;
}

/* Bodies beyond limits.body_total are refused, with a hint and in JSON. */
static void many_large_bodies(void **state)
{
    static struct bed_client c[BODIES];
    size_t big = 1u << 20, before;
    char *body = malloc(big + 256);
    int n, answered = 0, refused = 0;
    static const char reply[] =
        "{\"choices\":[{\"text\":\"x\"}],\"kv_transfer_params\":null}";

    (void)state;
    assert_non_null(body);
    n = snprintf(body, 256,
                 "{\"model\":\"m\",\"stream\":true," TEXT ",\"x_image\":\"");
    memset(body + n, 'y', big);
    memcpy(body + (size_t)n + big, "\"}", 3);
    bed_start(&bed, "pd", "limits: {body: 2MiB, body_total: 8MiB}");
    waiting_count = 0;
    bed.workers[0].script = p_keep;
    before = resident();
    for (int i = 0; i < BODIES; i++) {
        bed_connect(&bed, &c[i], bed.ports.listen);
        bed_post(&c[i], "/v1/completions", body);
    }
    bed_turn(&bed, 0.5);
    assert_true(bed_metric(&bed, "baton_http_body_bytes") <= (8u << 20));
    /* 7 bodies: here, for leg P, at the worker, as keys; not 64 of them. */
    check_growth(before, 48u << 20);
    assert_true(waiting_count >= 4 && waiting_count <= 8);
    for (int i = 0; i < waiting_count; i++)
        bt_httpd_reply(waiting[i], 200, "application/json", reply,
                       strlen(reply));
    for (int i = 0; i < BODIES; i++) {
        int status = bed_answer(&c[i]);

        answered += status == 200;
        refused += status == 503;
        if (status == 503 && (strcasestr(c[i].in, "\r\nRetry-After:") == NULL ||
                              strstr(c[i].in, "{\"error\":{") == NULL))
            fail_msg("a refusal without its words: %s", c[i].in);
        bed_close(&c[i]);
    }
    assert_int_equal(answered, waiting_count);
    assert_int_equal(answered + refused, BODIES);
    free(body);
    check_nothing_held();
    bed_stop(&bed);
}

/* ---- B03 ---- */

/* All prefills time out: 40 requests may cause few more than 40 prefills, and
 * each one is aborted on the worker that has it. */
static void retries_stay_within_their_budget(void **state)
{
    static struct bed_client c[40];

    (void)state;
    bed_start(&bed, "ppd",
              "timeouts: {prefill: 400ms}\n"
              "retry: {attempts: 4, budget: 0.1, budget_min: 2}");
    bed.workers[0].script = bed.workers[1].script = bed_hang;
    for (int i = 0; i < 40; i++) {
        bed_connect(&bed, &c[i], bed.ports.listen);
        bed_post(&c[i], "/v1/completions", STREAM);
    }
    for (int i = 0; i < 40; i++) {
        assert_true(bed_answer(&c[i]) >= 200);
        bed_close(&c[i]);
    }
    check_nothing_held();
    bed_turn(&bed, 0.1);
    for (int w = 0; w < 2; w++)
        assert_int_equal(bed.workers[w].gone, bed.workers[w].posts);
    assert_true(bed.workers[0].posts + bed.workers[1].posts >= 40);
    /* 2 free ones and a tenth of 40; then D does it alone, once each */
    assert_true(bed_metric(&bed, "baton_retries_total") <= 6);
    assert_true(bed.workers[0].posts + bed.workers[1].posts <= 46);
    assert_true(bed.workers[2].posts <= 40);
    bed_stop(&bed);
}

/* ---- a worker dies ---- */

#define STREAMS 200

static void d_begin(struct bed_worker *w, struct bt_httpd_request *req)
{
    (void)w;
    bt_httpd_stream_begin(req, 200, "text/event-stream", NULL, NULL);
    bt_httpd_stream_write(req, CHUNK, strlen(CHUNK));
}

static struct bed_client streams[STREAMS];

static bool all_begun(void *arg)
{
    (void)arg;
    for (int i = 0; i < STREAMS; i++)
        if (strstr(streams[i].in, "\"text\":\"a\"") == NULL)
            return false;
    return true;
}

static void a_worker_dies_under_its_streams(void **state)
{
    (void)state;
    bed_start(&bed, "ppdd", NULL);
    bed.workers[2].script = bed.workers[3].script = d_begin;
    for (int i = 0; i < STREAMS; i++) {
        bed_connect(&bed, &streams[i], bed.ports.listen);
        bed_post(&streams[i], "/v1/completions", STREAM);
    }
    bed_until(&bed, all_begun, NULL, "200 streams");
    bed_worker_stop(&bed.workers[2]);
    bed_worker_stop(&bed.workers[3]);
    for (int i = 0; i < STREAMS; i++) {
        assert_int_equal(bed_answer(&streams[i]), 200);
        assert_int_equal(occurrences(bed_body(&streams[i]), "\"error\":{"), 1);
        assert_null(strstr(bed_body(&streams[i]), "[DONE]"));
        bed_close(&streams[i]);
    }
    check_nothing_held();
    assert_int_equal(
        bed_metric(&bed, "baton_requests_total{outcome=\"truncated\"}"),
        STREAMS);
    bed_stop(&bed);
}

/* ---- clients leave at any moment ---- */

static struct bt_rng rng;

/* A worker that answers after a while, D in several pieces. */
struct later {
    struct bed_worker *w;
    struct bt_httpd_request *req;
    ev_timer timer;
    int left;
    bool prefill;
};

static void later_over(void *arg)
{
    struct later *l = arg;

    ev_timer_stop(l->w->bed->loop, &l->timer);
    free(l);
}

static double some_ms(unsigned int most)
{
    return (double)bt_rng_below(&rng, most + 1) / 1e3;
}

static void on_later(struct ev_loop *loop, ev_timer *timer, int events)
{
    static const char p[] =
        "{\"choices\":[{\"text\":\"x\"}],\"usage\":{\"prompt_tokens\":40},"
        "\"kv_transfer_params\":";
    struct later *l = timer->data;
    char buf[1024];
    int n;

    (void)events;
    if (l->prefill) {
        n = snprintf(buf, sizeof(buf), "%s%s}", p, bed_params());
        bt_httpd_reply(l->req, 200, "application/json", buf, (size_t)n);
        return;
    }
    if (l->left == 4)
        bt_httpd_stream_begin(l->req, 200, "text/event-stream", NULL, NULL);
    if (--l->left > 0) {
        bt_httpd_stream_write(l->req, CHUNK, strlen(CHUNK));
        ev_timer_set(timer, some_ms(8), 0.);
        ev_timer_start(loop, timer);
        return;
    }
    bt_httpd_stream_write(l->req, "data: [DONE]\n\n", 14);
    bt_httpd_stream_end(l->req);
}

static void answer_later(struct bed_worker *w, struct bt_httpd_request *req)
{
    struct later *l = calloc(1, sizeof(*l));

    assert_non_null(l);
    l->w = w;
    l->req = req;
    l->left = 4;
    l->prefill = strstr(w->last_body, "\"do_remote_decode\":true") != NULL;
    bt_httpd_watch(req, later_over, later_over, l);
    ev_timer_init(&l->timer, on_later, some_ms(10), 0.);
    l->timer.data = l;
    ev_timer_start(w->bed->loop, &l->timer);
}

#define WAVE 20

static void one_wave(void)
{
    static struct bed_client c[WAVE];
    int left = WAVE;
    bool open[WAVE];

    for (int i = 0; i < WAVE; i++) {
        bed_connect(&bed, &c[i], bed.ports.listen);
        bed_post(&c[i], "/v1/completions", STREAM);
        open[i] = true;
    }
    while (left > 0) {
        size_t i = (size_t)bt_rng_below(&rng, WAVE);

        bed_turn(&bed, some_ms(3));
        if (!open[i])
            continue;
        bed_close(&c[i]);
        open[i] = false;
        left--;
    }
}

static void clients_leave_at_any_moment(void **state)
{
    uint64_t seed = (uint64_t)getpid() * 2654435761u + (uint64_t)time(NULL);
    const char *given = getenv("BATON_TEST_SEED");
    unsigned int posts[4];

    (void)state;
    if (given != NULL)
        seed = strtoull(given, NULL, 10);
    print_message("seed %llu (BATON_TEST_SEED)\n", (unsigned long long)seed);
    bt_rng_seed(&rng, seed);
    bed_start(&bed, "ppdd", NULL);
    for (int i = 0; i < 4; i++)
        bed.workers[i].script = answer_later;
    for (int i = 0; i < 200 / WAVE; i++)
        one_wave();
    check_nothing_held();
    bed_turn(&bed, 0.3); /* the last hand-offs are given back */
    for (int i = 0; i < 4; i++)
        posts[i] = bed.workers[i].posts;
    bed_turn(&bed, 0.3);
    for (int i = 0; i < 4; i++)
        assert_int_equal(bed.workers[i].posts, posts[i]);
    check_nothing_held();
    bed_stop(&bed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stale_connections),
        cmocka_unit_test(clients_that_do_not_read),
        cmocka_unit_test(many_large_bodies),
        cmocka_unit_test(retries_stay_within_their_budget),
        cmocka_unit_test(a_worker_dies_under_its_streams),
        cmocka_unit_test(clients_leave_at_any_moment),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
