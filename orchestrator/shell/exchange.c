/* Life of one exchange: opening, handing to the core, performing the core's
 * effects, the one answer, and freeing. Leaves the legs' traffic to leg_*.c,
 * parsing to front.c, every decision to the core.
 */
#include "exchange.h"

#include "baton/base/rng.h"
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

static void client_gone(void *arg);
static void client_closed(void *arg);

struct exchange *exchange_open(struct bt_serve *serve,
                               struct bt_httpd_request *http)
{
    struct exchange *x = calloc(1, sizeof(*x));

    if (x == NULL)
        return NULL;
    x->serve = serve;
    x->http = http;
    x->arrived_ns = bt_httpd_arrived_ns(http);
    x->next = serve->exchanges;
    if (x->next != NULL)
        x->next->prev = x;
    serve->exchanges = x;
    serve->exchange_count++;
    bt_httpd_watch(http, client_gone, client_closed, x);
    return x;
}

static void exchange_free(struct exchange *x)
{
    struct bt_serve *serve = x->serve;

    if (x->tokenize != NULL)
        tokenize_cancel(x);
    leg_reset(&x->prefill);
    leg_reset(&x->decode);
    if (x->prev != NULL)
        x->prev->next = x->next;
    else
        serve->exchanges = x->next;
    if (x->next != NULL)
        x->next->prev = x->prev;
    serve->exchange_count--;
    free(x->keys);
    free(x->params_reply);
    free(x->held);
    said_reset(&x->said);
    free(x);
    serve_drain_check(serve);
}

static void free_if_over(struct exchange *x)
{
    if (x->finished && x->http == NULL)
        exchange_free(x);
}

/* Answered before it reached the core: only the client's side is left. */
void exchange_discard(struct exchange *x)
{
    assert(!x->submitted);
    x->finished = true;
    free_if_over(x);
}

/* CLIENT_GONE ends the request within its own step, so all that is done with
 * the body (a hand-off given back) is done while it still lives. */
static void tell_gone(struct exchange *x)
{
    struct bt_event event = {.type = BT_EV_CLIENT_GONE, .u.client_gone = x->id};
    enum bt_status status;

    assert(!x->serve->performing);
    status = exchange_event(x, &event);
    assert(status == BT_OK);
    (void)status;
}

static void client_gone(void *arg)
{
    struct exchange *x = arg;

    if (x->tokenize != NULL)
        tokenize_cancel(x);
    x->http = NULL;
    if (x->submitted && !x->finished) {
        tell_gone(x);
        return;
    }
    if (!x->submitted)
        x->finished = true;
    free_if_over(x);
}

static void client_closed(void *arg)
{
    struct exchange *x = arg;

    x->http = NULL;
    free_if_over(x);
}

void exchange_new_upstream_id(struct exchange *x)
{
    unsigned char raw[16];

    if (getrandom(raw, sizeof(raw), 0) != (ssize_t)sizeof(raw)) {
        uint64_t a = bt_mix64(x->serve->id_seed + ++x->serve->next_id);

        memcpy(raw, &a, sizeof(a));
        a = bt_mix64(a ^ (uint64_t)serve_now_ns());
        memcpy(raw + sizeof(a), &a, sizeof(a));
    }
    for (size_t i = 0; i < sizeof(raw); i++)
        snprintf(x->upstream_id + 2 * i, 3, "%02x", raw[i]);
}

enum bt_status exchange_event(struct exchange *x, struct bt_event *event)
{
    return serve_step(x->serve, event);
}

static void count_plan(struct exchange *x, int64_t from, int64_t to)
{
    x->plan_ns = to - from;
    bt_prom_observe(&x->serve->counters.plan, (double)(to - from) / 1e9);
    bt_histogram_add(&x->serve->counters.plan_ns, to - from);
}

/* Tenants are told apart as their caches are: by salt and adapter. */
static uint64_t tenant_of(const struct exchange *x)
{
    return x->adapter == NULL && x->request.salt_bytes == 0 ? 0 : x->ns;
}

void exchange_submit(struct exchange *x, const uint32_t *tokens, size_t count,
                     size_t told)
{
    struct bt_serve *serve = x->serve;
    int64_t from = serve_now_ns();
    struct bt_event event = {.type = BT_EV_REQUEST};
    enum bt_status status;
    bool nested;

    /* Without tokens assume four bytes of prompt to the token. */
    x->prompt_tokens = (uint32_t)(x->request.prompt.bytes / 4 + 1);
    if (tokens != NULL && prompt_hash(x, tokens, count, told) != BT_OK)
        x->tokens_known = false;
    event.u.request = (struct bt_ev_request){
        .cookie = (uintptr_t)x,
        .model = x->model,
        .ns = x->ns,
        .prompt_tokens = x->prompt_tokens,
        .tokens_known = x->tokens_known,
        .keys = x->keys,
        .key_count = x->key_count,
        .max_tokens = x->request.max_tokens > UINT32_MAX
                          ? UINT32_MAX
                          : (uint32_t)x->request.max_tokens,
        .pd_allowed = x->request.pd_allowed,
        .body_bytes = x->request.root.bytes,
        .tokenize_ns = x->tokenize_ns,
        .tenant = tenant_of(x),
        .priority = x->request.priority,
        .whole_answer = !x->request.stream,
    };
    x->submitted = true;
    /* The step is timed without the sending that it causes. */
    nested = serve->performing;
    serve->performing = true;
    status = serve_step(serve, &event);
    count_plan(x, from, serve_now_ns());
    serve->performing = nested;
    if (status != BT_OK) {
        x->submitted = false;
        bt_httpd_add_header(x->http, "Retry-After", "1");
        reply_error(x->http, bt_status_http(status),
                    "too many requests are in progress");
        exchange_discard(x);
        return;
    }
    if (!nested)
        serve_perform(serve);
}

void exchange_fail_leg(struct exchange *x, enum bt_leg leg,
                       enum bt_leg_failure how, int status)
{
    const struct leg *l = leg == BT_LEG_PREFILL ? &x->prefill : &x->decode;
    struct bt_event event = {.type = BT_EV_LEG_FAILED};

    event.u.leg_failed = (struct bt_ev_leg_failed){
        .request = x->id,
        .attempt = l->attempt,
        .leg = leg,
        .how = how,
        .status = status,
        .bytes_sent = x->stream_started,
    };
    exchange_event(x, &event);
}

/* ---- the one answer ---- */

static void answer_error(struct exchange *x, const struct bt_decision *d)
{
    const struct leg *l =
        d->phase == BT_REQUEST_PREFILLING ? &x->prefill : &x->decode;
    char message[160];

    if (d->outcome == BT_OUTCOME_CLIENT_ERROR && l->json &&
        l->status == d->status && l->reply_used > 0 && !l->overflow) {
        /* The worker's own words and status. */
        reply_json(x->http, d->status, l->reply, l->reply_used);
        return;
    }
    if (x->cut) {
        bt_httpd_add_header(x->http, "Retry-After", "1");
        reply_error(x->http, 503, "the server is shutting down");
        return;
    }
    if (d->status == 429 || d->status == 503)
        bt_httpd_add_header(x->http, "Retry-After", "1");
    snprintf(message, sizeof(message), "%s while %s after %u attempt(s)",
             bt_outcome_name(d->outcome), bt_request_state_name(d->phase),
             d->attempt_count);
    reply_error(x->http, d->status == 0 ? 502 : d->status, message);
}

/* A stream that did not end well ends with an error event. Where there is no
 * room for one (a slow client), the connection is cut without a final chunk:
 * a truncated answer never looks like a whole one. */
static void end_stream(struct exchange *x, const struct bt_decision *d)
{
    enum bt_status status = BT_OK;
    char buf[512];
    struct bt_text text;

    if (d->outcome != BT_OUTCOME_OK && !x->error_relayed) {
        bt_text_init(&text, buf, sizeof(buf));
        if (memcmp(x->tail, "\n\n", 2) != 0)
            bt_text_str(&text, "\n\n"); /* close what was cut in the middle */
        bt_text_str(&text, "data: ");
        if (x->cut)
            bt_openai_error(&text, 503, "the server is shutting down");
        else
            bt_openai_error(&text, 502, "the worker's answer ended too early");
        bt_text_str(&text, "\n\n");
        status = bt_httpd_stream_write(x->http, buf, text.used);
    }
    if (status == BT_OK || status == BT_AGAIN)
        bt_httpd_stream_end(x->http);
    else
        bt_httpd_stream_abort(x->http);
}

static void answer(struct exchange *x, const struct bt_decision *d)
{
    if (x->http == NULL)
        return;
    if (x->stream_started)
        end_stream(x, d);
    else if (d->outcome == BT_OUTCOME_OK)
        reply_json(x->http, 200, x->decode.reply, x->decode.reply_used);
    else
        answer_error(x, d);
}

static void count_end(struct exchange *x, const struct bt_decision *d)
{
    struct shell_counters *c = &x->serve->counters;

    bt_prom_observe(&c->duration,
                    (double)(d->finished_ns - x->arrived_ns) / 1e9);
    if (d->outcome == BT_OUTCOME_CANCELLED && !x->cut)
        c->disconnects[d->phase]++;
    c->input_tokens += d->prompt_tokens;
    c->output_tokens += d->output_tokens;
    c->cached_tokens += d->prefill_cached_tokens;
    if (d->placements > 0 && x->tokens_known) {
        c->prompt_tokens_placed += d->prompt_tokens;
        c->overlap_tokens += d->placement.chosen.p == BT_PLACE_NONE
                                 ? d->placement.chosen.terms.overlap_d
                                 : d->placement.chosen.terms.overlap_p;
    }
    if (!x->request.pd_allowed)
        c->pd_bypass++;
}

static void exchange_finish(struct exchange *x, const struct bt_decision *d)
{
    assert(!x->finished);
    count_end(x, d);
    decisions_record(x->serve, x, d);
    if (d->outcome != BT_OUTCOME_OK && d->outcome != BT_OUTCOME_CANCELLED)
        bt_log(BT_LOG_INFO, "request_ended",
               "request=%s outcome=%s phase=%s status=%d attempts=%u "
               "fallback=%s",
               x->request_id, bt_outcome_name(d->outcome),
               bt_request_state_name(d->phase), d->status, d->attempt_count,
               bt_fallback_name(d->fallback));
    answer(x, d);
    leg_reset(&x->prefill);
    leg_reset(&x->decode);
    x->finished = true;
    free_if_over(x);
}

void exchange_keep_decision(struct bt_effect *effect)
{
    struct exchange *x = (struct exchange *)(uintptr_t)effect->cookie;

    if (effect->type != BT_FX_FINISHED)
        return;
    x->decision = *effect->decision;
    effect->decision = &x->decision;
}

void exchange_perform(struct bt_serve *serve, const struct bt_effect *effect)
{
    struct exchange *x = (struct exchange *)(uintptr_t)effect->cookie;
    uint32_t slot = bt_worker_slot(effect->worker);

    (void)serve;
    switch (effect->type) {
    case BT_FX_ACCEPTED:
        x->id = effect->request;
        break;
    case BT_FX_SEND_PREFILL:
        leg_prefill_send(x, effect);
        break;
    case BT_FX_SEND_DECODE:
        leg_decode_send(x, effect);
        break;
    case BT_FX_RELEASE_HANDOFF:
        handoff_release(x, slot);
        break;
    case BT_FX_ABORT:
        leg_reset(effect->leg == BT_LEG_PREFILL ? &x->prefill : &x->decode);
        break;
    case BT_FX_PREFETCH: /* workers are told without fetch_ok (serve.c) */
        bt_log(BT_LOG_ERROR, "prefetch_unsupported",
               "worker=%u request=%llu: no engine of this dialect fetches",
               slot, (unsigned long long)effect->request.v);
        break;
    case BT_FX_FINISHED:
        exchange_finish(x, effect->decision);
        break;
    }
}

void exchange_tick_all(struct bt_serve *serve)
{
    for (struct exchange *x = serve->exchanges; x != NULL; x = x->next)
        if (x->paused && !x->finished)
            leg_decode_alive(x);
}

void exchange_cut_all(struct bt_serve *serve)
{
    struct exchange *next;

    for (struct exchange *x = serve->exchanges; x != NULL; x = next) {
        next = x->next; /* a step may free x, never another one */
        if (x->finished)
            continue; /* its answer is on the way */
        x->cut = true;
        if (x->submitted) {
            tell_gone(x);
            continue;
        }
        tokenize_cancel(x);
        bt_httpd_add_header(x->http, "Retry-After", "1");
        reply_error(x->http, 503, "the server is shutting down");
        exchange_discard(x);
    }
}
