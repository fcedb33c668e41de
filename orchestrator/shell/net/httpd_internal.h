/* Shared by the httpd_*.c files of this folder only. One thread: no locks.
 *
 *   bt_httpd --conns--> conn (one per TCP connection, from accept to close)
 *            --live---> bt_httpd_request (one per request, from its first line)
 *            --work---> requests that wait for the next httpd_run
 *
 * A user call never enters libmicrohttpd: it sets a work flag and kicks. The
 * kick runs at lowest priority, so everything of one loop turn leaves in one
 * MHD_run.
 */
#ifndef BATON_NET_HTTPD_INTERNAL_H
#define BATON_NET_HTTPD_INTERNAL_H

#include "baton/orchestrator/httpd.h"
#include <ev.h>
#include <microhttpd.h>

struct link {
    struct link *next, *prev;
};

static inline void link_init(struct link *head)
{
    head->next = head->prev = head;
}

static inline bool link_empty(const struct link *head)
{
    return head->next == head;
}

static inline void link_push(struct link *head, struct link *item)
{
    item->prev = head->prev;
    item->next = head;
    head->prev->next = item;
    head->prev = item;
}

static inline void link_drop(struct link *item)
{
    item->prev->next = item->next;
    item->next->prev = item->prev;
    link_init(item);
}

#define LINK_OWNER(type, member, item)                                         \
    ((type *)(void *)((char *)(item)-offsetof(type, member)))

/* What each state waits for. */
enum request_state {
    REQUEST_RECEIVING, /* its head or body */
    REQUEST_REFUSED,   /* the rest of its body, thrown away, or MHD to close */
    REQUEST_HANDLING,  /* the user's answer */
    REQUEST_REPLYING,  /* MHD to send a whole answer */
    REQUEST_STREAMING, /* the user's bytes, then stream_end */
    REQUEST_ENDING,    /* MHD to send the rest and the final chunk */
    REQUEST_ABORTING,  /* MHD to send the rest and cut */
    REQUEST_GONE       /* MHD to close; the user was told */
};

enum work {
    WORK_RESUME = 1, /* the connection is suspended and has something to do */
    WORK_DRAIN = 2,  /* tell the user that the buffer has room */
    WORK_LEFT = 4    /* the peer's FIN or reset was seen */
};

struct ring {
    char *bytes;
    size_t capacity, start, used;
};

struct header_line {
    struct header_line *next;
    const char *value; /* inside name[] */
    char name[];
};

struct conn {
    struct bt_httpd *httpd;
    struct link in_conns;
    struct bt_httpd_request *request; /* current one or NULL */
    int fd;
    bool peer_left; /* FIN or RST came */
    bool linger;    /* refused while the peer may still be sending */
};

struct bt_httpd_request {
    struct bt_httpd *httpd;
    struct MHD_Connection *mhd; /* NULL: orphan, connection is no more */
    struct conn *conn;
    struct link in_live, in_work;
    enum request_state state;
    unsigned work; /* enum work bits */
    bool head_seen, suspended, queued, buffer_full;
    bool bad_target, counted_gone;
    uint64_t announced; /* Content-Length or 0 */
    const char *method, *path;
    const char *raw_target;
    size_t raw_target_bytes;
    int64_t arrived_ns;
    char *body;
    size_t body_bytes, body_capacity;
    struct MHD_Response *response; /* ready to queue */
    unsigned status;
    struct header_line *headers;
    struct ring ring;
    ev_tstamp cut_at; /* the latest end of an abort or refusal; 0: none */
    void (*drain)(void *arg);
    void *drain_arg;
    void (*gone)(void *arg);
    void (*closed)(void *arg);
    void *watch_arg;
};

struct bt_httpd {
    struct ev_loop *loop;
    struct MHD_Daemon *daemon;
    struct bt_httpd_limits limits;
    struct bt_httpd_counters counters;
    bt_httpd_handler_fn handler;
    void *arg;
    uint16_t port;
    bool stopping, quiesced, running;
    struct ev_io mhd_io;
    struct ev_timer timer; /* MHD's next time-out */
    ev_tstamp timer_at;
    struct ev_prepare kick; /* never started; fed at lowest priority */
    int left_fd;            /* epoll set of all clients, RDHUP only */
    struct ev_io left_io;
    struct ev_timer sweep; /* aborting requests and lingering sockets */
    struct link conns, live, work, lingering;
    unsigned lingering_count, deadlines; /* requests with cut_at */
};

/* httpd.c */
void httpd_kick(struct bt_httpd *httpd);
void httpd_sweep_start(struct bt_httpd *httpd);

/* httpd_listen.c: bound, listening, non-blocking socket. */
enum bt_status httpd_listen(const char *address, uint16_t port, int *fd_out,
                            uint16_t *port_out, char *error_out,
                            size_t error_size);

/* httpd_guard.c: 0 or the HTTP status of a refusal with its reason. */
int httpd_guard(struct bt_httpd_request *req, const char *version,
                uint64_t *content_bytes_out, const char **reason_out);

/* httpd_linger.c: keep reading what the peer still sends, so that it gets
 * to see the refusal instead of a reset. */
void httpd_linger(struct bt_httpd *httpd, int fd);
void httpd_linger_sweep(struct bt_httpd *httpd, bool all);

/* httpd_request.c */
void *httpd_on_target(void *arg, const char *target, struct MHD_Connection *c);
enum MHD_Result httpd_on_access(void *arg, struct MHD_Connection *connection,
                                const char *url, const char *method,
                                const char *version, const char *upload,
                                size_t *upload_bytes, void **context);
void httpd_on_completed(void *arg, struct MHD_Connection *connection,
                        void **context, enum MHD_RequestTerminationCode code);
bool request_refuse_parsed(struct bt_httpd *httpd, unsigned status);
void request_free(struct bt_httpd_request *req);
void request_work(struct bt_httpd_request *req, unsigned bits);
void request_work_run(struct bt_httpd_request *req);
void request_lost(struct bt_httpd_request *req);

/* httpd_stream.c */
enum MHD_Result stream_queue(struct bt_httpd_request *req);

#endif
