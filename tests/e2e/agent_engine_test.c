/* Engines with two rails and a shared key: text right, bytes over both rails,
 * times and predictions reported; an engine with another key gets nothing. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine_rig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BODY      8192
#define OUT       24
#define PULLS_MAX 15u /* of which /admin/state shows all */

static const struct bt_rail_config rails[2] = {
    {.name = "r0", .device = "lo"},
    {.name = "r1", .device = "lo"},
};

static void start(struct rig *rig, const char *name, const uint8_t *key)
{
    struct bt_engine_config c;

    rig_config(&c, name);
    c.kv_bytes_per_token = 65536; /* 1 MiB blocks: worth two rails */
    c.rails = rails;
    c.rail_count = 2;
    c.transfer_key = key;
    rig_start(rig, &c);
}

/* Both legs; the status of leg D. */
static long both_legs(const struct rig *p, const struct rig *d,
                      const char *prompt)
{
    char body[BODY], got[256];

    body_prefill(body, sizeof(body), prompt);
    struct answer a = rig_call(p, "/v1/completions", body);
    assert_int_equal(a.status, 200);
    char *params = answer_params(&a);
    answer_free(&a);
    body_decode(body, sizeof(body), prompt, OUT, params);
    free(params);
    a = rig_call(d, "/v1/completions", body);
    long status = a.status;
    if (status == 200) {
        answer_text(&a, got, sizeof(got));
        assert_int_equal(strlen(got), OUT);
    }
    answer_free(&a);
    return status;
}

static json_t *transfer_state(const struct rig *rig)
{
    struct answer a = rig_call(rig, "/admin/state", NULL);
    json_t *root = json_loads(a.body, 0, NULL);
    json_t *transfer = json_incref(json_object_get(root, "transfer"));

    answer_free(&a);
    json_decref(root);
    assert_non_null(transfer);
    return transfer;
}

static long long number(const json_t *root, const char *name)
{
    const json_t *value = json_object_get(root, name);

    if (!json_is_integer(value))
        fail_msg("no number '%s'", name);
    return json_integer_value(value);
}

/* True: bytes came over both rails. */
static bool check_pull(const json_t *pull, bool predicted)
{
    const json_t *bytes = json_object_get(pull, "rail_bytes");

    assert_string_equal(json_string_value(json_object_get(pull, "peer")), "p0");
    assert_int_equal(number(pull, "bytes"), 16 << 20);
    assert_int_equal(number(bytes, "r0") + number(bytes, "r1"), 16 << 20);
    assert_true(number(pull, "moved_ns") > 0);
    assert_true(number(pull, "duration_ns") >= number(pull, "moved_ns"));
    assert_int_equal(number(pull, "predicted_ns") > 0, predicted);
    return number(bytes, "r0") > 0 && number(bytes, "r1") > 0;
}

static void expect_metrics(const struct rig *d)
{
    struct answer a = rig_call(d, "/metrics", NULL);

    assert_non_null(strstr(a.body, "\nbaton_engine_pull_bytes_total{rail="
                                   "\"r1\"} "));
    assert_non_null(strstr(a.body, "\nbaton_engine_pull_seconds_total{part="
                                   "\"moved\"} "));
    assert_non_null(strstr(a.body, "\nbaton_engine_pull_error{peer=\"p0\""));
    answer_free(&a);
}

/* The second rail may still be connecting while the first pulls run. */
static void two_rails_and_a_key(void **state)
{
    static const uint8_t key[32] = {7, 7, 7};
    struct rig p, d;
    char prompt[512];
    bool both = false;
    unsigned int pulls = 0;

    (void)state;
    start(&p, "p0", key);
    start(&d, "d0", key);
    while (pulls < 3 || (!both && pulls < PULLS_MAX)) {
        make_prompt(prompt, 256, 40 + pulls); /* 16 blocks */
        assert_int_equal(both_legs(&p, &d, prompt), 200);
        pulls++;
        json_t *t = transfer_state(&d), *last = json_object_get(t, "last");
        assert_int_equal(json_array_size(last), pulls);
        both = check_pull(json_array_get(last, pulls - 1), pulls > 2);
        json_decref(t);
    }
    assert_true(both);
    json_t *t = transfer_state(&d);
    assert_int_equal(number(t, "rails_up"), 2);
    assert_int_equal(number(t, "checksum_failures"), 0);
    const json_t *path = json_array_get(json_object_get(t, "paths"), 0);
    assert_int_equal(number(path, "pulls"), pulls);
    assert_int_equal(number(path, "predicted"), pulls - 2);
    json_decref(t);
    expect_metrics(&d);
    rig_stop(&d);
    rig_stop(&p);
}

static void other_key(void **state)
{
    static const uint8_t keys[2][32] = {{1}, {2}};
    const uint8_t *const theirs[2] = {keys[1], NULL};
    struct rig p, d;
    char prompt[128];

    (void)state;
    start(&p, "p0", keys[0]);
    for (int i = 0; i < 2; i++) {
        start(&d, "d0", theirs[i]);
        make_prompt(prompt, 40, 60 + (unsigned int)i);
        assert_int_equal(both_legs(&p, &d, prompt), 500);
        assert_int_equal(rig_state(&d, "totals.pulls_failed"), 1);
        assert_int_equal(rig_bytes_pulled(&d), 0);
        rig_stop(&d);
    }
    json_t *t = transfer_state(&p);
    assert_true(number(t, "refused_auth") >= 2);
    json_decref(t);
    rig_stop(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_rails_and_a_key),
        cmocka_unit_test(other_key),
    };

    setenv("UCX_NET_DEVICES", "lo", 0); /* nothing leaves the machine */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
