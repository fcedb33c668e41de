/* Terms of a placement. Decides what a pair costs and which pairs are feasible;
 * leaves the order of candidates to place_scan.c, the choice to policies/.
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
 * infinite total.
 */
#include "place_parts.h"

#include <assert.h>
#include <string.h>

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

static int64_t from_now(const struct bt_place_view *view, int64_t at_ns)
{
    if (at_ns <= view->now_ns)
        return 0;
    return at_ns - view->now_ns < BT_COST_INFINITE ? at_ns - view->now_ns
                                                   : BT_COST_INFINITE;
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

    if (p == BT_PLACE_NONE || p == d || view->bounds != NULL)
        return true;
    m = bt_place_link_of(view, p, d)->model;
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

static int64_t transfer_of(const struct bt_place_view *view, uint32_t p,
                           uint32_t d, const struct place_d *dt)
{
    const struct bt_place_link *link = bt_place_link_of(view, p, d);

    if (!place_link_ok(view, p, d))
        return BT_COST_INFINITE;
    return bt_transfer_ns(link->model, dt->kv_bytes, dt->blocks, link->left,
                          link->flows);
}

/* p: the worker that computes the prefill, d itself when d serves alone. */
void place_combine(const struct bt_place_view *view, uint32_t p, uint32_t d,
                   const struct place_p *pt, const struct place_d *dt,
                   struct bt_place_terms *out)
{
    bool moves = p != d;

    out->queue_ns = pt->queue_ns;
    out->prefill_ns = pt->prefill_ns;
    out->transfer_ns = moves ? transfer_of(view, p, d, dt) : 0;
    out->arrival_ns =
        place_add(place_add(pt->queue_ns, pt->prefill_ns), out->transfer_ns);
    out->slot_ns = dt->slot_ns;
    out->step_ns = dt->step_ns;
    out->total_ns = place_total(pt, dt, out->transfer_ns);
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
    place_combine(view, runs_on, d, &pt, &dt, out);
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
