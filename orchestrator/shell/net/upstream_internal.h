/* Shared by the upstream*.c files of this folder only. One thread: no locks.
 *
 * A call and its easy handle are one object, kept for reuse: options that
 * never change are set once.
 */
#ifndef BATON_NET_UPSTREAM_INTERNAL_H
#define BATON_NET_UPSTREAM_INTERNAL_H

#include "baton/orchestrator/upstream.h"
#include <curl/curl.h>
#include <ev.h>

enum call_state {
    CALL_IDLE,    /* on the free list */
    CALL_PENDING, /* waits for the kick that adds it */
    CALL_RUNNING, /* in the multi handle */
    CALL_DONE     /* its done call-back runs */
};

struct call_list {
    struct bt_call *first, *last;
};

struct bt_call {
    struct bt_upstream *upstream;
    struct bt_call *next_todo, *next_free;
    struct bt_call *next, *prev; /* all that are not idle */
    CURL *easy;
    enum call_state state;
    bool in_todo, in_data, cancelled, resume, paused;
    bool head_given, connected;
    uint64_t body_bytes;
    struct bt_call_spec spec;
    char *header_block; /* slist nodes, then the texts */
    char error[CURL_ERROR_SIZE];
};

struct bt_upstream {
    struct ev_loop *loop;
    CURLM *multi;
    unsigned depth;         /* inside libcurl */
    struct ev_timer timer;  /* libcurl's */
    struct ev_prepare kick; /* never started; fed at low priority */
    bool timer_due;
    struct call_list todo; /* to add, resume or remove */
    struct bt_call *free_calls;
    unsigned free_count, free_max;
    struct bt_call *live;
};

/* upstream_call.c */
struct bt_call *call_take(struct bt_upstream *upstream);
void call_give(struct bt_call *call);
void call_destroy(struct bt_call *call);
enum bt_status call_prepare(struct bt_call *call,
                            const struct bt_call_spec *spec);
void call_finish(struct bt_call *call, CURLcode code);
void upstream_todo(struct bt_call *call);

/* upstream_curl.c */
bool upstream_curl_init(struct bt_upstream *upstream, uint32_t connections_max,
                        uint32_t per_host_max);
void upstream_drive(struct bt_upstream *upstream, curl_socket_t fd, int mask);
void upstream_add(struct bt_call *call);
void upstream_remove(struct bt_call *call);
void upstream_unpause(struct bt_call *call);

#endif
