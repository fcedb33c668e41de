/* Private to orchestrator/events: is a stream late? An engine stamps its
 * batches with its own clock, so arrival less stamp is the delay plus the
 * difference of the clocks. What stays of it, beyond the least that was seen,
 * is delay: a queue that grew somewhere between its scheduler and us. The least
 * may rise by 100 ppm, which is more than clocks drift apart.
 * Late from `limit` on, no longer below half of it. */
#ifndef BATON_EVENTS_KV_LAG_H
#define BATON_EVENTS_KV_LAG_H

#include <stdbool.h>

#define KV_LAG_DRIFT 1e-4

struct kv_lag {
    bool known, late;
    double least_s, at_s;
};

/* A batch came at now_s (any clock that does not jump), lag_s after its stamp.
 * limit_s 0: never late. */
static inline void kv_lag_seen(struct kv_lag *l, double lag_s, double now_s,
                               double limit_s)
{
    if (l->known)
        l->least_s += KV_LAG_DRIFT * (now_s - l->at_s);
    if (!l->known || lag_s < l->least_s)
        l->least_s = lag_s;
    l->known = true;
    l->at_s = now_s;
    if (lag_s - l->least_s >= limit_s)
        l->late = limit_s > 0.;
    else if (lag_s - l->least_s < limit_s / 2.)
        l->late = false;
}

#endif
