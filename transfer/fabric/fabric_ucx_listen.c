/* The end of a UCX listener.
 *
 * UCX 1.13.1 accepts connections on a thread of its own. One whose request has
 * not come yet points at its listener; when the request comes after
 * ucp_listener_destroy, that thread reads freed memory (ucp_cm_server_conn_
 * request_cb; a test that stopped a source died so in one run of five under
 * load). A stranger who connects, waits and then speaks could choose the time.
 *
 *   unlisten -> retired: says no to everybody; the same address listened on
 *               again is the same listener
 *   transport's end, or too many retired: the port is shut, connections that
 *               came by it are shut, and once UCX has dropped those it is
 *               destroyed
 *
 * Decides when a listener goes; who is let in is fabric_ucx.c's. Invariant: no
 * accepted socket is left that points at a listener which is destroyed, unless
 * UCX did not drop it within END_NS. Sockets are found by their address among
 * the process's own; over rdma_cm there are none. */
#include "fabric_ucx.h"

#include <dirent.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define RETIRED_MAX 16u
#define END_NS      500000000LL

static uint16_t port_of(const struct sockaddr_storage *at)
{
    struct sockaddr_in v4; /* the port of v6 is at the same place */

    memcpy(&v4, at, sizeof(v4));
    return v4.sin_port;
}

static bool same_host(const struct sockaddr_storage *a,
                      const struct sockaddr_storage *b)
{
    struct sockaddr_in6 x6, y6;
    struct sockaddr_in x, y;

    memcpy(&x6, a, sizeof(x6));
    memcpy(&y6, b, sizeof(y6));
    memcpy(&x, a, sizeof(x));
    memcpy(&y, b, sizeof(y));
    return a->ss_family == AF_INET6
               ? memcmp(&x6.sin6_addr, &y6.sin6_addr, sizeof(x6.sin6_addr)) == 0
               : memcmp(&x.sin_addr, &y.sin_addr, sizeof(x.sin_addr)) == 0;
}

static bool is_any(const struct sockaddr_storage *at)
{
    const struct sockaddr_storage any = {.ss_family = at->ss_family};

    return same_host(at, &any);
}

/* ---- sockets of a listener ---- */

/* The listening socket, or one that it accepted. */
static bool belongs(const struct bt_tlisten *l, int fd, bool *is_door_out)
{
    struct sockaddr_storage at = {0};
    socklen_t size = sizeof(at), yes_size = sizeof(int);
    int yes = 0;

    if (getsockname(fd, (struct sockaddr *)&at, &size) != 0 ||
        at.ss_family != l->at.ss_family || port_of(&at) != port_of(&l->at) ||
        (!is_any(&l->at) && !same_host(&at, &l->at)) ||
        getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &yes, &yes_size) != 0)
        return false;
    *is_door_out = yes != 0;
    return true;
}

/* Shut what there is; how many accepted ones are still there. */
static unsigned int shut(struct bt_tlisten *l)
{
    DIR *dir = opendir("/proc/self/fd");
    unsigned int accepted = 0;
    struct dirent *entry;

    if (dir == NULL)
        return 0;
    while ((entry = readdir(dir)) != NULL) {
        int fd = (int)strtol(entry->d_name, NULL, 10);
        bool is_door = false;

        if (entry->d_name[0] == '.' || !belongs(l, fd, &is_door) ||
            fd == l->shut_fd)
            continue;
        (void)shutdown(fd, SHUT_RDWR);
        if (is_door) /* it listens no more, and looks like an accepted one */
            l->shut_fd = fd;
        else
            accepted++;
    }
    (void)closedir(dir);
    return accepted;
}

/* ---- the end ---- */

static void end(struct bt_tlisten *l)
{
    const struct timespec nap = {.tv_nsec = 1000000};
    int64_t limit = bt_fabric_now() + END_NS;

    l->is_retired = true;
    /* Live connections have such a socket, too: they keep it. */
    while (LIST_EMPTY(&l->ucx->conns) && shut(l) > 0 &&
           bt_fabric_now() < limit) {
        while (ucp_worker_progress(l->ucx->worker) != 0)
            ;
        nanosleep(&nap, NULL);
    }
    ucp_listener_destroy(l->listener);
    LIST_REMOVE(l, entry);
    free(l);
}

void bt_ucx_listener_add(struct bt_tlisten *l,
                         const struct sockaddr_storage *at)
{
    l->at = *at;
    l->shut_fd = -1;
    LIST_INSERT_HEAD(&l->ucx->listeners, l, entry);
}

struct bt_tlisten *bt_ucx_listener_again(struct ucx *ucx,
                                         const struct sockaddr *address,
                                         socklen_t size)
{
    struct sockaddr_storage at = {0};
    struct bt_tlisten *l;

    memcpy(&at, address, size < sizeof(at) ? size : sizeof(at));
    LIST_FOREACH(l, &ucx->listeners, entry)
    {
        if (l->is_retired && l->at.ss_family == at.ss_family &&
            port_of(&l->at) == port_of(&at) && same_host(&l->at, &at)) {
            l->is_retired = false;
            return l;
        }
    }
    return NULL;
}

/* The one that was made first goes when there are too many: what could point
 * at it has had the longest time to speak. */
void bt_ucx_listener_retire(struct bt_tlisten *l)
{
    struct bt_tlisten *at, *oldest = NULL;
    unsigned int count = 0;

    l->is_retired = true;
    LIST_FOREACH(at, &l->ucx->listeners, entry)
    {
        if (!at->is_retired)
            continue;
        count++;
        oldest = at;
    }
    if (count > RETIRED_MAX)
        end(oldest);
}

void bt_ucx_listeners_end(struct ucx *ucx)
{
    struct bt_tlisten *l, *next;

    for (l = LIST_FIRST(&ucx->listeners); l != NULL; l = next) {
        next = LIST_NEXT(l, entry);
        end(l);
    }
}
