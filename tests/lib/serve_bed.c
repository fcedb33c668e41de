/* See serve_bed.h. Scripted workers answer identity probes by themselves; the
 * test's script sees only the completions. */
#include "serve_bed.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

const char *bed_params(void)
{
    /* Big integers, odd spacing and key order must survive byte for byte. */
    return "{\"do_remote_prefill\":true, \"do_remote_decode\":false,"
           "\"remote_block_ids\":[[7,8,18446744073709551615]],"
           "\"remote_engine_id\":\"e-1\",  \"remote_request_id\":\"r-1\","
           "\"remote_host\":\"127.0.0.1\",\"remote_port\":5600,"
           "\"tp_size\":1,\"x_unknown\":1.50e0}";
}

/* ---- scripts ---- */

static bool has(const char *body, const char *text)
{
    return strstr(body, text) != NULL;
}

#define LAST_CHUNK                                                             \
    "data: {\"id\":\"c\",\"choices\":[{\"index\":0,\"text\":\"b\","            \
    "\"finish_reason\":\"length\"}]}\n\n"

void bed_well_behaved(struct bed_worker *w, struct bt_httpd_request *req)
{
    static const char *const chunks[] = {
        "data: {\"id\":\"c\",\"choices\":[{\"index\":0,\"text\":\"a\"}]}\n\n",
        LAST_CHUNK, "data: [DONE]\n\n"};
    static const char whole[] =
        "{\"id\":\"c\",\"choices\":[{\"index\":0,\"text\":\"ab\","
        "\"finish_reason\":\"length\"}],\"usage\":{\"prompt_tokens\":40,"
        "\"completion_tokens\":2}}";
    char buf[2048];
    int n;

    if (has(w->last_body, "\"do_remote_decode\":true")) {
        w->held++;
        n = snprintf(buf, sizeof(buf),
                     "{\"id\":\"c\",\"choices\":[{\"text\":\"x\"}],"
                     "\"usage\":{\"prompt_tokens\":40,"
                     "\"prompt_tokens_details\":{\"cached_tokens\":16}},"
                     "\"kv_transfer_params\":%s}",
                     bed_params());
        bt_httpd_reply(req, 200, "application/json", buf, (size_t)n);
    } else if (has(w->last_body, "\"stream\":true") ||
               has(w->last_body, "\"stream\": true")) {
        bt_httpd_stream_begin(req, 200, "text/event-stream; charset=utf-8",
                              NULL, NULL);
        for (size_t i = 0; i < 3; i++)
            bt_httpd_stream_write(req, chunks[i], strlen(chunks[i]));
        bt_httpd_stream_end(req);
    } else {
        bt_httpd_reply(req, 200, "application/json", whole, strlen(whole));
    }
}

void bed_refuse_500(struct bed_worker *w, struct bt_httpd_request *req)
{
    static const char body[] = "{\"error\":{\"message\":\"boom\",\"type\":"
                               "\"InternalServerError\",\"code\":500}}";

    (void)w;
    bt_httpd_reply(req, 500, "application/json", body, strlen(body));
}

void bed_hang(struct bed_worker *w, struct bt_httpd_request *req)
{
    (void)w;
    (void)req;
}

/* ---- workers ---- */

static void on_gone(void *arg)
{
    struct bed_worker *w = arg;

    w->gone++;
}

static void answer_probe(struct bed_worker *w, struct bt_httpd_request *req,
                         const char *path)
{
    char buf[1024] = "";
    int n = 0;

    if (w->probe != NULL && w->probe(w, req, path))
        return;
    if (strcmp(path, "/health") == 0) {
        bt_httpd_reply(req, w->healthy ? 200 : 503, "text/plain", "", 0);
        return;
    }
    if (strcmp(path, "/v1/models") == 0)
        n = snprintf(buf, sizeof(buf), "{\"data\":[{\"id\":\"%s\"}]}",
                     w->model);
    else if (strcmp(path, "/version") == 0)
        n = snprintf(buf, sizeof(buf), "{\"version\":\"0.33.0\"}");
    else if (strcmp(path, "/metrics") == 0)
        n = snprintf(buf, sizeof(buf),
                     "vllm:num_requests_running{engine=\"0\"} 0\n"
                     "vllm:cache_config_info{block_size=\"%u\","
                     "num_gpu_blocks=\"1000\"} 1\n"
                     "process_start_time_seconds %u\n",
                     w->block_size, w->start_time);
    bt_httpd_reply(req, n > 0 ? 200 : 404, "application/json", buf, (size_t)n);
}

static void on_request(void *arg, struct bt_httpd_request *req)
{
    struct bed_worker *w = arg;
    const char *path = bt_httpd_path(req);
    const char *id = bt_httpd_header(req, "X-Request-Id");
    size_t bytes = 0;
    const char *body = bt_httpd_body(req, &bytes);

    if (strcmp(bt_httpd_method(req), "POST") != 0) {
        answer_probe(w, req, path);
        return;
    }
    if (strcmp(path, "/tokenize") != 0) {
        w->posts++;
        w->last_body_bytes = bytes;
        if (bytes >= sizeof(w->last_body))
            bytes = sizeof(w->last_body) - 1;
        memcpy(w->last_body, body, bytes);
        w->last_body[bytes] = '\0';
        snprintf(w->last_id, sizeof(w->last_id), "%s", id == NULL ? "" : id);
    }
    bt_httpd_watch(req, on_gone, NULL, w);
    if (w->script != NULL)
        w->script(w, req);
    else
        bed_well_behaved(w, req);
}

static void add_worker(struct bed *bed, char role)
{
    static const char *const names[] = {"w0", "w1", "w2", "w3", "w4", "w5"};
    struct bed_worker *w = &bed->workers[bed->count];

    w->bed = bed;
    w->name = names[bed->count];
    w->role = role == 'p' ? "prefill" : role == 'd' ? "decode" : "both";
    w->healthy = true;
    w->model = "m";
    w->block_size = 16;
    w->start_time = 1000 + (unsigned int)bed->count;
    bed->count++;
    bed_worker_start(w);
}

void bed_worker_start(struct bed_worker *w)
{
    char error[160];

    if (bt_httpd_start(w->bed->loop, "127.0.0.1", w->port, NULL, on_request, w,
                       &w->httpd, error, sizeof(error)) != BT_OK)
        fail_msg("worker: %s", error);
    w->port = bt_httpd_port(w->httpd);
}

void bed_worker_stop(struct bed_worker *w)
{
    bt_httpd_stop(w->httpd);
    w->httpd = NULL;
}

/* ---- the server ---- */

static bool all_ready(void *arg)
{
    struct bed *bed = arg;
    static char out[65536];
    size_t n = 0;

    bed_get(bed, bed->ports.admin, "/admin/v1/workers", out, sizeof(out));
    for (const char *at = out; (at = strstr(at, "\"state\":\"ready\"")) != NULL;
         at++)
        n++;
    return n == bed->count;
}

static void write_config(struct bed *bed, FILE *f, const char *extra)
{
    fprintf(f, "config_schema: 1\n"
               "listen: {address: 127.0.0.1, port: 0}\n"
               "metrics: {address: 127.0.0.1, port: 0}\n"
               "admin: {address: 127.0.0.1, port: 0}\n");
    if (extra == NULL || strstr(extra, "log:") == NULL)
        fprintf(f, "log: {level: error}\n");
    if (extra == NULL || strstr(extra, "tokenizer:") == NULL)
        fprintf(f, "tokenizer: bytes\n");
    if (extra == NULL || strstr(extra, "health:") == NULL)
        fprintf(f, "health: {interval: 100ms, stats_interval: 100ms}\n");
    fprintf(f,
            "models:\n  - {name: m, kv_bytes_per_token: 256, block_size: %u, "
            "adapters: [lora-a]%s%s}\n%s\nworkers:\n",
            bed->block_size, bed->model_keys == NULL ? "" : ", ",
            bed->model_keys == NULL ? "" : bed->model_keys,
            extra == NULL ? "" : extra);
    for (size_t i = 0; i < bed->count; i++) {
        const struct bed_worker *w = &bed->workers[i];

        fprintf(f,
                "  - {name: %s, role: %s, url: \"http://127.0.0.1:%u\", "
                "model: m",
                w->name, w->role, w->port);
        if (w->events != NULL)
            fprintf(f, ", events: \"%s\"", w->events);
        if (w->replay != NULL)
            fprintf(f, ", replay: \"%s\"", w->replay);
        if (w->keys != NULL)
            fprintf(f, ", %s", w->keys);
        fprintf(f, "}\n");
    }
}

void bed_workers(struct bed *bed, const char *roles)
{
    memset(bed, 0, sizeof(*bed));
    bed->loop = ev_loop_new(EVFLAG_AUTO);
    bed->block_size = 16;
    for (size_t i = 0; roles[i] != '\0'; i++)
        add_worker(bed, roles[i]);
}

void bed_start(struct bed *bed, const char *roles, const char *extra)
{
    bed_workers(bed, roles);
    bed_serve(bed, extra);
    bed_ready(bed);
}

void bed_serve(struct bed *bed, const char *extra)
{
    char path[] = "/tmp/baton-bed-XXXXXX", error[512];
    int fd = mkstemp(path);
    FILE *f;

    assert_true(fd >= 0);
    f = fdopen(fd, "w");
    assert_non_null(f);
    write_config(bed, f, extra);
    fclose(f);
    if (bt_config_load(path, &bed->config, error, sizeof(error)) != BT_OK)
        fail_msg("%s", error);
    unlink(path);
    if (bt_serve_create(bed->loop, bed->config, &bed->serve, error,
                        sizeof(error)) != BT_OK)
        fail_msg("%s", error);
    bt_serve_ports_get(bed->serve, &bed->ports);
}

void bed_ready(struct bed *bed)
{
    bed_until(bed, all_ready, bed, "all workers ready");
}

void bed_stop(struct bed *bed)
{
    if (bed->serve != NULL)
        bt_serve_destroy(bed->serve);
    bt_config_destroy(bed->config);
    for (size_t i = 0; i < bed->count; i++)
        if (bed->workers[i].httpd != NULL)
            bt_httpd_stop(bed->workers[i].httpd);
    ev_loop_destroy(bed->loop);
}

/* ---- waiting ---- */

static void on_wake(struct ev_loop *loop, ev_timer *timer, int events)
{
    (void)loop;
    (void)timer;
    (void)events;
}

void bed_until(struct bed *bed, bool (*ready)(void *arg), void *arg,
               const char *what)
{
    ev_tstamp end = ev_time() + BED_WAIT_S;
    ev_timer wake;

    ev_timer_init(&wake, on_wake, 0.005, 0.005);
    ev_timer_start(bed->loop, &wake);
    while (!ready(arg)) {
        if (ev_time() > end) {
            ev_timer_stop(bed->loop, &wake);
            fail_msg("timed out waiting for: %s", what);
        }
        ev_run(bed->loop, EVRUN_ONCE);
    }
    ev_timer_stop(bed->loop, &wake);
}

struct until {
    ev_tstamp end;
};

static bool is_over(void *arg)
{
    return ev_time() >= ((struct until *)arg)->end;
}

void bed_turn(struct bed *bed, double seconds)
{
    struct until until = {ev_time() + seconds};

    bed_until(bed, is_over, &until, "a pause");
}

/* ---- client ---- */

static void on_client(struct ev_loop *loop, ev_io *io, int events)
{
    struct bed_client *c = io->data;
    ssize_t n;

    (void)events;
    if (c->size - c->used < 65537) {
        c->size = c->size * 2 + 131072;
        c->in = realloc(c->in, c->size);
        assert_non_null(c->in);
    }
    n = read(c->fd, c->in + c->used, 65536);
    if (n > 0) {
        c->used += (size_t)n;
        c->in[c->used] = '\0';
    } else if (n == 0 || errno != EAGAIN) {
        c->eof = true;
        ev_io_stop(loop, io);
    }
}

void bed_connect(struct bed *bed, struct bed_client *c, uint16_t port)
{
    struct sockaddr_in at = {.sin_family = AF_INET,
                             .sin_port = htons(port),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};

    memset(c, 0, sizeof(*c));
    c->bed = bed;
    c->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(c->fd >= 0);
    assert_int_equal(connect(c->fd, (struct sockaddr *)&at, sizeof(at)), 0);
    fcntl(c->fd, F_SETFL, O_NONBLOCK);
    c->in = calloc(1, 1);
    ev_io_init(&c->io, on_client, c->fd, EV_READ);
    c->io.data = c;
    ev_io_start(bed->loop, &c->io);
}

void bed_send(struct bed_client *c, const char *bytes, size_t count)
{
    size_t at = 0;

    while (at < count) {
        ssize_t n = send(c->fd, bytes + at, count - at, MSG_NOSIGNAL);

        if (n > 0)
            at += (size_t)n;
        else if (errno == EAGAIN)
            ev_run(c->bed->loop, EVRUN_NOWAIT);
        else
            return; /* the other side closed: the test looks at the answer */
    }
}

void bed_post(struct bed_client *c, const char *path, const char *body)
{
    char head[512];
    int n = snprintf(head, sizeof(head),
                     "POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: "
                     "application/json\r\nContent-Length: %zu\r\n\r\n",
                     path, strlen(body));

    bed_send(c, head, (size_t)n);
    bed_send(c, body, strlen(body));
}

void bed_close(struct bed_client *c)
{
    ev_io_stop(c->bed->loop, &c->io);
    close(c->fd);
    free(c->in);
    c->in = NULL;
}

static const char *body_start(const struct bed_client *c)
{
    const char *end = strstr(c->in, "\r\n\r\n");

    return end == NULL ? NULL : end + 4;
}

static bool is_whole(void *arg)
{
    struct bed_client *c = arg;
    const char *body = body_start(c), *length, *chunked;

    if (c->eof)
        return true;
    if (body == NULL)
        return false;
    length = strcasestr(c->in, "\r\nContent-Length:");
    chunked = strcasestr(c->in, "\r\nTransfer-Encoding: chunked");
    if (length != NULL && length < body)
        return c->used - (size_t)(body - c->in) >=
               strtoul(length + 17, NULL, 10);
    return chunked != NULL && strstr(body - 2, "\r\n0\r\n\r\n") != NULL;
}

/* Dechunk in place when the answer is chunked. */
static void dechunk(struct bed_client *c)
{
    char *body, *from, *to;

    if (body_start(c) == NULL ||
        strcasestr(c->in, "\r\nTransfer-Encoding: chunked") == NULL)
        return;
    body = c->in + (body_start(c) - c->in);
    from = to = body;
    for (;;) {
        char *rest = NULL;
        size_t n = strtoul(from, &rest, 16);

        if (rest == from || n == 0 || (rest = strstr(rest, "\r\n")) == NULL)
            break;
        rest += 2;
        if (n > c->used - (size_t)(rest - c->in))
            n = c->used - (size_t)(rest - c->in);
        memmove(to, rest, n);
        to += n;
        from = rest + n;
        if (from + 2 > c->in + c->used)
            break;
        from += 2;
    }
    *to = '\0';
}

int bed_answer(struct bed_client *c)
{
    int status = 0;

    bed_until(c->bed, is_whole, c, "an answer");
    if (sscanf(c->in, "HTTP/1.1 %d", &status) != 1)
        return 0;
    dechunk(c);
    return status;
}

const char *bed_body(struct bed_client *c)
{
    const char *body = body_start(c);

    return body == NULL ? "" : body;
}

static int finish(struct bed_client *c, char *out, size_t out_size)
{
    int status = bed_answer(c);

    if (out != NULL)
        snprintf(out, out_size, "%s", bed_body(c));
    bed_close(c);
    return status;
}

int bed_request(struct bed *bed, const char *path, const char *body, char *out,
                size_t out_size)
{
    struct bed_client c;

    bed_connect(bed, &c, bed->ports.listen);
    bed_post(&c, path, body);
    return finish(&c, out, out_size);
}

int bed_get(struct bed *bed, uint16_t port, const char *path, char *out,
            size_t out_size)
{
    struct bed_client c;
    char head[256];
    int n = snprintf(head, sizeof(head), "GET %s HTTP/1.1\r\nHost: x\r\n\r\n",
                     path);

    bed_connect(bed, &c, port);
    bed_send(&c, head, (size_t)n);
    return finish(&c, out, out_size);
}

static bool serve_is_idle(void *arg)
{
    struct bed *bed = arg;
    char out[4096];

    bed_get(bed, bed->ports.admin, "/admin/v1/summary", out, sizeof(out));
    return strstr(out, "\"in_flight\":0,") != NULL &&
           strstr(out, "\"idle\":true") != NULL;
}

void bed_idle(struct bed *bed)
{
    bed_until(bed, serve_is_idle, bed, "an idle server");
}

double bed_metric(struct bed *bed, const char *row)
{
    static char out[262144];
    size_t n = strlen(row);
    const char *at = out;

    bed_get(bed, bed->ports.metrics, "/metrics", out, sizeof(out));
    while ((at = strstr(at, row)) != NULL) {
        if ((at == out || at[-1] == '\n') && at[n] == ' ')
            return strtod(at + n, NULL);
        at += n;
    }
    return -1;
}
