/* The best candidates of all pairs. Decides which rows and decode sides are
 * gone through, in which order; leaves bounds and pairs to place_bounds.c, what
 * a pair costs to place.c and the choice to policies/.
 *
 * Branch and bound, with the same result as looking at every pair with the best
 * source of its p. A row (all pairs of one p) starts as a floor: the prefill
 * with the deepest prefix anyone holds, at the earliest a port allows; its
 * sources are looked at only if that might win.
 *
 *   1 floors of all p; the soonest is `first`
 *   2 decode sides, batch by batch, each with `first` and its local prefill
 *   3 the other rows by floor, those that are not hopeless, with every batch
 *
 * A scan for a few candidates among more than SHORT_FROM workers looks at a
 * shortlist instead.
 *
 * Invariant: feasible counts every pair with a finite total, kept or not
 * (shortlist: every pair of feasible sides).
 */
#include "place_scan_impl.h"

#include <string.h>

/* ---- rows ---- */

static bool fill_row(struct scan *s, uint32_t p, struct row *row)
{
    if (!place_p_ok(s->view, p))
        return false;
    place_p_set(s->world, p, &row->t);
    if (row->t.queue_ns > s->world->wish.queue_most_ns)
        return false;
    row->p = p;
    row->p_id = scan_id_of(s->view, p);
    row->resolved = false;
    row->at_ns = row->out_ns = row->lost_ns = 0;
    row->out_bytes = UINT64_MAX;
    row->out.placed = false;
    if (s->world->fabric.network != NULL)
        row->out = place_port_of(&s->world->fabric, s->view, p, false);
    place_p_floor(s->world, p, &row->t);
    return true;
}

static int64_t floor_of(const struct row *row)
{
    return place_add(place_add(row->t.queue_ns, row->t.prefill_ns),
                     row->t.price_ns);
}

/* No pair of the row can be kept, and their number is known. */
static bool is_needless(const struct scan *s, const struct row *row)
{
    struct key bound = scan_row_bound(s, row, &s->all);

    return scan_is_hopeless(s, &bound) && scan_row_is_feasible(s, row, &s->all);
}

/* Rows from worker `from` on until BATCH are there; returns where to go on.
 * first: BT_PLACE_NONE: take all; else leave it out, and all needless ones. */
static uint32_t fill_rows(struct scan *s, uint32_t from, uint32_t first,
                          uint32_t *count_out)
{
    uint32_t p = from;

    *count_out = 0;
    for (; p < s->view->worker_count && *count_out < BATCH; p++) {
        struct row *row = &s->rows[*count_out];

        if (p == first || !fill_row(s, p, row))
            continue;
        if (first == BT_PLACE_NONE || !is_needless(s, row))
            ++*count_out;
        else
            s->feasible += s->all.count;
    }
    return p;
}

/* The worker that would end the prefill first: its row goes first, so that most
 * others are left out as a whole. Leaves the first batch of rows filled. */
static struct row soonest(struct scan *s, uint32_t *count_out,
                          uint32_t *next_out)
{
    struct row best = {.p = BT_PLACE_NONE}, row;
    uint32_t next = fill_rows(s, 0, BT_PLACE_NONE, count_out);

    *next_out = next;
    for (uint32_t i = 0; i < *count_out; i++)
        if (best.p == BT_PLACE_NONE || floor_of(&s->rows[i]) < floor_of(&best))
            best = s->rows[i];
    for (; next < s->view->worker_count; next++)
        if (fill_row(s, next, &row) && floor_of(&row) < floor_of(&best))
            best = row;
    return best;
}

static void rank_rows(struct scan *s, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        s->order_of_rows[i] =
            (struct rank){.ns = floor_of(&s->rows[i]), .at = i};
    scan_sort_ranks(s->order_of_rows, count);
}

/* Are all pairs of the rows held and the batch feasible? */
static bool rows_are_feasible(const struct scan *s, uint32_t count)
{
    struct row worst = {.out.placed = true};

    for (uint32_t i = 0; i < count; i++) {
        const struct row *row = &s->rows[i];

        worst.t.queue_ns = place_max(worst.t.queue_ns, row->t.queue_ns);
        worst.t.prefill_ns = place_max(worst.t.prefill_ns, row->t.prefill_ns);
        worst.out.placed &= row->out.placed;
    }
    return scan_row_is_feasible(s, &worst, &s->batch.of);
}

/* Rows whose pairs are all feasible: those that may still win, soonest first.
 * What comes after the first that is too late is later still. */
static void scan_hopeful(struct scan *s, uint32_t count, uint32_t first)
{
    const struct bounds *b = &s->batch.of;
    bool sends = b->placed && !s->overlaps;
    uint32_t hopeful = 0;

    for (uint32_t i = 0; i < count; i++) {
        const struct row *row = &s->rows[i];
        struct rank x = {.ns = b->step_ns, .at = i};

        if (row->p == first)
            continue;
        if (sends && row->out.placed && !place_d_ok(s->view, row->p))
            x.ns = b->sent_ns;
        x.ns = place_add(floor_of(row), x.ns);
        s->feasible += b->count;
        if (s->kept < s->max || x.ns <= s->last.score_ns)
            s->order_of_rows[hopeful++] = x;
    }
    scan_sort_ranks(s->order_of_rows, hopeful);
    for (uint32_t i = 0; i < hopeful; i++) {
        const struct rank *x = &s->order_of_rows[i];

        if (s->kept == s->max && x->ns > s->last.score_ns)
            return;
        scan_row_trusted(s, &s->rows[x->at]);
    }
}

/* The rows held, but `first`, with every side. `held`: the batch of sides is
 * the only one and still there. */
static void scan_rows(struct scan *s, uint32_t count, uint32_t first, bool held)
{
    uint32_t next = held ? s->view->worker_count : 0;

    if (held && s->max > 0 && rows_are_feasible(s, count)) {
        scan_hopeful(s, count, first);
        return;
    }
    rank_rows(s, count);
    do {
        if (!held)
            next = scan_fill_batch(s, next);
        for (uint32_t i = 0; i < count; i++) {
            struct row *row = &s->rows[s->order_of_rows[i].at];

            if (row->p != first)
                scan_row(s, row);
        }
    } while (next < s->view->worker_count);
}

/* Every side with the first row and with itself. Returns whether one batch
 * holds them all. */
static bool scan_sides(struct scan *s, struct row *first)
{
    uint32_t next = 0;
    bool one = true;

    scan_bounds_clear(&s->all);
    for (;;) {
        next = scan_fill_batch(s, next);
        scan_bounds_join(&s->all, &s->batch.of);
        if (first->p != BT_PLACE_NONE)
            scan_row(s, first);
        if (s->world->wish.local)
            scan_local(s);
        if (next == s->view->worker_count)
            return one;
        one = false;
    }
}

static void scan_pool(struct scan *s)
{
    uint32_t count, next;
    struct row first = soonest(s, &count, &next);
    bool one = scan_sides(s, &first);

    if (one && next == s->view->worker_count) {
        scan_rows(s, count, first.p, one);
        return;
    }
    next = first.p == BT_PLACE_NONE ? s->view->worker_count : 0;
    while (next < s->view->worker_count) {
        next = fill_rows(s, next, first.p, &count);
        if (count > 0)
            scan_rows(s, count, BT_PLACE_NONE, one);
    }
}

/* ---- the shortlist ---- */

/* Offer x to a list of the `most` least; *worst is where the last of them is.
 * Returns where it may be put, `most`: nowhere. */
static uint32_t offer(struct rank *ranks, uint32_t *count, uint32_t most,
                      int64_t ns, uint32_t *worst)
{
    uint32_t at = *count;

    if (at == most) {
        if (ns >= ranks[*worst].ns)
            return most;
        at = *worst;
    } else {
        ++*count;
    }
    ranks[at].ns = ns;
    *worst = 0;
    for (uint32_t i = 1; i < *count; i++)
        if (ranks[i].ns > ranks[*worst].ns)
            *worst = i;
    return at;
}

/* Through a port at some instant with the flows there; 0: no network. */
static int64_t port_live(const struct scan *s, uint32_t w, bool in,
                         int64_t after_ns, uint64_t bytes)
{
    const struct bt_network *network = s->world->fabric.network;
    uint32_t slot = bt_worker_slot(s->view->workers[w].id);
    int64_t now = s->view->now_ns;

    if (network == NULL || after_ns >= BT_COST_INFINITE)
        return 0;
    return in ? bt_network_in_bound_ns(network, now, now + after_ns, slot,
                                       bytes)
              : bt_network_out_bound_ns(network, now, now + after_ns, slot,
                                        bytes);
}

/* A worker of both roles that keeps the request. */
static void look_at_itself(struct scan *s, struct row row)
{
    struct side own;

    if (!place_d_ok(s->view, row.p))
        return;
    scan_fill_side(s, row.p, &own);
    scan_resolve(s, &row);
    (void)scan_look_at(s, &row, &own, false);
}

static bool has_holder_near(const struct scan *s, uint32_t p)
{
    const struct place_holders *h = &s->world->holders;
    uint32_t node = place_node_of(s->view, p);

    for (uint32_t i = 0; i < h->count && node != BT_LINK_NONE; i++)
        if (place_node_of(s->view, h->best[i].worker) == node)
            return true;
    return false;
}

static void nearest_clear(struct scan *s)
{
    for (uint32_t i = 0; i < SHORT_NODES + SHORT_RACKS; i++)
        s->nearest[i].p = s->nearest[i].d =
            (struct rank){.ns = INT64_MAX, .at = BT_PLACE_NONE};
}

static void nearest_offer(struct scan *s, bool decodes, int64_t ns, uint32_t w)
{
    uint32_t node = place_node_of(s->view, w), at[2];

    if (node == BT_LINK_NONE)
        return;
    at[0] = node % SHORT_NODES;
    at[1] = SHORT_NODES + place_rack_of(s->view, w) % SHORT_RACKS;
    for (int i = 0; i < 2; i++) {
        struct near_best *near = &s->nearest[at[i]];
        struct rank *best = decodes ? &near->d : &near->p;

        if (ns < best->ns)
            *best = (struct rank){.ns = ns, .at = w};
    }
}

static void look_at_pair(struct scan *s, const struct rank *p, uint32_t d)
{
    struct side side;
    struct row row;

    if (p->at == BT_PLACE_NONE || d == BT_PLACE_NONE || p->at == d ||
        (s->kept == s->max && p->ns > s->last.score_ns) ||
        !place_d_ok(s->view, d) || !fill_row(s, p->at, &row))
        return;
    scan_resolve(s, &row);
    scan_fill_side(s, d, &side);
    (void)scan_look_at(s, &row, &side, false);
}

/* The best of each node and rack together, and what holds the prefix already
 * with the best of its rack: with full uplinks they may beat all that looks
 * better from afar. */
static void scan_nearest(struct scan *s)
{
    const struct place_holders *h = &s->world->holders;

    for (uint32_t i = 0; i < SHORT_NODES + SHORT_RACKS; i++)
        look_at_pair(s, &s->nearest[i].p, s->nearest[i].d.at);
    for (uint32_t i = 0; i < h->count; i++) {
        uint32_t rack = place_rack_of(s->view, h->best[i].worker);

        if (rack != BT_LINK_NONE)
            look_at_pair(s, &s->nearest[SHORT_NODES + rack % SHORT_RACKS].p,
                         h->best[i].worker);
    }
}

/* The rows that would first be done with a whole prompt sent, and those that
 * would first end the prefill without a source; returns the
 * number of all. Those that decode too are looked at with themselves at once.
 */
static uint32_t list_rows(struct scan *s, uint32_t *count)
{
    uint64_t bytes = s->view->kv_bytes_per_token * s->view->prompt_tokens;
    struct rank own[SHORT_OWN], *rest = s->order_of_rows;
    uint32_t own_count = 0, own_worst = 0, worst = 0, all = 0;
    struct row row;

    *count = 0;
    for (uint32_t p = 0; p < s->view->worker_count; p++) {
        int64_t ready;
        uint32_t at;

        if (!fill_row(s, p, &row))
            continue;
        all++;
        look_at_itself(s, row);
        nearest_offer(s, false, floor_of(&row), p);
        ready = place_p_plain(s->world, p).prefill_ns;
        if (has_holder_near(s, p))
            ready = row.t.prefill_ns;
        at = offer(own, &own_count, SHORT_OWN, place_add(row.t.queue_ns, ready),
                   &own_worst);
        if (at < SHORT_OWN) {
            s->rows[SHORT_ROWS + at] = row;
            continue;
        }
        ready = floor_of(&row);
        ready = place_add(ready, port_live(s, p, false, ready, bytes));
        at = offer(rest, count, SHORT_ROWS, ready, &worst);
        if (at < SHORT_ROWS)
            s->rows[at] = row;
    }
    for (uint32_t i = 0; i < own_count; i++)
        s->rows[(*count)++] = s->rows[SHORT_ROWS + i];
    return all;
}

/* The nodes of the listed rows. */
struct nodes {
    uint32_t list[SHORT_ROWS + SHORT_OWN], count;
};

static void list_nodes(const struct scan *s, uint32_t row_count,
                       struct nodes *nodes)
{
    nodes->count = 0;
    for (uint32_t i = 0; i < row_count; i++) {
        uint32_t node = place_node_of(s->view, s->rows[i].p);

        if (node != BT_LINK_NONE)
            nodes->list[nodes->count++] = node;
    }
}

/* On the node of a listed row: the way may be much shorter than it looks. */
static bool is_neighbour(const struct scan *s, const struct nodes *nodes,
                         uint32_t d)
{
    uint32_t node = place_node_of(s->view, d);
    bool found = false;

    for (uint32_t i = 0; i < nodes->count; i++)
        found |= nodes->list[i] == node;
    return found;
}

/* The first token there, after a prefill and a transfer. */
static int64_t soon_ns(const struct side *side, int64_t ready_ns,
                       int64_t sent_ns)
{
    return place_add(place_max(place_add(ready_ns, sent_ns), side->t.slot_ns),
                     side->t.step_ns);
}

/* The sides that would start to decode first, ready_ns being when the first
 * prefill could end; returns the number of all. */
static uint32_t list_sides(struct scan *s, uint32_t row_count, int64_t ready_ns)
{
    struct batch *b = &s->batch;
    uint32_t worst = 0, all = 0, count = 0, near = 0;
    struct nodes nodes;
    struct side side;

    list_nodes(s, row_count, &nodes);
    scan_batch_clear(s);
    for (uint32_t d = 0; d < s->view->worker_count; d++) {
        int64_t sent;
        uint32_t at;

        if (!place_d_ok(s->view, d))
            continue;
        scan_fill_side(s, d, &side);
        all++;
        nearest_offer(s, true, soon_ns(&side, ready_ns, side.least_ns), d);
        if (near < BATCH - SHORT_SIDES && is_neighbour(s, &nodes, d)) {
            b->sides[SHORT_SIDES + near++] = side;
            continue;
        }
        sent = place_max(side.least_ns,
                         port_live(s, d, true, ready_ns, side.t.kv_bytes));
        at = offer(b->order, &count, SHORT_SIDES,
                   soon_ns(&side, ready_ns, sent), &worst);
        if (at < SHORT_SIDES)
            b->sides[at] = side;
    }
    for (uint32_t i = 0; i < near; i++)
        b->sides[count++] = b->sides[SHORT_SIDES + i];
    for (uint32_t i = 0; i < count; i++)
        scan_batch_take(s, i);
    return all;
}

/* Only the most promising rows and sides. `feasible` becomes the number of
 * pairs whose sides are feasible, whatever lies between them. */
static void scan_short(struct scan *s)
{
    uint32_t rows, row_count, side_count;
    int64_t ready = BT_COST_INFINITE;

    s->may_repeat = true;
    nearest_clear(s);
    rows = list_rows(s, &row_count);
    for (uint32_t i = 0; i < row_count; i++)
        ready = min_of(ready, floor_of(&s->rows[i]));
    side_count = list_sides(s, row_count, ready);
    s->all = s->batch.of;
    scan_rows(s, row_count, BT_PLACE_NONE, true);
    scan_nearest(s);
    for (uint32_t d = 0; s->world->wish.local && d < s->view->worker_count; d++)
        scan_look_at_local(s, d, NULL);
    if (s->feasible > 0)
        s->feasible =
            place_max((int64_t)s->feasible, (int64_t)rows * side_count);
}

static void scan_no_pool(struct scan *s)
{
    for (uint32_t next = 0; next < s->view->worker_count;) {
        next = scan_fill_batch(s, next);
        scan_alone(s);
    }
}

static size_t run(struct place_world *world, enum place_order order,
                  struct bt_place_candidate *out, size_t max)
{
    const struct bt_place_view *view = world->view;
    struct scan s; /* large: what is used is filled */

    s.world = world;
    s.view = view;
    s.order = order;
    s.out = out;
    s.max = max;
    s.may_repeat = false;
    s.kept = s.feasible = 0;
    s.gated = view->mode != NULL && view->mode->allocate_first;
    s.overlaps = view->mode != NULL && view->mode->overlap != BT_OVERLAP_NONE;
    if (!place_has_pool(view))
        scan_no_pool(&s);
    else if (view->worker_count > SHORT_FROM && max > 0 && max <= SHORT_KEPT)
        scan_short(&s);
    else
        scan_pool(&s);
    return s.feasible;
}

size_t place_scan_all(const struct bt_place_view *view, enum place_order order,
                      struct bt_place_candidate *out, size_t max)
{
    struct place_wish all = place_wish_all();
    struct place_world world;

    place_world_init(&world, view, &all);
    return run(&world, order, out, max);
}

void place_scan_world(struct place_world *world, struct place_scan *out)
{
    struct bt_place_candidate two[2] = {place_none(), place_none()};
    size_t feasible = run(world, PLACE_ORDER_LOAD, two, 2);

    out->best = two[0];
    out->second = two[1];
    out->feasible = feasible < UINT32_MAX ? (uint32_t)feasible : UINT32_MAX;
}

void place_scan_wish(const struct bt_place_view *view,
                     const struct place_wish *wish, struct place_scan *out)
{
    struct place_world world;

    place_world_init(&world, view, wish);
    place_scan_world(&world, out);
}

void place_scan(const struct bt_place_view *view, struct place_scan *out)
{
    struct place_wish all = place_wish_all();

    place_scan_wish(view, &all, out);
}

size_t bt_place_table(const struct bt_place_view *view,
                      struct bt_place_candidate *out, size_t max)
{
    return place_scan_all(view, PLACE_ORDER_IDS, out, max);
}

/* ---- the hand-off ---- */

void place_scan_handoff(const struct bt_place_view *view, uint32_t p,
                        struct place_scan *out)
{
    struct bt_place_candidate two[2] = {place_none(), place_none()};
    struct scan s;

    s.view = view;
    s.order = PLACE_ORDER_LOAD;
    s.out = two;
    s.max = 2;
    s.may_repeat = false;
    s.kept = s.feasible = 0;
    for (uint32_t d = 0; d < view->worker_count; d++) {
        struct bt_place_candidate c;

        if (!place_d_ok(view, d))
            continue;
        c = place_handoff(view, p, d);
        if (c.terms.total_ns >= BT_COST_INFINITE)
            continue;
        s.feasible++;
        scan_keep(&s, &c);
    }
    out->best = two[0];
    out->second = two[1];
    out->feasible = (uint32_t)s.feasible;
}
