/* libcurl's multi handle on libev: one ev_io per socket, one timer. Decides
 * only when libcurl is driven; never calls the user outside of libcurl's own
 * call-backs.
 *
 * Invariant: depth > 0 exactly while libcurl may be running call-backs; in
 * that time handles are neither added nor removed.
 */
#include "upstream_internal.h"
#include <assert.h>
#include <stdlib.h>

struct socket_watch {
    struct ev_io io;
    struct bt_upstream *upstream;
};

static void kick(struct bt_upstream *upstream)
{
    ev_feed_event(upstream->loop, &upstream->kick, EV_CUSTOM);
}

void upstream_drive(struct bt_upstream *upstream, curl_socket_t fd, int mask)
{
    int running;
    upstream->depth++;
    curl_multi_socket_action(upstream->multi, fd, mask, &running);
    upstream->depth--;
}

static void on_socket_ready(struct ev_loop *loop, struct ev_io *io, int events)
{
    (void)loop;
    struct socket_watch *watch = io->data;
    struct bt_upstream *upstream = watch->upstream;
    int mask = (events & EV_READ ? CURL_CSELECT_IN : 0) |
               (events & EV_WRITE ? CURL_CSELECT_OUT : 0);
    upstream_drive(upstream, io->fd, mask); /* may free the watch */
    kick(upstream);                         /* collects what has ended */
}

static int on_socket(CURL *easy, curl_socket_t fd, int what, void *arg,
                     void *slot)
{
    (void)easy;
    struct bt_upstream *upstream = arg;
    struct socket_watch *watch = slot;
    int events = (what & CURL_POLL_IN ? EV_READ : 0) |
                 (what & CURL_POLL_OUT ? EV_WRITE : 0);
    if (what == CURL_POLL_REMOVE) {
        if (watch)
            ev_io_stop(upstream->loop, &watch->io);
        free(watch);
        return 0;
    }
    if (!watch) {
        watch = calloc(1, sizeof(*watch));
        if (!watch)
            return -1;
        watch->upstream = upstream;
        ev_io_init(&watch->io, on_socket_ready, fd, events);
        watch->io.data = watch;
        curl_multi_assign(upstream->multi, fd, watch);
    } else if (watch->io.events == events) {
        return 0;
    }
    ev_io_stop(upstream->loop, &watch->io);
    ev_io_set(&watch->io, fd, events);
    ev_io_start(upstream->loop, &watch->io);
    return 0;
}

static void on_timer(struct ev_loop *loop, struct ev_timer *timer, int events)
{
    (void)loop;
    (void)events;
    struct bt_upstream *upstream = timer->data;
    upstream->timer_due = true;
    kick(upstream);
}

static int on_timer_set(CURLM *multi, long after_ms, void *arg)
{
    (void)multi;
    struct bt_upstream *upstream = arg;
    ev_timer_stop(upstream->loop, &upstream->timer);
    if (after_ms < 0)
        return 0;
    ev_timer_set(&upstream->timer, (double)after_ms / 1e3, 0.);
    ev_timer_start(upstream->loop, &upstream->timer);
    return 0;
}

bool upstream_curl_init(struct bt_upstream *upstream, uint32_t connections_max,
                        uint32_t per_host_max)
{
    CURLM *m = upstream->multi = curl_multi_init();
    if (!m)
        return false;
    ev_timer_init(&upstream->timer, on_timer, 0., 0.);
    upstream->timer.data = upstream;
    curl_multi_setopt(m, CURLMOPT_SOCKETFUNCTION, on_socket);
    curl_multi_setopt(m, CURLMOPT_SOCKETDATA, upstream);
    curl_multi_setopt(m, CURLMOPT_TIMERFUNCTION, on_timer_set);
    curl_multi_setopt(m, CURLMOPT_TIMERDATA, upstream);
    curl_multi_setopt(m, CURLMOPT_MAX_TOTAL_CONNECTIONS, (long)connections_max);
    curl_multi_setopt(m, CURLMOPT_MAX_HOST_CONNECTIONS, (long)per_host_max);
    curl_multi_setopt(m, CURLMOPT_MAXCONNECTS, (long)connections_max);
    curl_multi_setopt(m, CURLMOPT_PIPELINING, (long)CURLPIPE_NOTHING);
    return true;
}

void upstream_add(struct bt_call *call)
{
    assert(call->upstream->depth == 0);
    CURLMcode code = curl_multi_add_handle(call->upstream->multi, call->easy);
    assert(code == CURLM_OK || code == CURLM_OUT_OF_MEMORY);
    (void)code;
}

void upstream_remove(struct bt_call *call)
{
    assert(call->upstream->depth == 0);
    /* libcurl closes the connection of a transfer that was not over. */
    call->upstream->depth++;
    curl_multi_remove_handle(call->upstream->multi, call->easy);
    call->upstream->depth--;
}

/* libcurl hands over what it held back from inside curl_easy_pause. */
void upstream_unpause(struct bt_call *call)
{
    call->paused = false;
    call->upstream->depth++;
    curl_easy_pause(call->easy, CURLPAUSE_CONT);
    call->upstream->depth--;
}
