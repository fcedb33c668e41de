/* Random calls of the port against a model, over each kind of
 * transport_bed.c. The model knows what every connection has sent and what
 * every get must bring:
 *  - frames come in order, whole, none twice, none made up; only the last ones
 *    may be missing, and only if the sender's end was closed;
 *  - a get or put that ends well has moved exactly its bytes, and one that
 *    does not is excused by a closed connection;
 *  - an end fails only if the other one was closed.
 * The bed checks that upcalls keep the rules. Seeds are printed on failure;
 * argument: KIND [SEED]. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include "transport_bed.h"

#include "baton/base/rng.h"

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PAIRS      6
#define GETS       12 /* per end */
#define SLOT_BYTES 32768u
#define STEPS      1500
#define SEEDS      4
#define FRAME_MAX  65536u

static struct tbed bed;
static struct bt_rng rng;
static uint64_t seed;

struct rend; /* one end, random */

struct ropt {
    struct top top;
    struct rend *end;
    bool is_busy, is_put;
    size_t slot; /* offset of its bytes in the target region */
};

struct rend {
    struct tend *end;
    struct rpair *pair;
    int side;
    uint32_t sent, got;
    struct bt_tkey *key, *put_key;
    struct ropt ops[GETS];
};

struct rpair {
    bool is_used;
    int index;
    uint32_t name; /* never the same again */
    struct rend ends[TBED_SIDES];
};

static struct rpair pairs[PAIRS];
static uint32_t names;
static unsigned char scratch[FRAME_MAX], want[FRAME_MAX];
static uint64_t gets_ok, puts_ok, frames_in;

static uint32_t below(uint32_t bound)
{
    return (uint32_t)bt_rng_below(&rng, bound);
}

/* ---- frames: their content is known from pair, side and number ---- */

static size_t frame_make(unsigned char *out, const struct rend *from,
                         uint32_t number)
{
    uint64_t x = bt_mix64((uint64_t)from->pair->name * 4 +
                          (uint64_t)from->side + ((uint64_t)number << 32));
    size_t size = 8 + x % (x % 5 == 0 ? FRAME_MAX - 8 : 600);

    tbed_fill(out, size, x);
    memcpy(out, &from->pair->name, 4);
    memcpy(out + 4, &number, 4);
    return size;
}

static void on_frame(struct tend *end, const unsigned char *bytes, size_t size)
{
    struct rend *to = end->arg, *from;

    assert_non_null(to);
    from = &to->pair->ends[!to->side];
    assert_true(to->got < from->sent);
    assert_int_equal(size, frame_make(want, from, to->got));
    assert_memory_equal(bytes, want, size);
    to->got++;
    frames_in++;
}

static void send_one(struct rend *from)
{
    size_t size = frame_make(scratch, from, from->sent);

    if (from->end->is_closing)
        return;
    from->sent++;
    tend_send(from->end, scratch, size);
}

/* ---- gets and puts ---- */

static void on_done(struct top *top)
{
    struct ropt *op = (struct ropt *)top;
    const struct rend *end = op->end;

    assert_true(op->is_busy);
    op->is_busy = false;
    if (top->status != BT_OK) {
        assert_true(end->end->is_closing ||
                    end->pair->ends[!end->side].end->is_closing);
        return;
    }
    *(op->is_put ? &puts_ok : &gets_ok) += 1;
    for (uint32_t i = 0; i < top->count; i++)
        assert_memory_equal(top->pieces[i].local,
                            (void *)(uintptr_t)top->pieces[i].remote,
                            top->pieces[i].bytes);
}

/* Every end has a place of its own in the target of the side it writes to, so
 * that what lands late or twice is seen. */
static size_t slot_of(const struct rend *end, int op)
{
    size_t ends = (size_t)end->pair->index * TBED_SIDES + (size_t)end->side;

    return (ends * GETS + (size_t)op) * SLOT_BYTES;
}

static void start(struct rend *end, bool is_put)
{
    int index = (int)below(GETS);
    struct ropt *op = &end->ops[index];
    struct tside *mine = &bed.side[end->side];
    struct tside *other = &bed.side[!end->side];
    uint32_t max = end->end->transport->ops->limits.pieces_max;
    uint32_t count = 1 + below(max < 8 ? max : 8);
    size_t at = slot_of(end, index);

    if (op->is_busy || end->key == NULL)
        return;
    op->top = (struct top){.on_done = on_done};
    op->end = end;
    op->is_put = is_put;
    op->is_busy = true;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t bytes = 1 + below(SLOT_BYTES / 8 - 1);
        uint32_t from = below(TBED_REGION - SLOT_BYTES);

        if (is_put)
            top_add(&op->top, mine->region + from,
                    other->target + at + i * (SLOT_BYTES / 8), bytes);
        else
            top_add(&op->top, mine->target + at + i * (SLOT_BYTES / 8),
                    other->region + from, bytes);
    }
    if (is_put)
        top_put(&op->top, end->end, end->put_key);
    else
        top_get(&op->top, end->end, end->key);
}

/* ---- connections ---- */

static void take(struct rend *end, struct rpair *pair, int side,
                 struct tend *tend)
{
    memset(end, 0, sizeof(*end));
    end->pair = pair;
    end->side = side;
    end->end = tend;
    tend->arg = end;
    tend->on_frame = on_frame;
}

static void make_pair(struct rpair *pair)
{
    int from = (int)below(2);
    struct tend *near, *far;

    tbed_pair(&bed, from, &near, &far);
    tend_allow_told(near, far);
    pair->is_used = true;
    pair->name = ++names;
    take(&pair->ends[from], pair, from, near);
    take(&pair->ends[!from], pair, !from, far);
    for (int i = 0; i < TBED_SIDES; i++) {
        pair->ends[i].key = tend_key(pair->ends[i].end);
        pair->ends[i].put_key = tend_target_key(pair->ends[i].end);
    }
}

/* Both ends are closed: nothing is left over, then the place is free. */
static void reap(struct rpair *pair)
{
    if (!pair->is_used || pair->ends[0].end->closed == 0 ||
        pair->ends[1].end->closed == 0)
        return;
    for (int i = 0; i < TBED_SIDES; i++) {
        struct rend *end = &pair->ends[i];

        for (int k = 0; k < GETS; k++)
            assert_false(end->ops[k].is_busy);
        tend_key_close(end->end, end->key);
        tend_key_close(end->end, end->put_key);
        free(end->end);
    }
    pair->is_used = false;
}

static void map_and_unmap(void)
{
    struct tside *side = &bed.side[below(2)];
    struct bt_tmem *mem;

    assert_int_equal(tbed_map(side, scratch, sizeof(scratch), &mem), BT_OK);
    tbed_unmap(side, mem);
}

static void step(void)
{
    struct rpair *pair = &pairs[below(PAIRS)];
    struct rend *end = &pair->ends[below(2)];
    uint32_t dice = below(100);

    if (!pair->is_used) {
        make_pair(pair);
        return;
    }
    if (end->end->closed > 0)
        return;
    if (dice < 2)
        tend_close(end->end);
    else if (dice < 4)
        map_and_unmap();
    else if (dice < 40)
        send_one(end);
    else if (dice < 60 && end->end->transport->ops->limits.put)
        start(end, true);
    else
        start(end, false);
}

/* Without a close nothing may be missing. */
static void finish(struct rpair *pair)
{
    struct rend *a = &pair->ends[0], *b = &pair->ends[1];

    if (!pair->is_used)
        return;
    if (!a->end->is_closing && !b->end->is_closing) {
        tbed_until_int(&bed, (int *)&a->got, (int)b->sent, "all frames");
        tbed_until_int(&bed, (int *)&b->got, (int)a->sent, "all frames");
    }
    tend_close(a->end);
    tend_close(b->end);
    tbed_until_int(&bed, &a->end->closed, 1, "closed");
    tbed_until_int(&bed, &b->end->closed, 1, "closed");
    reap(pair);
}

static void run_seed(const struct tbed_kind *kind)
{
    bt_rng_seed(&rng, seed);
    memset(pairs, 0, sizeof(pairs));
    tbed_open(&bed, kind);
    for (int i = 0; i < PAIRS; i++)
        pairs[i].index = i;
    for (int i = 0; i < STEPS; i++) {
        step();
        for (uint32_t turns = below(3); turns > 0; turns--)
            ev_run(bed.loop, EVRUN_NOWAIT);
        for (int k = 0; k < PAIRS; k++)
            reap(&pairs[k]);
    }
    for (int i = 0; i < PAIRS; i++)
        finish(&pairs[i]);
    tbed_close(&bed);
}

static void test_random(void **state)
{
    const struct tbed_kind *kind = *state;
    uint64_t first = seed;

    gets_ok = puts_ok = frames_in = 0;
    for (; seed < first + SEEDS; seed++) {
        print_message("seed %llu\n", (unsigned long long)seed);
        run_seed(kind);
    }
    seed = first;
    assert_true(gets_ok > 100 && frames_in > 100);
}

int main(int argc, char **argv)
{
    int failed = 0, groups = 0;

    setenv("UCX_NET_DEVICES", "lo", 0); /* nothing leaves the machine */
    seed = argc >= 3 ? strtoull(argv[2], NULL, 10) : 1;
    for (const struct tbed_kind *k = tbed_choose(); k->name != NULL; k++) {
        struct CMUnitTest tests[] = {cmocka_unit_test(test_random)};

        if (argc >= 2 && strcmp(argv[1], k->name) != 0)
            continue;
        tests[0].initial_state = (void *)(uintptr_t)k;
        failed += cmocka_run_group_tests_name(k->name, tests, NULL, NULL);
        groups++;
    }
    return groups > 0 ? failed : 1;
}
