/* Request bodies at the front (field-failures.md group A and B08, B14): what is
 * refused, in which words, and what each leg gets. Truth: the bytes that
 * scripted workers saw. */
#include "serve_bed.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define LONG_PROMPT "a prompt that is certainly longer than two blocks of it"

static struct bed bed;
static char out[65536];

static int setup(void **state)
{
    (void)state;
    bed_start(&bed, "pd", "limits: {body: 64KiB, prompt_tokens: 20000}");
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    bed_idle(&bed);
    bed_stop(&bed);
    return 0;
}

static int completions(const char *body)
{
    return bed_request(&bed, "/v1/completions", body, out, sizeof(out));
}

static int chat(const char *body)
{
    return bed_request(&bed, "/v1/chat/completions", body, out, sizeof(out));
}

static unsigned int posts(void)
{
    return bed.workers[0].posts + bed.workers[1].posts;
}

static void bad_bodies_are_refused(void **state)
{
    static const struct {
        const char *body;
        int status;
        const char *says;
    } cases[] = {
        {"", 400, "error"},
        {"{", 400, "byte"},
        {"[]", 400, "object"},
        {"{\"model\":\"m\",\"prompt\":\"x\"", 400, "byte"},
        {"{\"model\":\"m\",\"prompt\":\"x\"} trailing", 400, "byte"},
        {"{\"prompt\":\"x\"}", 400, "model"},
        {"{\"model\":7,\"prompt\":\"x\"}", 400, "model"},
        {"{\"model\":\"\",\"prompt\":\"x\"}", 400, "model"},
        {"{\"model\":\"m\"}", 400, "prompt"},
        {"{\"model\":\"m\",\"prompt\":\"\"}", 400, "prompt"},
        {"{\"model\":\"m\",\"prompt\":null}", 400, "prompt"},
        {"{\"model\":\"m\",\"prompt\":[]}", 400, "prompt"},
        {"{\"model\":\"m\",\"prompt\":[[]]}", 400, "prompt"},
        {"{\"model\":\"m\",\"prompt\":7}", 400, "prompt"},
        {"{\"model\":\"m\",\"prompt\":[1,\"a\"]}", 400, "prompt"},
        {"{\"model\":\"m\",\"prompt\":[1,-2]}", 400, "prompt"},
        {"{\"model\":\"m\",\"prompt\":[4294967296]}", 400, "prompt"},
        {"{\"model\":\"m\",\"prompt\":\"x\",\"stream\":\"yes\"}", 400,
         "stream"},
        {"{\"model\":\"m\",\"prompt\":\"x\",\"max_tokens\":\"9\"}", 400,
         "max_tokens"},
        {"{\"model\":\"m\",\"prompt\":\"x\",\"n\":0}", 400, "'n'"},
        {"{\"model\":\"m\",\"prompt\":\"x\",\"stream_options\":{}}", 400,
         "stream_options"},
        {"{\"model\":\"m\",\"prompt\":\"x\",\"max_tokens\":4,\"min_tokens\":"
         "5}",
         400, "min_tokens"},
        {"{\"model\":\"other\",\"prompt\":\"x\"}", 404, "model"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        int status = completions(cases[i].body);

        if (status != cases[i].status || strstr(out, cases[i].says) == NULL ||
            strstr(out, "\"error\":{") == NULL)
            fail_msg("%s -> %d %s", cases[i].body, status, out);
    }
    assert_int_equal(posts(), 0);
}

/* A nest of arrays must neither crash nor cost; escapes and NULs pass. */
static void hostile_json(void **state)
{
    static char deep[20100];
    size_t n;

    (void)state;
    n = (size_t)snprintf(deep, sizeof(deep),
                         "{\"model\":\"m\",\"prompt\":\"x\",\"x\":");
    memset(deep + n, '[', 10000);
    deep[n + 10000] = '\0';
    assert_int_equal(completions(deep), 400);
    assert_int_equal(
        completions("{\"model\":\"m\",\"prompt\":\"\\u0000 \\ud800 "
                    "0123456789012345678\",\"temperature\":1e999,"
                    "\"user\":\"a\",\"user\":\"b\"}"),
        200);
    assert_non_null(
        strstr(bed.workers[1].last_body, "\"user\":\"a\",\"user\":\"b\""));
    assert_non_null(strstr(bed.workers[1].last_body, "\\u0000 \\ud800"));
    assert_non_null(strstr(bed.workers[1].last_body, "1e999"));
}

static void chat_limits_of_leg_p(void **state)
{
    (void)state;
    assert_int_equal(chat("{\"model\":\"m\",\"messages\":[{\"role\":\"user\","
                          "\"content\":\"" LONG_PROMPT "\"}],"
                          "\"max_completion_tokens\":500}"),
                     200);
    assert_non_null(
        strstr(bed.workers[0].last_body, "\"max_completion_tokens\":1"));
    assert_null(strstr(bed.workers[0].last_body, "500"));
    assert_non_null(
        strstr(bed.workers[1].last_body, "\"max_completion_tokens\":500"));
    assert_int_equal(chat("{\"model\":\"m\",\"messages\":[{\"role\":\"user\","
                          "\"content\":\"" LONG_PROMPT "\"}],"
                          "\"max_completion_tokens\":500,\"max_tokens\":"
                          "400}"),
                     200);
    assert_null(strstr(bed.workers[0].last_body, "500"));
    assert_null(strstr(bed.workers[0].last_body, "400"));
}

/* Requests that cannot be split between two workers go whole to D. */
static void served_whole(void **state)
{
    static const char *const bodies[] = {
        "{\"model\":\"m\",\"prompt\":\"" LONG_PROMPT
        "\",\"prompt_logprobs\":1}",
        "{\"model\":\"m\",\"prompt\":\"" LONG_PROMPT
        "\",\"echo\":true,\"logprobs\":1}",
        "{\"model\":\"m\",\"prompt\":\"" LONG_PROMPT "\",\"n\":2}",
        "{\"model\":\"m\",\"prompt\":[\"" LONG_PROMPT "\",\"p1\"]}",
        "{\"model\":\"m\",\"prompt\":[[1,2],[3]]}",
    };

    (void)state;
    for (size_t i = 0; i < sizeof(bodies) / sizeof(bodies[0]); i++) {
        unsigned int before = bed.workers[0].posts;

        assert_int_equal(completions(bodies[i]), 200);
        assert_int_equal(bed.workers[0].posts, before);
        /* nothing to change: the client's bytes */
        assert_string_equal(bed.workers[1].last_body, bodies[i]);
    }
}

static void client_params_are_removed(void **state)
{
    (void)state;
    assert_int_equal(
        completions("{\"model\":\"m\",\"prompt\":\"" LONG_PROMPT
                    "\",\"kv_transfer_params\":{\"do_remote_prefill\":true,"
                    "\"remote_host\":\"10.0.0.9\",\"remote_port\":1,"
                    "\"remote_block_ids\":[1]},\"bootstrap_room\":7,"
                    "\"bootstrap_host\":\"10.0.0.9\","
                    "\"kv_transfer_params\":{}}"),
        200);
    for (size_t i = 0; i < 2; i++) {
        assert_null(strstr(bed.workers[i].last_body, "10.0.0.9"));
        assert_null(strstr(bed.workers[i].last_body, "bootstrap"));
    }
    assert_non_null(strstr(bed.workers[1].last_body, bed_params()));
    assert_true(bed_metric(&bed, "baton_client_params_removed_total") == 4);
}

static void block_edges(void **state)
{
    static const size_t lengths[] = {1, 15, 16, 17, 255, 256, 257, 2047, 2049};
    static char body[16384];

    (void)state;
    for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
        unsigned int before = bed.workers[0].posts;
        size_t n = (size_t)snprintf(body, sizeof(body),
                                    "{\"model\":\"m\",\"prompt\":[");

        for (size_t t = 0; t < lengths[i]; t++)
            n += (size_t)snprintf(body + n, sizeof(body) - n, "%s%zu",
                                  t > 0 ? "," : "", t % 1000);
        snprintf(body + n, sizeof(body) - n, "]}");
        assert_int_equal(completions(body), 200);
        /* shorter than a block: P is skipped on purpose */
        assert_int_equal(bed.workers[0].posts - before, lengths[i] >= 16);
    }
}

#define TEXT_AND_IMAGE                                                         \
    "[{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"image_url\","             \
    "\"image_url\":{\"url\":\"data:x\"}}]"

static void contents_of_all_kinds(void **state)
{
    static const char *const contents[] = {"\"a\"", "null", "[]",
                                           "{\"text\":\"a\"}", TEXT_AND_IMAGE};
    char body[512];

    (void)state;
    for (size_t i = 0; i < sizeof(contents) / sizeof(contents[0]); i++) {
        snprintf(body, sizeof(body),
                 "{\"model\":\"m\",\"messages\":[{\"role\":\"user\","
                 "\"content\":%s}]}",
                 contents[i]);
        assert_int_equal(chat(body), 200);
        /* before P's parameters are added, the bytes are the client's */
        assert_non_null(strstr(bed.workers[1].last_body, contents[i]));
    }
    assert_int_equal(chat("{\"model\":\"m\",\"messages\":[{\"role\":\"user\"}]"
                          "}"),
                     200);
    assert_int_equal(chat("{\"model\":\"m\",\"messages\":[]}"), 400);
    assert_int_equal(chat("{\"model\":\"m\",\"messages\":\"x\"}"), 400);
}

static void too_large(void **state)
{
    struct bed_client c;
    static char body[70000];

    (void)state;
    bed_connect(&bed, &c, bed.ports.listen);
    memset(body, ' ', sizeof(body) - 1);
    bed_post(&c, "/v1/completions", body);
    assert_int_equal(bed_answer(&c), 413);
    assert_non_null(strstr(bed_body(&c), "\"error\":{"));
    bed_close(&c);
    assert_true(bed_metric(&bed, "baton_http_refused_total{code=\"413\"}") ==
                1);
}

static void keep_alive_after_an_error(void **state)
{
    struct bed_client c;

    (void)state;
    bed_connect(&bed, &c, bed.ports.listen);
    bed_post(&c, "/v1/completions", "{\"model\":");
    assert_int_equal(bed_answer(&c), 400);
    c.used = 0;
    c.in[0] = '\0';
    bed_post(&c, "/v1/completions",
             "{\"model\":\"m\",\"prompt\":\"" LONG_PROMPT "\"}");
    assert_int_equal(bed_answer(&c), 200);
    bed_close(&c);
}

/* A chunked request reaches the worker with a right Content-Length. */
static void check_framing(struct bed_worker *w, struct bt_httpd_request *req)
{
    const char *length = bt_httpd_header(req, "Content-Length");

    assert_null(bt_httpd_header(req, "Transfer-Encoding"));
    assert_non_null(length);
    assert_int_equal(strtoul(length, NULL, 10), w->last_body_bytes);
    w->n++;
    bed_well_behaved(w, req);
}

static void framing_towards_workers(void **state)
{
    struct bed_client c;
    const char body[] =
        "{\"model\":\"m\",\"prompt\":\"" LONG_PROMPT "\",\"max_tokens\":5}";
    char text[512];
    int n;

    (void)state;
    bed.workers[0].script = bed.workers[1].script = check_framing;
    bed_connect(&bed, &c, bed.ports.listen);
    n = snprintf(text, sizeof(text),
                 "POST /v1/completions HTTP/1.1\r\nHost: x\r\n"
                 "Transfer-Encoding: chunked\r\n\r\n%zx\r\n%s\r\n0\r\n\r\n",
                 strlen(body), body);
    bed_send(&c, text, (size_t)n);
    assert_int_equal(bed_answer(&c), 200);
    bed_close(&c);
    assert_int_equal(bed.workers[0].n, 1);
    assert_int_equal(bed.workers[1].n, 1);
}

static void unknown_routes(void **state)
{
    static const char *const paths[] = {"/v1/responses", "/v1/messages",
                                        "/inference/v1/generate",
                                        "/v1/embeddings", "/tokenize"};

    (void)state;
    for (size_t i = 0; i < sizeof(paths) / sizeof(paths[0]); i++) {
        assert_int_equal(bed_request(&bed, paths[i], "{}", out, sizeof(out)),
                         404);
        assert_non_null(strstr(out, "\"error\":{"));
    }
    assert_int_equal(posts(), 0);
}

#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(bad_bodies_are_refused),
        T(hostile_json),
        T(chat_limits_of_leg_p),
        T(served_whole),
        T(client_params_are_removed),
        T(block_edges),
        T(contents_of_all_kinds),
        T(too_large),
        T(keep_alive_after_an_error),
        T(framing_towards_workers),
        T(unknown_routes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
