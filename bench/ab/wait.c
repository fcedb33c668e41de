/* Waiting and fetching on a loop that is otherwise event driven: for programs
 * that start a cluster and have nothing else to do meanwhile. One interruption
 * flag for the process, set from a signal. */
#include "baton/bench/cluster.h"
#include "baton/orchestrator/upstream.h"
#include <ev.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#define BODY_MAX (16u << 20)

static volatile sig_atomic_t interrupted;

void bt_cluster_interrupt(void)
{
    interrupted = 1;
}

bool bt_cluster_interrupted(void)
{
    return interrupted != 0;
}

static void on_tick(struct ev_loop *loop, struct ev_timer *timer, int events)
{
    (void)loop;
    (void)timer;
    (void)events;
}

enum bt_status bt_wait(struct ev_loop *loop, bool (*done)(void *arg), void *arg,
                       int64_t timeout_ns)
{
    enum bt_status status = BT_OK;
    struct ev_timer tick;
    double end;

    ev_now_update(loop);
    end = ev_now(loop) + (double)timeout_ns / 1e9;
    ev_timer_init(&tick, on_tick, 0.02, 0.02);
    ev_timer_start(loop, &tick);
    while (!done(arg)) {
        if (interrupted)
            status = BT_CANCELLED;
        else if (ev_now(loop) >= end)
            status = BT_TIMEOUT;
        if (status != BT_OK)
            break;
        ev_run(loop, EVRUN_ONCE);
    }
    ev_timer_stop(loop, &tick);
    return status;
}

struct fetch {
    char *body;
    size_t used, size;
    int http;
    enum bt_status status;
    bool done;
};

static void on_head(void *arg, const struct bt_call_head *head)
{
    struct fetch *f = arg;

    f->http = head->status;
}

static enum bt_status on_data(void *arg, const char *bytes, size_t count)
{
    struct fetch *f = arg;
    size_t size = f->size ? f->size : 4096;
    char *moved;

    if (f->status != BT_OK)
        return BT_OK;
    while (size < f->used + count + 1)
        size *= 2;
    if (size > BODY_MAX) {
        f->status = BT_TOO_LARGE;
        return BT_OK;
    }
    if (size != f->size) {
        moved = realloc(f->body, size);
        if (!moved) {
            f->status = BT_NO_MEMORY;
            return BT_OK;
        }
        f->body = moved;
        f->size = size;
    }
    memcpy(f->body + f->used, bytes, count);
    f->used += count;
    f->body[f->used] = '\0';
    return BT_OK;
}

static void on_done(void *arg, const struct bt_call_end *end)
{
    struct fetch *f = arg;

    if (f->status == BT_OK)
        f->status = end->status;
    f->done = true;
}

static bool is_done(void *arg)
{
    const struct fetch *f = arg;

    return f->done;
}

static enum bt_status run_call(struct ev_loop *loop, struct fetch *f,
                               const struct bt_call_spec *spec,
                               int64_t timeout_ns)
{
    struct bt_upstream *upstream;
    struct bt_call *call;
    enum bt_status status = bt_upstream_create(loop, 1, 1, &upstream);

    if (status != BT_OK)
        return status;
    status = bt_call_start(upstream, spec, &call);
    if (status == BT_OK)
        status = bt_wait(loop, is_done, f, timeout_ns + 200000000);
    bt_upstream_destroy(upstream);
    return status != BT_OK ? status : f->status;
}

enum bt_status bt_fetch(struct ev_loop *loop, const char *url, const char *body,
                        int64_t timeout_ns, int *http_out, char **body_out,
                        size_t *bytes_out)
{
    static const char *const headers[] = {"Content-Type: application/json",
                                          NULL};
    struct bt_call_spec spec;
    struct fetch f;
    enum bt_status status;

    memset(&f, 0, sizeof(f));
    memset(&spec, 0, sizeof(spec));
    spec.method = body ? "POST" : "GET";
    spec.url = url;
    spec.headers = body ? headers : NULL;
    spec.body = body;
    spec.body_bytes = body ? strlen(body) : 0;
    spec.total_timeout_ms = timeout_ns / 1000000;
    spec.fresh_connection = true;
    spec.head = on_head;
    spec.data = on_data;
    spec.done = on_done;
    spec.arg = &f;
    status = run_call(loop, &f, &spec, timeout_ns);
    if (status == BT_OK && !f.body && !(f.body = calloc(1, 1)))
        status = BT_NO_MEMORY;
    if (status != BT_OK) {
        free(f.body);
        return status;
    }
    if (http_out)
        *http_out = f.http;
    if (bytes_out)
        *bytes_out = f.used;
    if (body_out)
        *body_out = f.body;
    else
        free(f.body);
    return BT_OK;
}
