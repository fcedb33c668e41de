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

void leg_prefill_send(struct exchange *x, uint32_t attempt, uint32_t worker)
{
    struct leg *leg = &x->prefill;
    struct bt_call_spec spec = {
        .head = on_head, .data = on_data, .done = on_done, .arg = x};
    struct bt_text text;

    leg_reset(leg);
    leg->attempt = attempt;
    leg->worker = worker;
    exchange_new_upstream_id(x);
    leg->body = text_alloc(&text, x->request.root.bytes + 512);
    if (leg->body == NULL ||
        bt_openai_leg_prefill(&x->request, &text) != BT_OK) {
        exchange_fail_leg(x, BT_LEG_PREFILL, BT_FAIL_REFUSED, 0);
        return;
    }
    spec.body_bytes = text.used;
    if (leg_start(x, leg, leg_path(x), &spec) != BT_OK)
        exchange_fail_leg(x, BT_LEG_PREFILL, BT_FAIL_REFUSED, 0);
}
