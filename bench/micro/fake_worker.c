/* The fake worker. Decides the least HTTP that serve, nginx and haproxy send:
 * requests with Content-Length or none, keep-alive, no pipelining. It is a
 * bench partner on loopback, not a server: anything else closes the
 * connection. Bounded: connections and bytes per request. */
#include "fake_worker.h"
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define REQUEST_MAX (256u << 10)
#define FDS_MAX     8192

struct connection {
    char *bytes; /* REQUEST_MAX + 1, kept for the next user of the fd */
    size_t used;
};

static struct connection connections[FDS_MAX];

#define BODY_PLAIN                                                             \
    "{\"id\":\"cmpl-1\",\"object\":\"text_completion\",\"created\":1,"         \
    "\"model\":\"demo\",\"choices\":[{\"index\":0,\"text\":\"hello there\","   \
    "\"logprobs\":null,\"finish_reason\":\"length\"}],\"usage\":{"             \
    "\"prompt_tokens\":16,\"total_tokens\":18,\"completion_tokens\":2}}"
#define BODY_PREFILL                                                           \
    "{\"id\":\"cmpl-2\",\"object\":\"text_completion\",\"created\":1,"         \
    "\"model\":\"demo\",\"choices\":[{\"index\":0,\"text\":\"h\","             \
    "\"logprobs\":null,\"finish_reason\":\"length\"}],\"usage\":{"             \
    "\"prompt_tokens\":16,\"total_tokens\":17,\"completion_tokens\":1},"       \
    "\"kv_transfer_params\":{\"do_remote_prefill\":true,"                      \
    "\"do_remote_decode\":false,\"remote_block_ids\":[1,2,3],"                 \
    "\"remote_engine_id\":\"fake\",\"remote_request_id\":\"cmpl-2\","          \
    "\"remote_host\":\"127.0.0.1\",\"remote_port\":9,\"tp_size\":1}}"
#define BODY_MODELS                                                            \
    "{\"object\":\"list\",\"data\":[{\"id\":\"demo\",\"object\":\"model\","    \
    "\"max_model_len\":131072}]}"
#define BODY_METRICS                                                           \
    "vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"65536\"} 1\n"   \
    "vllm:num_requests_running 0\nvllm:num_requests_waiting 0\n"               \
    "vllm:kv_cache_usage_perc 0\nprocess_start_time_seconds 1\n"
#define EVENT_TOKEN                                                            \
    "data: {\"id\":\"cmpl-3\",\"object\":\"text_completion\",\"created\":1,"   \
    "\"model\":\"demo\",\"choices\":[{\"index\":0,\"text\":\"hello\","         \
    "\"finish_reason\":null}]}\n\n"
#define EVENT_LAST                                                             \
    "data: {\"id\":\"cmpl-3\",\"choices\":[{\"index\":0,\"text\":\"\","        \
    "\"finish_reason\":\"length\"}]}\n\ndata: [DONE]\n\n"
#define HEAD_STREAM                                                            \
    "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"                   \
    "Transfer-Encoding: chunked\r\n\r\n"

void stay_on(int core)
{
    cpu_set_t set;

    CPU_ZERO(&set);
    if (core >= 0) {
        CPU_SET(core, &set);
    } else {
        for (int i = 0; i < CPU_SETSIZE; i++)
            CPU_SET(i, &set);
    }
    (void)sched_setaffinity(0, sizeof(set), &set);
}

static void drop(int fd)
{
    connections[fd].used = 0;
    close(fd);
}

/* Answers fit the socket's buffer; a peer that does not read is dropped. */
static bool put(int fd, const char *bytes, size_t count)
{
    return send(fd, bytes, count, MSG_NOSIGNAL) == (ssize_t)count;
}

static bool reply(int fd, const char *type, const char *body)
{
    char text[2048];
    int bytes = snprintf(text, sizeof(text),
                         "HTTP/1.1 200 OK\r\nContent-Type: %s\r\n"
                         "Content-Length: %zu\r\n\r\n%s",
                         type, strlen(body), body);

    return bytes > 0 && (size_t)bytes < sizeof(text) &&
           put(fd, text, (size_t)bytes);
}

static bool chunk(int fd, const char *head, const char *body, const char *tail)
{
    char text[2048];
    int bytes = snprintf(text, sizeof(text), "%s%zx\r\n%s\r\n%s", head,
                         strlen(body), body, tail);

    return bytes > 0 && (size_t)bytes < sizeof(text) &&
           put(fd, text, (size_t)bytes);
}

static bool complete(int fd, const char *body)
{
    if (strstr(body, "\"do_remote_decode\":true") ||
        strstr(body, "\"do_remote_decode\": true"))
        return reply(fd, "application/json", BODY_PREFILL);
    if (!strstr(body, "\"stream\":true"))
        return reply(fd, "application/json", BODY_PLAIN);
    if (strstr(body, "\"max_tokens\":" FAKE_HOLD_TOKENS))
        return chunk(fd, HEAD_STREAM, EVENT_TOKEN, "");
    return chunk(fd, HEAD_STREAM, EVENT_TOKEN EVENT_LAST, "0\r\n\r\n");
}

static bool answer(int fd, const char *head, const char *body)
{
    if (strncmp(head, "POST ", 5) == 0)
        return complete(fd, body);
    if (strncmp(head, "GET /v1/models ", 15) == 0)
        return reply(fd, "application/json", BODY_MODELS);
    if (strncmp(head, "GET /version ", 13) == 0)
        return reply(fd, "application/json", "{\"version\":\"0.0\"}");
    if (strncmp(head, "GET /metrics ", 13) == 0)
        return reply(fd, "text/plain; version=0.0.4", BODY_METRICS);
    return reply(fd, "text/plain", "");
}

/* Whole requests at the start of the buffer are answered. False: close. */
static bool consume(int fd, struct connection *c)
{
    const char *end, *length;
    size_t need;

    c->bytes[c->used] = '\0';
    end = strstr(c->bytes, "\r\n\r\n");
    if (!end)
        return c->used < 16384;
    length = strcasestr(c->bytes, "\r\nContent-Length:");
    need = (size_t)(end - c->bytes) + 4;
    if (length && length < end)
        need += strtoul(length + 17, NULL, 10);
    if (need > REQUEST_MAX)
        return false;
    if (c->used < need)
        return true;
    if (!answer(fd, c->bytes, end + 4))
        return false;
    c->used = 0; /* no pipelining: the next request comes after the answer */
    return true;
}

static void on_readable(int fd)
{
    struct connection *c = &connections[fd];
    ssize_t count =
        recv(fd, c->bytes + c->used, REQUEST_MAX - c->used, MSG_DONTWAIT);

    if (count < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (count <= 0) {
        drop(fd);
        return;
    }
    c->used += (size_t)count;
    if (!consume(fd, c))
        drop(fd);
}

static void on_accept(int listener, int epoll)
{
    int on = 1;

    for (int i = 0; i < 64; i++) {
        struct epoll_event event = {.events = EPOLLIN};
        int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);

        if (fd < 0)
            return;
        if (fd >= FDS_MAX ||
            (!connections[fd].bytes &&
             !(connections[fd].bytes = malloc(REQUEST_MAX + 1)))) {
            close(fd);
            continue;
        }
        connections[fd].used = 0;
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
        event.data.fd = fd;
        epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event);
    }
}

static void serve_forever(int listener)
{
    struct epoll_event events[256], first = {.events = EPOLLIN};
    int epoll = epoll_create1(EPOLL_CLOEXEC);

    first.data.fd = listener;
    if (epoll < 0 || epoll_ctl(epoll, EPOLL_CTL_ADD, listener, &first) != 0)
        _exit(1);
    for (;;) {
        int count = epoll_wait(epoll, events, 256, -1);

        for (int i = 0; i < count; i++) {
            if (events[i].data.fd == listener)
                on_accept(listener, epoll);
            else
                on_readable(events[i].data.fd);
        }
    }
}

static int listen_somewhere(uint16_t *port_out)
{
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t bytes = sizeof(address);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (fd < 0)
        return -1;
    if (bind(fd, (struct sockaddr *)&address, sizeof(address)) != 0 ||
        listen(fd, 4096) != 0 ||
        getsockname(fd, (struct sockaddr *)&address, &bytes) != 0) {
        close(fd);
        return -1;
    }
    *port_out = ntohs(address.sin_port);
    return fd;
}

static void raise_files(void)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        limit.rlim_cur = limit.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &limit);
    }
}

enum bt_status fake_worker_start(struct fake_worker *worker, int core)
{
    pid_t parent = getpid();
    int fd = listen_somewhere(&worker->port);

    if (fd < 0)
        return BT_IO;
    worker->pid = fork();
    if (worker->pid < 0) {
        worker->pid = 0;
        close(fd);
        return BT_IO;
    }
    if (worker->pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent)
            _exit(1);
        stay_on(core);
        raise_files();
        serve_forever(fd);
    }
    close(fd);
    snprintf(worker->url, sizeof(worker->url), "http://127.0.0.1:%u",
             worker->port);
    return BT_OK;
}

void fake_worker_stop(struct fake_worker *worker)
{
    int status;

    if (worker->pid <= 0)
        return;
    kill(worker->pid, SIGKILL);
    (void)waitpid(worker->pid, &status, 0);
    worker->pid = 0;
}
