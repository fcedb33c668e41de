/* The raw load generator. Knows complete answers by Content-Length or by the
 * last chunk; anything but 200 is an error and its connection is opened anew.
 * Bounded by requests or time, and by 10 s without any answer. */
#include "load.h"
#include "baton/bench/stats.h"
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define CONNECTIONS_MAX 1024
#define ANSWER_MAX      8192
#define ANSWERS_MAX     2000000u
#define SILENCE_MS      10000

struct connection {
    int fd;
    char answer[ANSWER_MAX];
    size_t used;
    int64_t sent_ns;
};

struct load {
    const struct load_spec *spec;
    struct load_result *result;
    struct connection *connections;
    size_t capacity;
    int epoll;
    int64_t end_ns;
};

static int64_t now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static int dial(uint16_t port)
{
    struct sockaddr_in address = {.sin_family = AF_INET};
    int on = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (fd < 0)
        return -1;
    if (connect(fd, (struct sockaddr *)&address, sizeof(address)) != 0) {
        close(fd);
        return -1;
    }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    return fd;
}

/* Blocking for the rest when the socket's buffer is full: the peer reads. */
static bool send_all(int fd, const char *bytes, size_t count)
{
    while (count) {
        ssize_t sent = send(fd, bytes, count, MSG_NOSIGNAL);

        if (sent < 0 && errno == EINTR)
            continue;
        if (sent <= 0)
            return false;
        bytes += sent;
        count -= (size_t)sent;
    }
    return true;
}

char *load_request_make(size_t body_bytes, const char *members,
                        size_t *bytes_out)
{
    static const char open[] = "{\"model\":\"demo\",\"prompt\":[";
    size_t members_bytes = strlen(members);
    size_t fixed = sizeof(open) - 1 + 1 + members_bytes + 1;
    size_t prompt = body_bytes > fixed ? body_bytes - fixed : 1, used;
    char *text = malloc(512 + fixed + prompt);

    if (!text)
        return NULL;
    used = (size_t)snprintf(text, 512,
                            "POST /v1/completions HTTP/1.1\r\n"
                            "Host: 127.0.0.1\r\n"
                            "Content-Type: application/json\r\n"
                            "Content-Length: %zu\r\n\r\n%s",
                            fixed + prompt, open);
    /* "12345,23456,...   ]": ids of five digits, blanks fill up the end */
    for (size_t i = 0; i < prompt; i++) {
        char digit = (char)('1' + (i % 6 + i / 6) % 9);
        bool whole = i / 6 < prompt / 6;

        if (!whole && prompt > 6)
            digit = ' ';
        else if (i % 6 == 5)
            digit = i / 6 + 1 < prompt / 6 ? ',' : ' ';
        text[used++] = digit;
    }
    text[used++] = ']';
    snprintf(text + used, members_bytes + 2, "%s}", members);
    *bytes_out = used + members_bytes + 1;
    return text;
}

/* 1 complete, 0 not yet, -1 not an answer we like. */
static int judge(struct connection *c)
{
    const char *end, *length;

    c->answer[c->used] = '\0';
    end = strstr(c->answer, "\r\n\r\n");
    if (!end)
        return c->used + 1 < ANSWER_MAX ? 0 : -1;
    if (strncmp(c->answer, "HTTP/1.1 200", 12) != 0)
        return -1;
    length = strcasestr(c->answer, "\r\nContent-Length:");
    if (length && length < end) {
        size_t need =
            (size_t)(end - c->answer) + 4 + strtoul(length + 17, NULL, 10);

        return need >= ANSWER_MAX ? -1 : c->used >= need;
    }
    if (c->used >= 5 && memcmp(c->answer + c->used - 5, "0\r\n\r\n", 5) == 0)
        return 1;
    return c->used + 1 < ANSWER_MAX ? 0 : -1;
}

static bool fire(struct load *l, struct connection *c)
{
    c->used = 0;
    c->sent_ns = now_ns();
    return send_all(c->fd, l->spec->request, l->spec->request_bytes);
}

static bool open_one(struct load *l, struct connection *c)
{
    struct epoll_event event = {.events = EPOLLIN};

    c->fd = dial(l->spec->port);
    if (c->fd < 0)
        return false;
    event.data.ptr = c;
    return epoll_ctl(l->epoll, EPOLL_CTL_ADD, c->fd, &event) == 0 && fire(l, c);
}

static enum bt_status note_answer(struct load *l, const struct connection *c)
{
    struct load_result *r = l->result;

    if (r->count == l->capacity) {
        size_t capacity = l->capacity ? l->capacity * 2 : 4096;
        double *moved = realloc(r->latency_us, capacity * sizeof(*moved));

        if (!moved)
            return BT_NO_MEMORY;
        r->latency_us = moved;
        l->capacity = capacity;
    }
    r->latency_us[r->count++] = (double)(now_ns() - c->sent_ns) / 1e3;
    return BT_OK;
}

static enum bt_status reopen(struct load *l, struct connection *c)
{
    l->result->errors++;
    close(c->fd);
    c->fd = -1;
    if (l->result->errors > 100)
        return BT_PEER_ERROR;
    return open_one(l, c) ? BT_OK : BT_REFUSED;
}

static enum bt_status on_readable(struct load *l, struct connection *c)
{
    ssize_t count = recv(c->fd, c->answer + c->used, ANSWER_MAX - 1 - c->used,
                         MSG_DONTWAIT);
    enum bt_status status;
    int verdict;

    if (count < 0 && (errno == EAGAIN || errno == EINTR))
        return BT_OK;
    if (count <= 0)
        return reopen(l, c);
    c->used += (size_t)count;
    verdict = judge(c);
    if (verdict == 0)
        return BT_OK;
    if (verdict < 0)
        return reopen(l, c);
    status = note_answer(l, c);
    if (status != BT_OK)
        return status;
    return fire(l, c) ? BT_OK : reopen(l, c);
}

static bool is_over(const struct load *l)
{
    if (l->spec->requests && l->result->count >= l->spec->requests)
        return true;
    return l->result->count >= ANSWERS_MAX ||
           (l->spec->duration_ns && now_ns() >= l->end_ns);
}

static enum bt_status turn(struct load *l)
{
    struct epoll_event events[64];
    enum bt_status status = BT_OK;

    while (status == BT_OK && !is_over(l)) {
        int count = epoll_wait(l->epoll, events, 64, SILENCE_MS);

        if (count == 0)
            return BT_TIMEOUT;
        for (int i = 0; i < count && status == BT_OK; i++)
            status = on_readable(l, events[i].data.ptr);
    }
    return status;
}

enum bt_status load_run(const struct load_spec *spec, struct load_result *out)
{
    struct load l = {.spec = spec, .result = out};
    enum bt_status status = BT_OK;
    int64_t from;

    memset(out, 0, sizeof(*out));
    if (spec->connections < 1 || spec->connections > CONNECTIONS_MAX)
        return BT_INVALID;
    l.connections = calloc(spec->connections, sizeof(*l.connections));
    l.epoll = epoll_create1(EPOLL_CLOEXEC);
    if (!l.connections || l.epoll < 0)
        status = BT_NO_MEMORY;
    from = now_ns();
    l.end_ns = from + spec->duration_ns;
    for (uint32_t i = 0; status == BT_OK && i < spec->connections; i++)
        status = open_one(&l, &l.connections[i]) ? BT_OK : BT_REFUSED;
    if (status == BT_OK)
        status = turn(&l);
    out->elapsed_s = (double)(now_ns() - from) / 1e9;
    for (uint32_t i = 0; l.connections && i < spec->connections; i++) {
        if (l.connections[i].fd > 0)
            close(l.connections[i].fd);
    }
    if (l.epoll >= 0)
        close(l.epoll);
    free(l.connections);
    if (status == BT_OK) {
        bt_stat_sort(out->latency_us, out->count);
    } else {
        free(out->latency_us);
        out->latency_us = NULL;
    }
    return status;
}

static bool has_answer(int fd)
{
    struct pollfd poll_fd = {.fd = fd, .events = POLLIN};
    char bytes[ANSWER_MAX];
    size_t used = 0;

    /* head and first event may come apart */
    while (used < sizeof(bytes) - 1 && poll(&poll_fd, 1, SILENCE_MS) == 1) {
        ssize_t count =
            recv(fd, bytes + used, sizeof(bytes) - 1 - used, MSG_DONTWAIT);

        if (count <= 0)
            return false;
        used += (size_t)count;
        bytes[used] = '\0';
        if (strstr(bytes, "\ndata: ") != NULL)
            return strncmp(bytes, "HTTP/1.1 200", 12) == 0;
    }
    return false;
}

enum bt_status load_hold(const struct load_spec *spec, uint32_t count,
                         int *fds_out)
{
    uint32_t opened = 0;
    enum bt_status status = BT_OK;

    while (opened < count && status == BT_OK) {
        int fd = dial(spec->port);

        if (fd < 0)
            return BT_REFUSED;
        fds_out[opened++] = fd;
        if (!send_all(fd, spec->request, spec->request_bytes))
            status = BT_RESET;
    }
    for (uint32_t i = 0; i < opened && status == BT_OK; i++) {
        if (!has_answer(fds_out[i]))
            status = BT_TIMEOUT;
    }
    return status;
}
