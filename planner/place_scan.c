/* The best candidates of all pairs in one pass. Decides which pairs are worth
 * building; leaves what a pair costs to place.c and the choice to policies/.
 *
 * Branch and bound, with the same result as looking at every pair: a pair (or
 * all pairs of one p) whose lower bound does not come before the last of the
 * kept candidates is left out. Lower bounds have the real totals' order, ties
 * included, because all keys but the total are known without the link. With
 * view.bounds the link itself is not read either, as long as the upper bound
 * says that the pair is feasible.
 *
 * Invariant: out[0..kept) is ordered and holds the first of all pairs offered;
 * feasible counts every pair with a finite total, kept or not.
 */
#include "place_parts.h"

#include <assert.h>
#include <string.h>

/* Decode sides looked at together: each is computed once, p once a chunk. */
#define CHUNK 128

/* What candidates are ordered by, first to last. */
struct key {
    int64_t total_ns;
    uint64_t kv_bytes, load; /* 0 in the order of a table */
    uint32_t p_id, d_id;
};

struct side {
    struct place_d t;
    uint32_t d;
    int64_t least_ns; /* transfer, lower bound */
    bool small;       /* see is_surely_feasible() */
    struct key key;   /* kv_bytes, load and d_id when another worker prefills */
};

/* One chunk of decode sides and, in each field, the least (most) of them. */
struct chunk {
    struct side sides[CHUNK];
    uint32_t count;
    int64_t least_ns, slot_ns, step_ns;
    int64_t most_ns, slot_most_ns, step_most_ns;
    struct key key;
};

struct scan {
    const struct bt_place_view *view;
    enum place_order order;
    struct bt_place_candidate *out;
    size_t max, kept, feasible;
    struct key last; /* of out[max - 1], once max are kept */
};

static int compare(uint64_t a, uint64_t b)
{
    return (a > b) - (a < b);
}

static int key_compare(const struct key *a, const struct key *b)
{
    int order = compare((uint64_t)a->total_ns, (uint64_t)b->total_ns);

    if (order == 0)
        order = compare(a->kv_bytes, b->kv_bytes);
    if (order == 0)
        order = compare(a->load, b->load);
    if (order == 0)
        order = compare(a->p_id, b->p_id);
    return order != 0 ? order : compare(a->d_id, b->d_id);
}

static uint32_t id_of(const struct bt_place_view *view, uint32_t w)
{
    return w == BT_PLACE_NONE ? 0 : view->workers[w].id.v;
}

static struct key key_of(const struct scan *s,
                         const struct bt_place_candidate *c)
{
    struct key key = {.total_ns = c->terms.total_ns,
                      .p_id = id_of(s->view, c->p),
                      .d_id = id_of(s->view, c->d)};

    if (s->order == PLACE_ORDER_LOAD) {
        key.kv_bytes = c->terms.kv_bytes;
        key.load = s->view->workers[c->d].decode_tokens;
    }
    return key;
}

/* May a candidate with this key, or a later one, not be kept? */
static bool is_hopeless(const struct scan *s, const struct key *key)
{
    if (s->kept < s->max)
        return false;
    if (s->max == 0 || key->total_ns != s->last.total_ns)
        return s->max == 0 || key->total_ns > s->last.total_ns;
    return key_compare(key, &s->last) >= 0;
}

static bool comes_before(const struct scan *s, const struct key *key,
                         const struct bt_place_candidate *c)
{
    struct key other;

    if (key->total_ns != c->terms.total_ns)
        return key->total_ns < c->terms.total_ns;
    other = key_of(s, c);
    return key_compare(key, &other) < 0;
}

static void keep(struct scan *s, const struct bt_place_candidate *c,
                 const struct key *key)
{
    size_t at = s->kept;

    if (is_hopeless(s, key))
        return;
    if (s->kept < s->max)
        s->kept++;
    else
        at--;
    while (at > 0 && comes_before(s, key, &s->out[at - 1])) {
        s->out[at] = s->out[at - 1];
        at--;
    }
    s->out[at] = *c;
    if (s->kept == s->max)
        s->last = key_of(s, &s->out[s->max - 1]);
}

/* ---- bounds ---- */

/* Rates that differ may round against each other by a nanosecond. */
static int64_t least_transfer(const struct bt_place_view *view,
                              const struct place_d *t)
{
    const struct bt_place_bounds *b = view->bounds;
    struct bt_link_model fast;
    int64_t ns;

    if (b == NULL)
        return 0;
    fast = (struct bt_link_model){.rate_bytes_per_s = b->rate_max,
                                  .setup_ns = b->setup_min_ns,
                                  .per_descriptor_ns = b->descriptor_min_ns};
    ns = bt_transfer_ns(&fast, t->kv_bytes, t->blocks, NULL, 0);
    return ns > 0 && b->rate_min != b->rate_max ? ns - 1 : ns;
}

static int64_t most_transfer(const struct bt_place_view *view,
                             const struct place_d *t)
{
    const struct bt_place_bounds *b = view->bounds;
    struct bt_link_model slow;
    uint64_t bytes;

    if (b == NULL ||
        __builtin_mul_overflow(t->kv_bytes, (uint64_t)b->flows_max + 2, &bytes))
        return BT_COST_INFINITE;
    slow = (struct bt_link_model){.rate_bytes_per_s = b->rate_min,
                                  .setup_ns = b->setup_max_ns,
                                  .per_descriptor_ns = b->descriptor_max_ns};
    return bt_transfer_ns(&slow, bytes, t->blocks, NULL, 0);
}

static int64_t min_of(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t max_of(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static void bound_chunk(struct chunk *c, const struct side *s, int64_t most_ns)
{
    c->least_ns = min_of(c->least_ns, s->least_ns);
    c->slot_ns = min_of(c->slot_ns, s->t.slot_ns);
    c->step_ns = min_of(c->step_ns, s->t.step_ns);
    c->most_ns = max_of(c->most_ns, most_ns);
    c->slot_most_ns = max_of(c->slot_most_ns, s->t.slot_ns);
    c->step_most_ns = max_of(c->step_most_ns, s->t.step_ns);
    if (s->key.kv_bytes < c->key.kv_bytes)
        c->key.kv_bytes = s->key.kv_bytes;
    if (s->key.load < c->key.load)
        c->key.load = s->key.load;
    if (s->key.d_id < c->key.d_id)
        c->key.d_id = s->key.d_id;
}

/* Take the feasible decode sides from worker `first` on until the chunk is
 * full; returns where to go on. */
static uint32_t fill_chunk(const struct scan *s, uint32_t first,
                           struct chunk *c)
{
    const struct bt_place_view *view = s->view;
    uint32_t d = first;

    c->count = 0;
    c->least_ns = c->slot_ns = c->step_ns = BT_COST_INFINITE;
    c->most_ns = c->slot_most_ns = c->step_most_ns = 0;
    c->key = (struct key){0, UINT64_MAX, UINT64_MAX, 0, UINT32_MAX};
    for (; d < view->worker_count && c->count < CHUNK; d++) {
        struct side *side = &c->sides[c->count];

        if (!place_d_ok(view, d))
            continue;
        side->d = d;
        side->t = place_d_terms(view, d);
        side->least_ns = least_transfer(view, &side->t);
        side->small =
            side->t.kv_bytes < 1ULL << 40 && side->t.blocks < 1ULL << 32;
        side->key = (struct key){.d_id = id_of(view, d)};
        if (s->order == PLACE_ORDER_LOAD) {
            side->key.kv_bytes = side->t.kv_bytes;
            side->key.load = view->workers[d].decode_tokens;
        }
        bound_chunk(c, side, most_transfer(view, &side->t));
        c->count++;
    }
    return d;
}

/* ---- pairs ---- */

/* One row: all pairs of one prefilling worker with the sides of a chunk. */
struct row {
    uint32_t p;   /* none: each d serves alone */
    bool trusted; /* every pair of the row is feasible */
    uint32_t p_id;
    struct place_p t;
};

/* Without bounds: is this pair feasible by its sizes alone? A transfer of less
 * than 2^40 bytes beside less than 2^10 flows at 2^20 bytes/s or more takes
 * less than 2^60 ns; that, setup, posting and `least` sum up below infinity. */
static bool is_surely_feasible(const struct bt_place_view *view, uint32_t p,
                               const struct side *side, int64_t least_ns)
{
    const struct bt_place_link *link = bt_place_link_of(view, p, side->d);
    const struct bt_link_model *m = link->model;

    return m != NULL && m->rate_bytes_per_s >= 1ULL << 20 &&
           (uint64_t)m->setup_ns < 1ULL << 50 &&
           (uint64_t)m->per_descriptor_ns < 1ULL << 20 &&
           link->flows < 1u << 10 && side->small && least_ns < 1LL << 58;
}

static void look_at(struct scan *s, const struct row *row,
                    const struct side *side)
{
    uint32_t runs_on = row->p == BT_PLACE_NONE ? side->d : row->p;
    bool moves = runs_on != side->d;
    struct key key = side->key;
    struct bt_place_candidate c;
    bool hopeless;

    key.p_id = row->p_id;
    if (!moves)
        key.kv_bytes = 0;
    key.total_ns = place_total(&row->t, &side->t, moves ? side->least_ns : 0);
    hopeless = is_hopeless(s, &key);
    if (hopeless &&
        (row->trusted ||
         (moves && is_surely_feasible(s->view, runs_on, side, key.total_ns)))) {
        s->feasible++;
        return;
    }
    if (key.total_ns >= BT_COST_INFINITE)
        return;
    c.p = row->p;
    c.d = side->d;
    place_combine(s->view, runs_on, c.d, &row->t, &side->t, &c.terms);
    if (c.terms.total_ns >= BT_COST_INFINITE)
        return;
    s->feasible++;
    if (!hopeless) {
        key.total_ns = c.terms.total_ns;
        keep(s, &c, &key);
    }
}

/* Lower bound of a whole row. `local`: p may be among the sides. */
static struct key row_bound(const struct row *row, const struct chunk *c,
                            bool local)
{
    struct place_d best = {.slot_ns = c->slot_ns, .step_ns = c->step_ns};
    struct key key = c->key;

    key.p_id = row->p_id;
    if (local)
        key.kv_bytes = 0;
    key.total_ns = place_total(&row->t, &best, local ? 0 : c->least_ns);
    return key;
}

static bool row_is_feasible(const struct row *row, const struct chunk *c)
{
    struct place_d worst = {.slot_ns = c->slot_most_ns,
                            .step_ns = c->step_most_ns};

    return place_total(&row->t, &worst, c->most_ns) < BT_COST_INFINITE;
}

static void scan_row(struct scan *s, uint32_t p, const struct chunk *c)
{
    struct row row = {.p = p, .p_id = id_of(s->view, p)};
    struct key bound;

    row.t = place_p_terms(s->view, p);
    row.trusted = row_is_feasible(&row, c);
    bound = row_bound(&row, c, place_d_ok(s->view, p));
    if (row.trusted && is_hopeless(s, &bound)) {
        s->feasible += c->count;
        return;
    }
    for (uint32_t i = 0; i < c->count; i++)
        look_at(s, &row, &c->sides[i]);
}

static void scan_alone(struct scan *s, const struct chunk *c)
{
    for (uint32_t i = 0; i < c->count; i++) {
        struct row row = {.p = BT_PLACE_NONE};

        row.t = place_p_terms(s->view, c->sides[i].d);
        look_at(s, &row, &c->sides[i]);
    }
}

/* The worker that would end the prefill first: its row goes first, so that most
 * others are left out as a whole. None without a pool. */
static uint32_t soonest(const struct bt_place_view *view)
{
    uint32_t best = BT_PLACE_NONE;
    int64_t least = 0;

    for (uint32_t p = 0; p < view->worker_count; p++) {
        struct place_p t;

        if (!place_p_ok(view, p))
            continue;
        t = place_p_terms(view, p);
        if (best == BT_PLACE_NONE || t.queue_ns + t.prefill_ns < least) {
            best = p;
            least = t.queue_ns + t.prefill_ns;
        }
    }
    return best;
}

size_t place_scan_all(const struct bt_place_view *view, enum place_order order,
                      struct bt_place_candidate *out, size_t max)
{
    struct scan s = {.view = view, .order = order, .out = out, .max = max};
    uint32_t first = soonest(view), next = 0;
    bool pool = first != BT_PLACE_NONE;
    struct chunk chunk;

    while (next < view->worker_count) {
        next = fill_chunk(&s, next, &chunk);
        if (!pool)
            scan_alone(&s, &chunk);
        if (pool)
            scan_row(&s, first, &chunk);
        for (uint32_t p = 0; pool && p < view->worker_count; p++)
            if (p != first && place_p_ok(view, p))
                scan_row(&s, p, &chunk);
    }
    return s.feasible;
}

void place_scan(const struct bt_place_view *view, struct place_scan *out)
{
    struct bt_place_candidate two[2] = {place_none(), place_none()};
    size_t feasible = place_scan_all(view, PLACE_ORDER_LOAD, two, 2);

    out->best = two[0];
    out->second = two[1];
    out->feasible = feasible < UINT32_MAX ? (uint32_t)feasible : UINT32_MAX;
}

size_t bt_place_table(const struct bt_place_view *view,
                      struct bt_place_candidate *out, size_t max)
{
    return place_scan_all(view, PLACE_ORDER_IDS, out, max);
}
