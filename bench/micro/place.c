/* Cost of one decision, part by part: hash the prompt, look the keys up, run a
 * policy. Each part is timed as the least of several rounds, which is the run
 * with the fewest disturbances. Ratios are to work of the same run: copying
 * the prompt, or the policy that only looks at loads. */
#include "baton/planner/place.h"
#include "baton/base/arena.h"
#include "baton/base/rng.h"
#include "baton/bench/micro.h"
#include "baton/planner/block_hash.h"
#include "baton/planner/prefix_index.h"
#include "place_speed.h"
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define TOKENS       8192u
#define BLOCK        16u
#define KEYS         (TOKENS / BLOCK)
#define ROUNDS       15
#define ROUND_NS     3000000
#define WORKERS_MAX  128u
#define INDEX_BLOCKS 65536u

struct bench {
    uint32_t tokens[TOKENS], copy[TOKENS];
    uint64_t keys[KEYS];
    uint32_t depth[WORKERS_MAX];
    struct bt_prefix_index *index;
    struct bt_place_view view;
    struct bt_place_worker workers[WORKERS_MAX];
    struct bt_place_link *links;
    struct bt_compute_model model;
    struct bt_link_model fast, slow;
    uint64_t flows[4];
    const struct bt_policy *policy;
    struct bt_policy_state state;
    struct bt_placement placement;
    volatile uint64_t sink;
};

static int64_t now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* Least time of one call of fn, ns. */
static double time_of(struct bench *b, void (*fn)(struct bench *b))
{
    double best = 1e18;

    for (int round = 0; round < ROUNDS; round++) {
        int64_t from = now_ns(), to = from;
        uint64_t calls = 0;

        while (to - from < ROUND_NS) {
            for (int i = 0; i < 8; i++)
                fn(b);
            calls += 8;
            to = now_ns();
        }
        if ((double)(to - from) / (double)calls < best)
            best = (double)(to - from) / (double)calls;
    }
    return best;
}

static void do_copy(struct bench *b)
{
    memcpy(b->copy, b->tokens, sizeof(b->copy));
    b->sink += b->copy[b->sink & 1023];
}

static void do_hash(struct bench *b)
{
    b->sink +=
        bt_block_keys(b->tokens, TOKENS, BLOCK, BT_NS_PLAIN, b->keys, KEYS);
}

static void do_match(struct bench *b)
{
    bt_prefix_index_match(b->index, b->keys, KEYS, b->depth);
    b->sink += b->depth[0];
}

static void do_place(struct bench *b)
{
    if (b->policy->place(&b->state, &b->view, &b->placement) == BT_OK)
        b->sink += b->placement.chosen.p;
}

/* Worker w holds the first share of the prompt's blocks. */
static void store_prefix(struct bench *b, uint32_t worker, uint32_t blocks)
{
    struct bt_kv_store store;
    uint64_t hashes[KEYS];

    memset(&store, 0, sizeof(store));
    for (uint32_t i = 0; i < blocks; i++)
        hashes[i] = bt_mix64((uint64_t)worker << 32 | i);
    store.hashes = hashes;
    store.hash_count = blocks;
    store.tokens = b->tokens;
    store.token_count = (size_t)blocks * BLOCK;
    store.block_tokens = BLOCK;
    store.full_attention = 1;
    (void)bt_prefix_index_store(b->index, worker, 0, &store);
}

static void fill_view(struct bench *b, uint32_t pairs, struct bt_rng *rng)
{
    struct bt_place_view *v = &b->view;
    uint32_t count = pairs * 2;

    memset(b->workers, 0, sizeof(b->workers));
    for (uint32_t i = 0; i < count; i++) {
        struct bt_place_worker *w = &b->workers[i];
        bool prefill = i < pairs;

        w->id = bt_worker_id_make(i, 1);
        w->roles = prefill ? BT_ROLE_PREFILL : BT_ROLE_DECODE;
        w->prefill_ok = prefill;
        w->decode_ok = !prefill;
        w->overlap_tokens = b->depth[i % WORKERS_MAX] * BLOCK;
        w->prefill_free_ns = (int64_t)bt_rng_below(rng, 300000000);
        w->prefill_tokens = bt_rng_below(rng, 20000);
        w->decode_requests = (uint32_t)bt_rng_below(rng, 64);
        w->decode_slots = 256;
        w->decode_tokens = w->decode_requests * 2000u;
        w->kv_capacity_tokens = 1000000;
        w->model = &b->model;
    }
    for (uint32_t i = 0; i < count * count; i++) {
        b->links[i].model = bt_rng_below(rng, 4) ? &b->fast : &b->slow;
        b->links[i].left = b->flows;
        b->links[i].flows = bt_rng_below(rng, 3);
    }
    memset(v, 0, sizeof(*v));
    v->prompt_tokens = TOKENS;
    v->block_tokens = BLOCK;
    v->output_tokens = 256;
    v->kv_bytes_per_token = 131072;
    v->workers = b->workers;
    v->worker_count = count;
    v->links = b->links;
    v->overlap_known = true;
}

static void measure_index(struct bench *b, struct bt_micro_report *report)
{
    bt_micro_add(report, "copy 8192 tokens", time_of(b, do_copy), "ns", NULL);
    bt_micro_add(report, "hash 8192 tokens into 512 keys", time_of(b, do_hash),
                 "ns", "copy 8192 tokens");
    for (uint32_t w = 0; w < 64; w++)
        store_prefix(b, w, 1 + (w * KEYS) / 64);
    bt_micro_add(report, "look up 512 keys, 64 workers", time_of(b, do_match),
                 "ns", "copy 8192 tokens");
}

static void start_policy(struct bench *b, const struct bt_policy *policy,
                         uint64_t seed)
{
    b->policy = policy;
    bt_policy_state_init(&b->state, seed);
    bt_policy_defaults(policy, b->state.knobs);
}

static void measure_policies(struct bench *b, uint64_t seed, uint32_t largest,
                             struct bt_micro_report *report)
{
    static const uint32_t sizes[] = {2, 8, 64};
    struct bt_rng rng;

    for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++) {
        char base[BT_MICRO_NAME_MAX], name[BT_MICRO_NAME_MAX];

        if (sizes[s] > largest)
            break;
        bt_rng_seed(&rng, seed);
        fill_view(b, sizes[s], &rng);
        snprintf(base, sizeof(base), "place least_loaded, %ux%u", sizes[s],
                 sizes[s]);
        start_policy(b, bt_policy_find("least_loaded"), seed);
        bt_micro_add(report, base, time_of(b, do_place), "ns", NULL);
        for (size_t i = 0; bt_policy_at(i); i++) {
            if (strcmp(bt_policy_at(i)->name, "least_loaded") == 0)
                continue;
            start_policy(b, bt_policy_at(i), seed);
            snprintf(name, sizeof(name), "place %s, %ux%u", b->policy->name,
                     sizes[s], sizes[s]);
            bt_micro_add(report, name, time_of(b, do_place), "ns", base);
        }
    }
}

static enum bt_status run(struct bench *b, uint64_t seed, uint32_t largest,
                          struct bt_micro_report *report)
{
    const struct bt_prefix_index_limits limits = {
        .workers_max = WORKERS_MAX,
        .blocks_max = INDEX_BLOCKS,
        .holdings_max = INDEX_BLOCKS * 2,
    };
    size_t bytes = bt_prefix_index_bytes(&limits);
    void *memory = calloc(1, bytes);
    struct bt_arena arena;
    struct bt_rng rng;

    if (!memory)
        return BT_NO_MEMORY;
    bt_arena_init(&arena, memory, bytes);
    b->index = bt_prefix_index_init(&arena, &limits);
    if (!b->index) {
        free(memory);
        return BT_NO_MEMORY;
    }
    bt_rng_seed(&rng, seed);
    for (uint32_t i = 0; i < TOKENS; i++)
        b->tokens[i] = (uint32_t)bt_rng_below(&rng, 128000);
    measure_index(b, report);
    measure_policies(b, seed, largest, report);
    free(memory);
    return BT_OK;
}

enum bt_status bt_micro_place(uint64_t seed, uint32_t largest,
                              struct bt_micro_report *report)
{
    struct bench *b = calloc(1, sizeof(*b));
    enum bt_status status = BT_NO_MEMORY;

    if (!b)
        return BT_NO_MEMORY;
    b->links = calloc((size_t)WORKERS_MAX * WORKERS_MAX, sizeof(*b->links));
    if (b->links) {
        if (bt_compute_preset("h100-8b-tp1", &b->model) != BT_OK)
            b->model.speedup = 1;
        b->fast = (struct bt_link_model){50000000000u, 100000, 1000};
        b->slow = (struct bt_link_model){3000000000u, 1000000, 1000};
        for (size_t i = 0; i < 4; i++)
            b->flows[i] = 100000000u * (i + 1);
        status = run(b, seed, largest, report);
    }
    if (status == BT_OK)
        status = place_speed(seed, largest, report);
    bt_micro_note(report,
                  "ns: least mean time of one call over %d rounds of "
                  "%d ms.\n"
                  "Decisions: index look-up of 512 keys and choice, on a "
                  "network with two own flows a NIC.\n",
                  ROUNDS, ROUND_NS / 1000000);
    free(b->links);
    free(b);
    return status;
}
