/* Peers that read keys of the pool: ASKED -> the keys are had in host memory
 * and pinned -> answer -> LEFT -> unpinned. A key that neither tier has refuses
 * the whole pull with NOT_FOUND; no free slot, with OVERLOADED.
 *
 * Invariant: an ask is in the list from ASKED until its answer was a refusal,
 * or LEFT came.
 */
#include "service.h"

#include <stdlib.h>

static void ask_end(struct ask *ask)
{
    struct bt_agent_service *s = ask->service;

    TAILQ_REMOVE(&s->asks, ask, entry);
    s->ask_count--;
    pool_let_go(s->pool, &ask->hold);
    free(ask);
}

static void refuse(struct ask *ask, enum bt_status status)
{
    struct bt_agent_service *s = ask->service;

    s->asks_refused++;
    bt_agent_answer(s->agent, ask->id, status, NULL);
    ask_end(ask);
}

static void on_ready(void *arg, struct pool_hold *hold)
{
    struct ask *ask = arg;

    if (hold->status != BT_OK)
        refuse(ask, hold->status);
    else
        bt_agent_answer(ask->service->agent, ask->id, BT_OK, hold->slots);
}

void service_asked(struct bt_agent_service *s,
                   const struct bt_agent_event *event)
{
    struct ask *ask =
        s->ask_count < SERVICE_ASKS_MAX ? calloc(1, sizeof(*ask)) : NULL;

    s->asked++;
    if (ask == NULL) {
        s->asks_refused++;
        bt_agent_answer(s->agent, event->id, BT_OVERLOADED, NULL);
        return;
    }
    ask->service = s;
    ask->id = event->id;
    ask->hold.ready = on_ready;
    ask->hold.arg = ask;
    TAILQ_INSERT_TAIL(&s->asks, ask, entry);
    s->ask_count++;
    enum bt_status status =
        pool_hold(s->pool, event->refs, event->ref_count, &ask->hold);
    if (status != BT_OK)
        refuse(ask, status);
    else if (ask->hold.loads == 0)
        on_ready(ask, &ask->hold);
}

void service_left(struct bt_agent_service *s,
                  const struct bt_agent_event *event)
{
    struct ask *ask;

    TAILQ_FOREACH(ask, &s->asks, entry)
    {
        if (ask->id == event->id)
            break;
    }
    if (ask != NULL)
        ask_end(ask);
}

/* The agent is closed: nobody reads any more. */
void service_asks_end(struct bt_agent_service *s)
{
    struct ask *ask, *next;

    for (ask = TAILQ_FIRST(&s->asks); ask != NULL; ask = next) {
        next = TAILQ_NEXT(ask, entry);
        ask_end(ask);
    }
}
