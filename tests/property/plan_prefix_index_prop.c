/* Prefix index against a naive model: plain arrays of copies per (worker, rank,
 * node, tier), where a node is a prefix out of a small forest. Random stores,
 * removals, remaining counts, clears, restarts, ageing, switches of counting
 * and, in one run, tables so small that entries must make room: those are
 * learnt from bt_prefix_index_each, and may only be missing, never extra.
 * At the end everything is removed and nothing may be left.
 *
 * Two forests: one where the engine hash names the namespace too (vLLM), one
 * where two tenants share engine hashes (SGLang). Fleets of 5, 70 and 300 rows:
 * holders as bits, as sets of two words, as chains and wide sets.
 */
#include "baton/base/rng.h"
#include "baton/planner/block_hash.h"
#include "baton/planner/prefix_index.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#define WORKERS_MAX 300
#define RANKS       2
#define SOURCES_MAX (WORKERS_MAX * RANKS)
#define DEPTH       6
#define PATHS       6 /* chains of DEPTH nodes; they share their first half */
#define NODES       (PATHS * DEPTH)
#define BLOCK       3
#define COPIES      127 /* a count stops here */

struct node {
    uint64_t hash, key, ns;
    const char *salt;
    int salted_events; /* SGLang: the salt is on every event */
    uint32_t tokens[BLOCK];
    uint32_t canon;      /* first node with the same key and hash */
    uint32_t canon_hash; /* first node with the same hash */
};

struct entry {
    uint32_t n[BT_TIERS];
    bool aged;
};

struct config {
    uint64_t seed;
    uint32_t workers, ops, match_every, all_every;
    uint32_t shared_min; /* blocks with sets outside, at some moment */
    int shared_hashes;
    uint32_t blocks_max, holdings_max; /* 0: room for everything */
};

static const struct config *cfg;
static struct bt_prefix_index *x;
static struct bt_rng rng;
static struct node nodes[NODES];
static struct entry keyed[SOURCES_MAX][NODES];
/* Counts-only entries, at the first node of their hash. */
static struct entry loose[SOURCES_MAX][NODES];
static bool set_mode[SOURCES_MAX];
static uint64_t collisions;

static uint32_t below(uint32_t n)
{
    return (uint32_t)bt_rng_below(&rng, n);
}

static struct bt_prefix_index_stats stats(void)
{
    struct bt_prefix_index_stats out;

    bt_prefix_index_stats_get(x, &out);
    return out;
}

/* ---- the forest ---- */

static void name_nodes(void)
{
    for (uint32_t n = 0; n < NODES; n++) {
        uint32_t i = 0;

        while (nodes[i].hash != nodes[n].hash)
            i++;
        nodes[n].canon_hash = i;
        while (nodes[i].key != nodes[n].key || nodes[i].hash != nodes[n].hash)
            i++;
        nodes[n].canon = i;
    }
}

/* Path p: namespace by p % 3 (plain, tenant-a, tenant-b); the halves of p / 3
 * share their first DEPTH / 2 blocks. Tenants share engine hashes if asked. */
static void plant(int shared_hashes)
{
    static const char *const salts[] = {"", "tenant-a", "tenant-b"};

    for (uint32_t p = 0; p < PATHS; p++) {
        uint32_t flat[DEPTH * BLOCK];
        uint64_t keys[DEPTH];
        const char *salt = salts[shared_hashes ? 1 + p % 2 : p % 3];
        uint64_t ns = bt_ns_seed(NULL, 0, salt, strlen(salt));
        uint32_t branch = shared_hashes ? p / 2 : p / 3;

        for (uint32_t i = 0; i < DEPTH * BLOCK; i++)
            flat[i] = i < DEPTH / 2 * BLOCK ? i : i + 1000 * branch;
        bt_block_keys(flat, DEPTH * BLOCK, BLOCK, ns, keys, DEPTH);
        for (uint32_t i = 0; i < DEPTH; i++) {
            struct node *n = &nodes[p * DEPTH + i];
            uint64_t plain = 10 + i + (i < DEPTH / 2 ? 0 : 100 * branch);

            n->key = keys[i];
            n->ns = ns;
            n->hash = shared_hashes ? plain : keys[i] ^ 0x5555;
            n->salt = salt;
            n->salted_events = shared_hashes;
            memcpy(n->tokens, flat + i * BLOCK, sizeof(n->tokens));
        }
    }
    name_nodes();
}

/* ---- the model ---- */

static bool any(const struct entry *e)
{
    return e->n[0] || e->n[1] || e->n[2] || e->n[3];
}

static bool rank_is_empty(uint32_t src)
{
    for (uint32_t n = 0; n < NODES; n++)
        if (any(&keyed[src][n]) || any(&loose[src][n]))
            return false;
    return true;
}

static void model_add(uint32_t src, struct entry *e, unsigned int tier)
{
    e->aged = false;
    if (e->n[tier] > 0 && set_mode[src])
        return;
    e->n[tier] += e->n[tier] < COPIES;
}

static void model_less(uint32_t src, struct entry *e, unsigned int tier,
                       const uint32_t *left)
{
    uint32_t max = set_mode[src] ? 1 : COPIES;

    if (e->n[tier] == 0)
        return;
    e->n[tier] = left == NULL ? e->n[tier] - 1 : *left < max ? *left : max;
}

static void model_remove(uint32_t src, uint32_t node, unsigned int tier,
                         const uint32_t *left)
{
    uint32_t at = nodes[node].canon_hash;

    for (uint32_t n = 0; n < NODES; n++)
        if (nodes[n].canon == n && nodes[n].canon_hash == at)
            model_less(src, &keyed[src][n], tier, left);
    model_less(src, &loose[src][at], tier, left);
}

/* Every entry of the hash gains the tier; an unknown hash becomes a loose one.
 */
static void model_offload(uint32_t src, uint32_t node, unsigned int tier)
{
    uint32_t at = nodes[node].canon_hash;
    bool known = false;

    for (uint32_t n = 0; n < NODES; n++) {
        if (nodes[n].canon != n || nodes[n].canon_hash != at ||
            !any(&keyed[src][n]))
            continue;
        model_add(src, &keyed[src][n], tier);
        known = true;
    }
    if (!known || any(&loose[src][at]))
        model_add(src, &loose[src][at], tier);
}

static unsigned int model_tiers(uint32_t worker, uint32_t node)
{
    unsigned int tiers = 0;

    for (uint32_t r = 0; r < RANKS; r++)
        for (unsigned int t = 0; t < BT_TIERS; t++)
            if (keyed[worker * RANKS + r][nodes[node].canon].n[t] > 0)
                tiers |= 1u << t;
    return tiers;
}

static void forget(uint32_t src)
{
    memset(keyed[src], 0, sizeof(keyed[src]));
    memset(loose[src], 0, sizeof(loose[src]));
}

/* ---- learning what made room ---- */

static struct entry seen_keyed[SOURCES_MAX][NODES];
static struct entry seen_loose[SOURCES_MAX][NODES];

struct seeing {
    uint32_t worker;
};

static void see(void *arg, const struct bt_prefix_entry *e)
{
    const struct seeing *s = arg;
    uint32_t src = s->worker * RANKS + e->rank, n = 0;
    struct entry *to;

    while (n < NODES &&
           (nodes[n].hash != e->hash ||
            (e->keyed && (nodes[n].key != e->key || nodes[n].ns != e->ns))))
        n++;
    assert_true(n < NODES);
    to = e->keyed ? &seen_keyed[src][n] : &seen_loose[src][n];
    assert_false(any(to)); /* told once */
    memcpy(to->n, e->copies, sizeof(to->n));
    assert_true(any(to));
}

/* What the index has must be what the model has, or less by what made room;
 * an entry of the last store may have gone and come anew. */
static void learn_entry(struct entry *model, const struct entry *seen,
                        bool evicted, bool stored)
{
    uint32_t sum = 0;

    if (memcmp(model->n, seen->n, sizeof(model->n)) == 0)
        return;
    assert_true(evicted);
    for (unsigned int t = 0; t < BT_TIERS; t++) {
        assert_true(seen->n[t] <= model->n[t]);
        sum += seen->n[t];
    }
    assert_true(sum == 0 || (stored && sum == 1));
    memcpy(model->n, seen->n, sizeof(model->n));
}

static void learn(bool evicted, uint32_t src, const bool *stored)
{
    memset(seen_keyed, 0, sizeof(seen_keyed));
    memset(seen_loose, 0, sizeof(seen_loose));
    for (uint32_t w = 0; w < cfg->workers; w++)
        bt_prefix_index_each(x, w, see, &(struct seeing){w});
    for (uint32_t s = 0; s < cfg->workers * RANKS; s++)
        for (uint32_t n = 0; n < NODES; n++) {
            bool mine = s == src && stored[nodes[n].canon_hash];

            learn_entry(&keyed[s][n], &seen_keyed[s][n], evicted, mine);
            learn_entry(&loose[s][n], &seen_loose[s][n], evicted, mine);
        }
}

/* ---- operations on both ---- */

/* Blocks applied before a table was full; the status must fit. */
static uint32_t apply(uint32_t src, const struct bt_kv_store *s,
                      enum bt_status want)
{
    struct bt_prefix_index_stats before = stats(), after;
    enum bt_status got = bt_prefix_index_store(x, src / RANKS, src % RANKS, s);
    uint64_t done;

    after = stats();
    done = after.stores - before.stores;
    assert_int_equal(after.collisions, collisions);
    if (got == BT_LIMIT || done < s->hash_count)
        assert_true(want == BT_NOT_FOUND || cfg->blocks_max > 0);
    if (got != BT_LIMIT)
        assert_int_equal(got, want);
    else
        assert_int_equal(after.dropped - before.dropped, s->hash_count - done);
    return (uint32_t)done;
}

static void learn_store(uint64_t evicted_before, uint32_t src, uint32_t first,
                        uint32_t n)
{
    bool stored[NODES] = {false};

    if (cfg->blocks_max == 0)
        return;
    for (uint32_t i = first; i < first + n; i++)
        stored[nodes[i].canon_hash] = true;
    learn(stats().evicted > evicted_before, src, stored);
}

static void do_store(uint32_t src, bool given)
{
    uint32_t path = below(PATHS), first = below(DEPTH);
    uint32_t n = 1 + below(DEPTH - first), base = path * DEPTH + first, done;
    const struct node *at = &nodes[base];
    uint64_t hashes[DEPTH], keys[DEPTH], evicted = stats().evicted;
    uint32_t tokens[DEPTH * BLOCK];
    struct bt_kv_store s = {.hashes = hashes,
                            .hash_count = n,
                            .tokens = tokens,
                            .token_count = n * BLOCK,
                            .block_tokens = BLOCK,
                            .own_ns = at->ns,
                            .tier = (enum bt_tier)below(BT_TIERS),
                            .full_attention = below(20) != 0};
    enum bt_status want = BT_OK;

    for (uint32_t i = 0; i < n; i++) {
        hashes[i] = at[i].hash;
        keys[i] = at[i].key;
        memcpy(tokens + i * BLOCK, at[i].tokens, sizeof(at->tokens));
    }
    if (given)
        s.own_keys = keys;
    if (first == 0 || at->salted_events) {
        s.salt = at->salt;
        s.salt_bytes = strlen(at->salt);
    }
    if (first > 0) {
        s.has_parent = 1;
        s.parent = at[-1].hash;
        if (!any(&keyed[src][at[-1].canon]) && !given)
            want = BT_NOT_FOUND;
    }
    if (below(50) == 0 && !given) {
        s.token_count--;
        want = BT_INVALID;
    }
    if (!s.full_attention)
        want = BT_OK;
    done = apply(src, &s, want);
    for (uint32_t i = 0; i < done; i++)
        model_add(src,
                  s.full_attention && want == BT_OK
                      ? &keyed[src][at[i].canon]
                      : &loose[src][at[i].canon_hash],
                  s.tier);
    learn_store(evicted, src, base, n);
    /* None of it made room for the rest. */
    for (uint32_t i = 0; i < done && s.full_attention && want == BT_OK; i++)
        assert_true(any(&keyed[src][at[i].canon]));
}

/* A root's hash comes again with other tokens: the first content stays. */
static void do_collide(uint32_t src)
{
    const struct node *at = &nodes[below(PATHS) * DEPTH];
    const uint32_t tokens[BLOCK] = {900, 901, below(1000)};
    struct bt_kv_store s = {.hashes = &at->hash,
                            .hash_count = 1,
                            .tokens = tokens,
                            .token_count = BLOCK,
                            .block_tokens = BLOCK,
                            .salt = at->salt,
                            .salt_bytes = strlen(at->salt),
                            .tier = (enum bt_tier)below(BT_TIERS),
                            .full_attention = 1};

    if (!any(&keyed[src][at->canon]))
        return;
    collisions++;
    assert_int_equal(apply(src, &s, BT_OK), 1);
    model_add(src, &keyed[src][at->canon], s.tier);
}

static void do_remove(uint32_t src, bool with_left)
{
    enum bt_tier tier = (enum bt_tier)below(BT_TIERS);
    uint64_t hashes[3];
    uint32_t left[3];
    size_t n = 1 + below(3);

    for (size_t i = 0; i < n; i++) {
        uint32_t node = below(NODES);

        hashes[i] = nodes[node].hash;
        left[i] = below(10) == 0 ? below(300) : below(3);
        model_remove(src, node, tier, with_left ? &left[i] : NULL);
    }
    if (with_left)
        bt_prefix_index_remaining(x, src / RANKS, src % RANKS, hashes, left, n,
                                  tier);
    else
        bt_prefix_index_remove(x, src / RANKS, src % RANKS, hashes, n, tier);
}

static void do_offload(uint32_t src)
{
    uint32_t node = below(NODES);
    uint64_t evicted = stats().evicted;
    struct bt_kv_store s = {.hashes = &nodes[node].hash,
                            .hash_count = 1,
                            .tier = (enum bt_tier)below(BT_TIERS),
                            .full_attention = 1};

    if (apply(src, &s, BT_OK) == 1)
        model_offload(src, node, s.tier);
    learn_store(evicted, src, node, 1);
}

static void do_counting(uint32_t src)
{
    bool set = below(2) != 0;

    if (rank_is_empty(src))
        return;
    bt_prefix_index_counting(x, src / RANKS, src % RANKS,
                             set ? BT_KV_COUNT_SET : BT_KV_COUNT_COPIES);
    set_mode[src] = set;
    for (uint32_t n = 0; set && n < NODES; n++)
        for (unsigned int t = 0; t < BT_TIERS; t++) {
            keyed[src][n].n[t] = keyed[src][n].n[t] > 0;
            loose[src][n].n[t] = loose[src][n].n[t] > 0;
        }
}

static void do_age(uint32_t src)
{
    for (uint32_t times = 1 + below(6); times > 0; times--)
        bt_prefix_index_age(x, src / RANKS, src % RANKS);
    for (uint32_t n = 0; n < NODES; n++)
        keyed[src][n].aged = loose[src][n].aged = true;
}

static uint64_t model_drop_aged(struct entry *e)
{
    bool drop = any(e) && e->aged;

    if (drop)
        *e = (struct entry){0};
    return drop;
}

static void do_drop_aged(uint32_t src)
{
    uint64_t want = 0;

    for (uint32_t n = 0; n < NODES; n++)
        want +=
            model_drop_aged(&keyed[src][n]) + model_drop_aged(&loose[src][n]);
    assert_int_equal(bt_prefix_index_drop_aged(x, src / RANKS, src % RANKS),
                     want);
}

static void do_clear_tier(uint32_t src)
{
    unsigned int tier = below(BT_TIERS);

    bt_prefix_index_clear_tier(x, src / RANKS, src % RANKS, (enum bt_tier)tier);
    for (uint32_t n = 0; n < NODES; n++)
        keyed[src][n].n[tier] = loose[src][n].n[tier] = 0;
}

static void do_touch(void)
{
    uint64_t keys[2] = {nodes[below(NODES)].key, bt_rng_u64(&rng)};

    bt_prefix_index_touch(x, keys, 2);
}

static void do_any(void)
{
    uint32_t dice = below(1000), src = below(cfg->workers * RANKS);

    if (dice < 400) {
        do_store(src, dice % 10 == 0);
    } else if (dice < 900) {
        do_remove(src, dice % 8 == 0);
    } else if (dice < 930) {
        do_offload(src);
    } else if (dice < 940) {
        do_collide(src);
    } else if (dice < 950) {
        do_counting(src);
    } else if (dice < 970) {
        do_age(src);
    } else if (dice < 976) {
        do_drop_aged(src);
    } else if (dice < 980) {
        do_clear_tier(src);
    } else if (dice < 990) {
        do_touch();
    } else if (dice < 997) {
        bt_prefix_index_clear(x, src / RANKS, src % RANKS);
        forget(src);
    } else {
        bt_prefix_index_drop_worker(x, src / RANKS);
        for (uint32_t r = 0; r < RANKS; r++)
            forget(src / RANKS * RANKS + r);
    }
    for (uint32_t s = 0; s < cfg->workers * RANKS; s++)
        if (set_mode[s] && rank_is_empty(s))
            set_mode[s] = false;
}

/* ---- comparison ---- */

static void compare_path(uint32_t path)
{
    static uint32_t depth[WORKERS_MAX], by_tier[WORKERS_MAX * BT_TIERS];
    uint32_t base = path * DEPTH, copies[DEPTH], held[DEPTH] = {0};
    uint64_t keys[DEPTH];
    size_t end = 0;

    for (uint32_t i = 0; i < DEPTH; i++)
        keys[i] = nodes[base + i].key;
    bt_prefix_index_match(x, keys, DEPTH, depth);
    bt_prefix_index_match_tiers(x, keys, DEPTH, by_tier);
    for (uint32_t w = 0; w < cfg->workers; w++) {
        uint32_t want[BT_TIERS] = {0};

        for (uint32_t i = 0; i < DEPTH; i++) {
            unsigned int tiers = model_tiers(w, base + i);

            held[i] += tiers != 0;
            for (unsigned int t = 0; t < BT_TIERS; t++)
                want[t] += want[t] == i && (tiers & ((2u << t) - 1)) != 0;
        }
        assert_int_equal(depth[w], want[BT_TIERS - 1]);
        assert_memory_equal(by_tier + (size_t)w * BT_TIERS, want, sizeof(want));
    }
    while (end < DEPTH && held[end] > 0)
        end++;
    for (size_t i = end; i < DEPTH; i++)
        held[i] = 0;
    assert_int_equal(bt_prefix_index_spread(x, keys, DEPTH, copies), end);
    assert_memory_equal(copies, held, sizeof(held));
}

static void compare_rank(uint32_t src)
{
    for (unsigned int t = 0; t < BT_TIERS; t++) {
        uint64_t sum = 0;

        for (uint32_t n = 0; n < NODES; n++)
            sum += keyed[src][n].n[t] + loose[src][n].n[t];
        assert_int_equal(bt_prefix_index_copies(x, src / RANKS, src % RANKS,
                                                (enum bt_tier)t),
                         sum);
    }
}

static void compare_all(void)
{
    struct bt_prefix_index_stats st = stats();
    uint32_t *own = calloc(cfg->workers, sizeof(*own));
    uint64_t blocks = 0, holdings = 0;

    assert_non_null(own);
    for (uint32_t n = 0; n < NODES; n++) {
        uint32_t holders = 0;

        for (uint32_t w = 0; w < cfg->workers; w++) {
            unsigned int tiers = model_tiers(w, n);

            assert_int_equal(bt_prefix_index_tiers(x, w, nodes[n].key), tiers);
            holders += tiers != 0;
            own[w] += nodes[n].canon == n && tiers != 0;
        }
        blocks += nodes[n].canon == n && holders > 0;
        for (uint32_t s = 0; s < cfg->workers * RANKS; s++)
            holdings += (uint64_t)any(&keyed[s][n]) + any(&loose[s][n]);
    }
    for (uint32_t w = 0; w < cfg->workers; w++)
        assert_int_equal(bt_prefix_index_worker_blocks(x, w), own[w]);
    for (uint32_t s = 0; s < cfg->workers * RANKS; s++)
        compare_rank(s);
    free(own);
    assert_int_equal(st.blocks, blocks);
    assert_int_equal(st.holdings, holdings);
    assert_true(st.namespaces <= 3);
    if (cfg->blocks_max == 0)
        assert_int_equal(st.dropped + st.evicted, 0);
}

static void remove_all(void)
{
    for (uint32_t s = 0; s < cfg->workers * RANKS; s++)
        for (uint32_t n = 0; n < NODES; n++)
            for (unsigned int t = 0; t < BT_TIERS; t++)
                while (keyed[s][n].n[t] + loose[s][n].n[t] > 0) {
                    bt_prefix_index_remove(x, s / RANKS, s % RANKS,
                                           &nodes[n].hash, 1, (enum bt_tier)t);
                    model_remove(s, n, t, NULL);
                }
    compare_all();
    assert_int_equal(stats().blocks, 0);
    assert_int_equal(stats().holdings, 0);
    assert_int_equal(stats().namespaces, 0);
    assert_int_equal(stats().shared, 0);
}

static void start(void **memory, const struct bt_prefix_index_limits *limits)
{
    size_t bytes = bt_prefix_index_bytes(limits);
    struct bt_arena arena;

    *memory = calloc(1, bytes);
    assert_non_null(*memory);
    bt_arena_init(&arena, *memory, bytes);
    x = bt_prefix_index_init(&arena, limits);
    assert_non_null(x);
}

static void run(const struct config *c)
{
    /* Exactly what can be live at once: churn must not need more. */
    struct bt_prefix_index_limits limits = {.workers_max = c->workers,
                                            .blocks_max = NODES,
                                            .holdings_max =
                                                2 * c->workers * RANKS * NODES};
    uint64_t shared = 0;
    void *memory;

    if (c->blocks_max > 0) {
        limits.blocks_max = c->blocks_max;
        limits.holdings_max = c->holdings_max;
    }
    print_message("seed %llu, %u workers, %u operations, shared hashes %d\n",
                  (unsigned long long)c->seed, c->workers, c->ops,
                  c->shared_hashes);
    cfg = c;
    collisions = 0;
    start(&memory, &limits);
    plant(c->shared_hashes);
    memset(keyed, 0, sizeof(keyed));
    memset(loose, 0, sizeof(loose));
    memset(set_mode, 0, sizeof(set_mode));
    bt_rng_seed(&rng, c->seed);
    for (uint32_t i = 0; i < c->ops; i++) {
        do_any();
        if (i % c->match_every == 0)
            compare_path(below(PATHS));
        if (i % c->all_every == 0)
            compare_all();
        shared = stats().shared > shared ? stats().shared : shared;
    }
    compare_all();
    assert_true(shared >= c->shared_min);
    if (c->blocks_max > 0)
        assert_true(stats().evicted > c->ops / 20);
    remove_all();
    free(memory);
}

static void engine_hash_names_the_namespace(void **state)
{
    (void)state;
    run(&(struct config){.seed = 20260901,
                         .workers = 5,
                         .ops = 350000,
                         .match_every = 1,
                         .all_every = 100});
}

static void tenants_share_engine_hashes(void **state)
{
    (void)state;
    run(&(struct config){.seed = 20260902,
                         .workers = 5,
                         .ops = 350000,
                         .match_every = 1,
                         .all_every = 100,
                         .shared_hashes = 1});
}

static void full_tables_only_forget(void **state)
{
    (void)state;
    run(&(struct config){.seed = 20260903,
                         .workers = 5,
                         .ops = 60000,
                         .match_every = 1,
                         .all_every = 50,
                         .blocks_max = 14,
                         .holdings_max = 60});
    run(&(struct config){.seed = 20260904,
                         .workers = 20,
                         .ops = 20000,
                         .match_every = 4,
                         .all_every = 50,
                         .shared_hashes = 1,
                         .blocks_max = 12,
                         .holdings_max = 200});
}

static void seventy_rows(void **state)
{
    (void)state;
    run(&(struct config){.seed = 20260905,
                         .workers = 70,
                         .shared_min = 12,
                         .ops = 200000,
                         .match_every = 8,
                         .all_every = 4000,
                         .shared_hashes = 1});
}

static void three_hundred_rows(void **state)
{
    (void)state;
    run(&(struct config){.seed = 20260906,
                         .workers = 300,
                         .shared_min = 12,
                         .ops = 100000,
                         .match_every = 16,
                         .all_every = 5000});
}

/* ---- C17: no phantoms after chains came and went ---- */

#define CHAINS 64
#define LONG   40

static uint64_t chain_block(uint32_t chain, uint32_t i)
{
    return bt_mix64((uint64_t)(i < LONG / 2 ? chain % 8 : chain) << 32 |
                    (i + 1));
}

static uint32_t present[4][CHAINS][LONG];

static void do_piece(uint32_t w, uint32_t chain, uint32_t first, uint32_t n)
{
    uint64_t keys[LONG];
    struct bt_kv_store s = {
        .own_keys = keys, .hashes = keys, .hash_count = n, .full_attention = 1};
    bool add = below(2) != 0;

    for (uint32_t i = 0; i < n; i++) {
        uint32_t home = first + i < LONG / 2 ? chain % 8 : chain;
        uint32_t *copies = &present[w][home][first + i];

        keys[i] = chain_block(chain, first + i);
        if (add)
            *copies += *copies < COPIES;
        else
            *copies -= *copies > 0;
    }
    if (add)
        assert_int_equal(bt_prefix_index_store(x, w, 0, &s), BT_OK);
    else
        bt_prefix_index_remove(x, w, 0, keys, n, BT_TIER_DEVICE);
}

static void drain_pieces(void)
{
    for (uint32_t w = 0; w < 4; w++)
        for (uint32_t c = 0; c < CHAINS; c++)
            for (uint32_t i = 0; i < LONG; i++) {
                uint64_t key = chain_block(c, i);

                if (i < LONG / 2 && c >= 8)
                    continue;
                assert_int_equal(bt_prefix_index_holds(x, w, key),
                                 present[w][c][i] > 0);
                for (; present[w][c][i] > 0; present[w][c][i]--)
                    bt_prefix_index_remove(x, w, 0, &key, 1, BT_TIER_DEVICE);
            }
    assert_int_equal(stats().blocks, 0);
    assert_int_equal(stats().holdings, 0);
    for (uint32_t w = 0; w < 4; w++)
        assert_int_equal(bt_prefix_index_worker_blocks(x, w), 0);
}

/* Block events: BATON_INDEX_EVENTS, or a million. The tables hold exactly what
 * can be live, so anything left behind would be dropped or evicted. */
static void nothing_is_left_behind(void **state)
{
    const uint32_t distinct = 8 * LONG / 2 + CHAINS * LONG / 2;
    const struct bt_prefix_index_limits limits = {
        .workers_max = 4, .blocks_max = distinct, .holdings_max = 4 * distinct};
    const char *asked = getenv("BATON_INDEX_EVENTS");
    uint64_t events = asked != NULL ? strtoull(asked, NULL, 10) : 1000000;
    void *memory;

    (void)state;
    start(&memory, &limits);
    bt_rng_seed(&rng, 20260907);
    memset(present, 0, sizeof(present));
    for (uint64_t done = 0; done < events;) {
        uint32_t first = below(LONG), n = 1 + below(LONG - first);

        do_piece(below(4), below(CHAINS), first, n);
        done += n;
    }
    drain_pieces();
    assert_int_equal(stats().dropped + stats().evicted, 0);
    free(memory);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(engine_hash_names_the_namespace),
        cmocka_unit_test(tenants_share_engine_hashes),
        cmocka_unit_test(full_tables_only_forget),
        cmocka_unit_test(seventy_rows),
        cmocka_unit_test(three_hundred_rows),
        cmocka_unit_test(nothing_is_left_behind),
    };

    return cmocka_run_group_tests_name("prefix_index_model", tests, NULL, NULL);
}
