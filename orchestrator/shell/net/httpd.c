/* Server life and the one place that runs libmicrohttpd. Decides when MHD
 * runs: at most ROUNDS_MAX times per kick, after the user's calls of this loop
 * turn were turned into resumes. Leaves requests to httpd_request.c, answers
 * to httpd_stream.c.
 *
 *   mhd_io (MHD's epoll fd), timer, left_io, user calls --> kick --> httpd_run
 *
 * Invariant: MHD is never entered from a user's call nor from its own
 * call-backs.
 */
#include "httpd_internal.h"
#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#define ROUNDS_MAX     4
#define LEFT_BATCH     64
#define SWEEP_S        0.2
#define TIMER_SLACK_S  0.02
#define STOP_ROUNDS    1000000
#define POOL_BYTES_MIN (16U * 1024)

/* ---- running MHD ---- */

static void work_take(struct bt_httpd *httpd)
{
    struct link batch;
    if (link_empty(&httpd->work))
        return;
    batch = httpd->work;
    batch.next->prev = batch.prev->next = &batch;
    link_init(&httpd->work);
    while (!link_empty(&batch)) {
        struct bt_httpd_request *req =
            LINK_OWNER(struct bt_httpd_request, in_work, batch.next);
        link_drop(&req->in_work);
        request_work_run(req);
    }
}

static void timer_arm(struct bt_httpd *httpd, ev_tstamp after)
{
    ev_tstamp at = ev_now(httpd->loop) + after;
    if (ev_is_active(&httpd->timer) && httpd->timer_at <= at + TIMER_SLACK_S)
        return; /* fires early enough; then it is armed anew */
    ev_timer_stop(httpd->loop, &httpd->timer);
    ev_timer_set(&httpd->timer, after, 0.);
    ev_timer_start(httpd->loop, &httpd->timer);
    httpd->timer_at = at;
}

static void httpd_run(struct bt_httpd *httpd)
{
    MHD_UNSIGNED_LONG_LONG wait_ms = 0;
    bool wait = false;
    assert(!httpd->running);
    httpd->running = true;
    for (int i = 0; i < ROUNDS_MAX; i++) {
        work_take(httpd);
        MHD_run(httpd->daemon);
        wait = MHD_get_timeout(httpd->daemon, &wait_ms) == MHD_YES;
        if (link_empty(&httpd->work) && !(wait && wait_ms == 0))
            break;
    }
    httpd->running = false;
    if (!link_empty(&httpd->work))
        timer_arm(httpd, 0.);
    else if (wait)
        timer_arm(httpd, (double)wait_ms / 1e3);
}

void httpd_kick(struct bt_httpd *httpd)
{
    if (!httpd->running && !httpd->stopping)
        ev_feed_event(httpd->loop, &httpd->kick, EV_CUSTOM);
}

static void on_kick(struct ev_loop *loop, struct ev_prepare *w, int events)
{
    (void)loop;
    (void)events;
    httpd_run(w->data);
}

static void on_mhd_io(struct ev_loop *loop, struct ev_io *w, int events)
{
    (void)loop;
    (void)events;
    httpd_kick(w->data);
}

static void on_timer(struct ev_loop *loop, struct ev_timer *w, int events)
{
    (void)loop;
    (void)events;
    httpd_kick(w->data);
}

/* ---- clients that leave: MHD does not look at suspended connections ---- */

static void conn_left(struct conn *conn)
{
    conn->peer_left = true;
    if (conn->request)
        request_work(conn->request, WORK_LEFT);
}

static void on_left(struct ev_loop *loop, struct ev_io *w, int events)
{
    (void)loop;
    (void)events;
    struct bt_httpd *httpd = w->data;
    struct epoll_event ready[LEFT_BATCH];
    int count = epoll_wait(httpd->left_fd, ready, LEFT_BATCH, 0);
    for (int i = 0; i < count; i++)
        conn_left(ready[i].data.ptr);
}

static void conn_open(struct bt_httpd *httpd, struct MHD_Connection *mhd,
                      void **slot)
{
    struct conn *conn = calloc(1, sizeof(*conn));
    *slot = conn;
    if (!conn)
        return;
    conn->httpd = httpd;
    conn->fd = MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_CONNECTION_FD)
                   ->connect_fd;
    link_push(&httpd->conns, &conn->in_conns);
    httpd->counters.connections++;
    /* Edge-triggered and without EPOLLIN: pipelined bytes wake nobody. */
    struct epoll_event event = {.events = EPOLLRDHUP | EPOLLET,
                                .data.ptr = conn};
    (void)epoll_ctl(httpd->left_fd, EPOLL_CTL_ADD, conn->fd, &event);
}

static void conn_close(struct conn *conn)
{
    struct bt_httpd *httpd = conn->httpd;
    int unread = 0;
    (void)epoll_ctl(httpd->left_fd, EPOLL_CTL_DEL, conn->fd, NULL);
    if (!conn->peer_left &&
        (conn->linger ||
         (ioctl(conn->fd, FIONREAD, &unread) == 0 && unread > 0)))
        httpd_linger(httpd, conn->fd);
    link_drop(&conn->in_conns);
    httpd->counters.connections--;
    free(conn);
}

static void on_connection(void *arg, struct MHD_Connection *mhd, void **slot,
                          enum MHD_ConnectionNotificationCode code)
{
    if (code == MHD_CONNECTION_NOTIFY_STARTED)
        conn_open(arg, mhd, slot);
    else if (*slot)
        conn_close(*slot);
}

/* ---- sweep: bounded ends of aborted streams, refusals, lingering sockets ----
 */

static void deadline_sweep(struct bt_httpd *httpd)
{
    struct link *at = httpd->live.next;
    while (at != &httpd->live && httpd->deadlines > 0) {
        struct bt_httpd_request *req =
            LINK_OWNER(struct bt_httpd_request, in_live, at);
        at = at->next;
        if (req->cut_at > 0. && req->mhd && req->cut_at <= ev_now(httpd->loop))
            shutdown(req->conn->fd, SHUT_RDWR);
    }
}

static void on_sweep(struct ev_loop *loop, struct ev_timer *w, int events)
{
    (void)events;
    struct bt_httpd *httpd = w->data;
    deadline_sweep(httpd);
    httpd_linger_sweep(httpd, false);
    if (httpd->deadlines == 0 && httpd->lingering_count == 0)
        ev_timer_stop(loop, w);
}

void httpd_sweep_start(struct bt_httpd *httpd)
{
    if (!ev_is_active(&httpd->sweep))
        ev_timer_again(httpd->loop, &httpd->sweep);
}

/* ---- refusals that MHD makes by itself are only seen in its log ---- */

__attribute__((format(printf, 2, 0))) static void
on_log(void *arg, const char *format, va_list ap)
{
    struct bt_httpd *httpd = arg;
    if (!strstr(format, "HTTP response code is %u"))
        return;
    unsigned status = va_arg(ap, unsigned);
    if (request_refuse_parsed(httpd, status))
        return;
    switch (status) {
    case MHD_HTTP_CONTENT_TOO_LARGE:
        httpd->counters.refused_413++;
        break;
    case MHD_HTTP_URI_TOO_LONG:
    case MHD_HTTP_REQUEST_HEADER_FIELDS_TOO_LARGE:
        httpd->counters.refused_431++;
        break;
    default:
        httpd->counters.refused_400++;
        break;
    }
}

/* ---- start and stop ---- */

static void limits_fill(struct bt_httpd_limits *l)
{
    if (!l->connections_max)
        l->connections_max = 1024;
    if (!l->body_bytes_max)
        l->body_bytes_max = 64ULL << 20;
    if (!l->body_total_bytes_max)
        l->body_total_bytes_max = 1ULL << 30;
    if (!l->header_bytes_max)
        l->header_bytes_max = 32U << 10;
    if (!l->stream_buffer_bytes)
        l->stream_buffer_bytes = 256U << 10;
    if (!l->receive_timeout_s)
        l->receive_timeout_s = 60;
    if (!l->send_timeout_s)
        l->send_timeout_s = 60;
}

static struct MHD_Daemon *daemon_start(struct bt_httpd *httpd, int listen_fd)
{
    /* Heads up to the limit parse with room for 64 bytes of bookkeeping per
     * header line, and most oversized ones are refused by httpd_guard, in JSON.
     * No more than that: MHD writes zeros over half of the pool for an answer
     * and over all of it between the requests of a connection. */
    size_t limit = httpd->limits.header_bytes_max;
    size_t pool = limit + limit / 2;
    if (pool < POOL_BYTES_MIN)
        pool = POOL_BYTES_MIN;
    return MHD_start_daemon(
        MHD_USE_EPOLL | MHD_USE_TURBO | MHD_ALLOW_SUSPEND_RESUME |
            MHD_USE_ERROR_LOG,
        0, NULL, NULL, httpd_on_access, httpd, MHD_OPTION_EXTERNAL_LOGGER,
        on_log, (void *)httpd, MHD_OPTION_LISTEN_SOCKET, listen_fd,
        MHD_OPTION_STRICT_FOR_CLIENT, 1, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
        pool, MHD_OPTION_CONNECTION_LIMIT,
        (unsigned)httpd->limits.connections_max, MHD_OPTION_CONNECTION_TIMEOUT,
        (unsigned)httpd->limits.receive_timeout_s, MHD_OPTION_NOTIFY_COMPLETED,
        httpd_on_completed, (void *)httpd, MHD_OPTION_NOTIFY_CONNECTION,
        on_connection, (void *)httpd, MHD_OPTION_URI_LOG_CALLBACK,
        httpd_on_target, (void *)httpd, MHD_OPTION_END);
}

static void watchers_start(struct bt_httpd *httpd)
{
    int mhd_fd =
        MHD_get_daemon_info(httpd->daemon, MHD_DAEMON_INFO_EPOLL_FD)->epoll_fd;
    ev_io_init(&httpd->mhd_io, on_mhd_io, mhd_fd, EV_READ);
    ev_io_init(&httpd->left_io, on_left, httpd->left_fd, EV_READ);
    ev_timer_init(&httpd->timer, on_timer, 0., 0.);
    ev_timer_init(&httpd->sweep, on_sweep, 0., SWEEP_S);
    ev_prepare_init(&httpd->kick, on_kick);
    ev_set_priority(&httpd->kick, EV_MINPRI);
    httpd->mhd_io.data = httpd->left_io.data = httpd->timer.data =
        httpd->sweep.data = httpd->kick.data = httpd;
    ev_io_start(httpd->loop, &httpd->mhd_io);
    ev_io_start(httpd->loop, &httpd->left_io);
    httpd_kick(httpd); /* the first run adds the listener to the epoll set */
}

enum bt_status bt_httpd_start(struct ev_loop *loop, const char *address,
                              uint16_t port,
                              const struct bt_httpd_limits *limits,
                              bt_httpd_handler_fn handler, void *arg,
                              struct bt_httpd **out, char *error_out,
                              size_t error_size)
{
    int listen_fd = -1;
    struct bt_httpd *httpd = calloc(1, sizeof(*httpd));
    if (!httpd)
        return BT_NO_MEMORY;
    httpd->loop = loop;
    httpd->handler = handler;
    httpd->arg = arg;
    if (limits)
        httpd->limits = *limits;
    limits_fill(&httpd->limits);
    link_init(&httpd->conns);
    link_init(&httpd->live);
    link_init(&httpd->work);
    link_init(&httpd->lingering);
    enum bt_status status = httpd_listen(address, port, &listen_fd,
                                         &httpd->port, error_out, error_size);
    if (status != BT_OK)
        goto undo_httpd;
    status = BT_IO;
    httpd->left_fd = epoll_create1(EPOLL_CLOEXEC);
    if (httpd->left_fd < 0) {
        snprintf(error_out, error_size, "epoll: %s", strerror(errno));
        goto undo_listen;
    }
    httpd->daemon = daemon_start(httpd, listen_fd);
    if (!httpd->daemon) {
        snprintf(error_out, error_size, "libmicrohttpd did not start");
        goto undo_left;
    }
    watchers_start(httpd);
    *out = httpd;
    return BT_OK;
undo_left:
    close(httpd->left_fd);
undo_listen:
    close(listen_fd);
undo_httpd:
    free(httpd);
    return status;
}

uint16_t bt_httpd_port(const struct bt_httpd *httpd)
{
    return httpd->port;
}

void bt_httpd_counters_get(const struct bt_httpd *httpd,
                           struct bt_httpd_counters *out)
{
    *out = httpd->counters;
}

void bt_httpd_quiesce(struct bt_httpd *httpd)
{
    if (httpd->quiesced)
        return;
    httpd->quiesced = true;
    MHD_socket fd = MHD_quiesce_daemon(httpd->daemon);
    if (fd != MHD_INVALID_SOCKET)
        close(fd);
    httpd_kick(httpd);
}

/* MHD panics if a connection is suspended when its daemon stops. */
static void requests_stop(struct bt_httpd *httpd)
{
    struct link *at = httpd->live.next;
    while (at != &httpd->live) {
        struct bt_httpd_request *req =
            LINK_OWNER(struct bt_httpd_request, in_live, at);
        at = at->next;
        if (req->mhd && req->state >= REQUEST_HANDLING)
            request_lost(req);
        if (req->suspended) {
            req->suspended = false;
            MHD_resume_connection(req->mhd);
        }
    }
}

void bt_httpd_stop(struct bt_httpd *httpd)
{
    assert(!httpd->running);
    httpd->stopping = true;
    ev_clear_pending(httpd->loop, &httpd->kick);
    requests_stop(httpd);
    MHD_stop_daemon(httpd->daemon);
    for (int i = 0; i < STOP_ROUNDS && !link_empty(&httpd->live); i++)
        request_free(LINK_OWNER(struct bt_httpd_request, in_live,
                                httpd->live.next)); /* orphans */
    httpd_linger_sweep(httpd, true);
    ev_io_stop(httpd->loop, &httpd->mhd_io);
    ev_io_stop(httpd->loop, &httpd->left_io);
    ev_timer_stop(httpd->loop, &httpd->timer);
    ev_timer_stop(httpd->loop, &httpd->sweep);
    close(httpd->left_fd);
    free(httpd);
}
