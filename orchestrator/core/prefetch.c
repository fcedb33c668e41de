/* A prefix ahead of its request: while the policy holds a request back, the
 * worker it is likely to go to pulls what a peer holds of its prompt, so that
 * the fetch is over when the request is dispatched. Decides whether, once per
 * request; who is likely is the policy's answer (hold.c), what is fetched its
 * source.
 *
 * Only when the lead would not hide the fetch anyway and the worker stays busy
 * until it is over: fetch > lead, queue - lead > fetch; and only when the
 * request is the first of those held, since whoever is before it may go to that
 * worker instead. One at a time to each worker, PREFETCHES_MAX in all; those
 * that are there by now, as predicted, do not count. Nobody reports the end:
 * its flow stays booked, at no cost once its bytes have run out, until the
 * request is placed or ends.
 *
 *   placed there, on the way   the flow becomes the leg's fetch; the leg names
 *                              the source and the engine joins it
 *   placed there, over         KV events have told, or the policy saw nothing
 *   elsewhere, or the end      wasted; the shell ends what is on the way */
#include "core_internal.h"

static bool has_prefetch(const struct request *r)
{
    return r->prefetch.tokens > 0;
}

static void remove_at(struct bt_core *core, uint32_t at)
{
    core->prefetches[at] = core->prefetches[--core->prefetch_count];
}

/* Those that are there by now count no longer. */
static void forget_arrived(struct bt_core *core)
{
    for (uint32_t i = 0; i < core->prefetch_count;) {
        const struct request *r = &core->requests[core->prefetches[i]];

        if (r->prefetch_until_ns <= core->now_ns)
            remove_at(core, i);
        else
            i++;
    }
}

static bool is_coming_to(const struct bt_core *core, uint32_t worker)
{
    for (uint32_t i = 0; i < core->prefetch_count; i++) {
        const struct request *r = &core->requests[core->prefetches[i]];

        if (bt_worker_slot(r->prefetch_to) == worker)
            return true;
    }
    return false;
}

static bool is_worth_it(const struct bt_core *core,
                        const struct bt_place_candidate *c)
{
    const struct bt_place_terms *t = &c->terms;

    return c->p < core->config.worker_count && c->source.tokens > 0 &&
           c->source.worker < core->config.worker_count &&
           c->source.worker != c->p && core->workers[c->p].config->fetch_ok &&
           core->workers[c->p].state == BT_WORKER_READY && t->fetch_bytes > 0 &&
           t->fetch_ns < BT_COST_INFINITE &&
           t->fetch_ns > core->config.hold.lead_ns &&
           t->queue_ns - core->config.hold.lead_ns > t->fetch_ns;
}

static void start(struct bt_core *core, struct request *r,
                  const struct bt_place_candidate *c, struct bt_effects *fx)
{
    struct bt_effect *effect;

    r->record.prefetched = true;
    r->prefetch = c->source;
    r->prefetch_to = core_worker_id_of(core, c->p);
    r->prefetch_until_ns = core->now_ns + c->terms.fetch_ns;
    core->prefetches[core->prefetch_count++] = core_request_slot_of(core, r);
    core->counters.prefetches++;
    bt_ledger_book_prefetch(core->ledger, &r->booking, core->now_ns,
                            core_request_slot_of(core, r), c->source.worker,
                            c->p, c->terms.fetch_bytes);
    effect = core_effect_add(core, fx, BT_FX_PREFETCH, r);
    effect->worker = r->prefetch_to;
    effect->source = r->prefetch;
}

void core_prefetch(struct bt_core *core, struct request *r,
                   struct bt_effects *fx)
{
    const struct bt_place_candidate *c = &core->likely;
    bool fresh = core->likely_of == core_request_slot_of(core, r);

    core->likely_of = NO_SLOT;
    if (!core->config.hold.prefetch || !fresh || !r->held ||
        r->record.prefetched || !is_worth_it(core, c) ||
        !core_hold_is_first(core, r))
        return;
    forget_arrived(core);
    if (core->prefetch_count < PREFETCHES_MAX && !is_coming_to(core, c->p))
        start(core, r, c, fx);
}

static void stop_counting(struct bt_core *core, const struct request *r)
{
    uint32_t slot = core_request_slot_of(core, r);

    for (uint32_t i = 0; i < core->prefetch_count; i++) {
        if (core->prefetches[i] == slot) {
            remove_at(core, i);
            return;
        }
    }
}

void core_prefetch_end(struct bt_core *core, struct request *r, uint32_t p)
{
    bool there, on_the_way;

    if (!has_prefetch(r))
        return;
    there = p != NO_SLOT &&
            bt_worker_same(core_worker_id_of(core, p), r->prefetch_to);
    on_the_way = there && core->now_ns < r->prefetch_until_ns;
    stop_counting(core, r);
    if (on_the_way)
        r->source = r->prefetch;
    else
        bt_ledger_fetch_done(core->ledger, &r->booking, core->now_ns);
    if (there)
        core->counters.prefetches_used++;
    else
        core->counters.prefetches_wasted++;
    r->prefetch.tokens = 0;
}
