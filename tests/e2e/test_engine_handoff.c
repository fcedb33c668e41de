/* Two engines by hand: leg P, then leg D, as an orchestrator would send them.
 * The oracle says what the text must be. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine_rig.h"

#define BODY 8192
#define OUT  24

/* Leg P; returns the parameters. */
static char *leg_p(const struct rig *p, const char *prompt)
{
    char body[BODY];
    body_prefill(body, sizeof(body), prompt);
    struct answer a = rig_call(p, "/v1/completions", body);
    assert_int_equal(a.status, 200);
    char *params = answer_params(&a);
    answer_free(&a);
    return params;
}

static struct answer leg_d(const struct rig *d, const char *prompt,
                           const char *params)
{
    char body[BODY];
    body_decode(body, sizeof(body), prompt, OUT, params);
    return rig_call(d, "/v1/completions", body);
}

static void expect_oracle(const struct answer *a, const char *prompt)
{
    char got[256], want[OUT + 1];
    assert_int_equal(a->status, 200);
    answer_text(a, got, sizeof(got));
    oracle_text(prompt, NULL, OUT, want);
    assert_string_equal(got, want);
}

/* Both legs; the text must be right. */
static void both_legs(const struct rig *p, const struct rig *d,
                      const char *prompt)
{
    char *params = leg_p(p, prompt);
    struct answer a = leg_d(d, prompt, params);
    expect_oracle(&a, prompt);
    answer_free(&a);
    free(params);
}

static void expect_quiet(const struct rig *rig)
{
    rig_wait(rig, "leases", 0);
    rig_wait(rig, "blocks.held", 0);
    rig_wait(rig, "blocks.leased", 0);
    assert_int_equal(rig_state(rig, "blocks.free"),
                     rig_state(rig, "blocks.total"));
}

static void start_pair(struct rig *p, struct rig *d)
{
    struct bt_engine_config c;
    rig_config(&c, "p0");
    c.role = BT_ENGINE_PREFILL;
    rig_start(p, &c);
    rig_config(&c, "d0");
    c.role = BT_ENGINE_DECODE;
    rig_start(d, &c);
}

static void stop_pair(struct rig *p, struct rig *d)
{
    expect_quiet(p);
    expect_quiet(d);
    rig_stop(p);
    rig_stop(d);
}

static void text_is_right_and_less_moves(void **state)
{
    (void)state;
    struct rig p, d;
    char prompt[1024];
    /* around block borders: below one block, exact, one more, many */
    const size_t sizes[] = {1, 5, 15, 16, 17, 32, 100, 320, 333};
    start_pair(&p, &d);
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        long long before = rig_bytes_pulled(&d);
        make_prompt(prompt, sizes[i], 3 + (unsigned int)i);
        both_legs(&p, &d, prompt);
        long long first = rig_bytes_pulled(&d) - before;
        assert_int_equal(first, (long long)((sizes[i] + 15) / 16) * 4096);
        both_legs(&p, &d, prompt);
        long long second = rig_bytes_pulled(&d) - before - first;
        /* full blocks are there: only a partial tail moves again */
        assert_int_equal(second, sizes[i] % 16 == 0 ? 0 : 4096);
    }
    stop_pair(&p, &d);
}

static void plain_and_handed_off_agree(void **state)
{
    (void)state;
    struct rig p, d;
    char prompt[1024], body[BODY], one[256], two[256];
    start_pair(&p, &d);
    make_prompt(prompt, 500, 1);
    body_plain(body, sizeof(body), prompt, OUT);
    struct answer a = rig_call(&p, "/v1/completions", body);
    expect_oracle(&a, prompt);
    answer_text(&a, one, sizeof(one));
    answer_free(&a);
    char *params = leg_p(&p, prompt);
    a = leg_d(&d, prompt, params);
    answer_text(&a, two, sizeof(two));
    assert_string_equal(one, two);
    answer_free(&a);
    free(params);
    stop_pair(&p, &d);
}

static void other_layout_is_refused(void **state)
{
    (void)state;
    struct rig p, d;
    struct bt_engine_config c;
    char prompt[256];
    rig_config(&c, "p0");
    rig_start(&p, &c);
    rig_config(&c, "d0");
    c.kv_layout_version = 2;
    rig_start(&d, &c);
    make_prompt(prompt, 100, 1);
    char *params = leg_p(&p, prompt);
    struct answer a = leg_d(&d, prompt, params);
    assert_int_equal(a.status, 500);
    assert_non_null(strstr(a.body, "\"error\""));
    assert_int_equal(rig_state(&d, "totals.pulls_failed"), 1);
    answer_free(&a);
    free(params);
    rig_wait(&d, "blocks.held", 0);
    rig_stop(&p);
    rig_stop(&d);
}

static void dead_peer_is_an_error(void **state)
{
    (void)state;
    struct rig p, d;
    char prompt[256];
    start_pair(&p, &d);
    make_prompt(prompt, 100, 1);
    both_legs(&p, &d, prompt); /* the pair is connected */
    make_prompt(prompt, 100, 2);
    char *params = leg_p(&p, prompt);
    rig_kill(&p);
    struct answer a = leg_d(&d, prompt, params); /* within its 30 s */
    assert_int_equal(a.status, 500);
    answer_free(&a);
    free(params);
    expect_quiet(&d);
    rig_stop(&d);
}

static void lease_ends(void **state)
{
    (void)state;
    struct rig p, d;
    struct bt_engine_config c;
    char prompt[256];
    rig_config(&c, "p0");
    c.lease_ns = 100000000;
    rig_start(&p, &c);
    rig_config(&c, "d0");
    rig_start(&d, &c);
    make_prompt(prompt, 100, 1);
    char *params = leg_p(&p, prompt);
    rig_wait(&p, "totals.leases_expired", 1);
    expect_quiet(&p);
    struct answer a = leg_d(&d, prompt, params);
    assert_int_equal(a.status, 500);
    assert_non_null(strstr(a.body, "lease_expired"));
    answer_free(&a);
    free(params);
    a = rig_call(&p, "/metrics", NULL);
    assert_non_null(strstr(a.body, "vllm:nixl_num_kv_expired_reqs_total{engine"
                                   "=\"0\",model_name=\"demo\"} 1\n"));
    answer_free(&a);
    stop_pair(&p, &d);
}

static void recompute_policy(void **state)
{
    (void)state;
    struct rig p, d;
    struct bt_engine_config c;
    char prompt[256];
    rig_config(&c, "p0");
    rig_start(&p, &c);
    rig_config(&c, "d0");
    c.recompute = true;
    rig_start(&d, &c);
    make_prompt(prompt, 100, 1);
    char *params = leg_p(&p, prompt);
    rig_fault(&p, "{\"fault\":\"lease_expire\"}");
    struct answer a = leg_d(&d, prompt, params);
    expect_oracle(&a, prompt);
    assert_int_equal(rig_state(&d, "totals.prefill_tokens_computed"), 100);
    answer_free(&a);
    free(params);
    stop_pair(&p, &d);
}

static void flipped_byte_is_seen(void **state)
{
    (void)state;
    struct rig p, d;
    char prompt[256], got[256], want[OUT + 1];
    start_pair(&p, &d);
    make_prompt(prompt, 100, 1);
    char *params = leg_p(&p, prompt);
    rig_fault(&p, "{\"fault\":\"corrupt_block\",\"count\":1}");
    struct answer a = leg_d(&d, prompt, params);
    assert_int_equal(a.status, 200);
    answer_text(&a, got, sizeof(got));
    oracle_text(prompt, NULL, OUT, want);
    assert_int_equal(strlen(got), OUT);
    assert_string_not_equal(got, want);
    answer_free(&a);
    free(params);
    stop_pair(&p, &d);
}

/* The client leaves while the pull is under way: both sides let go. */
static void client_leaves_during_pull(void **state)
{
    (void)state;
    struct rig p, d;
    struct bt_engine_config c;
    const struct bt_engine_pace pace = {"p0", "slow", 2000, 0};
    char prompt[1024], body[BODY];
    rig_config(&c, "p0");
    rig_start(&p, &c);
    rig_config(&c, "d0");
    c.paces = &pace;
    c.pace_count = 1;
    rig_start(&d, &c);
    make_prompt(prompt, 800, 1);
    char *params = leg_p(&p, prompt);
    body_decode(body, sizeof(body), prompt, OUT, params);
    int fd = rig_open(&d, "/v1/completions", body);
    rig_wait(&d, "requests.pulling", 1);
    close(fd);
    rig_wait(&d, "requests.pulling", 0);
    free(params);
    stop_pair(&p, &d);
}

/* Parameters for a request that is refused before its pull starts. */
static void bad_params(void **state)
{
    (void)state;
    struct rig p, d;
    char prompt[256];
    const char *const cases[] = {
        "{\"do_remote_prefill\":true}",
        "{\"do_remote_prefill\":true,\"remote_block_ids\":[[1]],"
        "\"remote_engine_id\":\"e\",\"remote_request_id\":\"r\","
        "\"remote_host\":\"127.0.0.1\",\"remote_port\":1}",
        "{\"do_remote_prefill\":true,\"remote_block_ids\":[],"
        "\"remote_engine_id\":\"e\",\"remote_request_id\":\"r\","
        "\"remote_host\":\"127.0.0.1\",\"remote_port\":1}"};
    start_pair(&p, &d);
    make_prompt(prompt, 100, 1);
    for (size_t i = 0; i < 3; i++) {
        struct answer a = leg_d(&d, prompt, cases[i]);
        assert_int_equal(a.status, 500);
        answer_free(&a);
    }
    stop_pair(&p, &d);
}

/* A peer that cannot even be named: the pull never starts. */
static void unusable_host(void **state)
{
    (void)state;
    struct rig d;
    struct bt_engine_config c;
    char prompt[256];
    const char *params =
        "{\"do_remote_prefill\":true,"
        "\"remote_block_ids\":[[0,1,2,3,4,5,6]],"
        "\"remote_engine_id\":\"e\",\"remote_request_id\":\"r\","
        "\"remote_host\":\"no such host\",\"remote_port\":1}";
    make_prompt(prompt, 100, 1);
    for (int recompute = 0; recompute < 2; recompute++) {
        rig_config(&c, "d0");
        c.recompute = recompute == 1;
        rig_start(&d, &c);
        struct answer a = leg_d(&d, prompt, params);
        if (c.recompute) {
            expect_oracle(&a, prompt);
        } else {
            assert_int_equal(a.status, 500);
        }
        assert_int_equal(rig_state(&d, "totals.pulls_failed"), 1);
        answer_free(&a);
        expect_quiet(&d);
        rig_stop(&d);
    }
}

/* With --stream-eager the 200 has left: the failure is an event. */
static void eager_stream_fails_inside(void **state)
{
    (void)state;
    struct rig p, d;
    struct bt_engine_config c;
    char prompt[256], body[BODY];
    rig_config(&c, "p0");
    rig_start(&p, &c);
    rig_config(&c, "d0");
    c.stream_eager = true;
    rig_start(&d, &c);
    make_prompt(prompt, 100, 1);
    char *params = leg_p(&p, prompt);
    rig_fault(&p, "{\"fault\":\"lease_expire\"}");
    snprintf(body, sizeof(body),
             "{\"prompt\":\"%s\",\"stream\":true,"
             "\"kv_transfer_params\":%s}",
             prompt, params);
    struct answer a = rig_call(&d, "/v1/completions", body);
    assert_int_equal(a.status, 200);
    assert_non_null(strstr(a.body, "data: {\"error\":"));
    assert_non_null(strstr(a.body, "data: [DONE]\n\n"));
    answer_free(&a);
    free(params);
    stop_pair(&p, &d);
}

/* A waiting decode leg keeps its lease alive by beats, then gets its pull. */
static void waiting_leg_keeps_its_lease(void **state)
{
    (void)state;
    struct rig p, d;
    struct bt_engine_config c;
    char prompt[256], other[256], body[BODY];
    rig_config(&c, "p0");
    c.lease_ns = 600000000;
    rig_start(&p, &c);
    rig_config(&c, "d0");
    c.lease_ns = 600000000;
    c.seqs_max = 1;
    c.compute.speedup = 1; /* about 6 ms a token */
    rig_start(&d, &c);
    make_prompt(other, 20, 7);
    body_plain(body, sizeof(body), other, 250);
    int fd = rig_open(&d, "/v1/completions", body);
    rig_wait(&d, "requests.running", 1);
    make_prompt(prompt, 100, 1);
    char *params = leg_p(&p, prompt);
    struct answer a = leg_d(&d, prompt, params); /* waits 1.6 s */
    expect_oracle(&a, prompt);
    assert_int_equal(rig_state(&p, "totals.leases_expired"), 0);
    answer_free(&a);
    free(params);
    close(fd);
    stop_pair(&p, &d);
}

/* One engine may be both ends. */
static void pulls_from_itself(void **state)
{
    (void)state;
    struct rig e;
    struct bt_engine_config c;
    char prompt[256];
    rig_config(&c, "e0");
    rig_start(&e, &c);
    make_prompt(prompt, 100, 1);
    both_legs(&e, &e, prompt);
    expect_quiet(&e);
    rig_stop(&e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_is_right_and_less_moves),
        cmocka_unit_test(plain_and_handed_off_agree),
        cmocka_unit_test(other_layout_is_refused),
        cmocka_unit_test(dead_peer_is_an_error),
        cmocka_unit_test(lease_ends),
        cmocka_unit_test(recompute_policy),
        cmocka_unit_test(flipped_byte_is_seen),
        cmocka_unit_test(client_leaves_during_pull),
        cmocka_unit_test(bad_params),
        cmocka_unit_test(unusable_host),
        cmocka_unit_test(eager_stream_fails_inside),
        cmocka_unit_test(waiting_leg_keeps_its_lease),
        cmocka_unit_test(pulls_from_itself),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
