/* Prefix index against a naive model: plain arrays of counts per (worker, rank,
 * node, tier), where a node is a prefix out of a small forest. Random stores,
 * removals, clears and drops; after each, presence and a match are compared;
 * at the end everything is removed and the statistics must be zero.
 *
 * Two forests: one where the engine hash names the namespace too (vLLM), one
 * where two tenants share engine hashes (SGLang).
 */
#include "baton/base/rng.h"
#include "baton/planner/block_hash.h"
#include "baton/planner/prefix_index.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WORKERS 5
#define RANKS   2
#define SOURCES (WORKERS * RANKS)
#define DEPTH   6
#define PATHS   6 /* each a chain of DEPTH nodes; they share their first half */
#define NODES   (PATHS * DEPTH)
#define BLOCK   3
#define OPS     200000

struct node {
    uint64_t hash, key;
    const char *salt;
    int salted_events; /* SGLang: the salt is on every event */
    uint32_t tokens[BLOCK];
};

static struct node nodes[NODES];
static uint32_t counts[SOURCES][NODES][BT_TIERS];
/* Counts-only entries, by engine hash; kept at the first node of that hash. */
static uint32_t loose[SOURCES][NODES][BT_TIERS];

/* Path p: namespace by p % 3 (plain, tenant-a, tenant-b); the halves of p / 3
 * share their first DEPTH / 2 blocks. Tenants share engine hashes if asked. */
static void plant(int shared_hashes)
{
    static const char *const salts[] = {"", "tenant-a", "tenant-b"};

    for (uint32_t p = 0; p < PATHS; p++) {
        uint32_t flat[DEPTH * BLOCK];
        uint64_t keys[DEPTH];
        const char *salt = salts[shared_hashes ? 1 + p % 2 : p % 3];
        uint32_t branch = shared_hashes ? p / 2 : p / 3;

        for (uint32_t i = 0; i < DEPTH * BLOCK; i++)
            flat[i] = i < DEPTH / 2 * BLOCK ? i : i + 1000 * branch;
        bt_block_keys(flat, DEPTH * BLOCK, BLOCK,
                      bt_ns_seed(NULL, 0, salt, strlen(salt)), keys, DEPTH);
        for (uint32_t i = 0; i < DEPTH; i++) {
            struct node *n = &nodes[p * DEPTH + i];
            uint64_t plain = 10 + i + (i < DEPTH / 2 ? 0 : 100 * branch);

            n->key = keys[i];
            n->hash = shared_hashes ? plain : keys[i] ^ 0x5555;
            n->salt = salt;
            n->salted_events = shared_hashes;
            memcpy(n->tokens, flat + i * BLOCK, sizeof(n->tokens));
        }
    }
}

/* The first node with the same identity: paths share nodes. */
static uint32_t canon(uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (nodes[i].key == nodes[n].key && nodes[i].hash == nodes[n].hash)
            return i;
    return n;
}

static uint32_t canon_hash(uint64_t hash)
{
    for (uint32_t i = 0; i < NODES; i++)
        if (nodes[i].hash == hash)
            return i;
    fail();
    return 0;
}

static int any(const uint32_t *count)
{
    return count[0] || count[1] || count[2] || count[3];
}

/* ---- the model ---- */

static void model_remove(uint32_t src, uint64_t hash, unsigned int tier)
{
    uint32_t *left = &loose[src][canon_hash(hash)][tier];

    for (uint32_t n = 0; n < NODES; n++)
        if (canon(n) == n && nodes[n].hash == hash && counts[src][n][tier] > 0)
            counts[src][n][tier]--;
    *left -= *left > 0;
}

/* Every entry of the hash gains the tier; an unknown hash becomes a loose one.
 */
static void model_offload(uint32_t src, uint64_t hash, unsigned int tier)
{
    uint32_t at = canon_hash(hash);
    int keyed = 0;

    for (uint32_t n = 0; n < NODES; n++) {
        if (canon(n) != n || nodes[n].hash != hash || !any(counts[src][n]))
            continue;
        counts[src][n][tier]++;
        keyed = 1;
    }
    if (!keyed || any(loose[src][at]))
        loose[src][at][tier]++;
}

static unsigned int model_tiers(uint32_t worker, uint64_t key)
{
    unsigned int tiers = 0;

    for (uint32_t r = 0; r < RANKS; r++)
        for (uint32_t n = 0; n < NODES; n++)
            for (unsigned int t = 0; t < BT_TIERS; t++)
                if (nodes[n].key == key && counts[worker * RANKS + r][n][t] > 0)
                    tiers |= 1u << t;
    return tiers;
}

/* ---- operations on both ---- */

static void do_store(struct bt_prefix_index *x, struct bt_rng *rng)
{
    uint32_t src = (uint32_t)bt_rng_below(rng, SOURCES);
    uint32_t path = (uint32_t)bt_rng_below(rng, PATHS);
    uint32_t first = (uint32_t)bt_rng_below(rng, DEPTH);
    uint32_t n = 1 + (uint32_t)bt_rng_below(rng, DEPTH - first);
    const struct node *at = &nodes[path * DEPTH + first];
    uint64_t hashes[DEPTH];
    uint32_t tokens[DEPTH * BLOCK];
    struct bt_kv_store s = {.hashes = hashes,
                            .hash_count = n,
                            .tokens = tokens,
                            .token_count = n * BLOCK,
                            .block_tokens = BLOCK,
                            .tier = (enum bt_tier)bt_rng_below(rng, BT_TIERS),
                            .full_attention = bt_rng_below(rng, 20) != 0};
    enum bt_status want = BT_OK;

    for (uint32_t i = 0; i < n; i++) {
        hashes[i] = at[i].hash;
        memcpy(tokens + i * BLOCK, at[i].tokens, sizeof(at->tokens));
    }
    if (first == 0 || at->salted_events) {
        s.salt = at->salt;
        s.salt_bytes = strlen(at->salt);
    }
    if (first > 0) {
        s.has_parent = 1;
        s.parent = at[-1].hash;
        if (!any(counts[src][canon(path * DEPTH + first - 1)]))
            want = BT_NOT_FOUND;
    }
    if (bt_rng_below(rng, 50) == 0) {
        s.token_count--;
        want = s.full_attention ? BT_INVALID : BT_OK;
    }
    if (!s.full_attention)
        want = BT_OK;
    assert_int_equal(bt_prefix_index_store(x, src / RANKS, src % RANKS, &s),
                     want);
    for (uint32_t i = 0; i < n && want != BT_NOT_FOUND; i++) {
        if (s.full_attention && want == BT_OK)
            counts[src][canon(path * DEPTH + first + i)][s.tier]++;
        else
            loose[src][canon_hash(at[i].hash)][s.tier]++;
    }
}

static void do_remove(struct bt_prefix_index *x, struct bt_rng *rng)
{
    uint32_t src = (uint32_t)bt_rng_below(rng, SOURCES);
    unsigned int tier = (unsigned int)bt_rng_below(rng, BT_TIERS);
    uint64_t hashes[3];
    size_t n = 1 + bt_rng_below(rng, 3);

    for (size_t i = 0; i < n; i++) {
        hashes[i] = nodes[bt_rng_below(rng, NODES)].hash;
        model_remove(src, hashes[i], tier);
    }
    bt_prefix_index_remove(x, src / RANKS, src % RANKS, hashes, n,
                           (enum bt_tier)tier);
}

static void do_offload(struct bt_prefix_index *x, struct bt_rng *rng)
{
    uint32_t src = (uint32_t)bt_rng_below(rng, SOURCES);
    uint64_t hash = nodes[bt_rng_below(rng, NODES)].hash;
    struct bt_kv_store s = {.hashes = &hash,
                            .hash_count = 1,
                            .tier = (enum bt_tier)bt_rng_below(rng, BT_TIERS),
                            .full_attention = 1};

    assert_int_equal(bt_prefix_index_store(x, src / RANKS, src % RANKS, &s),
                     BT_OK);
    model_offload(src, hash, s.tier);
}

static void forget(uint32_t src)
{
    memset(counts[src], 0, sizeof(counts[src]));
    memset(loose[src], 0, sizeof(loose[src]));
}

static void do_any(struct bt_prefix_index *x, struct bt_rng *rng)
{
    uint64_t dice = bt_rng_below(rng, 1000);
    uint32_t w = (uint32_t)bt_rng_below(rng, WORKERS);

    if (dice < 400) {
        do_store(x, rng);
    } else if (dice < 960) {
        do_remove(x, rng);
    } else if (dice < 990) {
        do_offload(x, rng);
    } else if (dice < 997) {
        bt_prefix_index_clear(x, w, 1);
        forget(w * RANKS + 1);
    } else {
        bt_prefix_index_drop_worker(x, w);
        for (uint32_t r = 0; r < RANKS; r++)
            forget(w * RANKS + r);
    }
}

/* ---- comparison ---- */

static void compare_path(const struct bt_prefix_index *x, uint32_t path)
{
    uint64_t keys[DEPTH];
    uint32_t depth[WORKERS];

    for (uint32_t i = 0; i < DEPTH; i++)
        keys[i] = nodes[path * DEPTH + i].key;
    bt_prefix_index_match(x, keys, DEPTH, depth);
    for (uint32_t w = 0; w < WORKERS; w++) {
        uint32_t want = 0;

        while (want < DEPTH && model_tiers(w, keys[want]) != 0)
            want++;
        assert_int_equal(depth[w], want);
    }
}

static void compare_all(const struct bt_prefix_index *x)
{
    struct bt_prefix_index_stats st;
    uint64_t blocks = 0, holdings = 0;

    for (uint32_t n = 0; n < NODES; n++) {
        uint32_t holders = 0;

        for (uint32_t w = 0; w < WORKERS; w++) {
            unsigned int tiers = model_tiers(w, nodes[n].key);

            assert_int_equal(bt_prefix_index_tiers(x, w, nodes[n].key), tiers);
            holders += tiers != 0;
        }
        blocks += canon(n) == n && holders > 0;
        for (uint32_t s = 0; s < SOURCES; s++)
            holdings += (canon(n) == n && any(counts[s][n])) +
                        (canon_hash(nodes[n].hash) == n && any(loose[s][n]));
    }
    bt_prefix_index_stats_get(x, &st);
    assert_int_equal(st.blocks, blocks);
    assert_int_equal(st.holdings, holdings);
    assert_int_equal(st.dropped, 0);
}

static void remove_all(struct bt_prefix_index *x)
{
    struct bt_prefix_index_stats st;

    for (uint32_t s = 0; s < SOURCES; s++)
        for (uint32_t n = 0; n < NODES; n++)
            for (unsigned int t = 0; t < BT_TIERS; t++)
                while (counts[s][n][t] + loose[s][n][t] > 0) {
                    bt_prefix_index_remove(x, s / RANKS, s % RANKS,
                                           &nodes[n].hash, 1, (enum bt_tier)t);
                    model_remove(s, nodes[n].hash, t);
                }
    bt_prefix_index_stats_get(x, &st);
    assert_int_equal(st.blocks, 0);
    assert_int_equal(st.holdings, 0);
    for (uint32_t w = 0; w < WORKERS; w++)
        assert_int_equal(bt_prefix_index_worker_blocks(x, w), 0);
}

static void run(uint64_t seed, int shared_hashes)
{
    /* Exactly what can be live at once: churn must not need more. */
    const struct bt_prefix_index_limits limits = {.workers_max = WORKERS,
                                                  .blocks_max = NODES,
                                                  .holdings_max =
                                                      2 * SOURCES * NODES};
    size_t bytes = bt_prefix_index_bytes(&limits);
    void *memory = calloc(1, bytes);
    struct bt_prefix_index *x;
    struct bt_arena arena;
    struct bt_rng rng;

    print_message("seed %llu, shared hashes %d\n", (unsigned long long)seed,
                  shared_hashes);
    assert_non_null(memory);
    bt_arena_init(&arena, memory, bytes);
    x = bt_prefix_index_init(&arena, &limits);
    assert_non_null(x);
    plant(shared_hashes);
    memset(counts, 0, sizeof(counts));
    memset(loose, 0, sizeof(loose));
    bt_rng_seed(&rng, seed);
    for (uint32_t i = 0; i < OPS; i++) {
        do_any(x, &rng);
        compare_path(x, (uint32_t)bt_rng_below(&rng, PATHS));
        if (i % 100 == 0)
            compare_all(x);
    }
    compare_all(x);
    remove_all(x);
    free(memory);
}

static void engine_hash_names_the_namespace(void **state)
{
    (void)state;
    run(20260901, 0);
}

static void tenants_share_engine_hashes(void **state)
{
    (void)state;
    run(20260902, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(engine_hash_names_the_namespace),
        cmocka_unit_test(tenants_share_engine_hashes),
    };

    return cmocka_run_group_tests_name("prefix_index_model", tests, NULL, NULL);
}
