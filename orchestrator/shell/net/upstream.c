/* The public face of the HTTP client and its deferred work: starting, resuming
 * and cancelling set a mark and kick; the kick carries them out outside of
 * libcurl's call-backs. Leaves one call's options and outcome to
 * upstream_call.c, libcurl's sockets and timer to upstream_curl.c.
 *
 * Invariant: no call-back of a call runs inside bt_call_start, bt_call_resume
 * or bt_call_cancel.
 */
#include "upstream_internal.h"
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define FREE_CALLS_MAX 1024
#define KICK_PRIORITY  (EV_MINPRI + 1) /* before the server's own */

static void live_add(struct bt_call *call)
{
    call->prev = NULL;
    call->next = call->upstream->live;
    if (call->next)
        call->next->prev = call;
    call->upstream->live = call;
}

static void live_drop(struct bt_call *call)
{
    if (call->prev)
        call->prev->next = call->next;
    else
        call->upstream->live = call->next;
    if (call->next)
        call->next->prev = call->prev;
    call->next = call->prev = NULL;
}

void upstream_todo(struct bt_call *call)
{
    struct call_list *todo = &call->upstream->todo;
    if (call->in_todo)
        return;
    call->in_todo = true;
    call->next_todo = NULL;
    if (todo->last)
        todo->last->next_todo = call;
    else
        todo->first = call;
    todo->last = call;
    ev_feed_event(call->upstream->loop, &call->upstream->kick, EV_CUSTOM);
}

static void call_end(struct bt_call *call)
{
    live_drop(call);
    call_give(call);
}

static void todo_run(struct bt_call *call)
{
    if (call->cancelled) {
        if (call->state == CALL_RUNNING)
            upstream_remove(call);
        call_end(call);
        return;
    }
    if (call->state == CALL_PENDING) {
        call->state = CALL_RUNNING;
        upstream_add(call);
    }
    if (call->resume && call->state == CALL_RUNNING) {
        call->resume = false;
        upstream_unpause(call);
    }
}

/* Ended transfers: outside of libcurl, so call-backs may do anything. */
static void ended_collect(struct bt_upstream *upstream)
{
    CURLMsg *msg;
    int left;
    while ((msg = curl_multi_info_read(upstream->multi, &left))) {
        struct bt_call *call = NULL;
        CURLcode code = msg->data.result;
        curl_easy_getinfo(msg->easy_handle, CURLINFO_PRIVATE, (char **)&call);
        upstream_remove(call);
        call->state = CALL_DONE;
        if (!call->cancelled)
            call_finish(call, code);
        if (call->in_todo)
            call->cancelled = true; /* the kick frees it */
        else
            call_end(call);
    }
}

static void on_kick(struct ev_loop *loop, struct ev_prepare *w, int events)
{
    (void)loop;
    (void)events;
    struct bt_upstream *upstream = w->data;
    bool added = upstream->todo.first != NULL || upstream->timer_due;
    struct bt_call *call = upstream->todo.first;
    upstream->todo = (struct call_list){NULL, NULL};
    while (call) {
        struct bt_call *next = call->next_todo;
        call->in_todo = false;
        todo_run(call);
        call = next;
    }
    upstream->timer_due = false;
    if (added)
        upstream_drive(upstream, CURL_SOCKET_TIMEOUT, 0);
    ended_collect(upstream);
}

/* ---- public ---- */

enum bt_status bt_upstream_create(struct ev_loop *loop,
                                  uint32_t connections_max,
                                  uint32_t per_host_max,
                                  struct bt_upstream **out)
{
    if (curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK)
        return BT_NO_MEMORY;
    struct bt_upstream *upstream = calloc(1, sizeof(*upstream));
    if (!upstream)
        goto undo_global;
    upstream->loop = loop;
    upstream->free_max = FREE_CALLS_MAX;
    ev_prepare_init(&upstream->kick, on_kick);
    ev_set_priority(&upstream->kick, KICK_PRIORITY);
    upstream->kick.data = upstream;
    if (!upstream_curl_init(upstream, connections_max, per_host_max))
        goto undo_upstream;
    *out = upstream;
    return BT_OK;
undo_upstream:
    free(upstream);
undo_global:
    curl_global_cleanup();
    return BT_NO_MEMORY;
}

void bt_upstream_destroy(struct bt_upstream *upstream)
{
    assert(upstream->depth == 0);
    ev_clear_pending(upstream->loop, &upstream->kick);
    while (upstream->live) {
        struct bt_call *call = upstream->live;
        if (call->state == CALL_RUNNING)
            upstream_remove(call);
        live_drop(call);
        call_destroy(call);
    }
    while (upstream->free_calls) {
        struct bt_call *call = upstream->free_calls;
        upstream->free_calls = call->next_free;
        call_destroy(call);
    }
    curl_multi_cleanup(upstream->multi);
    ev_timer_stop(upstream->loop, &upstream->timer);
    free(upstream);
    curl_global_cleanup();
}

enum bt_status bt_call_start(struct bt_upstream *upstream,
                             const struct bt_call_spec *spec,
                             struct bt_call **out)
{
    assert(spec->done);
    struct bt_call *call = call_take(upstream);
    if (!call)
        return BT_NO_MEMORY;
    enum bt_status status = call_prepare(call, spec);
    if (status != BT_OK) {
        call_give(call);
        return status;
    }
    call->state = CALL_PENDING;
    live_add(call);
    upstream_todo(call);
    *out = call;
    return BT_OK;
}

/* After a 2xx head libcurl sends nothing anew: no retry, no authentication, no
 * redirect. A worker may answer before it has read all, though. */
bool bt_call_body_sent(const struct bt_call *call)
{
    curl_off_t sent = 0;
    long status = 0;
    if (!call->head_given)
        return false;
    curl_easy_getinfo(call->easy, CURLINFO_RESPONSE_CODE, &status);
    curl_easy_getinfo(call->easy, CURLINFO_SIZE_UPLOAD_T, &sent);
    return status >= 200 && status < 300 &&
           sent >= (curl_off_t)call->spec.body_bytes;
}

void bt_call_resume(struct bt_call *call)
{
    if (call->cancelled || call->state == CALL_DONE)
        return;
    if (!call->paused && !call->in_data)
        return;
    call->resume = true;
    upstream_todo(call);
}

void bt_call_cancel(struct bt_call *call)
{
    if (call->cancelled || call->state == CALL_DONE)
        return; /* inside done: it is over anyway */
    call->cancelled = true;
    if (call->state == CALL_RUNNING && call->upstream->depth == 0) {
        /* The caller may free the body now: libcurl must not send more of it.
         * Within libcurl's call-backs the abort of the transfer sees to that */
        upstream_remove(call);
        call->state = CALL_PENDING;
    }
    upstream_todo(call);
}
