/* The last look at d: the KV lies on p, leg D has not been sent, and d is up.
 * Where the engine names d only now (late_decode), the policy may name another
 * one. The request's own bookings are taken out of the view it decides on, or
 * the d it has would look busier than it is. Afterwards they are booked anew,
 * on whichever d it is, and the transfer starts now. */
#include "core_internal.h"

static bool may_move(const struct bt_core *core, const struct request *r)
{
    return core->config.policy->handoff != NULL &&
           core->config.models[r->ask.model].mode.late_decode &&
           !bt_worker_is_none(r->p) && core_handoff_is_usable(core, r);
}

/* A d that may be chosen, and is not the present one. */
static bool is_better(const struct bt_place_view *view, const struct request *r,
                      const struct bt_place_candidate *c)
{
    return c->d < view->worker_count && view->workers[c->d].decode_ok &&
           c->d != bt_worker_slot(r->p) && c->d != bt_worker_slot(r->d);
}

static bool ask(struct bt_core *core, const struct request *r,
                struct bt_place_candidate *out)
{
    struct place_query q = core_query_of(core, r);
    uint32_t p = bt_worker_slot(r->p);
    struct bt_placement answer = {.chosen = {.d = BT_PLACE_NONE}};
    struct bt_place_view view;

    if (core_eligible_mark(core, &q).d_count == 0)
        return false;
    core->marks[p] |= (unsigned char)BT_ROLE_PREFILL;
    core_view_build(core, &q, &view);
    core_view_avoid_suspect_pairs(core, &view);
    if (core->config.policy->handoff(&core->policy_state, &view, p, &answer) !=
            BT_OK ||
        !is_better(&view, r, &answer.chosen))
        return false;
    *out = answer.chosen;
    return true;
}

void core_handoff_reconsider(struct bt_core *core, struct request *r)
{
    struct bt_place_candidate present = r->record.placement.chosen, other;

    if (!may_move(core, r))
        return;
    bt_ledger_release_all(core->ledger, &r->booking, core->now_ns);
    if (ask(core, r, &other)) {
        r->d = core_worker_id_of(core, other.d);
        core_record_handoff(core, r, &other);
        present.d = other.d;
        present.terms.kv_bytes = other.terms.kv_bytes;
    }
    present.p = bt_worker_slot(r->p);
    present.source.tokens = 0; /* the fetch is over */
    core_book(core, r, &present);
    bt_ledger_prefill_done(core->ledger, &r->booking, core->now_ns);
}
