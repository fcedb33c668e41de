/* Lingering close. A server that refuses a request and closes while the
 * client still sends makes the kernel answer with a reset, which destroys the
 * refusal on its way. So a duplicate of the socket outlives the connection:
 * our side is shut, what comes in is thrown away, until the client closes or
 * LINGER_S are over. At most LINGER_MAX sockets; above, they close at once.
 */
#include "httpd_internal.h"
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#define LINGER_S      3.0
#define LINGER_MAX    256
#define DISCARD_BYTES (1024 * 1024)
#define READS_MAX     16

struct lingerer {
    struct ev_io io;
    struct link in_lingering;
    struct bt_httpd *httpd;
    ev_tstamp until;
};

/* The analyzer does not follow the list: it takes the next lingerer for the one
 * that was just dropped and freed. */
// NOLINTBEGIN(clang-analyzer-unix.Malloc)
static void lingerer_close(struct lingerer *l)
{
    ev_io_stop(l->httpd->loop, &l->io);
    close(l->io.fd);
    link_drop(&l->in_lingering);
    l->httpd->lingering_count--;
    free(l);
}

static void on_readable(struct ev_loop *loop, struct ev_io *io, int events)
{
    (void)loop;
    (void)events;
    struct lingerer *l = io->data;
    for (int i = 0; i < READS_MAX; i++) {
        /* MSG_TRUNC on TCP: drop the bytes without copying them. */
        ssize_t got =
            recv(io->fd, NULL, DISCARD_BYTES, MSG_TRUNC | MSG_DONTWAIT);
        if (got > 0)
            continue;
        if (got == 0)
            lingerer_close(l);
        return;
    }
}

void httpd_linger(struct bt_httpd *httpd, int fd)
{
    if (httpd->stopping || httpd->lingering_count >= LINGER_MAX)
        return;
    struct lingerer *l = calloc(1, sizeof(*l));
    int copy = dup(fd);
    if (!l || copy < 0) {
        free(l);
        if (copy >= 0)
            close(copy);
        return;
    }
    shutdown(copy, SHUT_WR);
    l->httpd = httpd;
    l->until = ev_now(httpd->loop) + LINGER_S;
    ev_io_init(&l->io, on_readable, copy, EV_READ);
    l->io.data = l;
    ev_io_start(httpd->loop, &l->io);
    link_push(&httpd->lingering, &l->in_lingering);
    httpd->lingering_count++;
    httpd_sweep_start(httpd);
}

void httpd_linger_sweep(struct bt_httpd *httpd, bool all)
{
    /* Oldest first: the list is in order of `until`. */
    while (!link_empty(&httpd->lingering)) {
        struct lingerer *l =
            LINK_OWNER(struct lingerer, in_lingering, httpd->lingering.next);
        if (!all && l->until > ev_now(httpd->loop))
            return;
        lingerer_close(l);
    }
}
// NOLINTEND(clang-analyzer-unix.Malloc)
