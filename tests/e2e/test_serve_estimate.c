/* What `baton serve` foresees for a transfer reaches the decode engine, so that
 * one report has it beside what the transfer took: real processes, two
 * requests. Truth: the decision log, which the engine never sees.
 */
#include "truth_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char *program;
static struct truth t;

static int tidy_up(void **state)
{
    (void)state;
    truth_abandon(&t);
    return 0;
}

/* One request; its prompt is new, so all of its blocks move. */
static void ask(unsigned int variant)
{
    char prompt[1601], body[2048];
    make_prompt(prompt, sizeof(prompt) - 1, variant);
    snprintf(body, sizeof(body),
             "{\"model\":\"demo\",\"prompt\":\"%s\",\"max_tokens\":2}", prompt);
    struct answer a = rig_call(&t.listen, "/v1/completions", body);
    if (a.status != 200)
        fail_msg("status %ld: %s", a.status, a.body);
    answer_free(&a);
}

static json_t *get(const struct rig *rig, const char *path)
{
    struct answer a = rig_call(rig, path, NULL);
    assert_int_equal(a.status, 200);
    json_t *root = json_loads(a.body, 0, NULL);
    assert_non_null(root);
    answer_free(&a);
    return root;
}

/* The newest decisions, once there are so many; the caller's. */
static json_t *decisions(size_t count)
{
    int64_t until = truth_now_ns() + TRUTH_WAIT_S * 1000000000LL;
    for (;;) {
        json_t *root = get(&t.admin, "/admin/v1/decisions?limit=8");
        json_t *list =
            json_is_array(root) ? root : json_object_get(root, "decisions");
        if (json_array_size(list) == count)
            return root;
        json_decref(root);
        assert_true(truth_now_ns() < until);
        (void)poll(NULL, 0, 5);
    }
}

/* Is there a decision that foresaw this? It is logged to the microsecond. */
static bool was_foreseen(const json_t *root, long long ns)
{
    const json_t *list =
        json_is_array(root) ? root : json_object_get(root, "decisions");
    for (size_t i = 0; i < json_array_size(list); i++) {
        double said = 1e6 * json_number_value(json_object_get(
                                json_array_get(list, i), "pred_transfer_ms"));
        if (said > 0 && (double)ns - said < 1000 && said - (double)ns < 1000)
            return true;
    }
    return false;
}

/* The short list tells the same of each pull as the long one. */
static void same_in_pulls(const json_t *last)
{
    static const char *const names[][2] = {{"estimate_ns", "estimate_ns"},
                                           {"predicted_ns", "predicted_ns"},
                                           {"took_ns", "duration_ns"},
                                           {"bytes", "bytes"}};
    json_t *root = get(&t.engines[2].rig, "/admin/pulls");
    const json_t *pulls = json_object_get(root, "pulls");
    assert_int_equal(json_integer_value(json_object_get(root, "count")), 2);
    assert_int_equal(json_array_size(pulls), 2);
    for (size_t i = 0; i < 2; i++) {
        for (size_t n = 0; n < sizeof(names) / sizeof(names[0]); n++) {
            const json_t *a =
                json_object_get(json_array_get(pulls, i), names[n][0]);
            const json_t *b =
                json_object_get(json_array_get(last, i), names[n][1]);
            assert_true(json_is_integer(a) && json_is_integer(b));
            assert_int_equal(json_integer_value(a), json_integer_value(b));
        }
    }
    json_decref(root);
}

static void foreseen_beside_real(void **state)
{
    const struct truth_setup setup = {0};
    (void)state;
    truth_start(&t, program, &setup);
    ask(1);
    ask(2);
    json_t *said = decisions(2);
    json_t *root = get(&t.engines[2].rig, "/admin/state");
    const json_t *last =
        json_object_get(json_object_get(root, "transfer"), "last");
    assert_int_equal(json_array_size(last), 2);
    for (size_t i = 0; i < 2; i++) {
        const json_t *pull = json_array_get(last, i);
        long long estimate =
            json_integer_value(json_object_get(pull, "estimate_ns"));
        if (estimate <= 0 || !was_foreseen(said, estimate))
            fail_msg("pull %zu: %lld ns, not what was foreseen", i, estimate);
        assert_true(json_integer_value(json_object_get(pull, "duration_ns")) >
                    0);
    }
    same_in_pulls(last);
    json_decref(root);
    json_decref(said);
    truth_stop(&t);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(foreseen_beside_real, tidy_up),
    };
    if (argc < 2)
        return 2;
    program = argv[1];
    return cmocka_run_group_tests(tests, NULL, NULL);
}
