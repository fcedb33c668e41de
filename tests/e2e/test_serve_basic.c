/* `baton serve` in front of scripted workers: the plain ways. Truth: the bytes
 * that the workers saw and the rules of engine-wire.md 3.2, 3.3. */
#include "serve_bed.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

/* 40 tokens: two whole blocks of 16 and a part. */
#define PROMPT                                                                 \
    "[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,"   \
    "27,28,29,30,31,32,33,34,35,36,37,38,39,40]"

static struct bed_worker *used(struct bed *bed, const char *role)
{
    struct bed_worker *found = NULL;

    for (size_t i = 0; i < bed->count; i++)
        if (strcmp(bed->workers[i].role, role) == 0 &&
            bed->workers[i].posts > 0) {
            assert_null(found);
            found = &bed->workers[i];
        }
    assert_non_null(found);
    return found;
}

static void streams_through_both_legs(void **state)
{
    static struct bed bed;
    static char out[8192];
    struct bed_worker *p, *d;
    const char body[] = "{\"model\":\"m\",\"prompt\":" PROMPT
                        ",\"max_tokens\":7,\"min_tokens\":2,\"stream\":true,"
                        "\"stream_options\":{\"include_usage\":true},"
                        "\"seed\":18446744073709551615}";

    (void)state;
    bed_start(&bed, "ppdd", NULL);
    assert_int_equal(
        bed_request(&bed, "/v1/completions", body, out, sizeof(out)), 200);
    assert_string_equal(
        out, "data: {\"id\":\"c\",\"choices\":[{\"index\":0,\"text\":\"a\"}]}"
             "\n\ndata: {\"id\":\"c\",\"choices\":[{\"index\":0,\"text\":\"b\","
             "\"finish_reason\":\"length\"}]}\n\ndata: [DONE]\n\n");
    p = used(&bed, "prefill");
    d = used(&bed, "decode");
    /* leg P */
    assert_null(strstr(p->last_body, "stream_options"));
    assert_null(strstr(p->last_body, "min_tokens"));
    assert_non_null(strstr(p->last_body, "\"stream\":false"));
    assert_non_null(strstr(p->last_body, "\"max_tokens\":1"));
    assert_non_null(strstr(p->last_body, "\"seed\":18446744073709551615"));
    assert_non_null(strstr(p->last_body, "\"do_remote_decode\":true"));
    /* leg D: the client's fields, and P's parameters byte for byte */
    assert_non_null(strstr(d->last_body, "\"max_tokens\":7"));
    assert_non_null(strstr(d->last_body, "\"min_tokens\":2"));
    assert_non_null(strstr(d->last_body, "include_usage"));
    assert_non_null(strstr(d->last_body, bed_params()));
    /* one fresh id for both legs */
    assert_string_equal(p->last_id, d->last_id);
    assert_true(strlen(p->last_id) >= 16);
    bed_idle(&bed);
    assert_true(bed_metric(&bed, "baton_requests_total{outcome=\"ok\"}") == 1);
    bed_stop(&bed);
}

static void note_transfer(struct bed_worker *w, struct bt_httpd_request *req)
{
    w->n = bt_httpd_header(req, "X-Baton-Transfer-Ns") != NULL ? 1 : -1;
    bed_well_behaved(w, req);
}

/* What is foreseen for the pull is told to the engine that makes it, beside its
 * parameters; nobody else sees it. */
static void tells_d_what_is_foreseen(void **state)
{
    static struct bed bed;
    static char out[8192];
    const char body[] = "{\"model\":\"m\",\"prompt\":" PROMPT "}";

    (void)state;
    bed_start(&bed, "pd", NULL);
    for (size_t i = 0; i < bed.count; i++)
        bed.workers[i].script = note_transfer;
    assert_int_equal(
        bed_request(&bed, "/v1/completions", body, out, sizeof(out)), 200);
    assert_int_equal(used(&bed, "prefill")->n, -1);
    assert_int_equal(used(&bed, "decode")->n, 1);
    bed_stop(&bed);
    memset(&bed, 0, sizeof(bed));
    bed_start(&bed, "b", NULL); /* whole on one worker: no transfer */
    bed.workers[0].script = note_transfer;
    assert_int_equal(
        bed_request(&bed, "/v1/completions", body, out, sizeof(out)), 200);
    assert_int_equal(bed.workers[0].n, -1);
    bed_stop(&bed);
}

static void answers_whole(void **state)
{
    static struct bed bed;
    static char out[8192];

    (void)state;
    bed_start(&bed, "pd", NULL);
    assert_int_equal(bed_request(&bed, "/v1/chat/completions",
                                 "{\"model\":\"m\",\"messages\":[{\"role\":"
                                 "\"user\",\"content\":\"a long enough prompt "
                                 "to fill a block\"}]}",
                                 out, sizeof(out)),
                     200);
    assert_non_null(strstr(out, "\"text\":\"ab\""));
    bed_idle(&bed);
    bed_stop(&bed);
}

static void explains_itself(void **state)
{
    static struct bed bed;
    static char out[32768];
    struct bed_client c;
    const char body[] =
        "{\"model\":\"m\",\"prompt\":" PROMPT ",\"stream\":true}";
    char head[512];
    int n;

    (void)state;
    bed_start(&bed, "ppdd", NULL);
    bed_connect(&bed, &c, bed.ports.listen);
    n = snprintf(head, sizeof(head),
                 "POST /v1/completions HTTP/1.1\r\nHost: x\r\nX-Request-Id: "
                 "mine-1\r\nContent-Length: %zu\r\n\r\n",
                 strlen(body));
    bed_send(&c, head, (size_t)n);
    bed_send(&c, body, strlen(body));
    assert_int_equal(bed_answer(&c), 200);
    assert_non_null(strcasestr(c.in, "x-request-id: mine-1\r\n"));
    bed_close(&c);
    bed_idle(&bed);
    assert_int_equal(bed_get(&bed, bed.ports.admin,
                             "/admin/v1/decisions/mine-1", out, sizeof(out)),
                     200);
    assert_non_null(strstr(out, "\"outcome\":\"ok\""));
    assert_non_null(strstr(out, "\"candidates_considered\":4"));
    assert_non_null(strstr(out, "\"pred_total_ms\":"));
    assert_non_null(strstr(out, "\"predicted_p90_ms\":"));
    assert_non_null(strstr(out, "\"ttft_ms\":"));
    assert_null(strstr(out, "13,14,15")); /* no token ids */
    assert_int_equal(bed_get(&bed, bed.ports.admin, "/admin/v1/decisions/other",
                             out, sizeof(out)),
                     404);
    bed_stop(&bed);
}

static void health_and_models(void **state)
{
    static struct bed bed;
    static char out[8192];

    (void)state;
    bed_start(&bed, "pd", NULL);
    assert_int_equal(
        bed_get(&bed, bed.ports.listen, "/readyz", out, sizeof(out)), 200);
    assert_int_equal(
        bed_get(&bed, bed.ports.listen, "/livez", out, sizeof(out)), 200);
    assert_int_equal(
        bed_get(&bed, bed.ports.listen, "/v1/models", out, sizeof(out)), 200);
    assert_non_null(strstr(out, "\"id\":\"m\""));
    assert_non_null(strstr(out, "\"id\":\"lora-a\""));
    assert_int_equal(bed_get(&bed, bed.ports.listen, "/nope", out, sizeof(out)),
                     404);
    assert_int_equal(
        bed_get(&bed, bed.ports.listen, "/v1/completions", out, sizeof(out)),
        405);
    bed_stop(&bed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(streams_through_both_legs),
        cmocka_unit_test(tells_d_what_is_foreseen),
        cmocka_unit_test(answers_whole),
        cmocka_unit_test(explains_itself),
        cmocka_unit_test(health_and_models),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
