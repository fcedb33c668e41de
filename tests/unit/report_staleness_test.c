/* The study of staleness on a closed system whose break-even is known: load
 * alone gives a TTFT of 1 s; joint 0.5 s + 0.1 s per second of lag + the loss,
 * a tenth of it with replay; without events 0.9 s, with guesses 0.72 s.
 * prefix_load is always 2 s.
 */
#include "report_world.h"

#include <jansson.h>
#include <stdio.h>

#define S 1000000000LL

static double due(const struct bt_sim_config *c)
{
    const struct bt_sim_knowledge *k = &c->knowledge;

    if (strcmp(c->policy, "least_loaded") == 0)
        return 1;
    if (strcmp(c->policy, "prefix_load") == 0)
        return 2;
    if (k->events_off)
        return k->approximate && k->self_check ? 0.72 : 0.9;
    return 0.5 + 0.1 * (double)k->event_lag_ns / 1e9 +
           k->event_loss * (k->event_replay ? 0.1 : 1);
}

static void stale_run(void *arg, const struct bt_sim_config *config,
                      bool keep_samples, struct bt_report_result *out)
{
    double ttft = due(config);

    world_run(arg, config, keep_samples, out);
    if (config->knowledge.approximate && config->knowledge.events_off)
        out->effects_hash++; /* else the fallback is idle */
    out->all.ttft.mean = out->all.ttft.p50 = ttft;
    out->predicted_share = 0.5;
    out->realised_share = 0.25;
    out->wrong_credit = config->knowledge.event_loss;
    for (size_t i = 0; keep_samples && i < out->sample_count; i++)
        out->samples[BT_REPORT_TTFT][i] = i < 20 ? NAN : (float)ttft;
}

static char *run(struct world *w, const struct bt_report_study_options *o,
                 size_t *failed)
{
    char error[BT_REPORT_ERROR_MIN] = "", *text = NULL;
    size_t bytes = 0;
    FILE *to = open_memstream(&text, &bytes);
    enum bt_status status;

    assert_non_null(to);
    w->setup.jobs.run = stale_run;
    status = bt_report_study("staleness", &w->setup, o, to, failed, error,
                             sizeof(error));
    fclose(to);
    if (status != BT_OK)
        fail_msg("%s: %s", bt_status_text(status), error);
    return text;
}

static void start(struct world *w, struct bt_report_study_options *o)
{
    static const char *const none[] = {NULL};
    static const int64_t lags[] = {0, 4 * S, 6 * S, 60 * S};

    world_init(w, none);
    memset(o, 0, sizeof(*o));
    o->load = 1;
    memcpy(o->lags, lags, sizeof(lags));
    o->lag_count = 4;
    o->losses[1] = 0.6;
    o->loss_count = 2;
}

static void breaks_even_where_it_is_known(void **state)
{
    struct bt_report_study_options o;
    struct world *w = calloc(1, sizeof(*w));
    size_t failed = 9;
    char *text;

    (void)state;
    assert_non_null(w);
    start(w, &o);
    text = run(w, &o, &failed);
    assert_int_equal(failed, 0);
    /* 0.5 + 0.1 lag = 1 at 5 s */
    assert_non_null(strstr(text, "\njoint, without loss: load alone is better "
                                 "from a lag of 6 s on (mean TTFT +10.0 %"));
    /* 0.5 + 0.06 + 0.1 lag: at 4.4 s */
    assert_non_null(strstr(text, "\njoint, at 60.0 % loss, replay on: load "
                                 "alone is better from a lag of 6 s on"));
    /* 0.5 + 0.6: from the first on */
    assert_non_null(strstr(text, "\njoint, at 60.0 % loss, replay off: load "
                                 "alone is better from a lag of 0 ns on"));
    assert_non_null(strstr(text, "\njoint, without events: better than load "
                                 "alone (mean TTFT -28.0 %"));
    assert_non_null(strstr(text, "\njoint without fallback, without events: "
                                 "better than load alone (mean TTFT -10.0 %"));
    /* where it changes nothing, one line */
    assert_null(strstr(text, "without fallback, without loss"));
    assert_null(strstr(text, "without fallback, at 60.0 % loss"));
    assert_non_null(strstr(text, "\nprefix_load, without events: worse than"));
    assert_non_null(strstr(text, "joint        approx+check   0.720"));
    assert_non_null(strstr(text, " -20.0 [-20.0,-20.0]\n")); /* 0.72 / 0.9 */
    assert_non_null(strstr(text, "joint        none           0.900"));
    assert_non_null(strstr(text, "4 s      0.0 %      - joint        any "));
    free(text);

    /* short lags only: it never does */
    o.lag_count = 2;
    text = run(w, &o, &failed);
    assert_non_null(strstr(text, "\njoint, without loss: better than load "
                                 "alone at 4 s, the longest lag (mean TTFT "
                                 "-10.0 %"));
    free(text);
    free(w);
}

static const json_t *row(const json_t *all, size_t i)
{
    return json_array_get(json_object_get(all, "rows"), i);
}

static double number(const json_t *of, const char *name)
{
    return json_number_value(json_object_get(of, name));
}

static void says_it_in_json(void **state)
{
    struct bt_report_study_options o;
    struct world *w = calloc(1, sizeof(*w));
    json_t *all, *even;
    json_error_t error;
    size_t failed = 0;
    char *text;

    (void)state;
    assert_non_null(w);
    start(w, &o);
    o.json = true;
    text = run(w, &o, &failed);
    all = json_loads(text, 0, &error);
    if (!all)
        fail_msg("%s in %s", error.text, text);
    /* 4 lags x (no loss, replay on, off) and no events, two policies each,
       with the fallback and without */
    assert_int_equal(json_array_size(json_object_get(all, "rows")), 52);
    assert_true(fabs(number(row(all, 4), "lag_s") - 4) < 1e-9);
    assert_true(fabs(number(row(all, 4), "ttft_mean_s") - 0.9) < 1e-6);
    assert_true(fabs(number(row(all, 4), "predicted_hit") - 0.5) < 1e-6);
    assert_true(fabs(number(row(all, 4), "realised_hit") - 0.25) < 1e-6);
    assert_true(fabs(number(row(all, 16), "wrong_credit") - 0.6) < 1e-6);
    assert_true(json_is_true(json_object_get(row(all, 16), "replay")));
    assert_true(json_is_false(json_object_get(row(all, 32), "replay")));
    assert_true(json_is_false(json_object_get(row(all, 48), "events")));
    assert_string_equal(
        json_string_value(json_object_get(row(all, 48), "fallback")),
        "approx+check");
    assert_string_equal(
        json_string_value(json_object_get(row(all, 49), "fallback")), "none");
    assert_non_null(json_object_get(row(all, 48), "against_none"));
    assert_null(json_object_get(row(all, 49), "against_none"));
    assert_true(fabs(number(json_object_get(all, "load_only"), "ttft_mean_s") -
                     1) < 1e-6);
    even = json_object_get(all, "break_even");
    assert_int_equal(json_array_size(even), 16);
    assert_true(fabs(number(json_array_get(even, 0), "load_only_from_lag_s") -
                     6) < 1e-9);
    assert_true(json_is_null(
        json_object_get(json_array_get(even, 3), "load_only_from_lag_s")));
    json_decref(all);
    free(text);
    free(w);
}

/* 8 lags x (1 + 2 x 3 losses) and one: 57 cells are more than 32. */
static void refuses_too_many(void **state)
{
    char error[BT_REPORT_ERROR_MIN] = "";
    struct bt_report_study_options o;
    struct world *w = calloc(1, sizeof(*w));
    size_t failed = 0;

    (void)state;
    assert_non_null(w);
    start(w, &o);
    for (int i = 0; i < 8; i++)
        o.lags[i] = i * S;
    o.lag_count = 8;
    for (int i = 0; i < 4; i++)
        o.losses[i] = 0.1 * i;
    o.loss_count = 4;
    assert_int_equal(bt_report_study("staleness", &w->setup, &o, stdout,
                                     &failed, error, sizeof(error)),
                     BT_INVALID);
    assert_non_null(strstr(error, "more than 32 cells"));
    free(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(breaks_even_where_it_is_known),
        cmocka_unit_test(says_it_in_json),
        cmocka_unit_test(refuses_too_many),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
