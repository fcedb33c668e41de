/* Approximate index against a naive model: for every (worker, node of a random
 * prefix tree) the time and rank of its last use, nothing else; what expires or
 * is evicted is found by looking at all of them. The model forgets at once what
 * is over its time and adds blocks one by one from the leaf, without the short
 * cuts of the code. Believed pairs are compared by matching; since no pair may
 * be lost or kept, random prompts and each single block.
 */
#include "baton/base/rng.h"
#include "baton/planner/approx_index.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#define WORKERS   6
#define NODES_MAX 700
#define TTL       1000

struct shape {
    uint64_t seed;
    uint32_t ops;
    uint32_t nodes;   /* of the tree */
    uint32_t entries; /* limit of the table */
    uint32_t near;    /* parent is at most so many nodes before: depth */
    int64_t step_ns;  /* mean time between operations */
    uint32_t lull;    /* one operation in so many follows a whole TTL */
};

struct believed {
    int64_t used_ns;
    uint64_t rank; /* of the use, 0: not believed */
};

static struct believed model[WORKERS][NODES_MAX];
static uint32_t capacity[WORKERS];
static uint64_t uses;
static uint32_t parent[NODES_MAX];
static uint64_t keys[NODES_MAX];

struct world {
    const struct shape *shape;
    struct bt_approx_index *x;
    struct bt_rng rng;
    int64_t now_ns;
};

static void plant(struct world *w)
{
    for (uint32_t n = 0; n < w->shape->nodes; n++) {
        uint64_t back = 1 + bt_rng_below(&w->rng, w->shape->near);

        keys[n] = bt_mix64(w->shape->seed + n);
        parent[n] = n < back || bt_rng_below(&w->rng, 40) == 0
                        ? NODES_MAX
                        : n - (uint32_t)back;
    }
}

/* Path from the root to a node: its length. */
static uint32_t path_of(uint32_t node, uint32_t *path)
{
    uint32_t n = 0;

    for (uint32_t at = node; at != NODES_MAX; at = parent[at])
        path[n++] = at;
    for (uint32_t i = 0; i < n / 2; i++) {
        uint32_t t = path[i];

        path[i] = path[n - 1 - i];
        path[n - 1 - i] = t;
    }
    return n;
}

/* ---- the model ---- */

static void model_expire(const struct world *w)
{
    for (uint32_t k = 0; k < WORKERS; k++)
        for (uint32_t n = 0; n < w->shape->nodes; n++)
            if (model[k][n].rank != 0 && w->now_ns - model[k][n].used_ns >= TTL)
                model[k][n].rank = 0;
}

/* Pairs of workers first..last; the one used longest ago to *oldest. */
static uint32_t model_count(const struct world *w, uint32_t first,
                            uint32_t last, struct believed **oldest)
{
    uint32_t count = 0;

    *oldest = NULL;
    for (uint32_t k = first; k <= last; k++)
        for (uint32_t n = 0; n < w->shape->nodes; n++) {
            struct believed *b = &model[k][n];

            if (b->rank == 0)
                continue;
            count++;
            if (*oldest == NULL || b->rank < (*oldest)->rank)
                *oldest = b;
        }
    return count;
}

static void model_trim(const struct world *w, uint32_t first, uint32_t last,
                       uint32_t most)
{
    struct believed *oldest;

    while (model_count(w, first, last, &oldest) > most)
        oldest->rank = 0;
}

static void model_use(const struct world *w, uint32_t worker, uint32_t node)
{
    struct believed *b = &model[worker][node];
    int fresh = b->rank == 0;

    b->rank = ++uses;
    b->used_ns = w->now_ns;
    if (!fresh)
        return;
    if (capacity[worker] != 0)
        model_trim(w, worker, worker, capacity[worker]);
    model_trim(w, 0, WORKERS - 1, w->shape->entries);
}

/* ---- operations on both ---- */

static void do_add(struct world *w, uint32_t worker)
{
    uint32_t path[NODES_MAX];
    uint64_t prompt[NODES_MAX];
    uint32_t n =
        path_of((uint32_t)bt_rng_below(&w->rng, w->shape->nodes), path);

    for (uint32_t i = 0; i < n; i++)
        prompt[i] = keys[path[i]];
    bt_approx_add(w->x, worker, prompt, n, w->now_ns);
    for (uint32_t i = n; i-- > 0;)
        model_use(w, worker, path[i]);
}

static void do_remove(struct world *w, uint32_t worker)
{
    uint32_t n = (uint32_t)bt_rng_below(&w->rng, w->shape->nodes);

    bt_approx_remove(w->x, worker, keys[n]);
    model[worker][n].rank = 0;
}

static void do_capacity(struct world *w, uint32_t worker)
{
    uint32_t blocks = (uint32_t)bt_rng_below(&w->rng, w->shape->entries / 2);

    if (bt_rng_below(&w->rng, 3) == 0)
        blocks = 0;
    bt_approx_capacity(w->x, worker, blocks);
    capacity[worker] = blocks;
    if (blocks != 0)
        model_trim(w, worker, worker, blocks);
}

static void do_any(struct world *w)
{
    uint64_t dice = bt_rng_below(&w->rng, 1000);
    uint32_t worker = (uint32_t)bt_rng_below(&w->rng, WORKERS);

    w->now_ns +=
        (int64_t)bt_rng_below(&w->rng, 2 * (uint64_t)w->shape->step_ns + 1);
    if (bt_rng_below(&w->rng, w->shape->lull) == 0)
        w->now_ns += (int64_t)bt_rng_below(&w->rng, TTL + TTL / 10);
    model_expire(w);
    if (dice < 500) {
        do_add(w, worker);
    } else if (dice < 900) {
        do_remove(w, worker);
    } else if (dice < 980) {
        bt_approx_expire(w->x, w->now_ns, bt_rng_below(&w->rng, 5));
    } else if (dice < 995) {
        do_capacity(w, worker);
    } else {
        bt_approx_drop_worker(w->x, worker);
        memset(model[worker], 0, sizeof(model[worker]));
    }
}

/* ---- comparison ---- */

static void compare_prompt(struct world *w)
{
    uint32_t path[NODES_MAX], found[WORKERS];
    uint64_t prompt[NODES_MAX];
    uint32_t n =
        path_of((uint32_t)bt_rng_below(&w->rng, w->shape->nodes), path);

    for (uint32_t i = 0; i < n; i++)
        prompt[i] = keys[path[i]];
    bt_approx_match(w->x, prompt, n, w->now_ns, found);
    for (uint32_t k = 0; k < WORKERS; k++) {
        uint32_t want = 0;

        while (want < n && model[k][path[want]].rank != 0)
            want++;
        assert_int_equal(found[k], want);
    }
}

static void compare_stats(struct world *w)
{
    struct bt_approx_stats st;
    struct believed *oldest;
    uint64_t blocks = 0;

    bt_approx_stats_get(w->x, &st);
    assert_int_equal(st.entries,
                     st.added - st.expired - st.evicted - st.removed);
    assert_true(st.entries <= w->shape->entries);
    bt_approx_expire(w->x, w->now_ns, SIZE_MAX);
    bt_approx_stats_get(w->x, &st);
    assert_int_equal(st.entries, model_count(w, 0, WORKERS - 1, &oldest));
    for (uint32_t n = 0; n < w->shape->nodes; n++) {
        int held = 0;

        for (uint32_t k = 0; k < WORKERS; k++)
            held |= model[k][n].rank != 0;
        blocks += (uint64_t)held;
    }
    assert_int_equal(st.blocks, blocks);
    for (uint32_t k = 0; k < WORKERS; k++)
        assert_int_equal(bt_approx_worker_blocks(w->x, k),
                         model_count(w, k, k, &oldest));
}

static void compare_all(struct world *w)
{
    uint32_t found[WORKERS];

    for (uint32_t n = 0; n < w->shape->nodes; n++) {
        bt_approx_match(w->x, &keys[n], 1, w->now_ns, found);
        for (uint32_t k = 0; k < WORKERS; k++)
            assert_int_equal(found[k], model[k][n].rank != 0);
    }
}

static void run(const struct shape *shape)
{
    const struct bt_approx_limits limits = {
        .workers_max = WORKERS, .entries_max = shape->entries, .ttl_ns = TTL};
    size_t bytes = bt_approx_bytes(&limits);
    void *memory = calloc(1, bytes);
    struct world w = {.shape = shape, .now_ns = -5 * TTL};
    struct bt_approx_stats st;
    struct bt_arena arena;

    print_message("seed %llu, %u operations\n", (unsigned long long)shape->seed,
                  shape->ops);
    assert_non_null(memory);
    bt_arena_init(&arena, memory, bytes);
    w.x = bt_approx_init(&arena, &limits);
    assert_non_null(w.x);
    bt_rng_seed(&w.rng, shape->seed);
    plant(&w);
    memset(model, 0, sizeof(model));
    memset(capacity, 0, sizeof(capacity));
    uses = 0;
    for (uint32_t i = 0; i < shape->ops; i++) {
        do_any(&w);
        compare_prompt(&w);
        if (i % 500 == 0)
            compare_all(&w);
        if (i % 1000 == 0)
            compare_stats(&w);
    }
    compare_all(&w);
    compare_stats(&w);
    for (uint32_t k = 0; k < WORKERS; k++)
        bt_approx_drop_worker(w.x, k);
    bt_approx_stats_get(w.x, &st);
    assert_int_equal(st.entries, 0);
    assert_int_equal(st.blocks, 0);
    /* All three ways out were taken. */
    assert_true(st.expired > 0 && st.evicted > 0 && st.removed > 0);
    free(memory);
}

/* A table smaller than what is asked of it. */
static void crowded(void **state)
{
    static const struct shape shape = {.seed = 20261101,
                                       .ops = 220000,
                                       .nodes = 30,
                                       .entries = 48,
                                       .near = 4,
                                       .step_ns = 12,
                                       .lull = 400};

    (void)state;
    run(&shape);
}

/* Long chains and lulls: more expires at once than a match forgets. */
static void lulls(void **state)
{
    static const struct shape shape = {.seed = 20261102,
                                       .ops = 60000,
                                       .nodes = 400,
                                       .entries = 1500,
                                       .near = 6,
                                       .step_ns = 3,
                                       .lull = 25};

    (void)state;
    run(&shape);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(crowded),
        cmocka_unit_test(lulls),
    };

    return cmocka_run_group_tests_name("approx_model", tests, NULL, NULL);
}
