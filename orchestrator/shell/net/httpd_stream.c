/* Answers: whole ones and streams. A stream's unsent bytes sit in a ring that
 * grows on demand up to the limit plus one write. libmicrohttpd pulls from it;
 * an empty ring is freed and suspends the connection, the next write resumes it
 * within the same loop turn.
 *
 *   write --> ring --> MHD's chunk buffer --> socket
 *     full at stream_buffer_bytes (BT_AGAIN) ... drain at half of it
 */
#include "httpd_internal.h"
#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define RING_START_BYTES 1024
#define WRITE_BYTES_MAX  (64U * 1024)
#define STREAM_BLOCK     2048 /* unused with chunks, one send in HTTP/1.0 */
#define ABORT_S          0.5
#define HEADER_BYTES_MAX (16U * 1024)

/* ---- ring ---- */

static bool ring_grow(struct ring *ring, size_t needed)
{
    size_t capacity = ring->capacity ? ring->capacity : RING_START_BYTES;
    while (capacity < needed)
        capacity *= 2;
    if (capacity == ring->capacity)
        return true;
    char *bytes = malloc(capacity);
    if (!bytes)
        return false;
    size_t first = ring->capacity - ring->start;
    if (first > ring->used)
        first = ring->used;
    if (ring->used > 0) {
        memcpy(bytes, ring->bytes + ring->start, first);
        memcpy(bytes + first, ring->bytes, ring->used - first);
    }
    free(ring->bytes);
    *ring = (struct ring){bytes, capacity, 0, ring->used};
    return true;
}

static bool ring_put(struct ring *ring, const char *bytes, size_t count)
{
    if (!ring_grow(ring, ring->used + count))
        return false;
    size_t at = (ring->start + ring->used) % ring->capacity;
    size_t first = ring->capacity - at;
    if (first > count)
        first = count;
    memcpy(ring->bytes + at, bytes, first);
    memcpy(ring->bytes, bytes + first, count - first);
    ring->used += count;
    return true;
}

static size_t ring_take(struct ring *ring, char *out, size_t max)
{
    size_t count = ring->used < max ? ring->used : max;
    size_t first = ring->capacity - ring->start;
    if (first > count)
        first = count;
    memcpy(out, ring->bytes + ring->start, first);
    memcpy(out + first, ring->bytes, count - first);
    ring->used -= count;
    ring->start = ring->used ? (ring->start + count) % ring->capacity : 0;
    return count;
}

/* Most streams wait for their next token most of the time. */
static void ring_free(struct ring *ring)
{
    free(ring->bytes);
    *ring = (struct ring){0};
}

/* ---- libmicrohttpd's side ---- */

/* Ends the connection after what has left so far. END_WITH_ERROR would do, but
 * libmicrohttpd 0.9.75 under epoll then forgets the connection until its
 * time-out. With the socket shut, the final chunk cannot leave, its send fails
 * and the connection is cleaned up at once. */
static ssize_t cut(const struct bt_httpd_request *req)
{
    shutdown(req->conn->fd, SHUT_RDWR);
    return MHD_CONTENT_READER_END_OF_STREAM;
}

static ssize_t on_pull(void *arg, uint64_t position, char *out, size_t max)
{
    (void)position;
    struct bt_httpd_request *req = arg;
    if (req->state == REQUEST_GONE)
        return cut(req);
    if (req->ring.used > 0) {
        size_t count = ring_take(&req->ring, out, max);
        if (req->buffer_full &&
            req->ring.used <= req->httpd->limits.stream_buffer_bytes / 2) {
            req->buffer_full = false;
            request_work(req, WORK_DRAIN);
        }
        return (ssize_t)count;
    }
    if (req->state == REQUEST_ENDING)
        return MHD_CONTENT_READER_END_OF_STREAM;
    if (req->state == REQUEST_ABORTING)
        return cut(req);
    ring_free(&req->ring);
    req->suspended = true;
    MHD_suspend_connection(req->mhd);
    if (req->conn->peer_left)
        request_work(req, WORK_LEFT);
    return 0;
}

enum MHD_Result stream_queue(struct bt_httpd_request *req)
{
    const struct bt_httpd_limits *limits = &req->httpd->limits;
    if (!req->response)
        return MHD_NO; /* out of memory: the connection is cut */
    if (limits->send_timeout_s != limits->receive_timeout_s)
        MHD_set_connection_option(req->mhd, MHD_CONNECTION_OPTION_TIMEOUT,
                                  (unsigned)limits->send_timeout_s);
    enum MHD_Result result =
        MHD_queue_response(req->mhd, req->status, req->response);
    MHD_destroy_response(req->response);
    req->response = NULL;
    req->queued = true;
    return result;
}

/* ---- the user's side ---- */

static void answer_start(struct bt_httpd_request *req, int status,
                         const char *content_type, enum request_state state)
{
    assert(req->state == REQUEST_HANDLING);
    assert(status >= 200 && status <= 599);
    req->state = state;
    req->status = (unsigned)status;
    if (req->response) {
        if (content_type)
            MHD_add_response_header(req->response, MHD_HTTP_HEADER_CONTENT_TYPE,
                                    content_type);
        for (struct header_line *h = req->headers; h; h = h->next)
            MHD_add_response_header(req->response, h->name, h->value);
    }
    if (req->suspended || !req->mhd)
        request_work(req, WORK_RESUME);
}

void bt_httpd_add_header(struct bt_httpd_request *req, const char *name,
                         const char *value)
{
    size_t name_bytes = strlen(name) + 1, value_bytes = strlen(value) + 1;
    assert(name_bytes + value_bytes <= HEADER_BYTES_MAX);
    struct header_line *line = malloc(sizeof(*line) + name_bytes + value_bytes);
    if (!line)
        return;
    memcpy(line->name, name, name_bytes);
    memcpy(line->name + name_bytes, value, value_bytes);
    line->value = line->name + name_bytes;
    line->next = req->headers;
    req->headers = line;
}

void bt_httpd_reply(struct bt_httpd_request *req, int status,
                    const char *content_type, const char *body, size_t bytes)
{
    if (req->mhd)
        req->response = MHD_create_response_from_buffer(
            bytes, (void *)(uintptr_t)body, MHD_RESPMEM_MUST_COPY);
    answer_start(req, status, content_type, REQUEST_REPLYING);
}

void bt_httpd_stream_begin(struct bt_httpd_request *req, int status,
                           const char *content_type, void (*drain)(void *arg),
                           void *arg)
{
    if (req->mhd)
        req->response = MHD_create_response_from_callback(
            MHD_SIZE_UNKNOWN, STREAM_BLOCK, on_pull, req, NULL);
    req->drain = drain;
    req->drain_arg = arg;
    answer_start(req, status, content_type, REQUEST_STREAMING);
}

enum bt_status bt_httpd_stream_write(struct bt_httpd_request *req,
                                     const char *bytes, size_t count)
{
    size_t full = req->httpd->limits.stream_buffer_bytes;
    assert(req->state == REQUEST_STREAMING);
    assert(count <= WRITE_BYTES_MAX);
    if (!req->mhd || count == 0)
        return BT_OK; /* nobody to send to */
    if (req->ring.used >= full)
        return BT_LIMIT;
    if (!ring_put(&req->ring, bytes, count))
        return BT_NO_MEMORY;
    if (req->suspended)
        request_work(req, WORK_RESUME);
    if (req->ring.used < full)
        return BT_OK;
    req->buffer_full = true;
    return BT_AGAIN;
}

static void stream_close(struct bt_httpd_request *req, enum request_state state)
{
    assert(req->state == REQUEST_STREAMING);
    req->state = state;
    if (req->suspended || !req->mhd)
        request_work(req, WORK_RESUME);
}

void bt_httpd_stream_end(struct bt_httpd_request *req)
{
    stream_close(req, REQUEST_ENDING);
}

/* What was written before still goes out, but not for longer than ABORT_S:
 * a client that does not read cannot hold an aborted stream. */
void bt_httpd_stream_abort(struct bt_httpd_request *req)
{
    stream_close(req, REQUEST_ABORTING);
    req->cut_at = ev_now(req->httpd->loop) + ABORT_S;
    req->httpd->deadlines++;
    httpd_sweep_start(req->httpd);
}
