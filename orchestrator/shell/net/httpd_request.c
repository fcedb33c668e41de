/* One request from its first line to the end of its answer: receives the body
 * within the limits, hands the request over, waits suspended for the answer,
 * and tells the user how it ended. Leaves the answer itself to httpd_stream.c
 * and the framing checks to httpd_guard.c.
 *
 * Invariants: the handler runs at most once; gone or closed at most once and
 * never both; a request lives until libmicrohttpd has let go of it AND the
 * user was told (or, unwatched, has answered).
 */
#include "httpd_internal.h"
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#define BODY_START_BYTES 4096
#define REFUSED_S        3.0
#define BODY_PRESIZE_MAX (1U << 20) /* announced is not yet sent */

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* ---- life ---- */

void *httpd_on_target(void *arg, const char *target, struct MHD_Connection *c)
{
    struct bt_httpd *httpd = arg;
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(c, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    struct conn *conn = info ? info->socket_context : NULL;
    if (!conn)
        return NULL;
    struct bt_httpd_request *req = calloc(1, sizeof(*req));
    if (!req)
        return NULL;
    req->httpd = httpd;
    req->mhd = c;
    req->conn = conn;
    req->method = req->path = "";
    req->raw_target = target;
    req->raw_target_bytes = target ? strlen(target) : 0;
    req->bad_target = target && strstr(target, "%00");
    link_init(&req->in_work);
    link_push(&httpd->live, &req->in_live);
    conn->request = req;
    return req;
}

static void body_free(struct bt_httpd_request *req)
{
    req->httpd->counters.body_bytes -= req->body_capacity;
    free(req->body);
    req->body = NULL;
    req->body_capacity = req->body_bytes = 0;
}

void request_free(struct bt_httpd_request *req)
{
    struct header_line *line = req->headers;
    while (line) {
        struct header_line *next = line->next;
        free(line);
        line = next;
    }
    if (req->cut_at > 0.)
        req->httpd->deadlines--;
    if (req->response)
        MHD_destroy_response(req->response);
    body_free(req);
    free(req->ring.bytes);
    link_drop(&req->in_work);
    link_drop(&req->in_live);
    free(req);
}

static bool user_owes_answer(const struct bt_httpd_request *req)
{
    return req->state == REQUEST_HANDLING || req->state == REQUEST_STREAMING;
}

/* The client left: tell the user and have the connection closed. Without a
 * gone call-back the user may still call in, so the request stays. */
void request_lost(struct bt_httpd_request *req)
{
    void (*gone)(void *arg) = req->gone;
    if (!req->counted_gone)
        req->httpd->counters.clients_gone++;
    req->counted_gone = true;
    if (req->state == REQUEST_GONE || (!gone && user_owes_answer(req)))
        return;
    req->state = REQUEST_GONE;
    req->gone = req->closed = NULL;
    if (gone)
        gone(req->watch_arg);
}

void request_work(struct bt_httpd_request *req, unsigned bits)
{
    req->work |= bits;
    if (link_empty(&req->in_work))
        link_push(&req->httpd->work, &req->in_work);
    httpd_kick(req->httpd);
}

/* The connection went first; the user has now answered or been told. */
static void orphan_end(struct bt_httpd_request *req)
{
    if (user_owes_answer(req))
        return;
    if (req->closed && req->state != REQUEST_GONE)
        req->closed(req->watch_arg);
    request_free(req);
}

void request_work_run(struct bt_httpd_request *req)
{
    unsigned work = req->work;
    req->work = 0;
    if ((work & WORK_LEFT) && user_owes_answer(req)) {
        request_lost(req);
        if (req->state == REQUEST_GONE && req->suspended)
            work |= WORK_RESUME;
        else if (req->state == REQUEST_GONE && req->mhd)
            shutdown(req->conn->fd, SHUT_RDWR); /* it waits in a send */
    }
    if (!req->mhd) {
        orphan_end(req);
        return;
    }
    if ((work & WORK_DRAIN) && req->drain && req->state == REQUEST_STREAMING)
        req->drain(req->drain_arg);
    if ((work & WORK_RESUME) && req->suspended) {
        req->suspended = false;
        MHD_resume_connection(req->mhd);
    }
}

void httpd_on_completed(void *arg, struct MHD_Connection *connection,
                        void **context, enum MHD_RequestTerminationCode code)
{
    struct bt_httpd *httpd = arg;
    struct bt_httpd_request *req = *context;
    if (!req)
        return;
    *context = NULL;
    req->conn->request = NULL;
    req->conn->linger |= req->state == REQUEST_REFUSED;
    if (httpd->limits.send_timeout_s != httpd->limits.receive_timeout_s &&
        req->queued)
        MHD_set_connection_option(connection, MHD_CONNECTION_OPTION_TIMEOUT,
                                  (unsigned)httpd->limits.receive_timeout_s);
    if (code == MHD_REQUEST_TERMINATED_TIMEOUT_REACHED && req->queued)
        httpd->counters.slow_clients++;
    bool whole = code == MHD_REQUEST_TERMINATED_COMPLETED_OK ||
                 (req->state == REQUEST_ABORTING &&
                  code == MHD_REQUEST_TERMINATED_WITH_ERROR);
    req->mhd = NULL;
    req->conn = NULL;
    req->suspended = false;
    if (req->state >= REQUEST_HANDLING && !whole)
        request_lost(req);
    if (user_owes_answer(req)) {
        req->method = req->path = ""; /* orphan; the strings were MHD's */
        return;
    }
    if (req->closed && whole)
        req->closed(req->watch_arg);
    request_free(req);
}

/* ---- refusals, written to the socket directly: libmicrohttpd takes no
 * answer while a body is coming in. Nothing of this request was answered
 * before, earlier answers of the connection have left. ---- */

static enum MHD_Result refuse(struct bt_httpd_request *req, int status,
                              const char *reason)
{
    char head[512], body[256];
    struct bt_httpd_counters *counters = &req->httpd->counters;
    const char *title = status == 400   ? "Bad Request"
                        : status == 413 ? "Content Too Large"
                        : status == 431 ? "Request Header Fields Too Large"
                                        : "Service Unavailable";
    *(status == 400   ? &counters->refused_400
      : status == 413 ? &counters->refused_413
      : status == 431 ? &counters->refused_431
                      : &counters->refused_503) += 1;
    int body_bytes = snprintf(
        body, sizeof(body),
        "{\"error\":{\"message\":\"%s\",\"type\":\"%s\","
        "\"param\":null,\"code\":%d}}",
        reason, status == 503 ? "ServiceUnavailableError" : "BadRequestError",
        status);
    int head_bytes = snprintf(
        head, sizeof(head),
        "HTTP/1.1 %d %s\r\nContent-Type: application/json\r\n"
        "Content-Length: %d\r\n%sConnection: close\r\n\r\n%s",
        status, title, body_bytes, status == 503 ? "Retry-After: 1\r\n" : "",
        strcmp(req->method, "HEAD") == 0 ? "" : body);
    assert(head_bytes > 0 && (size_t)head_bytes < sizeof(head));
    /* An empty send buffer takes this whole; a full one means a client that
     * pipelines without reading, which may miss it. */
    (void)send(req->conn->fd, head, (size_t)head_bytes,
               MSG_DONTWAIT | MSG_NOSIGNAL);
    req->state = REQUEST_REFUSED;
    body_free(req);
    return MHD_NO;
}

/* libmicrohttpd 0.9.75 refuses a missing Host and a malformed Content-Length by
 * itself, but sends the head of that answer twice. It logs the refusal first:
 * then the request concerned is the only one whose head is parsed and not yet
 * shown to httpd_on_access. Answer in its stead and shut the socket. */
bool request_refuse_parsed(struct bt_httpd *httpd, unsigned status)
{
    for (struct link *at = httpd->live.next; at != &httpd->live;
         at = at->next) {
        struct bt_httpd_request *req =
            LINK_OWNER(struct bt_httpd_request, in_live, at);
        if (req->head_seen || !req->mhd || req->state != REQUEST_RECEIVING)
            continue;
        const union MHD_ConnectionInfo *info = MHD_get_connection_info(
            req->mhd, MHD_CONNECTION_INFO_REQUEST_HEADER_SIZE);
        if (!info || info->header_size == 0)
            continue;
        (void)refuse(req, (int)status,
                     status == 400 ? "missing Host or malformed Content-Length"
                                   : "request is too large");
        shutdown(req->conn->fd, SHUT_WR);
        return true;
    }
    return false;
}

/* ---- body ---- */

static enum bt_status body_reserve(struct bt_httpd_request *req, size_t bytes)
{
    struct bt_httpd *httpd = req->httpd;
    if (bytes > httpd->limits.body_bytes_max)
        return BT_TOO_LARGE;
    if (bytes < req->body_capacity) /* one byte is kept for a final NUL */
        return BT_OK;
    size_t capacity = req->body_capacity * 2;
    if (capacity < BODY_START_BYTES)
        capacity = BODY_START_BYTES;
    if (capacity > httpd->limits.body_bytes_max + 1)
        capacity = httpd->limits.body_bytes_max + 1;
    if (req->announced > 0 && capacity > req->announced + 1)
        capacity = (size_t)req->announced + 1;
    if (capacity < bytes + 1)
        capacity = bytes + 1;
    if (httpd->counters.body_bytes - req->body_capacity + capacity >
        httpd->limits.body_total_bytes_max)
        return BT_NO_MEMORY;
    char *body = realloc(req->body, capacity);
    if (!body)
        return BT_NO_MEMORY;
    httpd->counters.body_bytes += capacity - req->body_capacity;
    req->body = body;
    req->body_capacity = capacity;
    return BT_OK;
}

static enum MHD_Result body_refuse(struct bt_httpd_request *req,
                                   enum bt_status status)
{
    char text[80];

    if (status == BT_TOO_LARGE) {
        snprintf(text, sizeof(text),
                 "request body is too large: more than %llu bytes",
                 (unsigned long long)req->httpd->limits.body_bytes_max);
        return refuse(req, 413, text);
    }
    return refuse(req, 503, "too many request bodies at once, try later");
}

static enum MHD_Result on_head(struct bt_httpd_request *req,
                               const char *version)
{
    uint64_t announced = 0;
    const char *reason = NULL;
    const struct bt_httpd_limits *limits = &req->httpd->limits;
    int refused = httpd_guard(req, version, &announced, &reason);
    if (refused)
        return refuse(req, refused, reason);
    if (announced > limits->body_bytes_max)
        return body_refuse(req, BT_TOO_LARGE);
    if (announced > limits->body_total_bytes_max ||
        req->httpd->counters.body_bytes >
            limits->body_total_bytes_max - announced)
        return body_refuse(req, BT_NO_MEMORY);
    if (announced == 0)
        return MHD_YES;
    req->announced = announced;
    enum bt_status status = body_reserve(
        req, announced < BODY_PRESIZE_MAX ? announced : BODY_PRESIZE_MAX);
    return status == BT_OK ? MHD_YES : body_refuse(req, status);
}

/* Refused while the body comes in: libmicrohttpd would forget the connection
 * if closed from here, so it goes on reading (and we discard) until the body
 * or REFUSED_S are over. The client has the answer and our FIN already. */
static void body_refuse_midway(struct bt_httpd_request *req,
                               enum bt_status status)
{
    (void)body_refuse(req, status);
    shutdown(req->conn->fd, SHUT_WR);
    req->cut_at = ev_now(req->httpd->loop) + REFUSED_S;
    req->httpd->deadlines++;
    httpd_sweep_start(req->httpd);
}

static enum MHD_Result on_body(struct bt_httpd_request *req, const char *bytes,
                               size_t *count)
{
    enum bt_status status = body_reserve(req, req->body_bytes + *count);
    if (status == BT_OK) {
        memcpy(req->body + req->body_bytes, bytes, *count);
        req->body_bytes += *count;
        req->body[req->body_bytes] = 0;
    } else {
        body_refuse_midway(req, status);
    }
    *count = 0;
    return MHD_YES;
}

/* ---- hand over ---- */

static enum MHD_Result on_whole(struct bt_httpd_request *req)
{
    req->arrived_ns = now_ns();
    req->state = REQUEST_HANDLING;
    req->httpd->counters.requests++;
    req->httpd->handler(req->httpd->arg, req);
    if (req->response)
        return stream_queue(req);
    req->suspended = true;
    MHD_suspend_connection(req->mhd);
    if (req->conn->peer_left)
        request_work(req, WORK_LEFT);
    return MHD_YES;
}

enum MHD_Result httpd_on_access(void *arg, struct MHD_Connection *connection,
                                const char *url, const char *method,
                                const char *version, const char *upload,
                                size_t *upload_bytes, void **context)
{
    (void)arg;
    struct bt_httpd_request *req = *context;
    if (!req)
        return MHD_NO; /* out of memory in httpd_on_target */
    if (!req->head_seen) {
        req->head_seen = true;
        req->method = method;
        req->path = url;
        return on_head(req, version);
    }
    switch (req->state) {
    case REQUEST_RECEIVING:
        if (*upload_bytes > 0)
            return on_body(req, upload, upload_bytes);
        return on_whole(req);
    case REQUEST_HANDLING: /* woken for nothing */
        req->suspended = true;
        MHD_suspend_connection(connection);
        return MHD_YES;
    case REQUEST_REPLYING:
    case REQUEST_STREAMING:
    case REQUEST_ENDING:
    case REQUEST_ABORTING:
        return stream_queue(req);
    case REQUEST_REFUSED:
        if (*upload_bytes == 0)
            break;
        *upload_bytes = 0;
        return MHD_YES;
    case REQUEST_GONE:
        break;
    }
    return MHD_NO;
}

/* ---- accessors ---- */

const char *bt_httpd_method(const struct bt_httpd_request *req)
{
    return req->method;
}

const char *bt_httpd_path(const struct bt_httpd_request *req)
{
    return req->path;
}

const char *bt_httpd_query(const struct bt_httpd_request *req, const char *key)
{
    if (!req->mhd)
        return NULL;
    return MHD_lookup_connection_value(req->mhd, MHD_GET_ARGUMENT_KIND, key);
}

const char *bt_httpd_header(const struct bt_httpd_request *req,
                            const char *name)
{
    if (!req->mhd)
        return NULL;
    return MHD_lookup_connection_value(req->mhd, MHD_HEADER_KIND, name);
}

const char *bt_httpd_body(const struct bt_httpd_request *req, size_t *bytes_out)
{
    *bytes_out = req->body_bytes;
    return req->body ? req->body : "";
}

void bt_httpd_body_release(struct bt_httpd_request *req)
{
    body_free(req);
}

int64_t bt_httpd_arrived_ns(const struct bt_httpd_request *req)
{
    return req->arrived_ns;
}

void bt_httpd_watch(struct bt_httpd_request *req, void (*gone)(void *arg),
                    void (*closed)(void *arg), void *arg)
{
    req->gone = gone;
    req->closed = closed;
    req->watch_arg = arg;
    if (!req->mhd || req->conn->peer_left)
        request_work(req, WORK_LEFT);
}
