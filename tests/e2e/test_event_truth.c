/* Predicted prefix hits against the engines' own cached tokens, with real
 * processes: undisturbed; an engine killed and back on its ports under load;
 * 1 % of event batches lost, with and without replay; a stream that lies; no
 * events at all. Truth: usage.cached_tokens, and the blocks an engine says it
 * holds.
 *
 *   e2e_event_truth BATON [NAME]           the cases with assertions
 *   e2e_event_truth BATON --table [NAME]   the same, every second printed
 *
 * Asserted are states, counters, shares and that deadlines hold; measured times
 * are printed only.
 */
#include "truth_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define WARM_UP 300u

static const char *program;
static bool table;
static struct truth t;
/* What worker streams were like, by second of the run. */
static struct look {
    char state[2][48];
} looks[512];

/* ---- over time ---- */

static size_t second_of(int64_t ns)
{
    size_t at = (size_t)((ns - t.start_ns) / 1000000000);
    return at < 511 ? at : 511;
}

static void look(void)
{
    struct look *l = &looks[second_of(truth_now_ns())];
    for (int i = 0; i < 2; i++) {
        char state[24], cause[24];
        truth_worker(&t, i, "stream", state, sizeof(state));
        truth_worker(&t, i, "stream_cause", cause, sizeof(cause));
        snprintf(l->state[i], sizeof(l->state[i]), "%s/%s", state, cause);
    }
}

static bool is_time(struct truth *truth, void *until)
{
    (void)truth;
    look();
    return truth_now_ns() >= *(const int64_t *)until;
}

/* Load for a while, half as long without a table, looking at the streams. */
static void go_on(double seconds)
{
    int64_t until = truth_now_ns() + (int64_t)(seconds * (table ? 1e9 : 5e8));
    truth_load_until(&t, is_time, &until, "time passes");
}

/* One worker's part of a row. */
static void print_worker(uint32_t from, uint32_t to, int worker, size_t second)
{
    struct truth_share s = truth_share(&t, from, to, worker);
    print_message(" | %4u %7llu %7llu %6.2f %6.2f %-19s", s.requests,
                  (unsigned long long)s.predicted, (unsigned long long)s.actual,
                  truth_percent(s.over, s.requests),
                  truth_percent(s.under, s.requests),
                  looks[second].state[worker]);
}

/* By second and prefill worker: requests, tokens predicted and found, requests
 * with too much and with too little credit, the stream at its end. */
static void print_table(const char *title)
{
    if (!table) {
        return;
    }
    print_message("%s\n     ", title);
    for (int i = 0; i < 2; i++) {
        print_message(" | %s, %-48s", t.engines[i].name, t.engines[i].encoding);
    }
    print_message("\n    s");
    for (int i = 0; i < 2; i++) {
        print_message(" | %4s %7s %7s %6s %6s %-19s", "req", "pred", "actual",
                      "over%", "under%", "stream");
    }
    print_message("\n");
    uint32_t from = 0;
    while (from < t.next_id) {
        size_t second = second_of(t.samples[from].sent_ns);
        uint32_t to = from;
        while (to < t.next_id && second_of(t.samples[to].sent_ns) == second) {
            to++;
        }
        print_message(" %4zu", second);
        print_worker(from, to, 0, second);
        print_worker(from, to, 1, second);
        print_message("\n");
        from = to;
    }
}

static void print_share(const char *what, const struct truth_share *s)
{
    print_message(
        "  %-22s %5u requests: equal %.2f %%, too much %.2f %%, too "
        "little %.2f %%; tokens predicted %llu, actual %llu, wrong "
        "%.3f %%\n",
        what, s->requests, truth_percent(s->equal, s->requests),
        truth_percent(s->over, s->requests),
        truth_percent(s->under, s->requests), (unsigned long long)s->predicted,
        (unsigned long long)s->actual,
        s->predicted == 0 ? 0.0
                          : 100.0 * (double)s->wrong / (double)s->predicted);
}

static void begin(const struct truth_setup *setup)
{
    memset(looks, 0, sizeof(looks));
    truth_start(&t, program, setup);
    look();
}

static int tidy_up(void **state)
{
    (void)state;
    if (t.serve > 0) {
        print_table("so far");
    }
    truth_abandon(&t);
    return 0;
}

static void expect_state(int engine, const char *want)
{
    char state[32];
    truth_worker(&t, engine, "stream", state, sizeof(state));
    if (strcmp(state, want) != 0) {
        fail_msg("stream of p%d is %s, not %s", engine, state, want);
    }
}

/* ---- undisturbed ---- */

static void undisturbed_as(const struct truth_setup *setup, const char *title)
{
    begin(setup);
    truth_load(&t, WARM_UP);
    double gaps = truth_metric(&t, "baton_kv_event_gaps_total");
    uint32_t from = t.next_id;
    go_on(3);
    truth_drain(&t);
    print_table(title);
    struct truth_share s = truth_share(&t, from, t.next_id, -1);
    print_share(title, &s);
    assert_int_equal(t.failed, 0);
    assert_true(s.requests > 100);
    assert_true(s.actual > s.prompt / 4); /* there is something to know */
    assert_true(truth_percent(s.equal, s.requests) > 99);
    assert_true(truth_percent(s.over, s.requests) < 0.5);
    expect_state(0, "exact");
    expect_state(1, "exact");
    truth_expect_exact(&t);
    /* Before it, at most what went before our subscription. */
    assert_true(truth_metric(&t, "baton_kv_event_gaps_total") == gaps);
    assert_true(truth_metric(&t, "baton_kv_events_total{type=\"removed\"}") >
                0);
    truth_stop(&t);
}

static void undisturbed(void **state)
{
    (void)state;
    const struct truth_setup setup = {.events = true, .replay = true};
    undisturbed_as(&setup, "undisturbed");
}

static void undisturbed_connected(void **state)
{
    (void)state;
    const struct truth_setup setup = {
        .events = true, .replay = true, .connect = true};
    undisturbed_as(&setup, "engines connect");
}

/* ---- a second life ---- */

struct life {
    int engine;
    uint32_t from; /* first request after it was back */
};

/* Its last twenty requests had not too much credit. */
static bool no_wrong_credit(struct truth *truth, void *arg)
{
    const struct life *l = arg;
    uint32_t seen = 0;
    look();
    for (uint32_t i = truth->next_id; i-- > l->from && seen < 20;) {
        const struct truth_sample *s = &truth->samples[i];
        if (s->worker == l->engine) {
            if (s->predicted > s->actual + TRUTH_BLOCK) {
                return false;
            }
            seen++;
        }
    }
    return seen == 20;
}

static bool in_service(struct truth *truth, void *engine)
{
    char state[32];
    look();
    truth_worker(truth, *(const int *)engine, "state", state, sizeof(state));
    return strcmp(state, "ready") == 0;
}

static bool out_of_service(struct truth *truth, void *engine)
{
    return !in_service(truth, engine);
}

/* Of p0. The other one is held for a while. Without replay what is said before
 * our subscription is back is not known: only misses. */
static void restart_as(const struct truth_setup *setup, bool late)
{
    int engine = 0;
    begin(setup);
    truth_load(&t, WARM_UP);
    go_on(1);
    double resets = truth_metric(&t, "baton_kv_index_resets_total");
    int64_t killed = truth_now_ns();
    truth_kill(&t, engine);
    if (late) {
        truth_load_until(&t, out_of_service, &engine, "p0 is out of service");
    }
    int64_t back = truth_start_again(&t, engine);
    struct life life = {engine, t.next_id};
    truth_load_until(&t, in_service, &engine, "p0 is in service again");
    truth_hold(&t, 1, true); /* or it might get nothing to be wrong about */
    truth_load_until(&t, no_wrong_credit, &life,
                     "no credit for the dead life's blocks");
    truth_hold(&t, 1, false);
    go_on(2);
    truth_drain(&t);
    int64_t last = 0;
    for (uint32_t i = life.from; i < t.next_id; i++) {
        const struct truth_sample *s = &t.samples[i];
        if (s->worker == engine && s->predicted > s->actual + TRUTH_BLOCK) {
            last = s->sent_ns;
        }
    }
    print_table(!setup->replay ? "killed and restarted in place, replay off"
                : late         ? "killed, restarted when it was out of service"
                               : "killed and restarted in place");
    struct truth_share s = truth_share(&t, life.from, t.next_id, engine);
    print_message(
        "  p%d (%s): down %.0f ms, last wrong credit %.0f ms after it "
        "was back, %u requests failed\n",
        engine, t.engines[engine].encoding, (double)(back - killed) / 1e6,
        last == 0 ? 0.0 : (double)(last - back) / 1e6, t.failed);
    print_share("after the restart", &s);
    assert_true(last - back < 5 * (int64_t)1000000000);
    assert_true(truth_metric(&t, "baton_kv_index_resets_total") > resets);
    if (setup->replay) {
        expect_state(engine, "exact");
        truth_expect_exact(&t);
    }
    assert_true(truth_worker_number(&t, engine, "index_blocks") <=
                truth_blocks(&t, engine));
    truth_stop(&t);
}

static void restart_array(void **state)
{
    (void)state;
    const struct truth_setup setup = {.events = true, .replay = true};
    restart_as(&setup, false);
}

static void restart_map(void **state)
{
    (void)state;
    const struct truth_setup setup = {
        .events = true, .replay = true, .swap = true};
    restart_as(&setup, false);
}

static void restart_late(void **state)
{
    (void)state;
    const struct truth_setup setup = {.events = true, .replay = true};
    restart_as(&setup, true);
}

static void restart_without_replay(void **state)
{
    (void)state;
    const struct truth_setup setup = {.events = true};
    restart_as(&setup, false);
}

static void restart_connected(void **state)
{
    (void)state;
    const struct truth_setup setup = {
        .events = true, .replay = true, .connect = true};
    restart_as(&setup, false);
}

/* ---- lost batches ---- */

static void lose(double percent)
{
    char fault[80];
    snprintf(fault, sizeof(fault), "{\"fault\":\"events_drop\",\"factor\":%g}",
             percent);
    for (int i = 0; i < 2; i++) {
        rig_fault(&t.engines[i].rig, fault);
    }
}

static bool has_gaps(struct truth *truth, void *want)
{
    look();
    return truth_metric(truth, "baton_kv_event_gaps_total") >=
           *(const double *)want;
}

static bool both_are(struct truth *truth, void *want)
{
    char state[32];
    look();
    for (int i = 0; i < 2; i++) {
        truth_worker(truth, i, "stream", state, sizeof(state));
        if (strcmp(state, want) != 0) {
            return false;
        }
    }
    return true;
}

static void lost_with_replay(void **state)
{
    (void)state;
    const struct truth_setup setup = {.events = true, .replay = true};
    double gaps = 10;
    begin(&setup);
    truth_load(&t, WARM_UP);
    uint32_t from = t.next_id;
    lose(1);
    truth_load_until(&t, has_gaps, &gaps, "ten gaps");
    go_on(2);
    uint32_t to = t.next_id;
    lose(0);
    int64_t cleared = truth_now_ns();
    go_on(0.5);
    truth_load_until(&t, both_are, (char[]){"exact"}, "exact again");
    int64_t exact = truth_now_ns();
    truth_expect_exact(&t);
    print_table("1 % of batches lost, replay on");
    struct truth_share s = truth_share(&t, from, to, -1);
    print_share("while batches are lost", &s);
    print_message("  %.0f gaps, %.0f batches missing; exact at most %.0f ms "
                  "after the last loss\n",
                  truth_metric(&t, "baton_kv_event_gaps_total"),
                  truth_metric(&t, "baton_kv_event_missing_total"),
                  (double)(exact - cleared) / 1e6);
    assert_int_equal(t.failed, 0);
    assert_true(truth_percent(s.over, s.requests) < 1);
    assert_true(truth_percent(s.equal, s.requests) > 97);
    truth_stop(&t);
}

static bool has_state(struct truth *truth, int engine, const char *want)
{
    char state[32];
    truth_worker(truth, engine, "stream", state, sizeof(state));
    return strcmp(state, want) == 0;
}

static bool some_degraded(struct truth *truth, void *arg)
{
    (void)arg;
    look();
    return has_state(truth, 0, "degraded") || has_state(truth, 1, "degraded");
}

/* What may only miss blocks, and events are believed again. */
static bool both_healed(struct truth *truth, void *arg)
{
    (void)arg;
    look();
    for (int i = 0; i < 2; i++) {
        if (!has_state(truth, i, "exact") && !has_state(truth, i, "partial")) {
            return false;
        }
    }
    return true;
}

static uint32_t count_source(uint32_t from, uint32_t to, const char *source)
{
    uint32_t count = 0;
    for (uint32_t i = from; i < to; i++) {
        count += strcmp(t.samples[i].source, source) == 0;
    }
    return count;
}

/* Both engines say "cleared", and from there on all is known. */
static void start_over(void)
{
    truth_drain(&t);
    for (int i = 0; i < 2; i++) {
        const struct rig *engine = &t.engines[i].rig;
        rig_wait(engine, "blocks.leased", 0); /* or it is refused */
        rig_wait(engine, "blocks.held", 0);
        truth_wipe(&t, i);
        assert_int_equal(rig_state(engine, "blocks.cached"), 0);
    }
    truth_load_until(&t, both_are, (char[]){"exact"}, "exact after a clear");
    truth_load(&t, 100);
    truth_expect_exact(&t);
}

/* The hole cannot be filled: it is said, guesses stand in, and it ends when
 * what is older than the hole has gone; a clear gives back the rest. */
static void lost_without_replay(void **state)
{
    (void)state;
    const struct truth_setup setup = {.events = true};
    double gaps = 10;
    begin(&setup);
    truth_load(&t, WARM_UP);
    uint32_t from = t.next_id;
    lose(1);
    truth_load_until(&t, some_degraded, NULL, "a degraded stream");
    truth_load_until(&t, has_gaps, &gaps, "ten gaps");
    go_on(2);
    uint32_t to = t.next_id;
    lose(0);
    int64_t cleared = truth_now_ns();
    go_on(0.5);
    truth_load_until(&t, both_healed, NULL, "aged out");
    int64_t healed = truth_now_ns();
    uint32_t after = t.next_id;
    go_on(2);
    uint32_t end = t.next_id;
    start_over();
    print_table("1 % of batches lost, replay off");
    struct truth_share s = truth_share(&t, from, to, -1);
    uint32_t guessed = count_source(from, to, "approximate");
    print_share("while batches are lost", &s);
    print_message("  %u of %u by guess; aged out %.1f s after the last loss\n",
                  guessed, to - from, (double)(healed - cleared) / 1e9);
    struct truth_share then = truth_share(&t, after, end, -1);
    print_share("after it has aged out", &then);
    assert_int_equal(t.failed, 0);
    assert_true(guessed > 0);
    assert_true(truth_percent(s.over, s.requests) < 10);
    /* What was in use all along is never announced anew: guesses go on. */
    assert_true(truth_percent(then.over, then.requests) < 10);
    assert_true(truth_percent(then.equal, then.requests) > 60);
    truth_stop(&t);
}

/* ---- a stream that lies ---- */

/* p0 forgets everything time and again, and nobody is told. */
static bool is_disproved(struct truth *truth, void *arg)
{
    (void)arg;
    look();
    truth_wipe(truth, 0);
    return has_state(truth, 0, "suspect");
}

static bool is_believed(struct truth *truth, void *arg)
{
    (void)arg;
    look();
    return !has_state(truth, 0, "suspect");
}

static void disproved(void **state)
{
    (void)state;
    const struct truth_setup setup = {.events = true};
    char cause[32];
    begin(&setup);
    truth_load(&t, WARM_UP);
    uint32_t from = t.next_id;
    lose(100);
    int64_t lied = truth_now_ns();
    truth_load_until(&t, is_disproved, NULL, "p0 is suspect");
    int64_t noticed = truth_now_ns();
    truth_worker(&t, 0, "stream_cause", cause, sizeof(cause));
    assert_string_equal(cause, "disproved");
    uint32_t until = t.next_id;
    lose(0);
    truth_load_until(&t, is_believed, NULL, "p0 is believed again");
    int64_t believed = truth_now_ns();
    go_on(1);
    start_over();
    print_table("p0 forgets and does not say so");
    struct truth_share s = truth_share(&t, from, until, 0);
    print_share("until it was noticed", &s);
    print_message("  suspect after %.0f ms, believed again after %.0f ms\n",
                  (double)(noticed - lied) / 1e6,
                  (double)(believed - noticed) / 1e6);
    assert_int_equal(t.failed, 0);
    assert_true(s.over > 0);
    truth_stop(&t);
}

/* ---- without events ---- */

static void no_events(void **state)
{
    (void)state;
    const struct truth_setup setup = {.events = false};
    begin(&setup);
    truth_load(&t, WARM_UP);
    uint32_t from = t.next_id;
    go_on(3);
    truth_drain(&t);
    print_table("no events");
    struct truth_share s = truth_share(&t, from, t.next_id, -1);
    print_share("by own placements", &s);
    expect_state(0, "absent");
    expect_state(1, "absent");
    assert_int_equal(t.failed, 0);
    assert_int_equal(count_source(from, t.next_id, "events"), 0);
    assert_true(count_source(from, t.next_id, "approximate") > 0);
    assert_true(s.predicted > s.actual / 2);
    assert_true(truth_percent(s.over, s.requests) < 10);
    truth_stop(&t);
}

int main(int argc, char **argv)
{
#define CASE(name) cmocka_unit_test_teardown(name, tidy_up)
    const struct CMUnitTest tests[] = {
        CASE(undisturbed),         CASE(restart_array), CASE(lost_with_replay),
        CASE(lost_without_replay), CASE(disproved),     CASE(no_events),
    };
    /* The same over other wirings and encodings: with a table only. */
    const struct CMUnitTest more[] = {
        CASE(undisturbed_connected),
        CASE(restart_late),
        CASE(restart_map),
        CASE(restart_connected),
        CASE(restart_without_replay),
    };
    program = argc > 1 ? argv[1] : "";
    table = argc > 2 && strcmp(argv[2], "--table") == 0;
    if (argc > (table ? 3 : 2)) {
        cmocka_set_test_filter(argv[table ? 3 : 2]);
    }
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    return table ? failed + cmocka_run_group_tests(more, NULL, NULL) : failed;
}
