/* HTTP/1.1 server on a libev loop: libmicrohttpd (external epoll) behind the
 * strictness a proxy needs. Used by `baton serve` (front, metrics, admin) and
 * by `baton engine`. One thread; every call-back runs on the loop.
 *
 * Refused before the handler, with a JSON error in OpenAI shape and close:
 * Content-Length with Transfer-Encoding, two different Content-Length lines,
 * codings other than exactly "chunked", NUL in a header value (400); a body
 * over the limit (413, also for Expect: 100-continue before any body byte);
 * headers over the limit (431); body memory exhausted (503, Retry-After).
 */
#ifndef BATON_ORCHESTRATOR_HTTPD_H
#define BATON_ORCHESTRATOR_HTTPD_H

#include "baton/base/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ev_loop;
struct bt_httpd;
struct bt_httpd_request;

struct bt_httpd_limits {
    uint32_t connections_max;
    uint64_t body_bytes_max;       /* one request */
    uint64_t body_total_bytes_max; /* all requests being received or held */
    uint32_t header_bytes_max;     /* request line + headers; -> 431 */
    uint32_t stream_buffer_bytes;  /* unsent bytes per streaming client */
    uint32_t receive_timeout_s;    /* idle connection or half a request */
    uint32_t send_timeout_s;       /* a client that does not read */
};

/* Values used when a member is 0: 1024, 64 MiB, 1 GiB, 32 KiB, 256 KiB, 60,
 * 60. */

struct bt_httpd_counters {
    uint64_t requests; /* reached the handler */
    uint64_t refused_400, refused_413, refused_431, refused_503;
    uint64_t clients_gone; /* left before their answer ended */
    uint64_t slow_clients; /* cut by send_timeout_s */
    uint32_t connections;  /* open now */
    uint64_t body_bytes;   /* held now */
};

/* The whole request has arrived. The handler must answer now or later, exactly
 * once: reply, or stream_begin .. stream_end / stream_abort. */
typedef void (*bt_httpd_handler_fn)(void *arg, struct bt_httpd_request *req);

/* address: numeric IPv4/IPv6; port 0 picks one (bt_httpd_port tells).
 * BT_EXISTS: the port is taken (reason in error_out); BT_INVALID: bad address;
 * BT_IO. error_out: >= 160 bytes. */
enum bt_status bt_httpd_start(struct ev_loop *loop, const char *address,
                              uint16_t port,
                              const struct bt_httpd_limits *limits,
                              bt_httpd_handler_fn handler, void *arg,
                              struct bt_httpd **out, char *error_out,
                              size_t error_size);
uint16_t bt_httpd_port(const struct bt_httpd *httpd);
void bt_httpd_counters_get(const struct bt_httpd *httpd,
                           struct bt_httpd_counters *out);
/* Stop accepting; connections in progress go on. */
void bt_httpd_quiesce(struct bt_httpd *httpd);
/* Close everything. Open requests get their gone call-back first. */
void bt_httpd_stop(struct bt_httpd *httpd);

/* ---- one request. Valid from the handler until its answer has ended (the
 * closed call-back below is the last use). All strings live as long. ---- */
const char *bt_httpd_method(const struct bt_httpd_request *req);
const char *bt_httpd_path(const struct bt_httpd_request *req); /* no query */
const char *bt_httpd_query(const struct bt_httpd_request *req,
                           const char *key); /* NULL if absent */
const char *bt_httpd_header(const struct bt_httpd_request *req,
                            const char *name); /* NULL if absent */
const char *bt_httpd_body(const struct bt_httpd_request *req,
                          size_t *bytes_out); /* never NULL */
/* Free the body before the answer has ended; it is empty from then on. */
void bt_httpd_body_release(struct bt_httpd_request *req);
/* CLOCK_MONOTONIC when the last body byte had arrived. */
int64_t bt_httpd_arrived_ns(const struct bt_httpd_request *req);

/* Exactly one of the two is called, once, if set before the answer ended:
 * gone   the client left before the whole answer was handed to it;
 * closed the answer ended. After either, req is dead. For a suspended request
 * the departure is noticed from the socket (EOF), within 100 ms. */
void bt_httpd_watch(struct bt_httpd_request *req, void (*gone)(void *arg),
                    void (*closed)(void *arg), void *arg);
/* Add a header to the coming answer (copied). */
void bt_httpd_add_header(struct bt_httpd_request *req, const char *name,
                         const char *value);
/* Whole answer; body is copied. */
void bt_httpd_reply(struct bt_httpd_request *req, int status,
                    const char *content_type, const char *body, size_t bytes);
/* Chunked answer. drain (may be NULL) is called when the buffer, full before,
 * has room for at least half of its size. */
void bt_httpd_stream_begin(struct bt_httpd_request *req, int status,
                           const char *content_type, void (*drain)(void *arg),
                           void *arg);
/* Always takes the bytes of one call (<= 64 KiB) while the buffer is not full;
 * BT_AGAIN: taken, but now full: stop until drain. BT_LIMIT: was full already,
 * nothing taken. Sent without waiting for more. */
enum bt_status bt_httpd_stream_write(struct bt_httpd_request *req,
                                     const char *bytes, size_t count);
/* End well (final chunk) / cut the connection without a final chunk. */
void bt_httpd_stream_end(struct bt_httpd_request *req);
void bt_httpd_stream_abort(struct bt_httpd_request *req);

#endif
