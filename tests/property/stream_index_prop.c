/* Index + stream rules against a naive map: a random engine with eviction,
 * copies, clears and restarts publishes real batches over a network that loses,
 * repeats and reorders them; its replay buffer is short, its dumps lose batches
 * and their end. 10^6 operations over episodes of different kinds.
 *
 *   exact    after every quiescence the index is the engine's map, copies and
 *            look-ups included
 *   partial  the index claims nothing that the engine does not hold
 *   never    exact while a batch was missed since the rank was last empty
 *
 * What was missed is kept account of here, from the numbers alone. Prints the
 * seed of a failure; argv[1]: seed, argv[2]: operations. */
#include "baton/base/rng.h"
#include "baton/planner/block_hash.h"
#include "kv_apply.h"
#include "kv_peek.h"
#include "kv_wire.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define OPERATIONS  1000000
#define EPISODE     20000
#define DEPTH       5
#define ROOTS       6
#define CHILDREN    3
#define NODES_MAX   3000
#define SIZE        2
#define HISTORY     4096 /* kept by the model; the engine's buffer is less */
#define PAYLOAD_MAX 4096
#define FLIGHT_MAX  64
#define SECOND      INT64_C(1000000000)

/* ---- the naive engine ---- */

struct node {
    uint32_t parent; /* 0: none */
    uint32_t depth;
    uint32_t copies;
};

struct batch {
    uint64_t seq;
    size_t bytes;
    unsigned char payload[PAYLOAD_MAX];
};

struct engine {
    struct node nodes[NODES_MAX]; /* [0] unused */
    uint32_t node_count, held, capacity;
    uint64_t seq, buffer;
    double ts, life_ts; /* now; when this life began */
    struct batch history[HISTORY];
};

/* ---- one world ---- */

static struct {
    struct bt_rng rng;
    uint64_t seed, op;
    struct engine e;
    struct batch flight[FLIGHT_MAX];
    uint32_t flight_at, flight_count;
    bool lossy; /* the network now */
    double lose, dump_lose;
    /* a dump under way */
    bool asked, dumping, dump_any;
    uint64_t dump_at, dump_end;
    int64_t now_ns;
    /* under test */
    struct kv_stream stream;
    struct kv_apply apply;
    struct kv_budget budget;
    struct bt_stream_counts counts;
    struct bt_event_sink sink;
    struct bt_kv_scratch scratch;
    struct bt_prefix_index *index;
    struct bt_arena arena;
    void *memory;
    /* what was missed, by the numbers */
    bool any, missing, late, aged;
    uint64_t last;
    double last_ts, heard_ts;
    enum bt_stream_state state;
    uint64_t exact_checks, partial_checks, degraded_seen, restarts, replays;
} w;

#define CHECK(condition)                                                       \
    do {                                                                       \
        if (!(condition)) {                                                    \
            fprintf(stderr,                                                    \
                    "seed %" PRIu64 " op %" PRIu64 " line %d: %s\n"            \
                    "  state %s/%s next %" PRIu64 " engine %" PRIu64 "\n",     \
                    w.seed, w.op, __LINE__, #condition,                        \
                    bt_stream_state_name(w.stream.state),                      \
                    bt_stream_cause_name(w.stream.cause), w.stream.next,       \
                    w.e.seq);                                                  \
            exit(1);                                                           \
        }                                                                      \
    } while (0)

static bool chance(double p)
{
    return bt_rng_unit(&w.rng) < p;
}

static uint32_t below(uint32_t n)
{
    return (uint32_t)bt_rng_below(&w.rng, n);
}

static uint64_t hash_of(uint32_t node)
{
    return bt_mix64(node) | 1;
}

static void tree_init(struct engine *e)
{
    uint32_t level = 1, level_end = 1 + ROOTS;

    e->node_count = 1;
    for (uint32_t i = 0; i < ROOTS; i++)
        e->nodes[e->node_count++] = (struct node){.depth = 1};
    for (uint32_t d = 2; d <= DEPTH; d++) {
        for (uint32_t p = level; p < level_end; p++)
            for (uint32_t c = 0; c < CHILDREN; c++)
                e->nodes[e->node_count++] =
                    (struct node){.parent = p, .depth = d};
        level = level_end;
        level_end = e->node_count;
    }
}

/* ---- what the engine says ---- */

static void say_stored(struct kv_wire *wire, uint32_t node)
{
    struct node *n = &w.e.nodes[node];
    uint64_t hash = hash_of(node);
    uint32_t tokens[SIZE] = {node, node};
    struct kv_wire_store s = {.hashes = &hash,
                              .count = 1,
                              .has_parent = n->parent != 0,
                              .parent = hash_of(n->parent),
                              .tokens = tokens,
                              .size = SIZE,
                              .group = -1};

    wire_stored(wire, &s);
    n->copies++;
    w.e.held++;
}

static void say_removed(struct kv_wire *wire, uint32_t node)
{
    uint64_t hash = hash_of(node);

    wire_removed(wire, &hash, 1, "GPU", -1);
    w.e.nodes[node].copies--;
    w.e.held--;
}

static uint32_t random_held(void)
{
    uint32_t n = w.e.node_count, at = 1 + below(n - 1);

    for (uint32_t i = 1; i < n; i++, at = at + 1 == n ? 1 : at + 1)
        if (w.e.nodes[at].copies > 0)
            return at;
    return 0;
}

/* A prefill: the path to a node, as far as it is not held; perhaps one more
 * copy of its end. */
static void say_prefill(struct kv_wire *wire)
{
    uint32_t path[DEPTH], count = 0, node = 1 + below(w.e.node_count - 1);
    bool again = chance(0.1);

    for (uint32_t at = node; at != 0; at = w.e.nodes[at].parent)
        path[count++] = at;
    for (uint32_t i = count; i > 0; i--)
        if (w.e.nodes[path[i - 1]].copies == 0 || (again && i == 1))
            say_stored(wire, path[i - 1]);
    while (w.e.held > w.e.capacity)
        say_removed(wire, random_held());
}

static void say_clear(struct kv_wire *wire)
{
    wire_cleared(wire, NULL);
    for (uint32_t i = 1; i < w.e.node_count; i++)
        w.e.nodes[i].copies = 0;
    w.e.held = 0;
}

static struct batch *in_flight(uint32_t i)
{
    return &w.flight[(w.flight_at + i) % FLIGHT_MAX];
}

static void copy_batch(struct batch *to, const struct batch *from)
{
    to->seq = from->seq;
    to->bytes = from->bytes;
    memcpy(to->payload, from->payload, from->bytes);
}

static void fly(const struct batch *b)
{
    if (w.lossy && chance(w.lose))
        return;
    for (int times = w.lossy && chance(0.01) ? 2 : 1; times > 0; times--) {
        if (w.flight_count == FLIGHT_MAX)
            return; /* its own high-water mark */
        copy_batch(in_flight(w.flight_count++), b);
        if (w.lossy && w.flight_count > 1 && chance(0.005)) {
            struct batch t = *in_flight(w.flight_count - 2);

            *in_flight(w.flight_count - 2) = *in_flight(w.flight_count - 1);
            *in_flight(w.flight_count - 1) = t;
        }
    }
}

static void publish(bool clear)
{
    static struct kv_wire wire;
    struct batch *b = &w.e.history[w.e.seq % HISTORY];

    wire_begin(&wire, w.e.ts += 0.01);
    if (clear)
        say_clear(&wire);
    for (uint32_t n = below(3); n > 0; n--)
        say_prefill(&wire);
    if (w.e.held > 0 && chance(0.3))
        say_removed(&wire, random_held());
    wire_end(&wire, -1);
    CHECK(wire.bytes <= PAYLOAD_MAX);
    b->seq = w.e.seq++;
    b->bytes = wire.bytes;
    memcpy(b->payload, wire.at, wire.bytes);
    fly(b);
}

static void engine_restart(void)
{
    for (uint32_t i = 1; i < w.e.node_count; i++)
        w.e.nodes[i].copies = 0;
    w.e.held = 0;
    w.e.seq = 0;
    w.e.ts += 50.;
    w.e.life_ts = w.e.ts;
    w.asked = w.dumping = false; /* its sockets are gone */
    if (chance(0.5))
        w.flight_count = 0;
    w.restarts++;
}

/* ---- the sink: the index, as the core uses it ---- */

static enum bt_status on_store(void *arg, uint32_t source, uint32_t rank,
                               const struct bt_kv_store *store)
{
    (void)arg;
    (void)source;
    return bt_prefix_index_store(w.index, 0, rank, store);
}

static void on_remove(void *arg, uint32_t source, uint32_t rank,
                      const struct bt_ev_kv_remove *remove)
{
    (void)arg;
    (void)source;
    bt_prefix_index_remove(w.index, 0, rank, remove->hashes, remove->count,
                           remove->tier);
}

static void on_clear(void *arg, uint32_t source, uint32_t rank,
                     const struct bt_ev_kv_clear *clear)
{
    (void)arg;
    (void)source;
    CHECK(!clear->has_tier);
    bt_prefix_index_clear(w.index, 0, rank);
    w.missing = w.late = w.aged = false;
}

static void on_counting(void *arg, uint32_t source, uint32_t rank,
                        enum bt_kv_counting counting)
{
    (void)arg;
    (void)source;
    (void)rank;
    (void)counting;
    CHECK(!"counting is per copy");
}

static void on_size(void *arg, uint32_t source, uint32_t rank, uint32_t size)
{
    (void)arg;
    (void)source;
    (void)rank;
    (void)size;
    CHECK(!"the size is right");
}

static uint64_t on_copies(void *arg, uint32_t source, uint32_t rank)
{
    (void)arg;
    (void)source;
    return bt_prefix_index_copies(w.index, 0, rank, BT_TIER_DEVICE);
}

/* ---- the stream's wishes ---- */

static void on_apply(void *arg, const struct kv_batch *batch)
{
    (void)arg;
    if (!w.any)
        w.late = w.late || batch->seq != 0;
    else if (batch->seq != w.last + 1)
        w.missing = true;
    CHECK(!w.any || batch->seq > w.last);
    w.any = true;
    w.last = batch->seq;
    w.last_ts = batch->ts;
    kv_apply_batch(&w.apply, w.now_ns, batch->payload, batch->bytes);
}

static void on_forget(void *arg)
{
    (void)arg;
    w.any = false;
    kv_apply_forget(&w.apply);
}

static bool on_want(void *arg)
{
    (void)arg;
    return true;
}

static void on_ask(void *arg, uint64_t seq)
{
    (void)arg;
    w.asked = true;
    w.dumping = false; /* a new socket each time */
    w.dump_at = seq;
    w.replays++;
}

static void on_done(void *arg)
{
    (void)arg;
    w.asked = w.dumping = false;
}

static void on_state(void *arg, enum bt_stream_state state,
                     enum bt_stream_cause cause)
{
    (void)arg;
    if (state == BT_STREAM_EXACT)
        CHECK(!w.missing && !w.late);
    if (cause == BT_CAUSE_AGED_OUT && state == BT_STREAM_PARTIAL) {
        bt_prefix_index_drop_aged(w.index, 0, 0);
        w.aged = true;
    }
    if (state == BT_STREAM_PARTIAL)
        CHECK(!w.missing || w.aged);
    if (state == BT_STREAM_DEGRADED && w.state != state) {
        bt_prefix_index_age(w.index, 0, 0);
        w.degraded_seen++;
    }
    w.state = state;
}

static bool on_label(void *arg, const struct kv_batch *batch, int64_t *out)
{
    (void)arg;
    return kv_peek_rank(batch->payload, batch->bytes, out);
}

/* ---- deliveries ---- */

static struct kv_batch frame(const struct batch *b)
{
    return (struct kv_batch){.seq = b->seq,
                             .ts = kv_peek_ts(b->payload, b->bytes),
                             .payload = b->payload,
                             .bytes = b->bytes};
}

/* The highest number that has been heard, and one more. */
static uint64_t beyond(void)
{
    uint64_t next = w.stream.next;

    for (uint32_t i = 0; i < w.stream.held_count; i++) {
        const struct kv_held *h =
            &w.stream
                 .held[(w.stream.held_at + i) % w.stream.limits.held_batches];

        next = h->batch.seq >= next ? h->batch.seq + 1 : next;
    }
    if (w.stream.held_lost && w.stream.lost_last >= next)
        next = w.stream.lost_last + 1;
    return next;
}

/* A life of which the first batch that is heard has just the number expected
 * cannot be told from the life before, other than by `alive`: not here. */
static bool is_coincidence(const struct batch *b, double ts)
{
    return ts >= w.e.life_ts && w.heard_ts < w.e.life_ts &&
           w.last_ts < w.e.life_ts && b->seq == beyond();
}

static void deliver(void)
{
    static struct batch first;
    struct kv_batch f;

    if (w.flight_count == 0)
        return;
    copy_batch(&first, in_flight(0));
    w.flight_at = (w.flight_at + 1) % FLIGHT_MAX;
    w.flight_count--;
    f = frame(&first);
    if (is_coincidence(&first, f.ts))
        return;
    w.heard_ts = f.ts;
    kv_stream_live(&w.stream, w.now_ns, &f);
}

/* One step of a dump: a batch, or the end mark. */
static void dump_step(void)
{
    if (!w.asked)
        return;
    if (!w.dumping) {
        uint64_t oldest = w.e.seq > w.e.buffer ? w.e.seq - w.e.buffer : 0;

        w.dumping = true;
        w.dump_any = false;
        w.dump_end = w.e.seq;
        w.dump_at = w.dump_at > oldest ? w.dump_at : oldest;
    }
    if (w.dump_at < w.dump_end) {
        const struct batch *b = &w.e.history[w.dump_at % HISTORY];
        struct kv_batch f = frame(b);
        bool head = !w.dump_any;

        CHECK(b->seq == w.dump_at);
        w.dump_at++;
        w.dump_any = true;
        if (w.lossy && !head && chance(w.dump_lose))
            return; /* drops come once its queue is full: not at the head */
        kv_stream_replayed(&w.stream, w.now_ns, &f);
        return;
    }
    w.asked = w.dumping = false;
    if (!w.lossy || !chance(w.dump_lose))
        kv_stream_replay_end(&w.stream, w.now_ns);
}

static void pass_time(bool far)
{
    int64_t at = kv_stream_deadline(&w.stream);

    w.now_ns += far && at > w.now_ns ? at - w.now_ns : SECOND / 100;
    kv_stream_tick(&w.stream, w.now_ns);
}

/* ---- checks ---- */

struct count {
    uint64_t entries, over, other, unkeyed;
};

static void on_entry(void *arg, const struct bt_prefix_entry *entry)
{
    struct count *c = arg;
    uint32_t node = 0;

    for (uint32_t i = 1; i < w.e.node_count && node == 0; i++)
        if (hash_of(i) == entry->hash)
            node = i;
    CHECK(node != 0);
    c->entries++;
    c->over += entry->copies[0] > w.e.nodes[node].copies;
    c->other += entry->copies[0] != w.e.nodes[node].copies;
    c->unkeyed += !entry->keyed;
}

/* Look-ups of some paths: as deep as the engine holds them without a hole. */
static void check_lookups(void)
{
    for (int i = 0; i < 8; i++) {
        uint32_t path[DEPTH], tokens[DEPTH * SIZE], count = 0, depth = 0, got;
        uint64_t keys[DEPTH];

        for (uint32_t at = w.e.node_count - 1 - below(ROOTS * 81); at != 0;
             at = w.e.nodes[at].parent)
            path[count++] = at;
        for (uint32_t k = 0; k < count; k++)
            for (uint32_t t = 0; t < SIZE; t++)
                tokens[k * SIZE + t] = path[count - 1 - k];
        while (depth < count && w.e.nodes[path[count - 1 - depth]].copies > 0)
            depth++;
        CHECK(bt_block_keys(tokens, (size_t)count * SIZE, SIZE,
                            bt_ns_seed(NULL, 0, NULL, 0), keys,
                            DEPTH) == count);
        bt_prefix_index_match(w.index, keys, count, &got);
        CHECK(got == depth);
    }
}

static void check(void)
{
    struct count c = {0};
    uint64_t held = 0;

    bt_prefix_index_each(w.index, 0, on_entry, &c);
    for (uint32_t i = 1; i < w.e.node_count; i++)
        held += w.e.nodes[i].copies > 0;
    if (w.stream.state == BT_STREAM_EXACT) {
        CHECK(c.other == 0 && c.unkeyed == 0 && c.entries == held);
        check_lookups();
        w.exact_checks++;
    } else if (w.stream.state == BT_STREAM_PARTIAL && !w.aged) {
        CHECK(c.over == 0);
        w.partial_checks++;
    }
    CHECK(w.budget.used >= w.stream.held_bytes);
}

/* All that is under way arrives, every replay is answered in full. */
static void quiesce(void)
{
    w.lossy = false;
    for (int round = 0; round < 20; round++) {
        publish(false);
        while (w.flight_count > 0)
            deliver();
        for (int i = 0; i < 40 * HISTORY && w.stream.phase == KV_ASKED; i++)
            if (w.asked)
                dump_step();
            else
                pass_time(true); /* the end mark was lost before */
        CHECK(w.stream.phase != KV_ASKED && w.stream.phase != KV_WAITING);
        if (w.stream.mixed) /* lives too short to be told from ranks */
            w.now_ns += 31 * SECOND;
        if (w.stream.next == w.e.seq)
            break;
    }
    CHECK(w.stream.next == w.e.seq);
    check();
    w.lossy = true;
}

/* ---- an episode ---- */

static void episode_begin(uint32_t kind)
{
    struct kv_stream_ops ops = {on_apply, on_forget, on_want,  on_ask,
                                on_done,  on_state,  on_label, NULL};
    bool replay = kind % 4 != 3;
    struct kv_stream_limits limits = {.held_batches = kind % 5 == 1 ? 8 : 512,
                                      .held_bytes = 1 << 20,
                                      .silence_ns = 2 * SECOND,
                                      .replay_ns = 120 * SECOND,
                                      .cooldown_ns = 30 * SECOND,
                                      .budget = &w.budget};
    struct kv_apply_config apply = {.name = "engine",
                                    .block_tokens = SIZE,
                                    .removals = BT_REMOVALS_PER_COPY,
                                    .ranks = 1,
                                    .sink = &w.sink,
                                    .scratch = &w.scratch,
                                    .budget = &w.budget,
                                    .parked_max = kind % 3 == 0 ? 4 : 4096,
                                    .stream = &w.stream,
                                    .counts = &w.counts};
    struct bt_prefix_index_limits size = {
        .workers_max = 1, .blocks_max = 8192, .holdings_max = 8192};

    memset(&w.e, 0, sizeof(w.e));
    tree_init(&w.e);
    w.e.capacity = 100 + below(200);
    w.e.buffer = kind % 6 == 2 ? 20 : 900;
    w.e.ts = 1000.;
    w.last_ts = w.heard_ts = 0.;
    w.flight_count = 0;
    w.asked = w.dumping = w.any = w.missing = w.late = w.aged = false;
    w.state = BT_STREAM_ABSENT;
    w.lossy = true;
    w.lose = kind % 7 == 6 ? 0.2 : 0.004;
    w.dump_lose = kind % 2 == 0 ? 0.02 : 0.3;
    w.budget.max = 1 << 22;
    memset(w.memory, 0, bt_prefix_index_bytes(&size));
    bt_arena_init(&w.arena, w.memory, bt_prefix_index_bytes(&size));
    w.index = bt_prefix_index_init(&w.arena, &size);
    CHECK(w.index != NULL);
    kv_stream_init(&w.stream, &ops, &limits, replay, &w.counts);
    kv_apply_init(&w.apply, &apply);
    kv_stream_alive(&w.stream, w.now_ns, false, w.e.capacity);
}

/* The next life has passed our number before anything of it is heard. */
static void restart_unheard(void)
{
    uint64_t to = beyond() + 1 + below(4);

    if (to > 400)
        return;
    engine_restart();
    w.flight_count = 0;
    while (w.e.seq < to) {
        publish(false);
        w.flight_count = 0;
    }
}

/* Lost and back, with another life that has said less or nothing, and no word
 * of it but the answer to the proof that is asked for. */
static void restart_unproved(void)
{
    engine_restart();
    w.flight_count = 0;
    for (uint32_t n = below(4); n > 0; n--) {
        publish(false);
        w.flight_count = 0;
    }
    kv_stream_lost(&w.stream);
    kv_stream_alive(&w.stream, w.now_ns, false, w.e.capacity);
    if (!w.stream.has_replay || w.stream.phase != KV_ASKED || w.stream.fresh ||
        !w.asked)
        return;
    w.lossy = false;
    for (int i = 0; i < 4 * HISTORY && w.asked; i++)
        dump_step();
    w.lossy = true;
    CHECK(w.stream.state != BT_STREAM_EXACT || w.stream.next == w.e.seq);
    check();
}

static void rare(void)
{
    switch (below(10)) {
    case 9:
        restart_unheard();
        return;
    case 0:
    case 1:
        engine_restart();
        return;
    case 2:
        engine_restart();
        kv_stream_lost(&w.stream);
        kv_stream_alive(&w.stream, w.now_ns, true, w.e.capacity);
        return;
    case 3:
        kv_stream_lost(&w.stream);
        kv_stream_alive(&w.stream, w.now_ns, false, w.e.capacity);
        return;
    case 4:
        (void)kv_stream_resync(&w.stream, w.now_ns);
        return;
    case 5:
        (void)kv_stream_probe(&w.stream, w.now_ns, BT_CAUSE_BUSY_SILENT);
        return;
    case 6:
        restart_unproved();
        return;
    case 7:
        publish(true);
        return;
    case 8: /* a hole of many, or of more than the buffer */
        for (uint32_t n = 1 + below(60); n > 0; n--) {
            publish(false);
            if (w.flight_count > 0)
                w.flight_count--;
        }
        return;
    }
}

static void step(void)
{
    uint32_t dice = below(10000);

    if (dice < 4200)
        publish(false);
    else if (dice < 8600)
        deliver();
    else if (dice < 9700)
        for (int i = 0; i < 3; i++)
            dump_step();
    else if (dice < 9960)
        pass_time(dice % 4 == 0);
    else if (dice < 9985)
        rare();
    else
        quiesce();
    if (w.stream.state != BT_STREAM_SYNCING && w.stream.next == w.e.seq &&
        w.last_ts >= w.e.life_ts && w.op % 16 == 0)
        check();
}

static void episode_end(void)
{
    quiesce();
    kv_stream_fini(&w.stream);
    kv_apply_fini(&w.apply);
    CHECK(w.budget.used == 0);
}

static void scratch_init(void)
{
    w.scratch = (struct bt_kv_scratch){.hashes_max = 256,
                                       .tokens_max = 1024,
                                       .mm_max = 256,
                                       .mm_per_block_max = 256};
    w.scratch.hashes = calloc(256, sizeof(uint64_t));
    w.scratch.tokens = calloc(1024, sizeof(uint32_t));
    w.scratch.mm = calloc(256, sizeof(uint64_t));
    w.scratch.mm_per_block = calloc(256, sizeof(uint16_t));
    w.scratch.remaining = calloc(256, sizeof(uint32_t));
}

int main(int argc, char **argv)
{
    uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 0) : 1;
    uint64_t operations = argc > 2 ? strtoull(argv[2], NULL, 0) : OPERATIONS;
    struct bt_prefix_index_limits size = {
        .workers_max = 1, .blocks_max = 8192, .holdings_max = 8192};

    w.seed = seed;
    w.now_ns = SECOND;
    bt_rng_seed(&w.rng, seed);
    scratch_init();
    w.memory = aligned_alloc(64, (bt_prefix_index_bytes(&size) + 63) / 64 * 64);
    w.sink = (struct bt_event_sink){.store = on_store,
                                    .remove = on_remove,
                                    .clear = on_clear,
                                    .counting = on_counting,
                                    .block_size = on_size,
                                    .copies = on_copies};
    for (uint32_t kind = 0; w.op < operations; kind++) {
        episode_begin(kind);
        for (uint64_t i = 0; i < EPISODE && w.op < operations; i++, w.op++)
            step();
        episode_end();
    }
    printf("seed %" PRIu64 ": %" PRIu64 " operations, %" PRIu64
           " exact and %" PRIu64 " partial checks, %" PRIu64
           " times degraded, %" PRIu64 " restarts, %" PRIu64
           " requests, %" PRIu64 " gaps, %" PRIu64 " duplicates\n",
           seed, w.op, w.exact_checks, w.partial_checks, w.degraded_seen,
           w.restarts, w.replays, w.counts.gaps, w.counts.duplicates);
    /* A world in which nothing happens proves nothing. */
    if (operations >= OPERATIONS)
        CHECK(w.exact_checks > 1000 && w.partial_checks > 10 &&
              w.degraded_seen > 100 && w.restarts > 100 &&
              w.counts.gaps > 1000 && w.counts.duplicates > 1000 &&
              w.counts.replays_failed > 10 && w.counts.attached > 10);
    free(w.memory);
    free(w.scratch.hashes);
    free(w.scratch.tokens);
    free(w.scratch.mm);
    free(w.scratch.mm_per_block);
    free(w.scratch.remaining);
    return 0;
}
