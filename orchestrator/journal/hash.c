/* The running hash of effects. Fields are hashed one by one, never a struct
 * with its padding, and no double is among them. */
#include "baton/orchestrator/journal.h"

#include <xxhash.h>

#define FIELDS 27

static uint64_t decision_hash(const struct bt_decision *d)
{
    const struct bt_place_candidate *c = &d->placement.chosen;
    uint64_t f[FIELDS] = {
        (uint64_t)d->outcome,
        (uint64_t)d->reason,
        (uint64_t)d->fallback,
        c->p,
        c->d,
        c->source.tokens,
        c->source.tokens == 0 ? 0 : c->source.worker,
        (uint64_t)c->terms.total_ns,
        (uint64_t)c->terms.price_ns,
        c->terms.kv_bytes,
        c->terms.overlap_p,
        c->terms.overlap_d,
        d->placements,
        d->prefetched,
        d->output_tokens,
        (uint64_t)d->received_ns,
        (uint64_t)d->placed_ns,
        (uint64_t)d->finished_ns,
        (uint64_t)d->index_state,
        (uint64_t)d->index_cause,
        (uint64_t)d->overlap_source,
        d->overlap_raw_tokens,
        d->overlap_rank,
        d->common_tokens,
        d->copies,
    };

    return XXH3_64bits(f, sizeof(f));
}

uint64_t bt_effects_hash(uint64_t before, const struct bt_effects *effects)
{
    uint64_t hash = before;

    for (size_t i = 0; i < effects->count; i++) {
        const struct bt_effect *e = &effects->items[i];
        uint64_t f[14] = {
            hash,
            (uint64_t)e->type,
            e->request.v,
            e->cookie,
            e->attempt,
            (uint64_t)e->leg,
            e->worker.v,
            e->with_params,
            e->source.tokens,
            e->source.tokens == 0 ? 0 : e->source.worker,
            e->source.tokens == 0 ? 0 : (uint64_t)e->source.tier,
            e->peer.v,
            e->has_rank ? (uint64_t)e->rank + 1 : 0,
            e->decision == NULL ? 0 : decision_hash(e->decision),
        };

        hash = XXH3_64bits(f, sizeof(f));
    }
    return hash;
}
