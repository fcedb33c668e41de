/* HTTP client on a libev loop: libcurl multi_socket with pooled connections.
 * Used by `baton serve` for workers and by the benchmark clients. One thread.
 *
 * HTTP/1.1 keep-alive; a pooled connection that turns out dead before any
 * response byte is retried once on a fresh one by libcurl; nothing else is
 * retried here. TCP keepalive is on. No redirects, no proxies, no .netrc.
 */
#ifndef BATON_ORCHESTRATOR_UPSTREAM_H
#define BATON_ORCHESTRATOR_UPSTREAM_H

#include "baton/base/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ev_loop;
struct bt_upstream;
struct bt_call;

struct bt_call_head {
    int status;               /* HTTP status */
    const char *content_type; /* NULL if absent */
};

struct bt_call_end {
    enum bt_status status; /* OK: a whole response came, whatever its HTTP
                              status; REFUSED, RESET (before or in the body),
                              TRUNCATED (body shorter than announced),
                              TIMEOUT, CANCELLED is never reported */
    int http;              /* 0: no response line came */
    bool connected;        /* the request may have been delivered */
    uint64_t body_bytes;
    const char *detail; /* libcurl's words, for the log */
};

struct bt_call_spec {
    const char *method; /* "GET", "POST" */
    const char *url;
    const char *const
        *headers;     /* "Name: value", NULL-terminated; may be NULL */
    const char *body; /* kept by pointer until the end; may be NULL */
    size_t body_bytes;
    int64_t connect_timeout_ms; /* 0: 2000 */
    int64_t total_timeout_ms;   /* 0: none */
    bool fresh_connection;      /* do not reuse, do not return to the pool */
    /* Call-backs; any may be NULL except done. body: BT_OK or BT_AGAIN = the
     * bytes were taken but pause until bt_call_resume. done is the last. */
    void (*head)(void *arg, const struct bt_call_head *head);
    enum bt_status (*data)(void *arg, const char *bytes, size_t count);
    void (*done)(void *arg, const struct bt_call_end *end);
    void *arg;
};

/* connections_max: over all workers; per_host_max: to one host:port; more
 * calls wait inside. Fails with BT_NO_MEMORY. */
enum bt_status bt_upstream_create(struct ev_loop *loop,
                                  uint32_t connections_max,
                                  uint32_t per_host_max,
                                  struct bt_upstream **out);
/* Cancels what is still running (no call-backs). */
void bt_upstream_destroy(struct bt_upstream *upstream);

/* Start a call; call-backs never run inside this function. The call is freed
 * by itself after done. BT_NO_MEMORY, BT_INVALID (URL). */
enum bt_status bt_call_start(struct bt_upstream *upstream,
                             const struct bt_call_spec *spec,
                             struct bt_call **out);
/* True once the head of a 2xx answer has come and the whole body has left: it
 * is not looked at again, so the caller may free it before the end. */
bool bt_call_body_sent(const struct bt_call *call);
/* Take reading up again after data returned BT_AGAIN. */
void bt_call_resume(struct bt_call *call);
/* Close the connection (an engine sees the disconnect); no more call-backs.
 * May be called from inside a call-back of this call. */
void bt_call_cancel(struct bt_call *call);

#endif
