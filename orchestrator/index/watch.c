/* Nobody tells the service whether an engine lives, and a subscriber that came
 * late, or whose connection broke, learns of what it lost from the next batch
 * only. So a source that has been quiet is asked for its last batch again: the
 * same one proves that it is the same process and that nothing is missing;
 * anything else is read anew. Meanwhile the stream keeps its state (feed.c).
 * Decides when; what follows is the plane's.
 */
#include "service_impl.h"

#define FIRST_CHECK_S 1.0 /* after the registration, or idle_check_ns */

static double idle_s(const struct bt_index_service *s)
{
    return (double)s->config.idle_check_ns / 1e9;
}

/* Something has come, a replay is under way, one has failed and the plane will
 * try again, or there is no connection: no question is needed. */
static bool is_busy(const struct bt_index_service *s, struct instance *in)
{
    struct bt_stream_info info;
    uint64_t seen = 0;
    bool busy = false;

    for (uint32_t r = 0; r < in->is.ranks; r++) {
        if (bt_event_plane_stream(s->plane, (uint32_t)(in - s->instances), r,
                                  &info) != BT_OK)
            return true;
        seen += info.counts.batches + info.counts.duplicates;
        busy = busy || info.cut || info.state == BT_STREAM_SYNCING ||
               info.state == BT_STREAM_DEGRADED;
    }
    busy = busy || (seen != in->seen && in->seen != UINT64_MAX);
    in->seen = seen;
    return busy;
}

static void check(const struct bt_index_service *s, struct instance *in)
{
    uint32_t source = (uint32_t)(in - s->instances);
    struct bt_stream_info info;

    in->checking = true;
    bt_event_plane_lost(s->plane, source);
    bt_event_plane_alive(s->plane, source, 0, 0);
    /* One that has said nothing has no batch to prove itself by. */
    for (uint32_t r = 0; r < in->is.ranks; r++)
        if (bt_event_plane_stream(s->plane, source, r, &info) == BT_OK &&
            info.next == 0)
            (void)bt_event_plane_resync(s->plane, source, r);
}

static void on_watch(struct ev_loop *loop, ev_timer *timer, int events)
{
    struct bt_index_service *s = timer->data;
    double now = ev_now(loop);

    (void)events;
    for (uint32_t i = 0; i < s->config.workers_max; i++) {
        struct instance *in = &s->instances[i];

        if (in->scope == NULL || in->is.replay[0] == '\0')
            continue;
        if (is_busy(s, in)) {
            in->quiet_since = now;
        } else if (now - in->quiet_since >= idle_s(s)) {
            in->quiet_since = now;
            check(s, in);
        }
    }
}

void watch_start(struct bt_index_service *s)
{
    double every =
        idle_s(s) / 2 < FIRST_CHECK_S ? idle_s(s) / 2 : FIRST_CHECK_S;

    ev_timer_init(&s->watch, on_watch, every, every);
    s->watch.data = s;
    if (every > 0)
        ev_timer_start(s->loop, &s->watch);
}

void watch_stop(struct bt_index_service *s)
{
    ev_timer_stop(s->loop, &s->watch);
}

void watch_begin(struct bt_index_service *s, struct instance *in)
{
    in->seen = UINT64_MAX;
    in->quiet_since = ev_now(s->loop);
    if (idle_s(s) > FIRST_CHECK_S) /* the first question comes early */
        in->quiet_since -= idle_s(s) - FIRST_CHECK_S;
}
