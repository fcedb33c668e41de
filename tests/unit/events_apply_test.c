/* What one rank's batches mean: groups, block sizes, localities, parked stores,
 * counting, decode errors, hash identity (engine-wire.md 1.10). Truth: worked
 * by hand on small chains; the sink is a list that knows what it was told. */
#include "kv_apply.h"
#include "kv_peek.h"
#include "kv_wire.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#define SIZE     4
#define HELD_MAX 4096
#define SECOND   INT64_C(1000000000)

struct world {
    struct kv_apply apply;
    struct kv_stream stream;
    struct kv_budget budget;
    struct bt_stream_counts counts;
    struct bt_event_sink sink;
    struct bt_kv_scratch scratch;
    struct kv_wire wire;
    int64_t now_ns;
    struct {
        uint64_t hash;
        enum bt_tier tier;
        uint32_t first; /* its first token */
    } held[HELD_MAX];
    size_t count;
    unsigned int clears, sizes, countings, says;
    uint32_t last_size;
    uint64_t copies;
    char said[256];
    enum bt_stream_state state;
    enum bt_stream_cause cause;
};

static struct world w;

/* ---- the sink ---- */

static bool holds(uint64_t hash, enum bt_tier tier)
{
    for (size_t i = 0; i < w.count; i++)
        if (w.held[i].hash == hash && w.held[i].tier == tier)
            return true;
    return false;
}

static bool has(uint64_t hash)
{
    return holds(hash, BT_TIER_DEVICE);
}

static enum bt_status on_store(void *arg, uint32_t source, uint32_t rank,
                               const struct bt_kv_store *store)
{
    (void)arg;
    assert_int_equal(source, 7);
    assert_int_equal(rank, 2);
    if (store->has_parent && !holds(store->parent, store->tier))
        return BT_NOT_FOUND;
    for (size_t i = 0; i < store->hash_count; i++) {
        assert_true(w.count < HELD_MAX);
        w.held[w.count].hash = store->hashes[i];
        w.held[w.count].tier = store->tier;
        w.held[w.count++].first = store->token_count == 0
                                      ? 0
                                      : store->tokens[i * store->block_tokens];
    }
    return BT_OK;
}

static void on_remove(void *arg, uint32_t source, uint32_t rank,
                      const struct bt_ev_kv_remove *remove)
{
    (void)arg;
    (void)source;
    (void)rank;
    for (size_t k = 0; k < remove->count; k++)
        for (size_t i = 0; i < w.count; i++)
            if (w.held[i].hash == remove->hashes[k] &&
                w.held[i].tier == remove->tier) {
                w.held[i] = w.held[--w.count];
                break;
            }
}

static void on_clear(void *arg, uint32_t source, uint32_t rank,
                     const struct bt_ev_kv_clear *clear)
{
    (void)arg;
    (void)source;
    (void)rank;
    w.clears++;
    for (size_t i = 0; i < w.count;)
        if (!clear->has_tier || w.held[i].tier == clear->tier)
            w.held[i] = w.held[--w.count];
        else
            i++;
}

static void on_counting(void *arg, uint32_t source, uint32_t rank,
                        enum bt_kv_counting counting)
{
    (void)arg;
    (void)source;
    (void)rank;
    assert_int_equal(counting, BT_KV_COUNT_SET);
    w.countings++;
}

static void on_size(void *arg, uint32_t source, uint32_t rank,
                    uint32_t block_tokens)
{
    (void)arg;
    (void)source;
    (void)rank;
    w.sizes++;
    w.last_size = block_tokens;
}

static uint64_t on_copies(void *arg, uint32_t source, uint32_t rank)
{
    (void)arg;
    (void)source;
    (void)rank;
    return w.copies;
}

static void on_say(void *arg, int level, const char *word, const char *text)
{
    (void)arg;
    w.says++;
    snprintf(w.said, sizeof(w.said), "%d %s %s", level, word, text);
}

/* ---- the stream around it ---- */

static void no_batch(void *arg, const struct kv_batch *batch)
{
    (void)arg;
    (void)batch;
}

static void nothing(void *arg)
{
    (void)arg;
}

static void on_state(void *arg, enum bt_stream_state state,
                     enum bt_stream_cause cause)
{
    (void)arg;
    w.state = state;
    w.cause = cause;
}

static bool no_label(void *arg, const struct kv_batch *batch, int64_t *out)
{
    (void)arg;
    (void)batch;
    (void)out;
    return false;
}

static void init(const struct kv_apply_config *wish)
{
    struct kv_apply_config c = *wish;
    struct kv_stream_ops ops = {.apply = no_batch,
                                .forget = nothing,
                                .state = on_state,
                                .label = no_label};
    struct kv_stream_limits limits = {.held_batches = 1, .held_bytes = 1};
    struct kv_batch first = {.payload = "", .bytes = 0};
    struct bt_kv_scratch scratch = w.scratch;

    memset(&w, 0, sizeof(w));
    if (scratch.hashes == NULL) {
        scratch.hashes_max = scratch.mm_max = scratch.mm_per_block_max = 4096;
        scratch.tokens_max = 65536;
        scratch.hashes = calloc(4096, sizeof(uint64_t));
        scratch.mm = calloc(4096, sizeof(uint64_t));
        scratch.mm_per_block = calloc(4096, sizeof(uint16_t));
        scratch.remaining = calloc(4096, sizeof(uint32_t));
        scratch.tokens = calloc(65536, sizeof(uint32_t));
    }
    w.scratch = scratch;
    w.now_ns = SECOND;
    w.sink = (struct bt_event_sink){.store = on_store,
                                    .remove = on_remove,
                                    .clear = on_clear,
                                    .counting = on_counting,
                                    .block_size = on_size,
                                    .copies = on_copies,
                                    .say = on_say};
    w.budget.max = c.budget == NULL ? 1 << 30 : c.budget->max;
    limits.budget = &w.budget;
    kv_stream_init(&w.stream, &ops, &limits, false, &w.counts);
    kv_stream_live(&w.stream, 0, &first); /* exact, from the start */
    c.name = "e";
    c.source = 7;
    c.rank = 2;
    c.ranks = 4;
    c.sink = &w.sink;
    c.scratch = &w.scratch;
    c.budget = &w.budget;
    if (c.parked_max == 0)
        c.parked_max = 4096;
    c.stream = &w.stream;
    c.counts = &w.counts;
    kv_apply_init(&w.apply, &c);
}

static void start(void)
{
    struct kv_apply_config c = {.block_tokens = SIZE};

    init(&c);
}

static void stop(void)
{
    kv_apply_fini(&w.apply);
    kv_stream_fini(&w.stream);
    assert_int_equal(w.budget.used, 0);
}

static void begin(void)
{
    wire_begin(&w.wire, 1000.);
}

static void apply(int label)
{
    wire_end(&w.wire, label);
    kv_apply_batch(&w.apply, w.now_ns, w.wire.at, w.wire.bytes);
}

/* One batch with one store of `count` blocks hash, hash + 1, ... */
static void chain(uint64_t hash, size_t count, uint64_t parent,
                  const struct kv_wire_store *how)
{
    uint64_t hashes[64];
    struct kv_wire_store s = {.group = -1};

    if (how != NULL)
        s = *how;
    for (size_t i = 0; i < count; i++)
        hashes[i] = hash + i;
    s.hashes = hashes;
    s.count = count;
    s.has_parent = parent != 0;
    s.parent = parent;
    if (s.size == 0)
        s.size = SIZE;
    if (s.first == 0)
        s.first = (uint32_t)hash * 100;
    begin();
    wire_stored(&w.wire, &s);
    apply(-1);
}

static void removed(uint64_t hash, int group, const char *medium)
{
    begin();
    wire_removed(&w.wire, &hash, 1, medium, group);
    apply(-1);
}

static void cleared(const char *medium)
{
    begin();
    wire_cleared(&w.wire, medium);
    apply(-1);
}

/* ---- parked stores ---- */

static void parents_come_later(void **state)
{
    (void)state;
    start();
    chain(30, 2, 20, NULL); /* waits for 20 */
    chain(40, 1, 31, NULL); /* for the end of that one */
    chain(50, 1, 31, NULL); /* a fork */
    chain(60, 1, 99, NULL); /* for nobody that comes */
    assert_int_equal(w.count, 0);
    assert_int_equal(w.apply.parked.count, 4);
    assert_int_equal(w.counts.unknown_parents, 4);
    chain(20, 1, 0, NULL);
    assert_int_equal(w.count, 5);
    assert_true(has(20) && has(30) && has(31) && has(40) && has(50));
    assert_int_equal(w.apply.parked.count, 1);
    assert_int_equal(w.counts.attached, 3);
    assert_int_equal(w.counts.stored_blocks, 5);
    for (size_t i = 0; i < w.count; i++) /* the copy kept its tokens */
        if (w.held[i].hash == 31)
            assert_int_equal(w.held[i].first, 3000 + SIZE);
    stop();
}

/* A long chain backwards: attached without recursion. */
static void a_chain_that_comes_backwards(void **state)
{
    (void)state;
    start();
    for (uint64_t i = 2000; i > 1; i--)
        chain(i, 1, i - 1, NULL);
    assert_int_equal(w.apply.parked.count, 1999);
    chain(1, 1, 0, NULL);
    assert_int_equal(w.count, 2000);
    assert_int_equal(w.apply.parked.count, 0);
    assert_int_equal(w.budget.used, 0);
    stop();
}

static void removals_hit_what_is_parked(void **state)
{
    (void)state;
    start();
    chain(30, 5, 20, NULL); /* 30 to 34 */
    chain(40, 2, 34, NULL);
    removed(32, -1, NULL);
    chain(20, 1, 0, NULL);
    assert_true(has(30) && has(31));
    assert_false(has(32) || has(33) || has(34) || has(40));
    assert_int_equal(w.apply.parked.count, 1); /* 34 never comes */
    stop();
    start();
    chain(30, 2, 20, NULL);
    removed(30, -1, "CPU"); /* another tier's */
    assert_int_equal(w.apply.parked.count, 1);
    removed(30, -1, NULL);
    assert_int_equal(w.apply.parked.count, 0);
    assert_int_equal(w.counts.parked_dropped, 1);
    assert_int_equal(w.budget.used, 0);
    stop();
}

static void clears_hit_what_is_parked(void **state)
{
    struct kv_wire_store cpu = {.medium = "CPU", .group = -1};

    (void)state;
    start();
    chain(30, 1, 20, NULL);
    chain(40, 1, 20, &cpu);
    cleared("CPU");
    assert_int_equal(w.apply.parked.count, 1);
    cleared(NULL);
    assert_int_equal(w.apply.parked.count, 0);
    assert_int_equal(w.counts.parked_dropped, 2);
    assert_int_equal(w.clears, 2);
    chain(30, 1, 20, NULL);
    kv_apply_forget(&w.apply);
    assert_int_equal(w.apply.parked.count, 0);
    assert_int_equal(w.clears, 3);
    stop();
}

static void parking_is_bounded(void **state)
{
    struct kv_budget tight = {.max = 1000};
    struct kv_apply_config c = {.block_tokens = SIZE, .parked_max = 3};

    (void)state;
    init(&c);
    for (uint64_t i = 0; i < 10; i++)
        chain(30 + i, 1, 20, NULL);
    assert_int_equal(w.apply.parked.count, 3);
    assert_int_equal(w.counts.parked, 3);
    assert_int_equal(w.counts.parked_dropped, 7);
    /* ... by time */
    kv_parked_expire(&w.apply.parked, w.now_ns);
    assert_int_equal(w.apply.parked.count, 3);
    kv_parked_expire(&w.apply.parked, w.now_ns + 1);
    assert_int_equal(w.apply.parked.count, 0);
    chain(20, 1, 0, NULL);
    assert_int_equal(w.count, 1);
    stop();
    /* ... and by the bytes that all streams share. */
    c.parked_max = 0;
    c.budget = &tight;
    init(&c);
    for (uint64_t i = 0; i < 100; i++)
        chain(30 + i, 1, 20, NULL);
    assert_true(w.apply.parked.count > 0 && w.apply.parked.count < 10);
    assert_true(w.budget.used <= 1000);
    stop();
}

static bool on_copy(void *arg, const struct bt_kv_store *s)
{
    unsigned int *seen = arg;

    (*seen)++;
    assert_int_equal(s->hash_count, 1); /* the second block was removed */
    assert_int_equal(s->hashes[0], 1);
    assert_int_equal(s->token_count, 4);
    assert_int_equal(s->tokens[3], 4);
    assert_int_equal(s->mm[0], 70);
    assert_int_equal(s->mm_per_block[0], 1);
    assert_memory_equal(s->lora, "adapter", 7);
    assert_memory_equal(s->salt, "salt", 4);
    return true;
}

static void copies_keep_names_and_images(void **state)
{
    uint64_t hashes[2] = {1, 2}, mm[3] = {70, 80, 90}, parent = 9;
    uint16_t per[2] = {1, 2};
    uint32_t tokens[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    char lora[8] = "adapter", salt[5] = "salt";
    struct bt_kv_store s = {.hashes = hashes,
                            .hash_count = 2,
                            .parent = parent,
                            .has_parent = 1,
                            .tokens = tokens,
                            .token_count = 8,
                            .block_tokens = 4,
                            .lora = lora,
                            .lora_bytes = 7,
                            .salt = salt,
                            .salt_bytes = 4,
                            .mm = mm,
                            .mm_per_block = per,
                            .full_attention = 1};
    struct kv_parked p;
    struct kv_budget budget = {.max = 1 << 20};
    struct bt_stream_counts counts = {0};
    unsigned int seen = 0;

    (void)state;
    kv_parked_init(&p, 10, &budget, &counts);
    kv_parked_add(&p, 0, &s);
    memset(hashes, 0, sizeof(hashes));
    memset(mm, 0, sizeof(mm));
    memset(per, 0, sizeof(per));
    memset(tokens, 0, sizeof(tokens));
    memset(lora, 0, sizeof(lora));
    memset(salt, 0, sizeof(salt));
    kv_parked_removed(&p, 2, BT_TIER_DEVICE);
    kv_parked_attach(&p, &parent, 1, on_copy, &seen);
    assert_int_equal(seen, 1);
    assert_int_equal(p.count, 0);
    assert_int_equal(budget.used, 0);
    kv_parked_fini(&p);
}

/* ---- groups ---- */

static void group_events(int group, const char *kind, uint64_t hash,
                         uint32_t tokens)
{
    struct kv_wire_store s = {
        .group = group, .kind = kind, .token_count = tokens};

    chain(hash, 2, 0, &s);
}

/* Field failure C08 over the plane: the full group is indexed, whichever. */
static void a_told_full_group_wins(void **state)
{
    (void)state;
    start();
    group_events(0, "sliding_window", 10, 20); /* spans more than 2 blocks */
    group_events(1, "full_attention", 30, 0);
    group_events(2, "mamba", 50, 20);
    assert_true(has(30) && has(31));
    assert_false(has(10) || has(50));
    assert_int_equal(w.counts.other_groups, 2);
    removed(30, 0, NULL); /* another group's copy of it */
    assert_true(has(30));
    assert_int_equal(w.counts.other_groups, 3);
    removed(30, 1, NULL);
    assert_false(has(30));
    removed(31, -1, NULL); /* of all groups */
    assert_false(has(31));
    assert_false(kv_groups_unsure(&w.apply.groups));
    stop();
}

static void one_untold_group_is_the_one(void **state)
{
    (void)state;
    start();
    group_events(3, NULL, 10, 0);
    assert_true(has(10));
    assert_false(kv_groups_unsure(&w.apply.groups));
    chain(20, 1, 0, NULL); /* no group: as group 0, a second one */
    assert_true(kv_groups_unsure(&w.apply.groups));
    stop();
}

/* vllm#57242: several groups, no kinds. The lowest that keeps the rule. */
static void untold_groups_are_guessed(void **state)
{
    (void)state;
    start();
    group_events(1, NULL, 10, 0);
    assert_true(has(10));
    group_events(0, NULL, 30, 20); /* breaks the rule at once */
    assert_true(has(10));
    assert_false(has(30));
    assert_int_equal(w.clears, 0);
    assert_true(kv_groups_unsure(&w.apply.groups));
    group_events(2, NULL, 50, 0);
    assert_false(has(50));
    group_events(1, NULL, 60, 20); /* and now the chosen one */
    assert_int_equal(w.clears, 1);
    assert_false(has(10) || has(60));
    assert_int_equal(w.state, BT_STREAM_PARTIAL);
    assert_int_equal(w.cause, BT_CAUSE_GROUPS);
    group_events(2, NULL, 70, 0);
    assert_true(has(70));
    group_events(4, "full_attention", 90, 0); /* a word ends the guessing */
    assert_int_equal(w.clears, 2);
    assert_true(has(90) && !has(70));
    assert_false(kv_groups_unsure(&w.apply.groups));
    stop();
}

static void window_groups_alone_are_not_indexed(void **state)
{
    (void)state;
    start();
    group_events(0, "sliding_window", 10, 0);
    group_events(1, "mamba", 20, 0);
    assert_int_equal(w.count, 0);
    assert_true(kv_groups_unsure(&w.apply.groups));
    stop();
}

static void groups_without_a_bit_are_left_out(void **state)
{
    (void)state;
    start();
    group_events(64, "full_attention", 10, 0);
    group_events(200, NULL, 20, 0);
    assert_int_equal(w.count, 0);
    assert_int_equal(w.counts.other_groups, 2);
    stop();
}

/* ---- sizes ---- */

/* Field failure C10. */
static void other_block_size_is_told_once(void **state)
{
    struct kv_wire_store big = {.size = 64, .group = -1};
    struct kv_wire_store cpu = {.size = 8, .medium = "CPU", .group = -1};
    struct kv_apply_config unset = {0};

    (void)state;
    start();
    for (int i = 0; i < 5; i++)
        chain(10, 1, 0, &big);
    assert_int_equal(w.count, 0);
    assert_int_equal(w.sizes, 1);
    assert_int_equal(w.last_size, 64);
    assert_int_equal(w.counts.size_mismatches, 5);
    assert_true(w.apply.size_bad);
    stop();
    /* Another tier's size says nothing of the model's: left out, no alarm. */
    start();
    chain(10, 1, 0, &cpu);
    assert_int_equal(w.count, 0);
    assert_int_equal(w.sizes, 0);
    assert_int_equal(w.counts.size_mismatches, 1);
    assert_false(w.apply.size_bad);
    stop();
    /* Nothing expected: the first is right, and the next that differs not. */
    init(&unset);
    chain(10, 1, 0, &big);
    assert_true(has(10));
    chain(20, 2, 0, NULL);
    assert_int_equal(w.sizes, 1);
    assert_int_equal(w.last_size, SIZE);
    assert_int_equal(w.count, 1);
    stop();
}

/* vllm#49125: finer entries hang on blocks that nobody announces. */
static void partial_blocks_are_no_alarm(void **state)
{
    struct kv_wire_store part = {.size = 2, .group = -1};

    (void)state;
    start();
    chain(10, 1, 0, NULL);
    chain(90, 1, 77, &part);
    assert_int_equal(w.sizes, 0);
    assert_int_equal(w.counts.size_mismatches, 0);
    assert_int_equal(w.counts.events[3], 1);
    assert_int_equal(w.apply.parked.count, 0);
    chain(91, 2, 10, &part); /* two of them are a smaller block size */
    assert_int_equal(w.sizes, 1);
    stop();
}

static void placeholders_pass(void **state)
{
    uint64_t hash = 10;
    struct kv_wire_store s = {
        .hashes = &hash, .count = 1, .medium = "CPU", .group = -1};

    (void)state;
    start();
    chain(10, 1, 0, NULL);
    begin();
    wire_stored(&w.wire, &s); /* no tokens, block size 0 */
    apply(-1);
    assert_true(holds(10, BT_TIER_HOST));
    assert_int_equal(w.sizes, 0);
    stop();
}

/* ---- others ---- */

static void foreign_blocks_are_counted(void **state)
{
    struct kv_wire_store remote = {.locality = "REMOTE", .group = -1};
    struct kv_wire_store local = {.locality = "LOCAL", .group = -1};

    (void)state;
    start();
    chain(10, 1, 0, &remote);
    assert_int_equal(w.count, 0);
    assert_int_equal(w.counts.foreign, 1);
    chain(10, 1, 0, &local);
    assert_true(has(10));
    stop();
}

static void clear_tells_the_stream(void **state)
{
    (void)state;
    start();
    kv_stream_damaged(&w.stream, BT_CAUSE_GAP);
    cleared("CPU");
    assert_int_equal(w.state, BT_STREAM_DEGRADED); /* one tier only */
    cleared(NULL);
    assert_int_equal(w.state, BT_STREAM_EXACT);
    assert_int_equal(w.counts.events[2], 2);
    stop();
}

/* Over 1 % of a window of 1,000 events, not at 1 %. */
static void decode_errors_degrade(void **state)
{
    (void)state;
    for (int bad = 10; bad <= 11; bad++) {
        start();
        for (int i = 0; i < 1000; i++) {
            begin();
            if (i < bad)
                wire_broken(&w.wire);
            else
                wire_cleared(&w.wire, "CPU");
            apply(-1);
        }
        assert_int_equal(w.counts.event_errors, bad);
        if (bad == 10) {
            assert_int_equal(w.state, BT_STREAM_EXACT);
            assert_int_equal(w.says, 0);
        } else {
            assert_int_equal(w.state, BT_STREAM_DEGRADED);
            assert_int_equal(w.cause, BT_CAUSE_DECODE_ERRORS);
            assert_int_equal(w.says, 1);
            assert_non_null(strstr(w.said, "kv_decode_errors"));
        }
        stop();
    }
    /* Few events: by time. A payload that is none counts as one. */
    start();
    kv_apply_batch(&w.apply, w.now_ns, "", 0);
    assert_int_equal(w.says, 0);
    w.now_ns += KV_WINDOW_NS;
    kv_apply_batch(&w.apply, w.now_ns, "\xc1", 1);
    assert_int_equal(w.counts.batch_errors, 2);
    assert_int_equal(w.says, 1);
    /* Said once, until a window was good. */
    for (int i = 0; i < 2000; i++)
        kv_apply_batch(&w.apply, w.now_ns, "", 0);
    assert_int_equal(w.says, 1);
    for (int i = 0; i < 1000; i++)
        cleared("CPU");
    for (int i = 0; i < 1000; i++)
        kv_apply_batch(&w.apply, w.now_ns, "", 0);
    assert_int_equal(w.says, 2);
    stop();
}

static void copies_that_leak_switch_the_counting(void **state)
{
    struct kv_apply_config c = {.block_tokens = SIZE};

    (void)state;
    start();
    kv_stream_alive(&w.stream, 0, false, 100);
    w.copies = 100;
    chain(10, 1, 0, NULL);
    assert_int_equal(w.countings, 0);
    w.copies = 101;
    removed(10, -1, NULL); /* only stores make copies */
    assert_int_equal(w.countings, 0);
    chain(10, 1, 0, NULL);
    assert_int_equal(w.countings, 1);
    assert_non_null(strstr(w.said, "kv_copies_leak"));
    chain(20, 1, 0, NULL);
    assert_int_equal(w.countings, 1);
    cleared(NULL); /* the rank is empty: copies again */
    chain(20, 1, 0, NULL);
    assert_int_equal(w.countings, 2);
    w.copies = 0; /* emptied by removals: told again with the next store */
    removed(20, -1, NULL);
    w.copies = 1;
    chain(20, 1, 0, NULL);
    assert_int_equal(w.countings, 3);
    chain(30, 1, 0, NULL);
    assert_int_equal(w.countings, 3);
    stop();
    c.removals = BT_REMOVALS_PER_COPY;
    init(&c);
    kv_stream_alive(&w.stream, 0, false, 100);
    w.copies = 1000;
    chain(10, 1, 0, NULL);
    assert_int_equal(w.countings, 0);
    stop();
    c.removals = BT_REMOVALS_LAST;
    init(&c);
    chain(10, 1, 0, NULL);
    assert_int_equal(w.countings, 1);
    assert_int_equal(w.says, 0);
    stop();
}

/* Removals that were missed leave copies behind: no proof of anything. */
static void copies_tell_nothing_after_a_hole(void **state)
{
    struct kv_batch late = {.seq = 5, .payload = "", .bytes = 0};

    (void)state;
    start();
    kv_stream_alive(&w.stream, 0, false, 100);
    kv_stream_live(&w.stream, 0, &late);
    assert_int_equal(w.state, BT_STREAM_DEGRADED);
    w.copies = 1000;
    chain(10, 1, 0, NULL);
    assert_int_equal(w.countings, 0);
    cleared(NULL); /* ends the hole */
    assert_int_equal(w.state, BT_STREAM_EXACT);
    w.copies = 101;
    chain(10, 1, 0, NULL);
    assert_int_equal(w.countings, 1);
    cleared(NULL); /* and what was proved of the copies that are gone */
    w.copies = 1;
    chain(10, 1, 0, NULL);
    assert_int_equal(w.countings, 1);
    stop();
}

/* The hashes themselves have vectors of their own (planner); here: which stores
 * are judged, with which extra keys, and what is said. */
static void hashes_are_held_against_the_seed(void **state)
{
    struct kv_apply_config c = {.block_tokens = SIZE,
                                .hash = BT_ENGINE_HASH_SHA256_CBOR};
    struct bt_engine_digest root, first, second;
    uint32_t tokens[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    struct bt_engine_extra lora = {.text = "a", .bytes = 1};
    struct bt_engine_extra both[2] = {{.text = "a", .bytes = 1},
                                      {.text = "s", .bytes = 1}};
    uint64_t hashes[2];
    struct kv_wire_store s = {.hashes = hashes,
                              .count = 2,
                              .tokens = tokens,
                              .size = SIZE,
                              .group = -1};

    (void)state;
    assert_int_equal(bt_engine_hash_root(c.hash, "0", &root), BT_OK);
    c.root = root;
    init(&c);
    assert_int_equal(
        bt_engine_hash_block(c.hash, &root, tokens, 4, NULL, 0, &first), BT_OK);
    assert_int_equal(
        bt_engine_hash_block(c.hash, &first, tokens + 4, 4, NULL, 0, &second),
        BT_OK);
    hashes[0] = bt_engine_digest_handle(&first);
    hashes[1] = bt_engine_digest_handle(&second);
    begin();
    wire_stored(&w.wire, &s);
    apply(-1);
    assert_int_equal(w.counts.hash_same, 1);
    hashes[1] ^= 1;
    for (int i = 0; i < 3; i++) {
        begin();
        wire_stored(&w.wire, &s);
        apply(-1);
    }
    assert_int_equal(w.counts.hash_other, 3);
    assert_int_equal(w.says, 1); /* once */
    assert_non_null(strstr(w.said, "kv_hash_other"));
    s.has_parent = true; /* cannot be judged */
    s.parent = hashes[0] + 5;
    begin();
    wire_stored(&w.wire, &s);
    apply(-1);
    assert_int_equal(w.counts.hash_same + w.counts.hash_other, 4);
    /* Adapter on every block, salt on the first. */
    assert_int_equal(
        bt_engine_hash_block(c.hash, &root, tokens, 4, both, 2, &first), BT_OK);
    assert_int_equal(
        bt_engine_hash_block(c.hash, &first, tokens + 4, 4, &lora, 1, &second),
        BT_OK);
    hashes[0] = bt_engine_digest_handle(&first);
    hashes[1] = bt_engine_digest_handle(&second);
    s.has_parent = false;
    s.lora = "a";
    s.salt = "s";
    begin();
    wire_stored(&w.wire, &s);
    apply(-1);
    assert_int_equal(w.counts.hash_same, 2);
    stop();
}

static void a_wrong_label_is_noticed(void **state)
{
    struct kv_apply_config c = {.block_tokens = SIZE, .port_is_rank = true};

    (void)state;
    init(&c);
    begin();
    apply(2);
    begin();
    apply(-1);
    assert_int_equal(w.counts.rank_mismatches, 0);
    begin();
    apply(0);
    begin();
    apply(0);
    assert_int_equal(w.counts.rank_mismatches, 2);
    assert_int_equal(w.says, 1);
    stop();
}

/* What is announced again while blocks are healed is no further copy; told
 * anew to a rank that begins anew. */
static void healing_counts_as_a_set(void **state)
{
    struct kv_apply_config c = {.block_tokens = SIZE};
    struct kv_wire_store s = {.first = 1, .size = SIZE, .group = -1};

    (void)state;
    init(&c);
    chain(10, 2, 0, &s);
    assert_int_equal(w.countings, 0);
    kv_apply_heal(&w.apply, true);
    kv_apply_heal(&w.apply, true);
    assert_int_equal(w.countings, 1);
    w.copies = 2;
    chain(10, 2, 0, &s);
    assert_int_equal(w.countings, 1);
    kv_apply_forget(&w.apply);
    chain(10, 2, 0, &s);
    assert_int_equal(w.countings, 2);
    /* Over, but what is under way may still come. */
    kv_apply_heal(&w.apply, false);
    chain(20, 2, 0, &s);
    assert_int_equal(w.apply.counting, BT_KV_COUNT_SET);
    kv_apply_forget(&w.apply);
    chain(10, 2, 0, &s);
    assert_int_equal(w.countings, 2);
    stop();
}

/* engine-wire.md 2.4: pairs where none are expected, and the reverse. */
static void eagle_against_what_is_expected(void **state)
{
    static const unsigned char g4[] = {
        0x93, 0xcb, 0x3f, 0xf0, 0,    0,    0,    0,    0,   0,    0x91,
        0x95, 0xab, 'B',  'l',  'o',  'c',  'k',  'S',  't', 'o',  'r',
        'e',  'd',  0x91, 0x7c, 0xc0, 0x94, 0x92, 1,    2,   0x92, 2,
        3,    0x92, 3,    4,    0x92, 4,    5,    SIZE, 0x00};
    bool said = false;
    struct kv_apply_config c = {.block_tokens = SIZE, .eagle_said = &said};
    struct kv_wire_store s = {.first = 1, .size = SIZE, .group = -1};

    (void)state;
    for (int want = BT_EAGLE_UNTOLD; want <= BT_EAGLE_ON; want++) {
        c.eagle = (enum bt_eagle)want;
        said = false;
        init(&c);
        kv_apply_batch(&w.apply, w.now_ns, g4, sizeof(g4));
        kv_apply_batch(&w.apply, w.now_ns, g4, sizeof(g4));
        assert_int_equal(w.counts.eagle_mismatches,
                         want == BT_EAGLE_OFF ? 2 : 0);
        assert_int_equal(said, want == BT_EAGLE_OFF);
        chain(10, 2, 0, &s);
        assert_int_equal(w.counts.eagle_mismatches, want == BT_EAGLE_UNTOLD ? 0
                                                    : want == BT_EAGLE_OFF  ? 2
                                                                           : 1);
        assert_int_equal(w.says, want == BT_EAGLE_UNTOLD ? 0 : 1);
        assert_true(has(10) && has(0x7c)); /* applied all the same */
        stop();
    }
}

/* ---- look without decoding ---- */

static void peeking(void **state)
{
    static const unsigned char map[] = {
        0x83, 0xa2, 't',  's', 0x05, 0xa6, 'e', 'v',  'e',  'n', 't', 's',
        0x91, 0x81, 0xa1, 'x', 0x92, 1,    2,   0xac, 'a',  't', 't', 'n',
        '_',  'd',  'p',  '_', 'r',  'a',  'n', 'k',  0xd0, 0xff};
    static const unsigned char no_rank[] = {0x92, 0x01, 0x90};
    static const unsigned char nil[] = {0x93, 0x01, 0x90, 0xc0};
    static const unsigned char bomb[] = {0x93, 0x01, 0xdd, 0xff,
                                         0xff, 0xff, 0xff};
    int64_t rank = 77;

    (void)state;
    start();
    begin();
    apply(3);
    assert_true(kv_peek_ts(w.wire.at, w.wire.bytes) == 1000.);
    assert_true(kv_peek_rank(w.wire.at, w.wire.bytes, &rank));
    assert_int_equal(rank, 3);
    /* Every cut of it: never beyond, never true. */
    for (size_t i = 0; i < w.wire.bytes; i++) {
        unsigned char *cut = malloc(i + 1);

        memcpy(cut, w.wire.at, i);
        assert_false(kv_peek_rank(cut, i, &rank));
        (void)kv_peek_ts(cut, i);
        free(cut);
    }
    assert_true(kv_peek_ts(map, sizeof(map)) == 5.);
    assert_true(kv_peek_rank(map, sizeof(map), &rank));
    assert_int_equal(rank, -1);
    assert_false(kv_peek_rank(no_rank, sizeof(no_rank), &rank));
    assert_false(kv_peek_rank(nil, sizeof(nil), &rank));
    assert_false(kv_peek_rank(bomb, sizeof(bomb), &rank));
    assert_true(kv_peek_ts("\xc0", 1) == 0.);
    /* Not a number, without end, before 1970, beyond any clock, and the last
     * that is none. */
    assert_true(kv_peek_ts("\x93\xcb\x7f\xf8\0\0\0\0\0\0", 10) == 0.);
    assert_true(kv_peek_ts("\x93\xcb\x7f\xf0\0\0\0\0\0\0", 10) == 0.);
    assert_true(kv_peek_ts("\x93\xff", 2) == 0.);
    assert_true(kv_peek_ts("\x93\xcb\x43\xab\xc1\x6d\x67\x4e\xc8\0", 10) == 0.);
    assert_true(kv_peek_ts("\x93\xcf\0\0\0\x17\x48\x76\xe8\0", 10) == 0.);
    assert_true(kv_peek_ts("\x93\xcf\0\0\0\x17\x48\x76\xe7\xff", 10) ==
                99999999999.);
    stop();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parents_come_later),
        cmocka_unit_test(a_chain_that_comes_backwards),
        cmocka_unit_test(removals_hit_what_is_parked),
        cmocka_unit_test(clears_hit_what_is_parked),
        cmocka_unit_test(parking_is_bounded),
        cmocka_unit_test(copies_keep_names_and_images),
        cmocka_unit_test(a_told_full_group_wins),
        cmocka_unit_test(one_untold_group_is_the_one),
        cmocka_unit_test(untold_groups_are_guessed),
        cmocka_unit_test(window_groups_alone_are_not_indexed),
        cmocka_unit_test(groups_without_a_bit_are_left_out),
        cmocka_unit_test(other_block_size_is_told_once),
        cmocka_unit_test(partial_blocks_are_no_alarm),
        cmocka_unit_test(placeholders_pass),
        cmocka_unit_test(foreign_blocks_are_counted),
        cmocka_unit_test(clear_tells_the_stream),
        cmocka_unit_test(decode_errors_degrade),
        cmocka_unit_test(copies_that_leak_switch_the_counting),
        cmocka_unit_test(copies_tell_nothing_after_a_hole),
        cmocka_unit_test(hashes_are_held_against_the_seed),
        cmocka_unit_test(a_wrong_label_is_noticed),
        cmocka_unit_test(healing_counts_as_a_set),
        cmocka_unit_test(eagle_against_what_is_expected),
        cmocka_unit_test(peeking),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
