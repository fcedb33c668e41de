/* Terms of a placement and the order of candidates. Decides what a pair costs
 * and which pairs are feasible; leaves the choice to policies/.
 *
 *   now --queue--> p starts --prefill--> --transfer--> arrival \
 *   now ------------------------------------slot--------------> max + step
 *
 * Assumptions: the transfer starts after the whole prefill (vLLM pull, no
 * overlap); each block that is moved costs one descriptor (worst case: runs of
 * neighbours are coalesced when they are posted); only flows of the same pair
 * share its link.
 *
 * Invariants: total >= arrival and total >= slot; an infeasible pair has an
 * infinite total and never enters a scan.
 */
#include "place_parts.h"

#include <assert.h>
#include <string.h>

/* Decode sides looked at together, so that each is computed once. */
#define CHUNK 64

static const char *const reason_names[] = {
#define X(code, name) name,
    BT_REASON_LIST(X)
#undef X
};

const char *bt_reason_name(enum bt_reason reason)
{
    return (unsigned int)reason < BT_REASON_COUNT ? reason_names[reason]
                                                  : "unknown";
}

static int64_t add_cost(int64_t a, int64_t b)
{
    return a >= BT_COST_INFINITE - b ? BT_COST_INFINITE : a + b;
}

static int64_t max_cost(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static int64_t from_now(const struct bt_place_view *view, int64_t at_ns)
{
    if (at_ns <= view->now_ns)
        return 0;
    return at_ns - view->now_ns < BT_COST_INFINITE ? at_ns - view->now_ns
                                                   : BT_COST_INFINITE;
}

static const struct bt_place_link *link_of(const struct bt_place_view *view,
                                           uint32_t p, uint32_t d)
{
    return &view->links[(size_t)p * view->worker_count + d];
}

/* ---- feasibility ---- */

static bool fits(const struct bt_place_worker *w, uint64_t tokens)
{
    return w->kv_capacity_tokens == 0 || tokens <= w->kv_capacity_tokens;
}

bool place_p_ok(const struct bt_place_view *view, uint32_t p)
{
    const struct bt_place_worker *w = &view->workers[p];

    return w->prefill_ok && (w->roles & BT_ROLE_PREFILL) != 0 &&
           w->model != NULL && fits(w, view->prompt_tokens);
}

bool place_d_ok(const struct bt_place_view *view, uint32_t d)
{
    const struct bt_place_worker *w = &view->workers[d];

    return w->decode_ok && (w->roles & BT_ROLE_DECODE) != 0 &&
           w->model != NULL &&
           fits(w, (uint64_t)view->prompt_tokens + view->output_tokens);
}

bool place_link_ok(const struct bt_place_view *view, uint32_t p, uint32_t d)
{
    const struct bt_link_model *m;

    if (p == BT_PLACE_NONE || p == d)
        return true;
    m = link_of(view, p, d)->model;
    return m != NULL && m->rate_bytes_per_s > 0 && m->setup_ns >= 0 &&
           m->setup_ns < BT_COST_INFINITE && m->per_descriptor_ns >= 0;
}

bool place_p_useful(const struct bt_place_view *view, uint32_t p)
{
    if (!place_p_ok(view, p))
        return false;
    for (uint32_t d = 0; d < view->worker_count; d++)
        if (place_d_ok(view, d) && place_link_ok(view, p, d))
            return true;
    return false;
}

bool place_has_pool(const struct bt_place_view *view)
{
    for (uint32_t p = 0; p < view->worker_count; p++)
        if (place_p_ok(view, p))
            return true;
    return false;
}

/* ---- terms ---- */

/* The last prompt token is always computed (engine-wire.md 2.6). */
static uint32_t usable_overlap(const struct bt_place_view *view, uint32_t held)
{
    uint32_t most = view->prompt_tokens > 0 ? view->prompt_tokens - 1 : 0;

    return held < most ? held : most;
}

struct place_p place_p_terms(const struct bt_place_view *view, uint32_t p)
{
    const struct bt_place_worker *w = &view->workers[p];
    struct place_p t = {
        .queue_ns = from_now(view, w->prefill_free_ns),
        .overlap = usable_overlap(view, w->overlap_tokens),
    };

    t.prefill_ns =
        w->model == NULL
            ? BT_COST_INFINITE
            : bt_prefill_ns(w->model, view->prompt_tokens - t.overlap,
                            t.overlap);
    return t;
}

/* Blocks of the prompt that d lacks, the partial tail among them. */
static uint64_t blocks_lacking(const struct bt_place_view *view,
                               uint32_t overlap)
{
    uint32_t blk = view->block_tokens > 0 ? view->block_tokens : 1;
    uint64_t all = ((uint64_t)view->prompt_tokens + blk - 1) / blk;
    uint64_t held = overlap / blk;

    return all > held ? all - held : 0;
}

struct place_d place_d_terms(const struct bt_place_view *view, uint32_t d)
{
    const struct bt_place_worker *w = &view->workers[d];
    uint32_t blk = view->block_tokens > 0 ? view->block_tokens : 1;
    uint32_t held = w->overlap_tokens < view->prompt_tokens
                        ? w->overlap_tokens
                        : view->prompt_tokens;
    struct place_d t = {
        .slot_ns = from_now(view, w->decode_free_ns),
        .blocks = blocks_lacking(view, held),
        .overlap = held,
        .feasible = place_d_ok(view, d),
    };

    if (__builtin_mul_overflow(t.blocks * blk, view->kv_bytes_per_token,
                               &t.kv_bytes))
        t.kv_bytes = UINT64_MAX;
    t.step_ns =
        w->model == NULL
            ? BT_COST_INFINITE
            : bt_decode_step_ns(w->model, (uint64_t)w->decode_requests + 1,
                                w->decode_tokens + view->prompt_tokens);
    return t;
}

static int64_t transfer_ns(const struct bt_place_view *view, uint32_t p,
                           uint32_t d, const struct place_d *dt)
{
    const struct bt_place_link *link = link_of(view, p, d);

    if (!place_link_ok(view, p, d))
        return BT_COST_INFINITE;
    return bt_transfer_ns(link->model, dt->kv_bytes, dt->blocks, link->left,
                          link->flows);
}

/* p: the worker that computes the prefill, d itself when d serves alone. */
static void combine(const struct bt_place_view *view, uint32_t p, uint32_t d,
                    const struct place_p *pt, const struct place_d *dt,
                    struct bt_place_terms *out)
{
    bool moves = p != d;

    out->queue_ns = pt->queue_ns;
    out->prefill_ns = pt->prefill_ns;
    out->transfer_ns = moves ? transfer_ns(view, p, d, dt) : 0;
    out->arrival_ns =
        add_cost(add_cost(pt->queue_ns, pt->prefill_ns), out->transfer_ns);
    out->slot_ns = dt->slot_ns;
    out->step_ns = dt->step_ns;
    out->total_ns =
        add_cost(max_cost(out->arrival_ns, dt->slot_ns), dt->step_ns);
    out->kv_bytes = moves ? dt->kv_bytes : 0;
    out->overlap_p = pt->overlap;
    out->overlap_d = dt->overlap;
}

void bt_place_terms(const struct bt_place_view *view, uint32_t p, uint32_t d,
                    struct bt_place_terms *out)
{
    uint32_t runs_on = p == BT_PLACE_NONE ? d : p;
    struct place_p pt;
    struct place_d dt;

    if (d == BT_PLACE_NONE) {
        memset(out, 0, sizeof(*out));
        out->total_ns = BT_COST_INFINITE;
        return;
    }
    assert(runs_on < view->worker_count && d < view->worker_count);
    pt = place_p_terms(view, runs_on);
    dt = place_d_terms(view, d);
    if (p != BT_PLACE_NONE && !place_p_ok(view, p))
        pt.prefill_ns = BT_COST_INFINITE;
    if (!dt.feasible)
        dt.slot_ns = BT_COST_INFINITE;
    combine(view, runs_on, d, &pt, &dt, out);
}

/* ---- candidates ---- */

struct bt_place_candidate place_none(void)
{
    struct bt_place_candidate c = {.p = BT_PLACE_NONE, .d = BT_PLACE_NONE};

    c.terms.total_ns = BT_COST_INFINITE;
    return c;
}

struct bt_place_candidate place_pair(const struct bt_place_view *view,
                                     uint32_t p, uint32_t d)
{
    struct bt_place_candidate c = {.p = p, .d = d};

    if (d == BT_PLACE_NONE)
        return place_none();
    bt_place_terms(view, p, d, &c.terms);
    return c;
}

bool place_is_same(const struct bt_place_candidate *a,
                   const struct bt_place_candidate *b)
{
    return a->p == b->p && a->d == b->d;
}

static uint32_t id_of(const struct bt_place_view *view, uint32_t w)
{
    return w == BT_PLACE_NONE ? 0 : view->workers[w].id.v;
}

static int compare(uint64_t a, uint64_t b)
{
    return (a > b) - (a < b);
}

static int compare_ids(const struct bt_place_view *view,
                       const struct bt_place_candidate *a,
                       const struct bt_place_candidate *b)
{
    int order = compare(id_of(view, a->p), id_of(view, b->p));

    return order != 0 ? order : compare(id_of(view, a->d), id_of(view, b->d));
}

static bool is_better(const struct bt_place_view *view,
                      const struct bt_place_candidate *a,
                      const struct bt_place_candidate *b)
{
    int order;

    if (b->d == BT_PLACE_NONE)
        return true;
    if (a->terms.total_ns != b->terms.total_ns)
        return a->terms.total_ns < b->terms.total_ns;
    if (a->terms.kv_bytes != b->terms.kv_bytes)
        return a->terms.kv_bytes < b->terms.kv_bytes;
    order = compare(view->workers[a->d].decode_tokens,
                    view->workers[b->d].decode_tokens);
    return (order != 0 ? order : compare_ids(view, a, b)) < 0;
}

static void offer(const struct bt_place_view *view, struct place_scan *scan,
                  const struct bt_place_candidate *c)
{
    if (is_better(view, c, &scan->best)) {
        scan->second = scan->best;
        scan->best = *c;
    } else if (is_better(view, c, &scan->second)) {
        scan->second = *c;
    }
}

/* Total of a pair whose transfer takes `transfer`. */
static int64_t total_of(const struct place_p *pt, const struct place_d *dt,
                        int64_t transfer)
{
    int64_t arrival =
        add_cost(add_cost(pt->queue_ns, pt->prefill_ns), transfer);

    return add_cost(max_cost(arrival, dt->slot_ns), dt->step_ns);
}

/* Can a pair with this total (or a bound below it) not enter the scan? */
static bool is_hopeless(const struct place_scan *scan, int64_t total)
{
    return scan->second.d != BT_PLACE_NONE &&
           total > scan->second.terms.total_ns;
}

/* Look at one pair; the candidate is only built when it may enter. */
static void scan_pair(const struct bt_place_view *view, uint32_t p, uint32_t d,
                      const struct place_p *pt, const struct place_d *dt,
                      struct place_scan *scan)
{
    uint32_t runs_on = p == BT_PLACE_NONE ? d : p;
    struct bt_place_candidate c;
    int64_t least = total_of(pt, dt, 0);

    if (least >= BT_COST_INFINITE || !place_link_ok(view, p, d))
        return;
    scan->feasible++;
    if (is_hopeless(scan, least))
        return;
    if (runs_on != d) {
        least = total_of(pt, dt, transfer_ns(view, p, d, dt));
        if (least >= BT_COST_INFINITE)
            scan->feasible--;
        if (least >= BT_COST_INFINITE || is_hopeless(scan, least))
            return;
    }
    c.p = p;
    c.d = d;
    combine(view, runs_on, d, pt, dt, &c.terms);
    offer(view, scan, &c);
}

/* Pairs of one p (none: each d serves alone) with one chunk of decode sides. */
static void scan_chunk(const struct bt_place_view *view, uint32_t p,
                       const struct place_d *sides, uint32_t first,
                       uint32_t count, struct place_scan *scan)
{
    struct place_p pt = {0};

    if (p != BT_PLACE_NONE)
        pt = place_p_terms(view, p);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t d = first + i;

        if (!sides[i].feasible)
            continue;
        if (p == BT_PLACE_NONE)
            pt = place_p_terms(view, d);
        scan_pair(view, p, d, &pt, &sides[i], scan);
    }
}

void place_scan(const struct bt_place_view *view, struct place_scan *out)
{
    struct place_d sides[CHUNK];
    bool pool = place_has_pool(view);

    *out = (struct place_scan){.best = place_none(), .second = place_none()};
    for (uint32_t first = 0; first < view->worker_count; first += CHUNK) {
        uint32_t count = view->worker_count - first;

        if (count > CHUNK)
            count = CHUNK;
        for (uint32_t i = 0; i < count; i++)
            sides[i] = place_d_terms(view, first + i);
        if (!pool)
            scan_chunk(view, BT_PLACE_NONE, sides, first, count, out);
        for (uint32_t p = 0; pool && p < view->worker_count; p++)
            if (place_p_ok(view, p))
                scan_chunk(view, p, sides, first, count, out);
    }
}

/* Insert in order of total, then ids, keeping the first max. */
static void insert(const struct bt_place_view *view,
                   struct bt_place_candidate *out, size_t count, size_t max,
                   const struct bt_place_candidate *c)
{
    size_t at = count < max ? count : max;

    while (at > 0) {
        const struct bt_place_candidate *before = &out[at - 1];
        int order = compare((uint64_t)c->terms.total_ns,
                            (uint64_t)before->terms.total_ns);

        if (order == 0)
            order = compare_ids(view, c, before);
        if (order >= 0)
            break;
        if (at < max)
            out[at] = *before;
        at--;
    }
    if (at < max)
        out[at] = *c;
}

size_t bt_place_table(const struct bt_place_view *view,
                      struct bt_place_candidate *out, size_t max)
{
    bool pool = place_has_pool(view);
    uint32_t p_count = pool ? view->worker_count : 1;
    size_t count = 0;

    for (uint32_t i = 0; i < p_count; i++) {
        uint32_t p = pool ? i : BT_PLACE_NONE;

        if (pool && !place_p_ok(view, p))
            continue;
        for (uint32_t d = 0; d < view->worker_count; d++) {
            struct bt_place_candidate c = place_pair(view, p, d);

            if (c.terms.total_ns >= BT_COST_INFINITE)
                continue;
            insert(view, out, count, max, &c);
            count++;
        }
    }
    return count;
}
