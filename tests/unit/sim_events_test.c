/* The KV events of the simulated workers, by hand: what the core is told, in
 * which order and when, of batches that get lost. kv_plane.c alone, between a
 * clock and a core that only write down what they are told. Times in ms; the
 * mean lag is 50 where a replay is asked for, and nothing before.
 */
#include "sim_priv.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#define MS         BT_NS_PER_MS
#define NEVER_LOST 1e-300 /* above 0: batches fly */
#define LOG        65536
#define QUEUE      16384

static struct {
    struct sim s;
    struct bt_sim_config config;
    struct sim_worker workers[2];
    struct sim_event queue[QUEUE];
    size_t queued;
    char log[LOG];
    size_t used;
    enum bt_stream_cause cause; /* told last */
} bed;

/* ---- what the plane calls ---- */

void sim_after(struct sim *s, int64_t at_ns, enum sim_what what, uint32_t a,
               uint64_t b)
{
    (void)s;
    assert_true(bed.queued < QUEUE);
    bed.queue[bed.queued++] =
        (struct sim_event){.at_ns = at_ns, .what = what, .a = a, .b = b};
}

static void write_down(const char *word, uint64_t number)
{
    int n = snprintf(bed.log + bed.used, LOG - bed.used, "%s%s",
                     bed.used == 0 ? "" : " ", word);

    bed.used += (size_t)n;
    if (number != 0)
        bed.used += (size_t)snprintf(bed.log + bed.used, LOG - bed.used, "%llu",
                                     (unsigned long long)number);
    assert_true(bed.used < LOG - 64);
}

void sim_step_core(struct sim *s, const struct bt_event *event)
{
    const struct bt_kv_store *store;

    (void)s;
    switch (event->type) {
    case BT_EV_KV_STORE:
        store = event->u.kv_store.store;
        for (size_t i = 0; i < store->hash_count; i++) {
            assert_int_equal(store->own_keys[i], sim_key_of(store->hashes[i]));
            write_down("", store->hashes[i]);
        }
        break;
    case BT_EV_KV_REMOVE:
        for (size_t i = 0; i < event->u.kv_remove.count; i++)
            write_down("-", event->u.kv_remove.hashes[i]);
        break;
    case BT_EV_KV_STREAM:
        write_down(bt_stream_state_name(event->u.kv_stream.state), 0);
        bed.cause = event->u.kv_stream.cause;
        break;
    case BT_EV_KV_COUNTING:
    case BT_EV_TICK:
    case BT_EV_WORKER_STATE:
    case BT_EV_WORKER_STATS:
    case BT_EV_KV_CLEAR:
    case BT_EV_REQUEST:
    case BT_EV_CLIENT_GONE:
    case BT_EV_PREFILL_DONE:
    case BT_EV_LEG_FAILED:
    case BT_EV_FIRST_TOKEN:
    case BT_EV_TOKENS:
    case BT_EV_DECODE_DONE:
        fail_msg("unexpected event %d", (int)event->type);
    }
}

/* ---- the bed ---- */

static void start(bool replay)
{
    memset(&bed, 0, sizeof(bed));
    bed.s.config = &bed.config;
    bed.s.workers = bed.workers;
    bed.s.worker_count = 2;
    bed.s.block_tokens = 16;
    bed.workers[0].up = bed.workers[1].up = true;
    bed.config.knowledge.event_replay = replay;
    bed.config.knowledge.event_loss = NEVER_LOST;
    bt_rng_seed(&bed.s.rng_kv, 1);
    assert_true(sim_kv_plane_init(&bed.s));
}

static void stop(void)
{
    assert_int_equal(bed.s.failed, BT_OK);
    sim_kv_plane_fini(&bed.s);
}

/* Earliest first, then by order of scheduling; up to and at `ms`. */
static void run_to(int64_t ms)
{
    for (;;) {
        size_t first = bed.queued;
        struct sim_event e;

        for (size_t i = 0; i < bed.queued; i++)
            if (bed.queue[i].at_ns <= ms * MS &&
                (first == bed.queued ||
                 bed.queue[i].at_ns < bed.queue[first].at_ns))
                first = i;
        if (first == bed.queued)
            break;
        e = bed.queue[first];
        memmove(&bed.queue[first], &bed.queue[first + 1],
                (--bed.queued - first) * sizeof(e));
        bed.s.now_ns = e.at_ns;
        if (e.what == SIM_EV_KV_OUT)
            sim_kv_arrive(&bed.s, e.a);
        else if (e.what == SIM_EV_KV_REPLAY)
            sim_kv_replay(&bed.s, e.a, e.b);
        else
            fail_msg("event %u", e.what);
    }
    bed.s.now_ns = ms * MS;
}

static void flush(double loss, int64_t lag_ms)
{
    bed.config.knowledge.event_loss = loss;
    bed.config.knowledge.event_lag_ns = 0;
    (void)sim_kv_flush(&bed.s);
    bed.config.knowledge.event_loss = NEVER_LOST;
    bed.config.knowledge.event_lag_ns = lag_ms * MS;
}

/* At `ms` worker 0 stores block `id`: one batch, there at once or lost. */
static void comes(int64_t ms, uint64_t id)
{
    run_to(ms);
    sim_kv_note(&bed.s, 0, false, BT_TIER_DEVICE, id);
    flush(NEVER_LOST, 50);
    run_to(ms);
}

static void is_lost(int64_t ms, uint64_t id)
{
    run_to(ms);
    sim_kv_note(&bed.s, 0, false, BT_TIER_DEVICE, id);
    flush(1, 50);
    run_to(ms);
}

static void told(const char *what)
{
    assert_string_equal(bed.log, what);
}

/* ---- sequences ---- */

/* 2 is lost, which 3 tells at 10. The answer comes at 10 + 3 x 50 + 5 and has
 * all that was sent until it reached the engine at 60: 5 as well. */
static void test_read_back(void **state)
{
    (void)state;
    start(true);
    comes(0, 1);
    is_lost(5, 2);
    run_to(9);
    told("1");
    comes(10, 3);
    told("1 syncing");
    assert_int_equal(bed.cause, BT_CAUSE_GAP);
    comes(20, 4);
    is_lost(60, 5);
    comes(70, 6);
    run_to(164);
    told("1 syncing");
    run_to(165);
    told("1 syncing 2 3 4 5 6 exact");
    comes(200, 7);
    told("1 syncing 2 3 4 5 6 exact 7");
    assert_int_equal(bed.cause, BT_CAUSE_REPLAYED);
    stop();
}

/* Lost after the answer was made: asked for again, from there. */
static void test_lost_meanwhile(void **state)
{
    (void)state;
    start(true);
    is_lost(5, 1);
    comes(10, 2);
    comes(20, 3);
    is_lost(61, 4);
    comes(70, 5);
    run_to(165);
    told("syncing 1 2 3");
    run_to(319);
    told("syncing 1 2 3");
    run_to(320);
    told("syncing 1 2 3 4 5 exact");
    stop();
}

/* Nobody can know of the last one before another comes. */
static void test_last_one(void **state)
{
    (void)state;
    start(true);
    is_lost(5, 1);
    comes(10, 2);
    is_lost(100, 3);
    run_to(5000);
    told("syncing 1 2 exact");
    comes(6000, 4);
    run_to(6155);
    told("syncing 1 2 exact syncing 3 4 exact");
    stop();
}

/* Replays are lost as well: 2 s each, three in all. */
static void test_silence(void **state)
{
    (void)state;
    start(true);
    comes(0, 1);
    is_lost(5, 2);
    bed.config.knowledge.event_loss = 1; /* all that is asked */
    sim_kv_note(&bed.s, 0, false, BT_TIER_DEVICE, 3);
    flush(NEVER_LOST, 50);
    bed.config.knowledge.event_loss = 1;
    run_to(5999);
    told("1 syncing");
    sim_kv_note(&bed.s, 0, true, BT_TIER_DEVICE, 1);
    flush(NEVER_LOST, 50);
    run_to(6005);
    told("1 syncing 3 -1 degraded");
    is_lost(7000, 4); /* a later gap is read back, the old hole stays */
    comes(7010, 5);
    run_to(7165);
    told("1 syncing 3 -1 degraded syncing 4 5 degraded");
    assert_int_equal(bed.cause, BT_CAUSE_REPLAY_FAILED);
    stop();
}

/* The third ask is answered: 5 + 2000 + 2000 + 155. */
static void test_third_time(void **state)
{
    (void)state;
    start(true);
    is_lost(5, 1);
    sim_kv_note(&bed.s, 0, false, BT_TIER_DEVICE, 2);
    flush(NEVER_LOST, 50);
    bed.config.knowledge.event_loss = 1;
    run_to(4004);
    bed.config.knowledge.event_loss = NEVER_LOST;
    run_to(4159);
    told("syncing");
    run_to(4160);
    told("syncing 1 2 exact");
    stop();
}

static void test_no_replay(void **state)
{
    (void)state;
    start(false);
    comes(0, 1);
    is_lost(5, 2);
    comes(10, 3);
    told("1 3 degraded");
    comes(20, 4);
    run_to(9000);
    told("1 3 degraded 4");
    assert_int_equal(bed.cause, BT_CAUSE_NO_REPLAY);
    stop();
}

/* Room for four: when four more are stored there, whatever the hole left is
 * gone. A second hole begins anew; other tiers and removals do not count. */
static void test_ages_out(void **state)
{
    (void)state;
    start(false);
    bed.workers[0].tiers[BT_TIER_DEVICE].capacity = 4;
    comes(0, 1);
    is_lost(5, 2);
    comes(10, 3);
    comes(20, 4);
    comes(30, 5);
    told("1 3 degraded 4 5");
    is_lost(35, 6);
    comes(40, 7);
    comes(50, 8);
    sim_kv_note(&bed.s, 0, false, BT_TIER_HOST, 1);
    sim_kv_note(&bed.s, 0, true, BT_TIER_DEVICE, 1);
    flush(NEVER_LOST, 50);
    comes(60, 9);
    told("1 3 degraded 4 5 7 degraded 8 1 -1 9");
    comes(70, 10);
    told("1 3 degraded 4 5 7 degraded 8 1 -1 9 10 partial");
    assert_int_equal(bed.cause, BT_CAUSE_AGED_OUT);
    is_lost(75, 11);
    comes(80, 12);
    told("1 3 degraded 4 5 7 degraded 8 1 -1 9 10 partial 12 degraded");
    assert_int_equal(bed.cause, BT_CAUSE_NO_REPLAY);
    stop();
}

/* Aged out while it is syncing: told when that is over, and a later replay
 * brings nothing back of what was missed before. */
static void test_ages_out_syncing(void **state)
{
    (void)state;
    start(true);
    bed.workers[0].tiers[BT_TIER_DEVICE].capacity = 3;
    is_lost(5, 1);
    bed.config.knowledge.event_loss = 1; /* all that is asked */
    sim_kv_note(&bed.s, 0, false, BT_TIER_DEVICE, 2);
    flush(NEVER_LOST, 50);
    bed.config.knowledge.event_loss = 1;
    run_to(6005);
    told("syncing 2 degraded");
    bed.config.knowledge.event_loss = NEVER_LOST;
    is_lost(7000, 3);
    comes(7010, 4);
    run_to(7165);
    told("syncing 2 degraded syncing 3 4 partial");
    assert_int_equal(bed.cause, BT_CAUSE_AGED_OUT);
    is_lost(8000, 5);
    comes(8010, 6);
    run_to(8165);
    told("syncing 2 degraded syncing 3 4 partial syncing 5 6 partial");
    bed.workers[0].incarnation++; /* another process: nothing was missed */
    sim_kv_forget(&bed.s, 0);
    is_lost(9000, 7);
    comes(9010, 8);
    run_to(9165);
    told("syncing 2 degraded syncing 3 4 partial syncing 5 6 partial syncing 7 "
         "8 exact");
    stop();
}

/* A dead worker answers nothing; another process starts another stream. */
static void test_death(void **state)
{
    (void)state;
    start(true);
    comes(0, 1);
    is_lost(5, 2);
    comes(10, 3);
    sim_kv_note(&bed.s, 0, false, BT_TIER_DEVICE, 4); /* not sent */
    run_to(20);
    bed.workers[0].up = false;
    sim_kv_forget(&bed.s, 0);
    run_to(30);
    bed.workers[0].up = true;
    bed.workers[0].incarnation++;
    sim_kv_forget(&bed.s, 0);
    comes(40, 5);
    is_lost(50, 6);
    comes(60, 7);
    run_to(165); /* when the old answer would have come */
    told("1 syncing 5 syncing");
    run_to(215);
    told("1 syncing 5 syncing 6 7 exact");
    stop();
}

/* One worker's gap holds up nobody else. */
static void test_two_workers(void **state)
{
    (void)state;
    start(true);
    is_lost(5, 1);
    comes(10, 2);
    sim_kv_note(&bed.s, 1, false, BT_TIER_DEVICE, 9);
    flush(NEVER_LOST, 50);
    run_to(11);
    told("syncing 9");
    stop();
}

/* What finds no room while it waits must be read back too: after 4096 held. */
static void test_room(void **state)
{
    (void)state;
    start(true);
    is_lost(5, 1);
    for (uint64_t id = 2; id <= 4200; id++)
        comes(10, id);
    run_to(165);
    assert_memory_equal(bed.log, "syncing 1 2 3 ", 14);
    assert_string_equal(bed.log + bed.used - 16, " 4199 4200 exact");
    stop();
}

/* Everything is lost for long: an engine keeps 10,000. */
static void test_engine_forgets(void **state)
{
    (void)state;
    start(true);
    for (uint64_t id = 1; id <= 10000; id++)
        is_lost(5, id);
    told("degraded");
    comes(10, 10001);
    told("degraded 10001");
    assert_int_equal(bed.cause, BT_CAUSE_REPLAY_SHORT);
    stop();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_read_back),
        cmocka_unit_test(test_lost_meanwhile),
        cmocka_unit_test(test_last_one),
        cmocka_unit_test(test_silence),
        cmocka_unit_test(test_third_time),
        cmocka_unit_test(test_no_replay),
        cmocka_unit_test(test_ages_out),
        cmocka_unit_test(test_ages_out_syncing),
        cmocka_unit_test(test_death),
        cmocka_unit_test(test_two_workers),
        cmocka_unit_test(test_room),
        cmocka_unit_test(test_engine_forgets),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
