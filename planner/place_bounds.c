/* Keys, lower bounds and pairs of the search over all candidates. Decides which
 * pairs of a row are worth building; leaves which rows and sides are gone
 * through to place_scan.c, what a pair costs to place.c.
 *
 * A pair whose lower bound does not come before the last of the kept candidates
 * is left out. Lower bounds have the real scores' order, ties included, because
 * all keys but the score are known or bounded without the link; in a network
 * they are exact to the rounding of one nanosecond, within which ties may go to
 * either. Transfers from below: idle links, from view.bounds or the ports of a
 * network; then the ports with the flows that will be there at the planned
 * send.
 *
 * Invariant: out[0..kept) is ordered and holds the first of all pairs offered.
 */
#include "place_scan_impl.h"

#include <string.h>

static int compare(uint64_t a, uint64_t b)
{
    return (a > b) - (a < b);
}

static int key_compare(const struct key *a, const struct key *b)
{
    int order = compare((uint64_t)a->score_ns, (uint64_t)b->score_ns);

    if (order == 0)
        order = compare(a->bytes, b->bytes);
    if (order == 0)
        order = compare(a->load, b->load);
    if (order == 0)
        order = compare(a->p_id, b->p_id);
    return order != 0 ? order : compare(a->d_id, b->d_id);
}

uint32_t scan_id_of(const struct bt_place_view *view, uint32_t w)
{
    return w == BT_PLACE_NONE ? 0 : view->workers[w].id.v;
}

static struct key key_of(const struct scan *s,
                         const struct bt_place_candidate *c)
{
    struct key key = {.score_ns = place_score(&c->terms),
                      .p_id = scan_id_of(s->view, c->p),
                      .d_id = scan_id_of(s->view, c->d)};

    if (s->order == PLACE_ORDER_LOAD) {
        key.bytes = c->terms.kv_bytes + c->terms.fetch_bytes;
        key.load = s->view->workers[c->d].decode_tokens;
    }
    return key;
}

/* May a candidate with this key, or a later one, not be kept? */
bool scan_is_hopeless(const struct scan *s, const struct key *key)
{
    if (s->kept < s->max)
        return false;
    if (s->max == 0 || key->score_ns != s->last.score_ns)
        return s->max == 0 || key->score_ns > s->last.score_ns;
    return key_compare(key, &s->last) >= 0;
}

void scan_keep(struct scan *s, const struct bt_place_candidate *c)
{
    struct key key = key_of(s, c), other;
    size_t at = s->kept;

    if (scan_is_hopeless(s, &key))
        return;
    for (size_t i = 0; s->may_repeat && i < s->kept; i++)
        if (place_is_same(c, &s->out[i]))
            return;
    if (s->kept < s->max)
        s->kept++;
    else
        at--;
    for (; at > 0; at--) {
        other = key_of(s, &s->out[at - 1]);
        if (key_compare(&key, &other) >= 0)
            break;
        s->out[at] = s->out[at - 1];
    }
    s->out[at] = *c;
    if (s->kept == s->max)
        s->last = key_of(s, &s->out[s->max - 1]);
}

/* Shell sort; equal ones in any order. */
void scan_sort_ranks(struct rank *list, uint32_t count)
{
    static const uint32_t gaps[] = {57, 23, 10, 4, 1};

    for (size_t g = 0; g < sizeof(gaps) / sizeof(gaps[0]); g++)
        for (uint32_t i = gaps[g]; i < count; i++) {
            struct rank x = list[i];
            uint32_t at = i;

            for (; at >= gaps[g] && list[at - gaps[g]].ns > x.ns; at -= gaps[g])
                list[at] = list[at - gaps[g]];
            list[at] = x;
        }
}

/* ---- bounds ---- */

/* Rates that differ may round against each other by a nanosecond. */
static int64_t least_by_bounds(const struct bt_place_view *view,
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
    ns = bt_transfer_ns(&fast, t->kv_bytes, t->descriptors, NULL, 0);
    return ns > 0 && b->rate_min != b->rate_max ? ns - 1 : ns;
}

static int64_t most_by_bounds(const struct bt_place_view *view,
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
    return bt_transfer_ns(&slow, bytes, t->descriptors, NULL, 0);
}

void scan_bounds_clear(struct bounds *b)
{
    b->count = 0;
    b->small = b->placed = true;
    b->sent_ns = b->room_ns = b->step_ns = b->start_ns = BT_COST_INFINITE;
    b->most_ns = b->slot_most_ns = b->step_most_ns = 0;
    b->key = (struct key){0, UINT64_MAX, UINT64_MAX, 0, UINT32_MAX};
}

void scan_bounds_join(struct bounds *b, const struct bounds *x)
{
    b->count += x->count;
    b->small = b->small && x->small;
    b->placed = b->placed && x->placed;
    b->sent_ns = min_of(b->sent_ns, x->sent_ns);
    b->room_ns = min_of(b->room_ns, x->room_ns);
    b->step_ns = min_of(b->step_ns, x->step_ns);
    b->start_ns = min_of(b->start_ns, x->start_ns);
    b->most_ns = place_max(b->most_ns, x->most_ns);
    b->slot_most_ns = place_max(b->slot_most_ns, x->slot_most_ns);
    b->step_most_ns = place_max(b->step_most_ns, x->step_most_ns);
    if (x->key.bytes < b->key.bytes)
        b->key.bytes = x->key.bytes;
    if (x->key.load < b->key.load)
        b->key.load = x->key.load;
    if (x->key.d_id < b->key.d_id)
        b->key.d_id = x->key.d_id;
}

static struct bounds bounds_of(const struct scan *s, const struct side *side)
{
    struct bounds b = {
        .count = 1,
        .small = side->small,
        .placed = side->placed,
        .sent_ns = place_add(side->least_ns, side->t.step_ns),
        .room_ns = place_add(side->t.slot_ns, side->t.step_ns),
        .step_ns = side->t.step_ns,
        .start_ns = side->t.start_ns,
        .slot_most_ns = side->t.slot_ns,
        .step_most_ns = side->t.step_ns,
        .key = side->key,
    };

    if (s->world->fabric.network == NULL)
        b.most_ns = most_by_bounds(s->view, &side->t);
    return b;
}

void scan_fill_side(const struct scan *s, uint32_t d, struct side *side)
{
    const struct bt_place_view *view = s->view;

    side->d = d;
    side->t = place_d_in(s->world, d);
    side->small =
        side->t.kv_bytes < 1ULL << 36 && side->t.descriptors < 1ULL << 32;
    side->placed = false;
    side->live_at_ns = -1;
    if (s->world->fabric.network == NULL) {
        side->least_ns = least_by_bounds(view, &side->t);
    } else {
        side->in = place_port_of(&s->world->fabric, view, d, true);
        side->placed = side->in.placed;
        side->least_ns =
            place_port_least(&s->world->fabric, &side->in, side->t.kv_bytes,
                             side->t.descriptors);
    }
    side->key = (struct key){.d_id = scan_id_of(view, d)};
    if (s->order == PLACE_ORDER_LOAD) {
        side->key.bytes = side->t.kv_bytes;
        side->key.load = view->workers[d].decode_tokens;
    }
}

void scan_batch_clear(struct scan *s)
{
    scan_bounds_clear(&s->batch.of);
    s->alike.at_ns = 0;
}

void scan_batch_take(struct scan *s, uint32_t i)
{
    struct batch *b = &s->batch;
    struct bounds one = bounds_of(s, &b->sides[i]);

    b->least_ns[i] = b->sides[i].least_ns;
    b->slot_ns[i] = b->sides[i].t.slot_ns;
    b->step_ns[i] = b->sides[i].t.step_ns;
    if (i == 0 || b->sides[i].t.kv_bytes < b->sides[b->lightest].t.kv_bytes)
        b->lightest = i;
    scan_bounds_join(&b->of, &one);
}

/* Take the feasible decode sides from worker `first` on until the batch is
 * full; returns where to go on. */
uint32_t scan_fill_batch(struct scan *s, uint32_t first)
{
    struct batch *b = &s->batch;
    uint32_t d = first;

    scan_batch_clear(s);
    for (; d < s->view->worker_count && b->of.count < BATCH; d++) {
        if (!place_d_ok(s->view, d))
            continue;
        scan_fill_side(s, d, &b->sides[b->of.count]);
        scan_batch_take(s, b->of.count);
    }
    return d;
}

/* ---- pairs ---- */

/* Of the transfer, what is left after the prefill. */
static int64_t least_exposed(const struct scan *s, const struct row *row,
                             int64_t least_ns)
{
    if (!s->overlaps)
        return least_ns;
    return least_ns > row->t.prefill_ns ? least_ns - row->t.prefill_ns : 0;
}

/* What others lose when these bytes need live_ns through a port: at least what
 * they take beyond an idle one. */
static int64_t lost_through(const struct place_port *port, uint64_t bytes,
                            int64_t live_ns)
{
    double lost = (double)live_ns - (double)bytes * port->ns_per_byte;

    return port->nvlink || !(lost > 2) ? 0 : (int64_t)(lost - 2);
}

/* Least transfer of a side's bytes through p's port: with the flows there when
 * it sends, if that is known. Sides that lack as much share it. */
static int64_t live_out(const struct scan *s, struct row *row,
                        const struct side *side)
{
    const struct place_fabric *fabric = &s->world->fabric;
    const struct bt_place_view *view = s->view;
    int64_t live;

    if (row->out_bytes == side->t.kv_bytes)
        return row->out_ns;
    row->out_bytes = side->t.kv_bytes;
    row->lost_ns = 0;
    row->out_ns = place_port_least(fabric, &row->out, side->t.kv_bytes,
                                   side->t.descriptors);
    if (row->at_ns == 0)
        return row->out_ns;
    live = bt_network_out_bound_ns(fabric->network, view->now_ns, row->at_ns,
                                   bt_worker_slot(view->workers[row->p].id),
                                   side->t.kv_bytes);
    row->lost_ns = lost_through(&row->out, side->t.kv_bytes, live);
    live = place_add(live,
                     place_port_fixed(fabric, &row->out, side->t.descriptors));
    row->out_ns = place_max(row->out_ns, live);
    return row->out_ns;
}

static int64_t least_of_pair(const struct scan *s, struct row *row,
                             const struct side *side)
{
    if (s->world->fabric.network == NULL)
        return least_exposed(s, row, side->least_ns);
    if (!row->out.placed || !side->placed)
        return 0;
    return least_exposed(s, row,
                         place_max(side->least_ns, live_out(s, row, side)));
}

/* Time through d's own port with the flows that will be there when p sends.
 * Rows that send at the same time share it. */
static int64_t live_in(const struct scan *s, const struct row *row,
                       struct side *side)
{
    const struct place_fabric *fabric = &s->world->fabric;
    const struct bt_place_view *view = s->view;
    int64_t live;

    if (side->live_at_ns == row->at_ns)
        return side->live_ns;
    live = bt_network_in_bound_ns(fabric->network, view->now_ns, row->at_ns,
                                  bt_worker_slot(view->workers[side->d].id),
                                  side->t.kv_bytes);
    side->lost_ns = lost_through(&side->in, side->t.kv_bytes, live);
    live = place_add(live,
                     place_port_fixed(fabric, &side->in, side->t.descriptors));
    side->live_at_ns = row->at_ns;
    side->live_ns = live;
    return side->live_ns;
}

/* Price of what own flows of others lose, from below. */
static int64_t link_price(const struct scan *s, int64_t lost_ns)
{
    const struct bt_place_prices *prices = s->view->prices;
    double ns;

    if (prices == NULL || !(prices->link > 0))
        return 0;
    ns = prices->link * (double)lost_ns - 2;
    if (!(ns > 0))
        return 0;
    return ns < (double)BT_COST_INFINITE ? (int64_t)ns : BT_COST_INFINITE;
}

static int64_t least_link_price(const struct scan *s, const struct row *row,
                                const struct side *side)
{
    int64_t lost = row->lost_ns;

    if (side->live_at_ns == row->at_ns)
        lost = place_max(lost, side->lost_ns);
    return link_price(s, lost);
}

/* Without bounds: is this pair feasible by its sizes alone? A transfer of less
 * than 2^36 bytes beside less than 2^10 flows at 2^20 bytes/s or more takes
 * less than 2^56 ns; that, setup, posting and `least` sum up below infinity. In
 * a network all links are up and ran at 2^20 bytes/s or more when it was made.
 */
static bool is_surely_feasible(const struct scan *s, const struct row *row,
                               const struct side *side, int64_t least_ns)
{
    const struct bt_place_link *link;
    const struct bt_link_model *m;

    if (!side->small || least_ns >= 1LL << 58)
        return false;
    if (s->world->fabric.network != NULL)
        return s->world->fabric.up && row->out.placed && side->placed &&
               !place_is_closed(s->view, row->p, side->d);
    link = bt_place_link_of(s->view, row->p, side->d);
    m = link->model;
    return m != NULL && m->rate_bytes_per_s >= 1ULL << 20 && m->setup_ns >= 0 &&
           m->setup_ns < 1LL << 50 && m->per_descriptor_ns >= 0 &&
           m->per_descriptor_ns < 1LL << 20 && link->flows < 1u << 10;
}

/* A key but for its score. */
static struct key pair_key(const struct scan *s, const struct row *row,
                           const struct side *side)
{
    bool moves = row->p != BT_PLACE_NONE && row->p != side->d;
    struct key key = side->key;

    key.p_id = row->p_id;
    if (s->order == PLACE_ORDER_LOAD)
        key.bytes = (moves ? key.bytes : 0) + row->t.fetch_bytes;
    return key;
}

static inline int64_t score_of(const struct row *row, const struct side *side,
                               int64_t transfer_ns)
{
    return place_add(place_total(&row->t, &side->t, transfer_ns),
                     row->t.price_ns);
}

/* May a pair with this score not be kept? */
static bool is_late(const struct scan *s, const struct row *row,
                    const struct side *side, int64_t score_ns)
{
    struct key key;

    if (s->kept < s->max)
        return false;
    if (s->max == 0 || score_ns != s->last.score_ns)
        return s->max == 0 || score_ns > s->last.score_ns;
    key = pair_key(s, row, side);
    key.score_ns = score_ns;
    return key_compare(&key, &s->last) >= 0;
}

static void build(struct scan *s, const struct row *row,
                  const struct side *side, bool trusted)
{
    uint32_t runs_on = row->p == BT_PLACE_NONE ? side->d : row->p;
    struct bt_place_candidate c = {
        .p = row->p, .d = side->d, .source = row->t.source};
    struct key key;

    place_combine_bare(s->view, runs_on, c.d, &row->t, &side->t, &c.terms);
    if (c.terms.total_ns >= BT_COST_INFINITE)
        return;
    if (!trusted)
        s->feasible++;
    key = key_of(s, &c);
    if (scan_is_hopeless(s, &key))
        return;
    place_price_pair(s->view, runs_on, c.d, &c.terms);
    scan_keep(s, &c);
}

/* trusted: the pair is known to be feasible and counted elsewhere. Returns the
 * least score known of a pair of any row like this one with the side. */
int64_t scan_look_at(struct scan *s, struct row *row, struct side *side,
                     bool trusted)
{
    bool moves = row->p != BT_PLACE_NONE && row->p != side->d;
    int64_t any = score_of(row, side, moves ? side->least_ns : 0);
    int64_t least = moves ? least_of_pair(s, row, side) : 0;
    int64_t score = score_of(row, side, least);
    bool hopeless = is_late(s, row, side, score);

    if (!hopeless && moves && row->at_ns != 0 && side->placed) {
        int64_t live = live_in(s, row, side);

        any = score_of(row, side, live);
        score = place_add(score_of(row, side, place_max(least, live)),
                          least_link_price(s, row, side));
        hopeless = is_late(s, row, side, score);
    }
    if (hopeless && trusted)
        return any;
    if (hopeless && (moves ? is_surely_feasible(s, row, side, score)
                           : score < BT_COST_INFINITE))
        s->feasible++;
    else
        build(s, row, side, trusted);
    return any;
}

/* Lower bound of a row over some sides. p may be among them: then there is no
 * transfer. */
struct key scan_row_bound(const struct scan *s, const struct row *row,
                          const struct bounds *b)
{
    int64_t start =
        place_max(place_max(row->t.queue_ns, row->t.fetch_ns), b->start_ns);
    int64_t prefill = row->t.prefill_ns, total;
    bool local = place_d_ok(s->view, row->p);
    bool known =
        s->world->fabric.network == NULL || (row->out.placed && b->placed);
    struct key key = b->key;

    key.p_id = row->p_id;
    if (s->order == PLACE_ORDER_LOAD)
        key.bytes = (local ? 0 : key.bytes) + row->t.fetch_bytes;
    total = place_add(prefill, b->step_ns);
    if (!local && known)
        total = s->overlaps ? place_max(total, b->sent_ns)
                            : place_add(prefill, b->sent_ns);
    total = place_max(place_add(start, total), b->room_ns);
    key.score_ns = place_add(total, row->t.price_ns);
    return key;
}

/* Every pair of the row with these sides is feasible. */
bool scan_row_is_feasible(const struct scan *s, const struct row *row,
                          const struct bounds *b)
{
    struct place_d worst = {.slot_ns = b->slot_most_ns,
                            .step_ns = b->step_most_ns,
                            .start_ns = b->slot_most_ns};
    struct place_p plain = row->t;
    int64_t most = b->most_ns;

    plain.fetch_ns = 0;
    if (s->world->fabric.network != NULL) {
        if (!s->world->fabric.up || !row->out.placed || !b->placed ||
            !b->small || (s->view->bounds == NULL && s->view->links != NULL))
            return false;
        most = 1LL << 58;
    }
    return place_total(&plain, &worst, most) < BT_COST_INFINITE;
}

/* When it would send, for the flows there by then. Only where that is the same
 * for every d. */
static void plan_send(const struct scan *s, struct row *row)
{
    int64_t ready = place_add(place_max(row->t.queue_ns, row->t.fetch_ns),
                              row->t.prefill_ns);

    row->out_bytes = UINT64_MAX;
    if (s->world->fabric.network != NULL && !s->overlaps && !s->gated &&
        row->out.placed && ready < BT_COST_INFINITE)
        row->at_ns = s->view->now_ns + ready;
}

void scan_resolve(struct scan *s, struct row *row)
{
    struct place_p plain = place_p_plain(s->world, row->p);

    row->t = place_p_best(s->world, row->p, &plain);
    row->resolved = true;
    plan_send(s, row);
}

/* A first look at the pairs of a row: a lower bound of their total by numbers
 * held close together, without what d makes p wait for. */
struct glance {
    int64_t ready_ns;  /* end of the prefill */
    int64_t hidden_ns; /* of a transfer, at most */
    int64_t out_ns;    /* no transfer out of p takes less */
    int64_t price_ns;  /* and costs others less */
};

static struct glance glance_of(const struct scan *s, struct row *row)
{
    struct glance g = {
        .ready_ns = place_add(place_max(row->t.queue_ns, row->t.fetch_ns),
                              row->t.prefill_ns)};

    if (s->overlaps)
        g.hidden_ns = row->t.prefill_ns;
    if (s->world->fabric.network == NULL)
        return g;
    if (!row->out.placed || !s->batch.of.placed || s->batch.of.count == 0) {
        g.hidden_ns = BT_COST_INFINITE;
        return g;
    }
    g.out_ns = live_out(s, row, &s->batch.sides[s->batch.lightest]);
    g.price_ns = link_price(s, row->lost_ns);
    return g;
}

/* at_least_ns: of the transfer */
static inline int64_t glance_ns(const struct batch *b, const struct glance *g,
                                uint32_t i, int64_t at_least_ns)
{
    int64_t sent = place_max(b->least_ns[i], at_least_ns) - g->hidden_ns;

    sent = place_add(g->ready_ns, sent > 0 ? sent : 0);
    return place_add(place_max(sent, b->slot_ns[i]), b->step_ns[i]);
}

/* Of `count` bounds the least but one that was taken. BATCH: none. */
static uint32_t least_but(const int64_t *bounds, uint32_t count, uint32_t but)
{
    int64_t least = INT64_MAX;
    uint32_t at = BATCH;

    for (uint32_t i = 0; i < count; i++) {
        if (bounds[i] >= least || i == but)
            continue;
        least = bounds[i];
        at = i;
    }
    return at;
}

static bool is_alike(const struct scan *s, const struct row *row)
{
    return row->at_ns != 0 && row->at_ns == s->alike.at_ns &&
           row->t.price_ns == s->alike.price_ns &&
           row->t.fetch_bytes == s->alike.fetch_bytes &&
           !place_d_ok(s->view, row->p);
}

/* No pair with a greater total can be kept. */
static int64_t total_most(const struct scan *s, const struct row *row)
{
    if (s->kept < s->max || s->last.score_ns >= BT_COST_INFINITE)
        return INT64_MAX;
    return s->last.score_ns - row->t.price_ns;
}

/* The least score that any row like this one has with some side. */
struct soonest {
    int64_t score_ns;
    uint32_t at; /* side; BATCH: none */
};

static void note(const struct batch *b, struct soonest *least, int64_t score_ns,
                 uint32_t i)
{
    if (score_ns > least->score_ns ||
        (score_ns == least->score_ns && least->at < BATCH &&
         key_compare(&b->sides[i].key, &b->sides[least->at].key) > 0))
        return;
    *least = (struct soonest){.score_ns = score_ns, .at = i};
}

/* A side left out at a glance. It cannot be kept for any row like this one, or
 * is noted. */
static void leave_out(const struct scan *s, const struct row *row,
                      const struct glance *g, uint32_t i, struct soonest *least)
{
    int64_t any = glance_ns(&s->batch, g, i, 0);

    if (any <= total_most(s, row))
        note(&s->batch, least, place_add(any, row->t.price_ns), i);
}

/* The row with every side of the batch, those with the least bounds first: with
 * them kept, the others hardly count. */
static struct soonest scan_pairs(struct scan *s, struct row *row,
                                 const struct glance *g, bool trusted)
{
    struct soonest least = {.score_ns = INT64_MAX, .at = BATCH};
    struct batch *b = &s->batch;
    uint32_t count = b->of.count, likely[2] = {BATCH, BATCH};
    int64_t bounds[BATCH], most;

    for (uint32_t i = 0; i < count; i++)
        bounds[i] = place_add(glance_ns(b, g, i, g->out_ns), g->price_ns);
    for (uint32_t k = 0; k < 2 && s->kept < s->max; k++) {
        uint32_t i = least_but(bounds, count, likely[0]);

        likely[k] = i;
        if (i < count)
            note(b, &least, scan_look_at(s, row, &b->sides[i], trusted), i);
    }
    most = total_most(s, row);
    for (uint32_t i = 0; i < count; i++) {
        if (i == likely[0] || i == likely[1])
            continue;
        if (trusted && bounds[i] > most && b->sides[i].d != row->p) {
            leave_out(s, row, g, i, &least);
            continue;
        }
        note(b, &least, scan_look_at(s, row, &b->sides[i], trusted), i);
        most = total_most(s, row);
    }
    return least;
}

/* The same for all pairs of a row. */
static bool row_is_too_late(const struct scan *s, const struct row *row,
                            const struct glance *g)
{
    const struct bounds *b = &s->batch.of;
    int64_t sent = g->out_ns - g->hidden_ns, most = total_most(s, row);

    if (most == INT64_MAX || place_d_ok(s->view, row->p))
        return false;
    sent = place_add(g->ready_ns, sent > 0 ? sent : 0);
    return place_add(place_max(place_add(sent, b->step_ns), b->room_ns),
                     g->price_ns) > most;
}

static void scan_sides_of(struct scan *s, struct row *row, bool trusted)
{
    struct glance g = glance_of(s, row);
    struct soonest least;

    if (trusted && row_is_too_late(s, row, &g))
        return;
    least = scan_pairs(s, row, &g, trusted);
    s->alike = (struct alike){.at_ns = row->at_ns,
                              .price_ns = row->t.price_ns,
                              .fetch_bytes = row->t.fetch_bytes};
    if (least.at < BATCH)
        s->alike.least = pair_key(s, row, &s->batch.sides[least.at]);
    s->alike.least.score_ns = least.score_ns;
}

static bool row_is_hopeless(struct scan *s, struct row *row)
{
    struct key bound = scan_row_bound(s, row, &s->batch.of);

    if (scan_is_hopeless(s, &bound))
        return true;
    if (!row->resolved) {
        scan_resolve(s, row);
        bound = scan_row_bound(s, row, &s->batch.of);
        if (scan_is_hopeless(s, &bound))
            return true;
    }
    if (!is_alike(s, row))
        return false;
    bound = s->alike.least;
    bound.p_id = row->p_id;
    return scan_is_hopeless(s, &bound);
}

void scan_row_trusted(struct scan *s, struct row *row)
{
    if (!row_is_hopeless(s, row))
        scan_sides_of(s, row, true);
}

void scan_row(struct scan *s, struct row *row)
{
    if (scan_row_is_feasible(s, row, &s->batch.of)) {
        s->feasible += s->batch.of.count;
        scan_row_trusted(s, row);
        return;
    }
    (void)row_is_hopeless(s, row); /* finds the source where it matters */
    scan_sides_of(s, row, false);
}

/* Each d by itself, when there is no pool. */
void scan_alone(struct scan *s)
{
    for (uint32_t i = 0; i < s->batch.of.count; i++) {
        uint32_t d = s->batch.sides[i].d;
        struct row row = {.p = BT_PLACE_NONE, .resolved = true};

        row.t = place_alone_terms(s->view, d);
        place_p_charge(s->view, s->world->mu, d, false, &row.t);
        if (row.t.queue_ns <= s->world->wish.queue_most_ns)
            (void)scan_look_at(s, &row, &s->batch.sides[i], false);
    }
}

/* A local prefill from below: whole, without steps between, then some step.
 * Not where it may be infeasible. */
static bool local_is_needless(struct scan *s, const struct place_p *queue,
                              uint32_t d)
{
    const struct place_prefill *whole;
    int64_t ns;

    if (s->kept < s->max || s->view->tpot_slo_ns > 0)
        return false;
    whole =
        place_prefill_of(s->world, s->view->workers[d].model, queue->overlap);
    ns = place_add(place_add(queue->queue_ns, whole->ns), whole->price_ns);
    return ns < BT_COST_INFINITE / 2 && ns > s->last.score_ns;
}

/* d prefills for itself beside a pool, if it may; side: NULL: not filled. */
void scan_look_at_local(struct scan *s, uint32_t d, struct side *side)
{
    struct place_p queue;
    struct row row;
    struct side own;

    if (!place_local_ok(s->view, d))
        return;
    queue = place_p_queue(s->view, d);
    if (queue.queue_ns > s->world->wish.queue_most_ns)
        return;
    if (local_is_needless(s, &queue, d)) {
        s->feasible++;
        return;
    }
    row = (struct row){.p = d, .resolved = true};
    if (side == NULL) {
        scan_fill_side(s, d, &own);
        side = &own;
    }
    row.p_id = scan_id_of(s->view, d);
    row.t = place_local_terms(s->view, d);
    place_p_charge(s->view, s->world->mu, d, true, &row.t);
    (void)scan_look_at(s, &row, side, false);
}

void scan_local(struct scan *s)
{
    for (uint32_t i = 0; i < s->batch.of.count; i++)
        scan_look_at_local(s, s->batch.sides[i].d, &s->batch.sides[i]);
}
