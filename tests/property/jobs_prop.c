/* Random jobs through bt_jobs over a model of lanes in virtual time: latency,
 * rates, operations that fail, lanes that close and come back, windows that
 * change, damaged blocks,
 * jobs cancelled at any moment or stopped at their deadline. Operations move
 * real bytes between two arrays. Held at every step: each byte exactly once
 * (plan_check.h), no operation that takes a lane beyond its window, no write
 * into a block whose job has ended, peek tells what next does; at the end of a
 * job: the right bytes, the right status and counts; at the end of a case:
 * nothing left in the table.
 *
 *   BATON_JOBS  jobs in all (20,000)    BATON_SEED  one case only */
#include "baton/base/rng.h"
#include "baton/transfer/jobs.h"
#include "baton/transfer/plan_check.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SEED       5000000
#define PEERS      3
#define RAILS      4
#define SLOTS      (2 * RAILS) /* a rail that comes back uses its other slot */
#define BLOCKS     160         /* of every region */
#define BLOCK_MAX  1024
#define GRAINS_MAX 16 /* of one block */
#define JOBS_LIVE  10
#define OPS        40
#define STEPS_MAX  100000
#define CASE_JOBS  24
#define DEAD       16

struct lane {
    bool is_open, is_used;
    struct bt_lane_id id;
    struct bt_lane_spec spec;
    int64_t latency_ns, free_ns; /* free: the wire is */
    uint64_t bytes_out;
    uint32_t ops_out;
};
struct job {
    bool is_live, is_started;
    struct bt_job_id id;
    int peer;
    uint32_t count, remote[BLOCKS], local[BLOCKS], by_local[BLOCKS];
    uint8_t state[BLOCKS * GRAINS_MAX], damaged[BLOCKS];
    int64_t deadline_ns, started_ns, first_ns, last_ns;
    enum bt_status stopped; /* BT_OK: not */
    uint64_t bytes, ops, descriptors, failures, damages, lane_bytes;
    bool is_damaged_twice;
    struct bt_plan_check check;
};
struct out {
    bool is_out, fails;
    struct bt_job_op op;
    struct job *job;
    int peer, slot;
    int64_t end_ns;
};

static unsigned char remote[PEERS][BLOCKS * BLOCK_MAX];
static unsigned char local[BLOCKS * BLOCK_MAX];
static struct job *owner[BLOCKS]; /* of a local block */
static struct job jobs[JOBS_LIVE];
static struct bt_job_id dead[DEAD];
static struct lane lanes[PEERS][SLOTS];
static struct out outs[OPS];
static struct bt_jobs *table;
static struct bt_rng rng;
static uint64_t seed, jobs_done, bytes_moved, ends[BT_BUG + 1];
static int64_t now_ns;
static uint32_t block_bytes, grain, rails, peers;
static uint32_t fail_percent, damage_percent, flap_percent;
static char text[256];

#define CHECK(what)                                                            \
    do {                                                                       \
        if (!(what))                                                           \
            fail_msg("BATON_SEED=%llu: %s [%s]", (unsigned long long)seed,     \
                     #what, text);                                             \
    } while (0)

static const struct bt_jobs_config limits = {
    .jobs_max = JOBS_LIVE,
    .blocks_max = BLOCKS,
    .blocks_total_max = BLOCKS,
    .lanes_max = PEERS * SLOTS,
    .ops_max = OPS,
    .retries_max = 1,
};
static uint32_t retries_max;
static bool is_tight; /* so few operations that ranges may find no room */

static bool chance(uint32_t percent)
{
    return bt_rng_below(&rng, 100) < percent;
}

static uint32_t between(uint32_t low, uint32_t high)
{
    return low + (uint32_t)bt_rng_below(&rng, high - low + 1);
}

/* ---- lanes ---- */

static void draw_lane(struct lane *lane)
{
    *lane = (struct lane){
        .is_open = true,
        .is_used = true,
        .latency_ns = between(0, 5000),
        .free_ns = now_ns,
        .spec = {
            .window_bytes = (uint64_t)grain * between(1, 200),
            .window_ops = between(1, 6),
            .op_bytes = grain * between(1, 70),
            .op_pieces = chance(30) ? 1 : between(1, 12),
            .rate_bytes_per_s = chance(10) ? 0 : between(1000000, 2000000000),
        }};
}

static void give_lane(struct lane *lane, int peer)
{
    for (int i = 0; i < JOBS_LIVE; i++) {
        if (!jobs[i].is_live || jobs[i].peer != peer ||
            jobs[i].stopped != BT_OK)
            continue;
        CHECK(bt_jobs_use(table, jobs[i].id, lane->id) != BT_LIMIT);
        CHECK(bt_jobs_use(table, jobs[i].id, lane->id) != BT_OK);
    }
}

/* Either slot of the rail, if it is not yet up and one slot is idle. */
static void open_rail(int peer, uint32_t rail)
{
    struct lane *a = &lanes[peer][rail], *b = &lanes[peer][rail + RAILS];
    struct lane *lane = a->is_used ? b : a;

    if (a->is_open || b->is_open || (a->is_used && b->is_used))
        return;
    draw_lane(lane);
    CHECK(bt_jobs_lane_open(table, &lane->spec, &lane->id) == BT_OK);
    give_lane(lane, peer);
}

/* Also below what is out. */
static void change_window(struct lane *lane)
{
    uint64_t bytes = (uint64_t)grain * between(1, 200);
    uint32_t op_bytes = grain * between(1, 70);

    CHECK(bt_jobs_lane_window(table, lane->id, 0, op_bytes) == BT_INVALID);
    CHECK(bt_jobs_lane_window(table, lane->id, bytes, 0) == BT_INVALID);
    CHECK(bt_jobs_lane_window(table, lane->id, bytes, op_bytes) ==
          (lane->is_open ? BT_OK : BT_STALE));
    lane->spec.window_bytes = bytes;
    lane->spec.op_bytes = op_bytes;
}

/* What is out ends soon, badly or (some of it) well. */
static void close_lane(int peer, int slot)
{
    struct lane *lane = &lanes[peer][slot];

    if (!lane->is_open)
        return;
    bt_jobs_lane_close(table, lane->id);
    lane->is_open = false;
    lane->is_used = lane->ops_out > 0;
    for (int i = 0; i < OPS; i++) {
        struct out *o = &outs[i];

        if (!o->is_out || o->peer != peer || o->slot != slot)
            continue;
        o->fails = o->fails || chance(80);
        o->end_ns = now_ns + between(0, 3000);
    }
}

static void open_all(void)
{
    for (uint32_t p = 0; p < peers; p++) {
        for (uint32_t r = 0; r < rails; r++)
            open_rail((int)p, r);
    }
}

/* ---- jobs ---- */

/* Free local blocks: contiguous, strided or any, in this order or shuffled. */
static void draw_blocks(struct job *job)
{
    uint32_t want = between(1, chance(20) ? BLOCKS / 2 : 24), count = 0;
    uint32_t stride = chance(50) ? 1 : between(1, 7);
    uint32_t at = between(0, BLOCKS - 1), from = between(0, BLOCKS - 1);
    uint32_t how = between(0, 3);

    for (uint32_t n = 0; n < BLOCKS && count < want; n++) {
        at = how == 3 ? between(0, BLOCKS - 1) : (at + stride) % BLOCKS;
        if (owner[at] != NULL)
            continue;
        owner[at] = job;
        job->local[count] = at;
        from = how == 2 || chance(10) ? between(0, BLOCKS - 1)
                                      : (from + stride) % BLOCKS;
        job->remote[count++] = from;
    }
    for (uint32_t i = count; chance(50) && i > 1; i--) {
        uint32_t k = between(0, i - 1), l = job->local[k], r = job->remote[k];

        job->local[k] = job->local[i - 1], job->remote[k] = job->remote[i - 1];
        job->local[i - 1] = l, job->remote[i - 1] = r;
    }
    job->count = count;
}

static void use_lanes(struct job *job)
{
    for (int s = 0; s < SLOTS; s++) {
        if (lanes[job->peer][s].is_open)
            CHECK(bt_jobs_use(table, job->id, lanes[job->peer][s].id) == BT_OK);
    }
}

static void start_job(struct job *job)
{
    CHECK(bt_jobs_start(table, job->id, now_ns) == BT_OK);
    CHECK(bt_jobs_start(table, job->id, now_ns) == BT_INVALID);
    job->is_started = true;
    job->started_ns = now_ns;
}

static bool add_job(void)
{
    struct job *job = jobs;
    struct bt_job_spec spec;

    while (job < jobs + JOBS_LIVE && job->is_live)
        job++;
    if (job == jobs + JOBS_LIVE)
        return false;
    memset(job, 0, sizeof(*job));
    job->peer = (int)between(0, peers - 1);
    draw_blocks(job);
    if (job->count == 0)
        return false;
    job->deadline_ns = chance(50) ? INT64_MAX : now_ns + between(1000, 2000000);
    spec = (struct bt_job_spec){job->remote, job->local,       job->count,
                                block_bytes, job->deadline_ns, job};
    CHECK(bt_jobs_add(table, now_ns, &spec, &job->id) == BT_OK);
    job->is_live = true;
    job->check = (struct bt_plan_check){
        .remote = job->remote,
        .local = job->local,
        .count = job->count,
        .block_bytes = block_bytes,
        .state = job->state,
        .grain = grain,
    };
    bt_plan_index(&job->check, job->by_local);
    for (int s = 0; s < SLOTS; s++) {
        job->check.window_bytes[s] = UINT64_MAX; /* several jobs share it */
        job->check.window_ops[s] = OPS;
    }
    if (chance(50)) {
        use_lanes(job);
        if (chance(80))
            start_job(job);
    } else {
        start_job(job);
        use_lanes(job);
    }
    return true;
}

static void stop_job(struct job *job, enum bt_status why)
{
    if (!job->is_live || job->stopped != BT_OK)
        return;
    CHECK(bt_jobs_stop(table, job->id, BT_OK, now_ns) == BT_INVALID);
    CHECK(bt_jobs_stop(table, job->id, why, now_ns) == BT_OK);
    job->stopped = why;
}

/* ---- operations ---- */

static void check_window(const struct lane *lane)
{
    CHECK(lane->ops_out <= lane->spec.window_ops);
    CHECK(lane->ops_out == 1 || lane->bytes_out <= lane->spec.window_bytes);
}

static void check_pieces(const struct lane *lane, const struct bt_job_op *op)
{
    const struct bt_job_piece *p = op->pieces;

    CHECK(op->bytes <= lane->spec.op_bytes);
    CHECK(op->piece_count <= lane->spec.op_pieces);
    for (uint32_t i = 1; i < op->piece_count; i++) /* merged where they touch */
        CHECK(p[i - 1].remote + p[i - 1].bytes != p[i].remote ||
              p[i - 1].local + p[i - 1].bytes != p[i].local);
}

static void send(struct lane *lane, int peer, int slot, struct bt_job_op *op)
{
    struct out *o = &outs[op->op];
    struct job *job = op->owner;
    int64_t wire_ns = (int64_t)(op->bytes * between(1, 20));

    CHECK(op->op < OPS && !o->is_out);
    CHECK(job->is_live && job->is_started && job->stopped == BT_OK);
    CHECK(job->peer == peer && job->id.index == op->job.index &&
          job->id.generation == op->job.generation);
    CHECK(bt_plan_posted(&job->check, (uint32_t)slot, op, text, sizeof(text)) ==
          BT_OK);
    lane->ops_out++;
    lane->bytes_out += op->bytes;
    check_window(lane);
    check_pieces(lane, op);
    if (job->ops++ == 0)
        job->first_ns = job->last_ns = now_ns;
    job->descriptors += op->piece_count;
    lane->free_ns = (lane->free_ns > now_ns ? lane->free_ns : now_ns) + wire_ns;
    o->is_out = true;
    o->fails = chance(fail_percent);
    o->op = *op;
    o->job = job;
    o->peer = peer;
    o->slot = slot;
    o->end_ns = lane->free_ns + lane->latency_ns +
                (chance(20) ? between(0, 20000) : 0); /* some overtake */
}

static void pump(int peer, int slot)
{
    struct lane *lane = &lanes[peer][slot];
    struct bt_job_op op;

    for (;;) {
        uint64_t bytes = bt_jobs_peek(table, lane->id, now_ns);

        if (!bt_jobs_next(table, lane->id, now_ns, &op)) {
            CHECK(bytes == 0);
            return;
        }
        CHECK(lane->is_open && op.bytes == bytes && bytes > 0);
        send(lane, peer, slot, &op);
    }
}

static void pump_all(void)
{
    uint32_t first = between(0, PEERS * SLOTS - 1);

    for (uint32_t n = 0; n < PEERS * SLOTS; n++) {
        uint32_t at = (first + n) % (PEERS * SLOTS);

        if (lanes[at / SLOTS][at % SLOTS].is_open && !chance(10))
            pump((int)(at / SLOTS), (int)(at % SLOTS));
    }
}

/* The bytes land; a failed operation leaves some of its own, some garbage. */
static void write_pieces(const struct out *o)
{
    for (uint32_t i = 0; i < o->op.piece_count; i++) {
        const struct bt_job_piece *p = &o->op.pieces[i];
        uint64_t last = (p->local + p->bytes - 1) / block_bytes;

        for (uint64_t b = p->local / block_bytes; b <= last; b++)
            CHECK(owner[b] == o->job);
        if (o->fails && chance(50))
            memset(local + p->local, 0xee, p->bytes);
        else
            memcpy(local + p->local, remote[o->peer] + p->remote, p->bytes);
    }
}

static bool is_right(const struct job *job, uint32_t position)
{
    return memcmp(local + (size_t)job->local[position] * block_bytes,
                  remote[job->peer] +
                      (size_t)job->remote[position] * block_bytes,
                  block_bytes) == 0;
}

/* Each landed block may have been damaged on its way. */
static void verify(struct job *job, const uint32_t *landed, uint32_t count)
{
    uint32_t first = count > 0 ? between(0, count - 1) : 0;
    bool in_order = chance(80);

    for (uint32_t n = 0; n < count; n++) {
        uint32_t at = landed[in_order ? n : (first + n) % count];

        CHECK(at < job->count && is_right(job, at));
        if (!chance(damage_percent))
            continue;
        local[(size_t)job->local[at] * block_bytes] ^= 1;
        if (job->is_damaged_twice) /* already given up */
            continue;
        CHECK(bt_jobs_damaged(table, job->id, at) == BT_OK);
        job->damages++;
        if (job->damaged[at]++ > 0)
            job->is_damaged_twice = true;
        else
            CHECK(bt_plan_again(&job->check, at) == BT_OK);
    }
}

static void end_op(struct out *o)
{
    struct lane *lane = &lanes[o->peer][o->slot];
    struct job *job = o->job;
    uint32_t landed[BLOCKS * 2], count = 0;
    bool was_open = lane->is_open;

    CHECK(job->is_live);
    write_pieces(o);
    o->is_out = false;
    lane->ops_out--;
    lane->bytes_out -= o->op.bytes;
    job->last_ns = now_ns;
    job->bytes += o->fails ? 0 : o->op.bytes;
    job->failures += o->fails && was_open;
    CHECK(bt_plan_ended(&job->check, (uint32_t)o->slot, &o->op, !o->fails, text,
                        sizeof(text)) == BT_OK);
    CHECK(bt_jobs_op_ended(table, o->op.op, o->fails ? BT_RESET : BT_OK, now_ns,
                           landed, BLOCKS * 2, &count) == BT_OK);
    if (!lane->is_open && lane->ops_out == 0)
        lane->is_used = false;
    verify(job, landed, count);
    if (chance(5))
        CHECK(bt_jobs_op_ended(table, o->op.op, BT_OK, now_ns, landed,
                               BLOCKS * 2, &count) == BT_STALE);
}

/* ---- ends ---- */

static void check_status(const struct job *job, const struct bt_job_end *end)
{
    switch (end->status) {
    case BT_OK:
        for (uint32_t i = 0; i < job->count; i++)
            CHECK(is_right(job, i));
        CHECK(!job->is_damaged_twice);
        CHECK(end->bytes ==
              ((uint64_t)job->count + job->damages) * block_bytes);
        return;
    case BT_CHECKSUM:
        CHECK(job->is_damaged_twice);
        return;
    case BT_PEER_ERROR:
        CHECK(job->failures > retries_max);
        return;
    case BT_LIMIT:
        CHECK(is_tight && job->failures > 0);
        return;
    default:
        CHECK(end->status == job->stopped);
        return;
    }
}

static void check_end(struct job *job, const struct bt_job_end *end)
{
    uint64_t sum = 0;

    for (int k = 0; k < BT_JOB_LANES_MAX; k++)
        sum += end->lane_bytes[k];
    CHECK(job->is_live && end->job.index == job->id.index &&
          end->job.generation == job->id.generation);
    CHECK(bt_plan_done(&job->check, end->status == BT_OK, text, sizeof(text)) ==
          BT_OK);
    check_status(job, end);
    CHECK(end->bytes == job->bytes && sum == job->bytes);
    CHECK(end->ops == job->ops && end->descriptors == job->descriptors);
    CHECK(end->damaged == job->damages);
    if (job->ops > 0) {
        CHECK(end->queued_ns == job->first_ns - job->started_ns);
        CHECK(end->moved_ns == job->last_ns - job->first_ns);
    }
}

static void check_stale(const struct bt_job_id id)
{
    struct bt_lane_id any = {0, 1};

    CHECK(bt_jobs_stop(table, id, BT_CANCELLED, now_ns) == BT_STALE);
    CHECK(bt_jobs_start(table, id, now_ns) == BT_STALE);
    CHECK(bt_jobs_use(table, id, any) == BT_STALE);
    CHECK(bt_jobs_damaged(table, id, 0) == BT_STALE);
}

static void reap(void)
{
    struct bt_job_end end;

    while (bt_jobs_reap(table, &end)) {
        struct job *job = end.owner;

        check_end(job, &end);
        job->is_live = false;
        for (uint32_t i = 0; i < job->count; i++) {
            CHECK(owner[job->local[i]] == job);
            owner[job->local[i]] = NULL;
            memset(local + (size_t)job->local[i] * block_bytes, 0xaa,
                   block_bytes);
        }
        check_stale(job->id);
        dead[jobs_done % DEAD] = job->id;
        ends[end.status]++;
        bytes_moved += end.bytes;
        jobs_done++;
    }
}

/* ---- a case ---- */

static void fates(void)
{
    for (int i = 0; i < JOBS_LIVE; i++) {
        struct job *job = &jobs[i];

        if (!job->is_live)
            continue;
        if (now_ns >= job->deadline_ns)
            stop_job(job, BT_TIMEOUT);
        else if (bt_rng_below(&rng, 400) == 0)
            stop_job(job, BT_CANCELLED);
        else if (!job->is_started && job->stopped == BT_OK && chance(30))
            start_job(job);
    }
    check_stale(dead[between(0, DEAD - 1)]); /* its slot may be used again */
    if (chance(flap_percent))
        close_lane((int)between(0, peers - 1), (int)between(0, SLOTS - 1));
    if (chance(20))
        open_rail((int)between(0, peers - 1), between(0, rails - 1));
    if (chance(10)) {
        struct lane *lane =
            &lanes[between(0, peers - 1)][between(0, SLOTS - 1)];

        if (lane->spec.window_bytes > 0) /* was open once */
            change_window(lane);
    }
    if (chance(3)) {
        const struct lane *lane =
            &lanes[between(0, peers - 1)][between(0, SLOTS - 1)];

        bt_jobs_lane_rate(table, lane->id, between(0, 1000000000));
    }
}

/* On to the next end; false: nothing is out. */
static bool advance(void)
{
    struct out *next = NULL;

    for (int i = 0; i < OPS; i++) {
        if (outs[i].is_out && (next == NULL || outs[i].end_ns < next->end_ns))
            next = &outs[i];
    }
    if (next == NULL)
        return false;
    if (next->end_ns > now_ns)
        now_ns = next->end_ns;
    end_op(next);
    return true;
}

static void check_load(void)
{
    struct bt_jobs_load load;
    uint64_t bytes = 0;
    uint32_t ops = 0, live = 0;

    bt_jobs_load(table, &load);
    for (int i = 0; i < OPS; i++) {
        ops += outs[i].is_out;
        bytes += outs[i].is_out ? outs[i].op.bytes : 0;
    }
    for (int i = 0; i < JOBS_LIVE; i++)
        live += jobs[i].is_live;
    CHECK(load.ops == ops && load.bytes_out == bytes);
    CHECK(load.jobs <= live);
    CHECK(live > 0 || (load.jobs == 0 && load.bytes_left == 0));
}

/* Few operations in all make ranges wait, up to the limit of those. */
static void start_table(struct bt_arena *arena)
{
    struct bt_jobs_config config = limits;

    config.ops_max = chance(50) ? OPS : between(1, OPS);
    config.retries_max = between(1, 3);
    config.promote_percent = chance(50) ? 0 : between(1, 150);
    retries_max = config.retries_max;
    is_tight = config.ops_max < OPS;
    CHECK(bt_jobs_init(arena, &config, &table) == BT_OK);
}

static void start_world(struct bt_arena *arena)
{
    static const uint32_t grains[] = {1, 4, 16, 64};

    bt_rng_seed(&rng, seed);
    start_table(arena);
    memset(jobs, 0, sizeof(jobs));
    memset(dead, 0, sizeof(dead));
    memset(lanes, 0, sizeof(lanes));
    memset(outs, 0, sizeof(outs));
    memset(owner, 0, sizeof(owner));
    text[0] = '\0';
    now_ns = (int64_t)between(0, 1000000);
    grain = grains[between(0, 3)];
    block_bytes = grain * between(1, GRAINS_MAX);
    peers = between(1, PEERS);
    rails = between(1, RAILS);
    fail_percent = chance(40) ? 0 : between(0, 25);
    damage_percent = chance(50) ? 0 : between(0, 8);
    flap_percent = chance(40) ? 0 : between(0, 8);
    open_all();
}

static void run_case(struct bt_arena *arena)
{
    uint32_t left = CASE_JOBS;
    uint64_t steps = 0, before = jobs_done;

    start_world(arena);
    while (jobs_done - before < CASE_JOBS) {
        if (left > 0 && chance(25) && add_job())
            left--;
        fates();
        pump_all();
        if (!advance()) {
            now_ns += between(0, 50000);
            open_all();
        }
        reap();
        check_load();
        CHECK(++steps < STEPS_MAX);
    }
}

static void random_jobs(void **state)
{
    const char *want = getenv("BATON_JOBS"), *one = getenv("BATON_SEED");
    uint64_t jobs_want = want != NULL ? strtoull(want, NULL, 10) : 20000;
    size_t size = bt_jobs_bytes(&limits);
    void *memory = malloc(size);

    (void)state;
    assert_non_null(memory);
    bt_rng_seed(&rng, SEED);
    for (size_t i = 0; i < sizeof(remote); i++)
        remote[i / sizeof(remote[0])][i % sizeof(remote[0])] =
            (unsigned char)bt_rng_u64(&rng);
    seed = one != NULL ? strtoull(one, NULL, 10) : SEED;
    print_message("seeds from %llu\n", (unsigned long long)seed);
    for (; jobs_done < jobs_want; seed++) {
        struct bt_arena arena;

        memset(memory, 0, size);
        bt_arena_init(&arena, memory, size);
        run_case(&arena);
        if (one != NULL)
            break;
    }
    free(memory);
    print_message("%llu jobs, %llu bytes:", (unsigned long long)jobs_done,
                  (unsigned long long)bytes_moved);
    for (int i = 0; i <= BT_BUG; i++) {
        if (ends[i] > 0)
            print_message(" %llu %s", (unsigned long long)ends[i],
                          bt_status_name((enum bt_status)i));
    }
    print_message("\n");
    /* A test in which nothing of one kind happens tests it not at all. */
    if (one == NULL) {
        assert_true(ends[BT_OK] > jobs_done / 3);
        assert_true(ends[BT_CANCELLED] > 0 && ends[BT_TIMEOUT] > 0);
        assert_true(ends[BT_PEER_ERROR] > 0 && ends[BT_CHECKSUM] > 0);
        assert_true(ends[BT_LIMIT] < jobs_done / 1000);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_jobs),
    };

    return cmocka_run_group_tests_name("jobs_random", tests, NULL, NULL);
}
