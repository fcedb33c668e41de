/* Test harness of the network layer: see net_world.h. */
#include "net_world.h"
#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define TURN_S 0.001

int64_t net_now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static void on_turn(struct ev_loop *loop, struct ev_timer *w, int events)
{
    (void)loop;
    (void)w;
    (void)events;
}

void net_turn(struct ev_loop *loop)
{
    struct ev_timer timer;
    ev_timer_init(&timer, on_turn, TURN_S, 0.);
    ev_timer_start(loop, &timer);
    ev_run(loop, EVRUN_ONCE);
    ev_timer_stop(loop, &timer);
}

bool net_until(struct ev_loop *loop, bool (*cond)(void *arg), void *arg)
{
    int64_t deadline = net_now_ms() + NET_DEADLINE_MS;
    while (!cond(arg)) {
        if (net_now_ms() > deadline)
            return false;
        net_turn(loop);
    }
    return true;
}

static struct sockaddr_in loopback(uint16_t port)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port)};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return to;
}

static void nonblocking(int fd)
{
    int on = 1;
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

int net_connect_narrow(uint16_t port, int receive_bytes)
{
    struct sockaddr_in to = loopback(port);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (receive_bytes)
        setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &receive_bytes,
                   sizeof(receive_bytes));
    if (connect(fd, (struct sockaddr *)&to, sizeof(to)) != 0) {
        close(fd);
        return -1;
    }
    nonblocking(fd);
    return fd;
}

int net_connect(uint16_t port)
{
    return net_connect_narrow(port, 0);
}

int net_listen(uint16_t *port_out)
{
    struct sockaddr_in at = loopback(0);
    socklen_t length = sizeof(at);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert(bind(fd, (struct sockaddr *)&at, sizeof(at)) == 0);
    assert(listen(fd, 512) == 0);
    getsockname(fd, (struct sockaddr *)&at, &length);
    *port_out = ntohs(at.sin_port);
    nonblocking(fd);
    return fd;
}

int net_accept(struct ev_loop *loop, int listener)
{
    int64_t deadline = net_now_ms() + NET_DEADLINE_MS;
    while (net_now_ms() < deadline) {
        int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        if (fd >= 0) {
            nonblocking(fd);
            return fd;
        }
        net_turn(loop);
    }
    return -1;
}

void net_text_free(struct net_text *text)
{
    free(text->bytes);
    memset(text, 0, sizeof(*text));
}

bool net_send(struct ev_loop *loop, int fd, const void *bytes, size_t count)
{
    const char *at = bytes;
    int64_t deadline = net_now_ms() + NET_DEADLINE_MS;
    while (count > 0) {
        ssize_t sent = send(fd, at, count, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent > 0) {
            at += sent;
            count -= (size_t)sent;
            continue;
        }
        if (errno != EAGAIN || net_now_ms() > deadline)
            return false;
        net_turn(loop);
    }
    return true;
}

bool net_say(struct ev_loop *loop, int fd, const char *text)
{
    return net_send(loop, fd, text, strlen(text));
}

static void text_room(struct net_text *text, size_t more)
{
    size_t needed = text->count + more + 1;
    if (needed <= text->capacity)
        return;
    text->capacity = needed * 2;
    text->bytes = realloc(text->bytes, text->capacity);
    assert(text->bytes);
}

void net_poll(int fd, struct net_text *text)
{
    while (!text->eof && !text->reset) {
        text_room(text, 65536);
        ssize_t got = recv(fd, text->bytes + text->count, 65536, MSG_DONTWAIT);
        if (got > 0)
            text->count += (size_t)got;
        else if (got == 0)
            text->eof = true;
        else if (errno != EAGAIN)
            text->reset = true;
        else
            break;
    }
    text_room(text, 0);
    text->bytes[text->count] = 0;
}

unsigned net_occurrences(const struct net_text *text, const char *wanted)
{
    unsigned found = 0;
    const char *at = text->bytes;
    while (at && (at = memmem(at, text->count - (size_t)(at - text->bytes),
                              wanted, strlen(wanted)))) {
        found++;
        at += strlen(wanted);
    }
    return found;
}

bool net_read_until(struct ev_loop *loop, int fd, struct net_text *text,
                    const char *wanted, unsigned times)
{
    int64_t deadline = net_now_ms() + NET_DEADLINE_MS;
    while (net_now_ms() < deadline) {
        net_poll(fd, text);
        if (net_occurrences(text, wanted) >= times)
            return true;
        if (text->eof || text->reset)
            return false;
        net_turn(loop);
    }
    return false;
}

bool net_read_end(struct ev_loop *loop, int fd, struct net_text *text)
{
    int64_t deadline = net_now_ms() + NET_DEADLINE_MS;
    while (net_now_ms() < deadline) {
        net_poll(fd, text);
        if (text->eof || text->reset)
            return true;
        net_turn(loop);
    }
    return false;
}
