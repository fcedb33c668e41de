/* Opens sockets and takes messages off them. Decides their limits: a live
 * socket queues as much as the engine does (its default of 100,000 batches); a
 * replay socket queues a whole dump, for the engine drops what is not taken at
 * once; no frame is larger than 64 MiB.
 */
#include "socket.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define LIVE_HWM  100000
#define FRAME_MAX (INT64_C(64) << 20)
/* Comings and goings of one connection that wait to be read; at most ten a
 * second are made (ZMQ_RECONNECT_IVL). */
#define MONITOR_HWM 1000
/* A peer whose host is gone is noticed after some 25 s. */
#define ALIVE_IDLE_S  10
#define ALIVE_EVERY_S 5
#define ALIVE_PROBES  3

bool message_receive(void *socket, struct message *m)
{
    int more = 1;
    size_t size = sizeof(more);

    m->count = 0;
    m->overlong = false;
    while (more) {
        zmq_msg_t extra, *frame = &extra;

        if (m->count == FRAMES_MAX)
            m->overlong = true;
        else
            frame = &m->frames[m->count];
        zmq_msg_init(frame);
        if (zmq_msg_recv(frame, socket, ZMQ_DONTWAIT) < 0) {
            zmq_msg_close(frame);
            return m->count > 0;
        }
        if (m->overlong)
            zmq_msg_close(frame);
        else
            m->count++;
        zmq_getsockopt(socket, ZMQ_RCVMORE, &more, &size);
    }
    return true;
}

void message_close(struct message *m)
{
    for (int i = 0; i < m->count; i++)
        zmq_msg_close(&m->frames[i]);
    m->count = 0;
}

bool message_seq(struct message *m, int frame, uint64_t *seq_out)
{
    const unsigned char *at = zmq_msg_data(&m->frames[frame]);
    uint64_t seq = 0;

    if (zmq_msg_size(&m->frames[frame]) != 8)
        return false;
    for (int i = 0; i < 8; i++)
        seq = seq << 8 | at[i];
    *seq_out = seq;
    return true;
}

static void *undo_open(void *socket, const char **why_out)
{
    *why_out = zmq_strerror(errno);
    if (socket != NULL)
        zmq_close(socket);
    return NULL;
}

void *socket_make(void *context, int type, const char *endpoint,
                  const char **why_out)
{
    void *socket = zmq_socket(context, type);
    int hwm = type == ZMQ_SUB ? LIVE_HWM : 0, linger = 0, on = 1;
    int idle = ALIVE_IDLE_S, every = ALIVE_EVERY_S, probes = ALIVE_PROBES;
    int64_t largest = FRAME_MAX;

    if (socket == NULL)
        return undo_open(socket, why_out);
    zmq_setsockopt(socket, ZMQ_RCVHWM, &hwm, sizeof(hwm));
    zmq_setsockopt(socket, ZMQ_MAXMSGSIZE, &largest, sizeof(largest));
    zmq_setsockopt(socket, ZMQ_LINGER, &linger, sizeof(linger));
    zmq_setsockopt(socket, ZMQ_TCP_KEEPALIVE, &on, sizeof(on));
    zmq_setsockopt(socket, ZMQ_TCP_KEEPALIVE_IDLE, &idle, sizeof(idle));
    zmq_setsockopt(socket, ZMQ_TCP_KEEPALIVE_INTVL, &every, sizeof(every));
    zmq_setsockopt(socket, ZMQ_TCP_KEEPALIVE_CNT, &probes, sizeof(probes));
    /* Only for literal addresses: a name would be looked up as IPv6 first,
     * and engines listen on IPv4. */
    if (strchr(endpoint, '[') != NULL)
        zmq_setsockopt(socket, ZMQ_IPV6, &on, sizeof(on));
    if (type == ZMQ_SUB)
        zmq_setsockopt(socket, ZMQ_SUBSCRIBE, "", 0);
    return socket;
}

bool socket_connect(void *socket, const char *endpoint, const char **why_out)
{
    if (zmq_connect(socket, endpoint) == 0)
        return true;
    *why_out = zmq_strerror(errno);
    return false;
}

void *socket_open(void *context, int type, bool bind, const char *endpoint,
                  const char **why_out)
{
    void *socket = socket_make(context, type, endpoint, why_out);

    if (socket == NULL)
        return NULL;
    if ((bind ? zmq_bind(socket, endpoint) : zmq_connect(socket, endpoint)) !=
        0)
        return undo_open(socket, why_out);
    return socket;
}

int socket_fd(void *socket)
{
    int fd = -1;
    size_t size = sizeof(fd);

    zmq_getsockopt(socket, ZMQ_FD, &fd, &size);
    return fd;
}

void *monitor_open(void *context, void *socket, uint64_t id,
                   const char **why_out)
{
    void *monitor = zmq_socket(context, ZMQ_PAIR);
    int linger = 0, hwm = MONITOR_HWM;
    char endpoint[64];

    snprintf(endpoint, sizeof(endpoint), "inproc://monitor-%" PRIu64, id);
    if (monitor == NULL)
        return undo_open(monitor, why_out);
    zmq_setsockopt(monitor, ZMQ_RCVHWM, &hwm, sizeof(hwm));
    zmq_setsockopt(monitor, ZMQ_LINGER, &linger, sizeof(linger));
    if (zmq_socket_monitor(socket, endpoint,
                           ZMQ_EVENT_HANDSHAKE_SUCCEEDED |
                               ZMQ_EVENT_DISCONNECTED) != 0)
        return undo_open(monitor, why_out);
    if (zmq_connect(monitor, endpoint) != 0)
        return undo_open(monitor, why_out);
    return monitor;
}

bool monitor_receive(void *monitor, bool *up_out)
{
    struct message m;
    uint16_t event = 0;

    if (!message_receive(monitor, &m))
        return false;
    if (zmq_msg_size(&m.frames[0]) >= sizeof(event))
        memcpy(&event, zmq_msg_data(&m.frames[0]), sizeof(event));
    message_close(&m);
    *up_out = event != ZMQ_EVENT_DISCONNECTED;
    return true;
}

void monitor_close(void *monitor, void *socket)
{
    zmq_socket_monitor(socket, NULL, 0);
    zmq_close(monitor);
}

void socket_ask(void *socket, uint64_t seq)
{
    unsigned char be[8];

    for (int i = 0; i < 8; i++)
        be[i] = (unsigned char)(seq >> (56 - 8 * i));
    /* A full queue or a dead peer ends in the silence timer. */
    if (zmq_send(socket, "", 0, ZMQ_SNDMORE | ZMQ_DONTWAIT) == 0)
        (void)zmq_send(socket, be, sizeof(be), ZMQ_DONTWAIT);
}
