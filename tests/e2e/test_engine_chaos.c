/* Hand-offs under random faults and impatient clients: every answer that comes
 * whole is right or an error, and in the end nothing is held anywhere. */
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "baton/base/rng.h"
#include "engine_rig.h"

#define FLOWS    250
#define PARALLEL 12
#define BODY     8192

struct flow {
    struct answer answer;
    int fd; /* 0: idle */
    int tokens;
    char prompt[700];
    bool cut; /* leave early */
};

struct tally {
    int right, errors, cut, no_params;
};

static const char *const faults_p[] = {
    "{\"fault\":\"error\",\"phase\":\"before_prefill\",\"count\":1}",
    "{\"fault\":\"refuse\",\"phase\":\"after_prefill\",\"count\":1}",
    "{\"fault\":\"lease_expire\"}"};
static const char *const faults_d[] = {
    "{\"fault\":\"error\",\"phase\":\"before_decode\",\"count\":1}",
    "{\"fault\":\"error\",\"phase\":\"during_decode\",\"count\":1}",
    "{\"fault\":\"error\",\"phase\":\"arrival\",\"count\":1}"};

static void maybe_fault(const struct rig *p, const struct rig *d,
                        struct bt_rng *rng)
{
    uint64_t dice = bt_rng_below(rng, 24);
    if (dice < 3) {
        rig_fault(p, faults_p[dice]);
    } else if (dice < 6) {
        rig_fault(d, faults_d[dice - 3]);
    }
}

/* Leg P at once, leg D in the background; false: P gave no parameters. */
static bool launch(const struct rig *p, const struct rig *d, struct flow *f,
                   struct bt_rng *rng)
{
    char body[BODY];
    memset(f, 0, sizeof(*f));
    f->cut = bt_rng_below(rng, 4) == 0;
    f->tokens = 1 + (int)bt_rng_below(rng, 50);
    make_prompt(f->prompt, 1 + bt_rng_below(rng, 500),
                (unsigned int)bt_rng_below(rng, 5));
    body_prefill(body, sizeof(body), f->prompt);
    struct answer a = rig_call(p, "/v1/completions", body);
    bool ok = a.status == 200;
    assert_true(ok || a.status == 500 || a.status == 503);
    if (ok) {
        char *params = answer_params(&a);
        body_decode(body, sizeof(body), f->prompt, f->tokens, params);
        free(params);
        f->fd = rig_open(d, "/v1/completions", body);
    }
    answer_free(&a);
    return ok;
}

static void settle(struct flow *f, struct tally *t)
{
    char got[128], want[128];
    rig_parse(&f->answer);
    if (f->cut) {
        t->cut++;
    } else if (f->answer.status == 200) {
        answer_text(&f->answer, got, sizeof(got));
        oracle_text(f->prompt, NULL, f->tokens, want);
        assert_string_equal(got, want);
        t->right++;
    } else {
        assert_int_equal(f->answer.status, 500);
        assert_non_null(strstr(f->answer.body, "\"error\""));
        t->errors++;
    }
    answer_free(&f->answer);
    close(f->fd);
    f->fd = 0;
}

static void serve(struct flow *flows, struct tally *t)
{
    struct pollfd fds[PARALLEL];
    for (int i = 0; i < PARALLEL; i++) {
        fds[i].fd = flows[i].fd > 0 ? flows[i].fd : -1;
        fds[i].events = POLLIN;
    }
    assert_true(poll(fds, PARALLEL, 30000) > 0);
    for (int i = 0; i < PARALLEL; i++) {
        if (fds[i].fd >= 0 && fds[i].revents != 0 &&
            !rig_read(flows[i].fd, &flows[i].answer)) {
            settle(&flows[i], t);
        }
    }
}

static void run_flows(const struct rig *p, const struct rig *d,
                      struct bt_rng *rng, struct tally *t)
{
    static struct flow flows[PARALLEL];
    int started = 0, busy = 0;
    do {
        busy = 0;
        for (int i = 0; i < PARALLEL; i++) {
            if (flows[i].fd == 0 && started < FLOWS) {
                started++;
                maybe_fault(p, d, rng);
                t->no_params += !launch(p, d, &flows[i], rng);
            }
            if (flows[i].fd != 0 && flows[i].cut && bt_rng_below(rng, 2) == 0) {
                settle(&flows[i], t); /* leaves without waiting */
            }
            busy += flows[i].fd != 0;
        }
        if (busy > 0) {
            serve(flows, t);
        }
    } while (busy > 0 || started < FLOWS);
}

static void expect_quiet(const struct rig *rig)
{
    static const char *const zero[] = {"requests.running", "requests.waiting",
                                       "requests.pulling", "requests.hung",
                                       "leases",           "blocks.held",
                                       "blocks.leased"};
    for (size_t i = 0; i < sizeof(zero) / sizeof(zero[0]); i++) {
        rig_wait(rig, zero[i], 0);
    }
    assert_int_equal(rig_state(rig, "blocks.free"),
                     rig_state(rig, "blocks.total"));
}

static void chaos(void **state)
{
    (void)state;
    const uint64_t seed = 7;
    const struct bt_engine_pace pace = {"p0", "slow", 20000000, 200000};
    struct bt_engine_config c;
    struct bt_rng rng;
    struct rig p, d;
    struct tally t = {0};
    print_message("seed %llu\n", (unsigned long long)seed);
    bt_rng_seed(&rng, seed);
    rig_config(&c, "p0");
    c.block_count = 1024;
    c.lease_ns = 2000000000;
    rig_start(&p, &c);
    rig_config(&c, "d0");
    c.block_count = 160; /* they queue for blocks */
    c.compute.speedup = 100;
    c.paces = &pace;
    c.pace_count = 1;
    rig_start(&d, &c);
    run_flows(&p, &d, &rng, &t);
    print_message("right %d errors %d cut %d refused at P %d\n", t.right,
                  t.errors, t.cut, t.no_params);
    assert_true(t.right > FLOWS / 3);
    assert_true(t.errors > 0 && t.cut > 0 && t.no_params > 0);
    expect_quiet(&p);
    expect_quiet(&d);
    rig_stop(&p);
    rig_stop(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(chaos)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
