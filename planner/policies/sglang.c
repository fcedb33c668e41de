/* The SGLang gateway's cache_aware rule, each pool by itself: uneven loads go
 * to the shortest queue; else a match above the threshold goes to its holder;
 * else the least load. Load is requests in flight. Sees no link.
 *
 * The real gateway matches prompt characters against a tree of what it sent
 * where and knows nothing of evictions. own_history=1 does so with a table of
 * block keys of fixed size (sets of WAYS, the longest unused goes, the last
 * HOLDERS workers of each block); 0 flatters it with the true cache. Prefixes
 * are counted in tokens, which needs no text.
 */
#include "rivals.h"

#include <string.h>

enum { THRESHOLD, ABS, REL, OWN_HISTORY };

static const struct bt_policy_knob knobs[] = {
    {"threshold", 0.5, 0, 1, "share of the prompt; 0.3 on the command line"},
    {"abs", 32, 0, 65536, "uneven by requests; 64 on the command line"},
    {"rel", 1.1, 0, 64, "and by ratio; 1.5 on the command line"},
    {"own_history", 0, 0, 1, "1: what was sent where, not what is cached"},
    {0},
};

/* ---- own history ---- */

#define SETS    8192u
#define WAYS    8u
#define HOLDERS 8u
#define TREES   2u /* prefill, decode */

struct node {
    uint64_t key, used;        /* used 0: free */
    uint32_t holders[HOLDERS]; /* worker ids, latest first; 0 none */
};

/* How far the prompt at hand matches, by registry slot. */
struct match {
    uint32_t id, blocks;
};

struct history {
    uint64_t clock;
    struct node nodes[TREES][SETS][WAYS];
    struct match matches[BT_WORKER_SLOTS_MAX + 1];
};

static size_t memory(const struct bt_policy_limits *limits)
{
    (void)limits; /* a fixed size is the point */
    return sizeof(struct history);
}

static struct node *find(struct history *h, uint32_t tree, uint64_t key)
{
    struct node *set = h->nodes[tree][bt_mix64(key) % SETS];

    for (uint32_t i = 0; i < WAYS; i++)
        if (set[i].used > 0 && set[i].key == key)
            return &set[i];
    return NULL;
}

/* The node of the key, made in place of the longest unused one if need be. */
static struct node *take(struct history *h, uint32_t tree, uint64_t key)
{
    struct node *set = h->nodes[tree][bt_mix64(key) % SETS];
    struct node *node = find(h, tree, key);

    if (node == NULL) {
        node = &set[0];
        for (uint32_t i = 1; i < WAYS; i++)
            if (set[i].used < node->used)
                node = &set[i];
        memset(node, 0, sizeof(*node));
        node->key = key;
    }
    node->used = ++h->clock;
    return node;
}

/* To the front; the oldest falls off the end. */
static void add_holder(struct node *node, uint32_t id)
{
    uint32_t at = 0;

    while (at < HOLDERS - 1 && node->holders[at] != id &&
           node->holders[at] != 0)
        at++;
    memmove(&node->holders[1], &node->holders[0], at * sizeof(uint32_t));
    node->holders[0] = id;
}

static void remember(struct history *h, uint32_t tree,
                     const struct bt_place_view *view, uint32_t w)
{
    for (size_t i = 0; view->keys != NULL && i < view->key_count; i++)
        add_holder(take(h, tree, view->keys[i]), view->workers[w].id.v);
}

static void placed(struct bt_policy_state *state,
                   const struct bt_place_view *view,
                   const struct bt_placement *placement)
{
    const struct bt_place_candidate *c = &placement->chosen;

    if (state->memory == NULL || state->knobs[OWN_HISTORY] <= 0)
        return;
    if (c->p < view->worker_count)
        remember(state->memory, RIVAL_PREFILL, view, c->p);
    if (c->d < view->worker_count)
        remember(state->memory, RIVAL_DECODE, view, c->d);
}

/* One block further for those of its holders that match up to here. */
static bool extend(struct history *h, const struct node *node, uint32_t blocks)
{
    bool any = false;

    for (uint32_t i = 0; node != NULL && i < HOLDERS; i++) {
        struct match *m = &h->matches[node->holders[i] & 0xffffu];

        if (node->holders[i] == 0 || m->id != node->holders[i] ||
            m->blocks != blocks)
            continue;
        m->blocks++;
        any = true;
    }
    return any;
}

static void match_all(const struct rival *r)
{
    const struct bt_place_view *view = r->view;
    struct history *h = r->state->memory;
    uint32_t tree = r->side == RIVAL_PREFILL ? RIVAL_PREFILL : RIVAL_DECODE;

    if (h == NULL)
        return;
    for (uint32_t w = 0; w < view->worker_count; w++) {
        struct bt_worker_id id = view->workers[w].id;

        h->matches[bt_worker_slot(id)] = (struct match){.id = id.v};
    }
    for (uint32_t i = 0; view->keys != NULL && i < view->key_count; i++)
        if (!extend(h, find(h, tree, view->keys[i]), i))
            return;
}

/* ---- the rule ---- */

static double minus_match(const struct rival *r, uint32_t w)
{
    const struct history *h = r->state->memory;
    double blocks = rival_blocks(r->view), held = 0;

    if (r->knobs[OWN_HISTORY] <= 0)
        return -rival_match(r->view, w);
    if (h != NULL)
        held = h->matches[bt_worker_slot(r->view->workers[w].id)].blocks;
    return blocks > 0 ? -held / blocks : 0;
}

static uint32_t pick(struct rival *r)
{
    const double *k = r->knobs;
    double least, most, best, worst;

    rival_range(r, rival_requests, &least, &most);
    if (most - least > k[ABS] && most > k[REL] * least)
        return rival_least(r, rival_requests, NULL);
    if (k[OWN_HISTORY] > 0)
        match_all(r);
    rival_range(r, minus_match, &best, &worst);
    if (-best > k[THRESHOLD])
        return rival_least(r, minus_match, NULL);
    return rival_least(r, rival_requests, NULL);
}

static enum bt_status place(struct bt_policy_state *state,
                            const struct bt_place_view *view,
                            struct bt_placement *out)
{
    return rival_sequential(state, view, out, pick);
}

const struct bt_policy bt_policy_sglang = {
    .name = "sglang",
    .summary = "SGLang's cache_aware: longest match while loads are even",
    .place = place,
    .placed = placed,
    .memory = memory,
    .knobs = knobs,
};
