/* Leg D: streams the decode worker's bytes to the client as they come and only
 * looks at them. The client's head is held back until the first whole event
 * has been seen, so that a worker that fails at once can still be replaced;
 * after that nothing is ever retried.
 *
 *   first event is an error, or an empty stream   -> LEG_FAILED, retry allowed
 *   error event later    relayed to its end, then the stream is closed
 *   end without [DONE] and finish_reason          -> truncated
 *
 * Back-pressure: a full client buffer pauses the upstream call.
 */
#include "exchange.h"

#include <stdlib.h>
#include <string.h>

/* A reply that is not streamed is kept whole up to here. */
#define REPLY_MAX (32u << 20)
/* Delivering an unwanted hand-off: time until the connection is closed. */
#define RELEASE_AFTER_S   0.25
#define RELEASE_CALLS_MAX 256u

static void on_head(void *arg, const struct bt_call_head *head)
{
    struct exchange *x = arg;

    leg_head(&x->decode, head);
}

static void send_progress(struct exchange *x, enum bt_event_type type)
{
    struct bt_event event = {.type = type};

    event.u.progress = (struct bt_ev_progress){
        .request = x->id,
        .attempt = x->decode.attempt,
        .tokens = (uint32_t)(x->said.usage && x->said.completion_tokens > 0
                                 ? x->said.completion_tokens
                                 : x->said.token_events),
        .cached_tokens = (uint32_t)x->said.cached_tokens,
    };
    exchange_event(x, &event);
}

static void note_tokens(struct exchange *x)
{
    struct shell_counters *c = &x->serve->counters;
    int64_t now = serve_now_ns();
    bool first = x->tokens_seen == 0;

    if (x->said.token_events == x->tokens_seen)
        return;
    if (first) {
        x->first_token_ns = now;
        bt_prom_observe(&c->ttft, (double)(now - x->arrived_ns) / 1e9);
    } else {
        if (x->tokens_seen == 1)
            bt_prom_observe(&c->ttst, (double)(now - x->arrived_ns) / 1e9);
        bt_prom_observe(&c->itl, (double)(now - x->last_token_ns) / 1e9);
    }
    x->last_token_ns = now;
    x->tokens_seen = x->said.token_events;
    send_progress(x, first ? BT_EV_FIRST_TOKEN : BT_EV_TOKENS);
}

/* The client has room again. */
static void on_client_drain(void *arg)
{
    struct exchange *x = arg;

    x->paused = false;
    if (x->decode.call != NULL)
        bt_call_resume(x->decode.call);
}

void leg_decode_alive(struct exchange *x)
{
    if (x->decode.call != NULL && x->tokens_seen > 0)
        send_progress(x, BT_EV_TOKENS);
}

static void start_stream(struct exchange *x)
{
    bt_httpd_add_header(x->http, "Cache-Control", "no-cache");
    bt_httpd_stream_begin(x->http, 200, "text/event-stream; charset=utf-8",
                          on_client_drain, x);
    x->stream_started = true;
}

/* Keep bytes back until the client's head may go; false: no more room. Less
 * than the client's buffer is held, so that it never fills it alone. */
static bool hold(struct exchange *x, const char *bytes, size_t count)
{
    size_t most = x->serve->config->limits.stream_buffer - 1;

    if (most > HELD_MAX)
        most = HELD_MAX;
    if (x->held == NULL)
        x->held = malloc(HELD_MAX);
    if (x->held == NULL || count > most - x->held_used)
        return false;
    memcpy(x->held + x->held_used, bytes, count);
    x->held_used += count;
    return true;
}

static void drop_held(struct exchange *x)
{
    free(x->held);
    x->held = NULL;
    x->held_used = 0;
}

/* Bytes towards the client; BT_AGAIN: pause the worker; else (no memory) they
 * are lost. */
static enum bt_status relay(struct exchange *x, const char *bytes, size_t count)
{
    enum bt_status status = BT_OK;

    if (x->http == NULL)
        return BT_OK;
    if (!x->stream_started && x->said.events == 0 && !x->said.done &&
        hold(x, bytes, count))
        return BT_OK;
    if (!x->stream_started)
        start_stream(x);
    if (x->held_used > 0)
        status = bt_httpd_stream_write(x->http, x->held, x->held_used);
    drop_held(x);
    /* The upstream is paused whenever the buffer is full, so this is taken. */
    if (count > 0 && status == BT_OK)
        status = bt_httpd_stream_write(x->http, bytes, count);
    x->paused = status == BT_AGAIN;
    return status;
}

static void note_tail(struct exchange *x, const char *bytes, size_t count)
{
    if (count >= 2)
        memcpy(x->tail, bytes + count - 2, 2);
    if (count != 1)
        return;
    x->tail[0] = x->tail[1];
    x->tail[1] = bytes[0];
}

static void stop_call(struct exchange *x)
{
    if (x->decode.call != NULL)
        bt_call_cancel(x->decode.call);
    x->decode.call = NULL;
}

/* A stream with tokens is never retried nor its hand-off given back, so its
 * prompt, kept twice, is of no more use. */
static void drop_prompt(struct exchange *x)
{
    struct bt_openai_request kept = {.route = x->request.route,
                                     .stream = x->request.stream,
                                     .pd_allowed = x->request.pd_allowed};

    if (x->decode.call == NULL || !bt_call_body_sent(x->decode.call))
        return;
    free(x->decode.body);
    x->decode.body = NULL;
    free(x->params_reply);
    x->params_reply = NULL;
    x->params = (struct bt_json){0};
    x->request = kept;
    if (x->http != NULL)
        bt_httpd_body_release(x->http);
}

static enum bt_status on_stream(struct exchange *x, const char *bytes,
                                size_t count)
{
    bool begun = x->stream_started || x->said.events > 0;
    size_t good = 0;
    enum bt_status kept =
        said_feed(&x->said, &x->serve->sse, bytes, count, &good);
    enum bt_status status;

    note_tail(x, bytes, good);
    if (!x->said.error && !x->said.finish_error) {
        status = relay(x, bytes, count);
        if (kept != BT_OK)
            status = kept;
        note_tokens(x);
        if (x->tokens_seen > 0 && x->decode.body != NULL)
            drop_prompt(x);
        if (status == BT_OK || status == BT_AGAIN)
            return status;
        stop_call(x);
        exchange_fail_leg(x, BT_LEG_DECODE, BT_FAIL_TRUNCATED, 200);
        return BT_OK;
    }
    if (begun && x->http != NULL) {
        relay(x, bytes, good);
        status = bt_httpd_stream_write(x->http, "\n\n", 2);
        memcpy(x->tail, "\n\n", 2);
        x->error_relayed =
            x->said.error && (status == BT_OK || status == BT_AGAIN);
    }
    stop_call(x);
    exchange_fail_leg(x, BT_LEG_DECODE, BT_FAIL_BODY, 200);
    return BT_OK;
}

static enum bt_status on_data(void *arg, const char *bytes, size_t count)
{
    struct exchange *x = arg;
    bool good = x->decode.status >= 200 && x->decode.status < 300;

    if (good && x->decode.sse)
        return on_stream(x, bytes, count);
    if (leg_keep(&x->decode, bytes, count, REPLY_MAX) != BT_OK && good) {
        /* It may never end: do not wait for that. */
        stop_call(x);
        exchange_fail_leg(x, BT_LEG_DECODE, BT_FAIL_BODY, x->decode.status);
    }
    return BT_OK;
}

/* A whole, unstreamed 2xx answer: is it one? */
static void end_unstreamed(struct exchange *x)
{
    struct leg *leg = &x->decode;
    struct bt_event event = {.type = BT_EV_DECODE_DONE};
    struct bt_json root, usage, value, details;
    uint64_t tokens = 0, cached = 0;

    if (leg->overflow || leg->reply_used == 0 ||
        bt_json_parse(leg->reply, leg->reply_used, &root, NULL) != BT_OK ||
        root.type != BT_JSON_OBJECT ||
        bt_json_member(&root, "error", &value, NULL)) {
        exchange_fail_leg(x, BT_LEG_DECODE, BT_FAIL_BODY, leg->status);
        return;
    }
    if (bt_json_member(&root, "usage", &usage, NULL) &&
        usage.type == BT_JSON_OBJECT) {
        if (bt_json_member(&usage, "completion_tokens", &value, NULL))
            (void)bt_json_u64(&value, &tokens);
        if (bt_json_member(&usage, "prompt_tokens_details", &details, NULL) &&
            details.type == BT_JSON_OBJECT &&
            bt_json_member(&details, "cached_tokens", &value, NULL))
            (void)bt_json_u64(&value, &cached);
    }
    event.u.progress = (struct bt_ev_progress){
        .request = x->id,
        .attempt = leg->attempt,
        .tokens = (uint32_t)tokens,
        .cached_tokens = (uint32_t)cached,
    };
    exchange_event(x, &event);
}

static void end_stream(struct exchange *x)
{
    bool complete =
        said_complete(&x->said, &x->serve->sse) && x->said.events > 0;

    note_tokens(x);
    if (complete) {
        if (x->held_used > 0 || !x->stream_started)
            (void)relay(x, "", 0);
        send_progress(x, BT_EV_DECODE_DONE);
        return;
    }
    exchange_fail_leg(x, BT_LEG_DECODE,
                      x->said.events == 0 ? BT_FAIL_BODY : BT_FAIL_TRUNCATED,
                      200);
}

static void on_done(void *arg, const struct bt_call_end *end)
{
    struct exchange *x = arg;
    enum bt_leg_failure how;

    x->decode.call = NULL;
    leg_count(x->serve, end);
    if (leg_map_end(end, &how)) {
        bt_log(BT_LOG_DEBUG, "decode_failed",
               "request=%s worker=%s status=%d why=%s bytes_sent=%d",
               x->request_id, serve_worker_name(x->serve, x->decode.worker),
               end->http, bt_status_name(end->status), x->stream_started);
        exchange_fail_leg(x, BT_LEG_DECODE, how, end->http);
        return;
    }
    if (x->decode.sse)
        end_stream(x);
    else
        end_unstreamed(x);
}

static char *decode_body(struct exchange *x, bool with_params,
                         size_t *bytes_out)
{
    struct bt_text text;
    char *body =
        text_alloc(&text, x->request.root.bytes +
                              (with_params ? x->params.bytes : 0) + 64);

    if (body == NULL || x->request.root.at == NULL ||
        bt_openai_leg_decode(&x->request, with_params ? &x->params : NULL,
                             &text) != BT_OK) {
        free(body);
        return NULL;
    }
    *bytes_out = text.used;
    return body;
}

void leg_decode_send(struct exchange *x, const struct bt_effect *effect)
{
    bool with_params = effect->with_params;
    struct leg *leg = &x->decode;
    struct bt_call_spec spec = {
        .head = on_head, .data = on_data, .done = on_done, .arg = x};

    leg_reset(leg);
    leg->attempt = effect->attempt;
    leg->worker = bt_worker_slot(effect->worker);
    leg->transfer_ns = effect->transfer_ns;
    if (x->stream_started) {
        /* The core saw no token, but the client has bytes: no second try. */
        exchange_fail_leg(x, BT_LEG_DECODE, BT_FAIL_TRUNCATED, 0);
        return;
    }
    said_reset(&x->said);
    drop_held(x);
    memset(x->tail, 0, sizeof(x->tail));
    x->tokens_seen = 0;
    x->paused = false;
    if (!with_params)
        exchange_new_upstream_id(x);
    leg->body = decode_body(x, with_params, &spec.body_bytes);
    if (leg->body == NULL || leg_start(x, leg, leg_path(x), &spec) != BT_OK)
        exchange_fail_leg(x, BT_LEG_DECODE, BT_FAIL_REFUSED, 0);
}

/* ---- giving an unwanted hand-off back ---- */

struct release {
    struct bt_serve *serve;
    struct release *prev, *next;
    struct bt_call *call;
    char *body;
    ev_timer timer;
};

static void release_end(struct release *r)
{
    struct bt_serve *serve = r->serve;

    ev_timer_stop(serve->loop, &r->timer);
    if (r->prev != NULL)
        r->prev->next = r->next;
    else
        serve->releases = r->next;
    if (r->next != NULL)
        r->next->prev = r->prev;
    serve->release_calls--;
    free(r->body);
    free(r);
    serve_drain_check(serve);
}

void handoff_release_stop(struct bt_serve *serve)
{
    while (serve->releases != NULL) {
        struct release *r = serve->releases; /* release_end takes it out */

        bt_call_cancel(r->call); // NOLINT(clang-analyzer-unix.Malloc)
        release_end(r);
    }
}

static void release_done(void *arg, const struct bt_call_end *end)
{
    (void)end;
    release_end(arg);
}

static void release_due(struct ev_loop *loop, ev_timer *timer, int events)
{
    struct release *r = timer->data;

    (void)loop;
    (void)events;
    bt_call_cancel(r->call);
    release_end(r);
}

/* Deliver leg D with P's parameters and close: the decode engine sees an
 * aborted request and tells P to free its blocks (engine-wire.md 3.10). */
void handoff_release(struct exchange *x, uint32_t worker)
{
    struct bt_serve *serve = x->serve;
    struct bt_call_spec spec = {.done = release_done};
    struct leg leg = {.worker = worker};
    struct release *r;

    if (serve->release_calls >= RELEASE_CALLS_MAX || x->params.at == NULL)
        return;
    r = calloc(1, sizeof(*r));
    if (r == NULL)
        return;
    r->serve = serve;
    r->body = decode_body(x, true, &spec.body_bytes);
    leg.body = r->body;
    spec.arg = r;
    spec.fresh_connection = true;
    ev_timer_init(&r->timer, release_due, RELEASE_AFTER_S, 0.);
    r->timer.data = r;
    serve->release_calls++;
    r->next = serve->releases;
    if (r->next != NULL)
        r->next->prev = r;
    serve->releases = r;
    if (r->body == NULL || leg_start(x, &leg, leg_path(x), &spec) != BT_OK) {
        release_end(r);
        return;
    }
    r->call = leg.call;
    ev_timer_start(serve->loop, &r->timer);
}
