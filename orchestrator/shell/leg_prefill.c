/* Leg P (NIXL pull dialect): never streamed, one token, its reply carries the
 * hand-off parameters, which stay raw bytes. Reports PREFILL_DONE or
 * LEG_FAILED; decides nothing.
 */
#include "exchange.h"

#include <stdlib.h>

/* A reply names one block id per 16 tokens: 8 MiB is a prompt of millions. */
#define REPLY_MAX (8u << 20)

static void on_head(void *arg, const struct bt_call_head *head)
{
    struct exchange *x = arg;

    leg_head(&x->prefill, head);
}

static enum bt_status on_data(void *arg, const char *bytes, size_t count)
{
    struct exchange *x = arg;

    leg_keep(&x->prefill, bytes, count, REPLY_MAX);
    return BT_OK;
}

static void done_well(struct exchange *x)
{
    struct leg *leg = &x->prefill;
    struct bt_event event = {.type = BT_EV_PREFILL_DONE};
    struct bt_prefill_reply reply;
    enum bt_status status;

    status = leg->overflow
                 ? BT_TOO_LARGE
                 : bt_openai_prefill_reply(leg->reply == NULL ? "" : leg->reply,
                                           leg->reply_used, &reply);
    if (status != BT_OK) {
        bt_log(BT_LOG_WARN, "prefill_reply_bad", "request=%s worker=%s why=%s",
               x->request_id, serve_worker_name(x->serve, leg->worker),
               bt_status_name(status));
        exchange_fail_leg(x, BT_LEG_PREFILL, BT_FAIL_BODY, leg->status);
        return;
    }
    if (!reply.has_params)
        bt_log(BT_LOG_WARN, "prefill_no_params",
               "request=%s worker=%s missing=%s", x->request_id,
               serve_worker_name(x->serve, leg->worker),
               reply.missing == NULL ? "all" : reply.missing);
    free(x->params_reply);
    x->params_reply = leg->reply; /* params points into it */
    x->params = reply.params;
    leg->reply = NULL;
    leg->reply_used = leg->reply_size = 0;
    event.u.prefill_done = (struct bt_ev_prefill_done){
        .request = x->id,
        .attempt = leg->attempt,
        .has_params = reply.has_params,
        .prompt_tokens = reply.prompt_tokens,
        .cached_tokens = reply.cached_tokens,
    };
    exchange_event(x, &event);
}

static void on_done(void *arg, const struct bt_call_end *end)
{
    struct exchange *x = arg;
    enum bt_leg_failure how;

    x->prefill.call = NULL;
    free(x->prefill.body);
    x->prefill.body = NULL;
    leg_count(x->serve, end);
    if (leg_map_end(end, &how)) {
        bt_log(BT_LOG_DEBUG, "prefill_failed",
               "request=%s worker=%s status=%d why=%s", x->request_id,
               serve_worker_name(x->serve, x->prefill.worker), end->http,
               bt_status_name(end->status));
        exchange_fail_leg(x, BT_LEG_PREFILL, how, end->http);
        return;
    }
    done_well(x);
}

/* vllm_xargs for a worker that is to announce its blocks again; at NULL: the
 * client's stay as they are. Freed by the caller. */
static struct bt_text xargs_for(struct exchange *x, uint32_t worker)
{
    struct bt_text xargs = {0};

    if (!kv_watch_heals(x->serve, worker))
        return xargs;
    if (text_alloc(&xargs, x->request.root.bytes + 64) == NULL ||
        bt_openai_full_report(&x->request, &xargs) != BT_OK) {
        free(xargs.at);
        return (struct bt_text){0};
    }
    x->serve->counters.healing_legs++;
    return xargs;
}

static enum bt_status write_body(struct exchange *x, struct leg *leg,
                                 size_t *bytes_out)
{
    struct bt_text text, xargs = xargs_for(x, leg->worker);
    enum bt_status status = BT_NO_MEMORY;

    leg->body = text_alloc(&text, x->request.root.bytes + xargs.used + 512);
    if (leg->body != NULL)
        status = bt_openai_leg_prefill(&x->request,
                                       xargs.at == NULL ? NULL : &xargs, &text);
    free(xargs.at);
    if (status == BT_OK)
        *bytes_out = text.used;
    return status;
}

void leg_prefill_send(struct exchange *x, const struct bt_effect *effect)
{
    struct leg *leg = &x->prefill;
    struct bt_call_spec spec = {
        .head = on_head, .data = on_data, .done = on_done, .arg = x};

    leg_reset(leg);
    leg->attempt = effect->attempt;
    leg->worker = bt_worker_slot(effect->worker);
    leg->has_rank = effect->has_rank;
    leg->rank = effect->rank;
    exchange_new_upstream_id(x);
    if (write_body(x, leg, &spec.body_bytes) != BT_OK) {
        exchange_fail_leg(x, BT_LEG_PREFILL, BT_FAIL_REFUSED, 0);
        return;
    }
    if (leg_start(x, leg, leg_path(x), &spec) != BT_OK)
        exchange_fail_leg(x, BT_LEG_PREFILL, BT_FAIL_REFUSED, 0);
}
