/* One request on its way: body, stream, clock readings, verdict. Decides the
 * result; the client decides when it starts. Invariant: a flight is on its
 * client's list until exactly one of on_done, leave, flight_free takes it
 * off. */
#include "client_priv.h"
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LEAVE_EARLY_S 0.003 /* for "before the first token" */

void flight_free(struct flight *f)
{
    struct bt_client *client = f->client;

    ev_timer_stop(client->loop, &f->leave);
    if (f->call)
        bt_call_cancel(f->call);
    if (f->prev)
        f->prev->next = f->next;
    else
        client->flights = f->next;
    if (f->next)
        f->next->prev = f->prev;
    client->in_flight--;
    answer_fini(&f->answer);
    free(f->body);
    free(f);
}

/* "12345," per token at most 11 bytes, and the members around them. */
static char *make_body(const struct bt_client *client, size_t index,
                       size_t *bytes_out)
{
    const struct bt_workload_request *r =
        &client->spec.workload->requests[index];
    const uint32_t *prompt = bt_workload_prompt(client->spec.workload, index);
    size_t size =
        512 + strlen(client->spec.model) + (size_t)r->token_count * 11;
    char *body = malloc(size);
    size_t used;

    if (!body)
        return NULL;
    used = (size_t)snprintf(
        body, size,
        "{\"model\":\"%s\",\"max_tokens\":%u,\"temperature\":0,"
        "\"ignore_eos\":true,\"stream\":true,"
        "\"stream_options\":{\"include_usage\":true},\"prompt\":[",
        client->spec.model, r->max_tokens);
    for (uint32_t i = 0; i < r->token_count; i++)
        used += (size_t)snprintf(body + used, size - used, "%u%s", prompt[i],
                                 i + 1 < r->token_count ? "," : "]}");
    *bytes_out = used;
    return body;
}

static void note_failure(struct flight *f, const char *what)
{
    struct bt_client *client = f->client;

    if (!client->first_failure[0])
        snprintf(client->first_failure, sizeof(client->first_failure),
                 "request %zu: http %d, %s", f->index, f->http, what);
}

/* Write the record, take the flight away, tell the client. */
static void finish(struct flight *f, enum bt_client_result result)
{
    struct bt_client *client = f->client;
    size_t index = f->index;
    struct bt_client_record *r = &client->records[index];
    int64_t now = client_now_ns();

    r->result = result;
    r->http = f->http;
    r->e2e_ns = now - f->sent_ns;
    r->ttft_ns = f->tokens ? f->first_ns - f->sent_ns : -1;
    r->tpot_ns =
        f->tokens > 1 ? (f->last_ns - f->first_ns) / (f->tokens - 1) : -1;
    r->answer_tokens = f->tokens;
    r->prompt_tokens = (uint32_t)f->answer.prompt_tokens;
    r->cached_tokens = (uint32_t)f->answer.cached_tokens;
    flight_free(f);
    client_ended(client, index);
}

static bool text_is_right(const struct flight *f)
{
    const struct bt_client_spec *spec = &f->client->spec;
    const struct bt_workload_request *r = &spec->workload->requests[f->index];
    const char *wanted;
    size_t bytes = 0;

    if (f->answer.usage && f->answer.completion_tokens != r->max_tokens)
        return false;
    if (!spec->expect)
        return true;
    wanted = spec->expect(spec->expect_arg, f->index, &bytes);
    return !f->answer.text_overflow && bytes == f->answer.text_bytes &&
           (bytes == 0 || memcmp(wanted, f->answer.text, bytes) == 0);
}

static void on_head(void *arg, const struct bt_call_head *head)
{
    struct flight *f = arg;

    f->http = head->status;
}

static void note_token(struct flight *f, int64_t now)
{
    struct bt_client_record *r = &f->client->records[f->index];

    f->tokens++;
    if (f->tokens == 1) {
        f->first_ns = now;
    } else {
        int64_t gap = now - f->last_ns;

        if (f->tokens == 2)
            r->ttst_ns = now - f->sent_ns;
        if (gap > r->gap_max_ns)
            r->gap_max_ns = gap;
        bt_histogram_add(&f->client->gaps, gap);
    }
    f->last_ns = now;
}

static enum bt_status on_data(void *arg, const char *bytes, size_t count)
{
    struct flight *f = arg;
    int64_t now = client_now_ns();
    enum bt_status status;

    if (f->http != 200 || f->broken != BT_OK)
        return BT_OK;
    status = answer_feed(&f->answer, bytes, count);
    if (status != BT_OK)
        f->broken = status;
    while (f->tokens < f->answer.token_events)
        note_token(f, now);
    if (f->tokens && f->tokens >= f->leave_after)
        ev_feed_event(f->client->loop, &f->leave, EV_TIMER);
    return BT_OK;
}

static void on_done(void *arg, const struct bt_call_end *end)
{
    struct flight *f = arg;

    f->call = NULL;
    if (end->status == BT_TIMEOUT &&
        f->sent_ns + f->client->spec.request_timeout_ns - 1000000 <=
            client_now_ns()) {
        note_failure(f, "no end before the client's time limit");
        finish(f, BT_CLIENT_TIMEOUT);
    } else if (f->http >= 400) {
        note_failure(f, "error status");
        finish(f, BT_CLIENT_HTTP);
    } else if (end->status != BT_OK && f->http == 0) {
        note_failure(f, end->detail ? end->detail : "no answer");
        finish(f, BT_CLIENT_TRANSPORT);
    } else if (end->status != BT_OK || f->broken != BT_OK ||
               !answer_is_whole(&f->answer)) {
        note_failure(f, f->answer.failed ? "error event in the stream"
                                         : "cut or malformed stream");
        finish(f, BT_CLIENT_STREAM);
    } else if (!text_is_right(f)) {
        note_failure(f, "other text than expected");
        finish(f, BT_CLIENT_WRONG);
    } else {
        finish(f, BT_CLIENT_OK);
    }
}

static void on_leave(struct ev_loop *loop, struct ev_timer *timer, int events)
{
    (void)loop;
    (void)events;
    finish(timer->data, BT_CLIENT_LEFT);
}

static enum bt_status call(struct flight *f, size_t body_bytes)
{
    const struct bt_client_spec *spec = &f->client->spec;
    struct bt_call_spec call_spec;
    size_t n = 0;

    f->headers[n++] = "Content-Type: application/json";
    if (spec->id_prefix) {
        snprintf(f->id, sizeof(f->id), "X-Request-Id: %s-%zu", spec->id_prefix,
                 f->index);
        f->headers[n++] = f->id;
    }
    f->headers[n] = NULL;
    memset(&call_spec, 0, sizeof(call_spec));
    call_spec.method = "POST";
    call_spec.url = f->client->url;
    call_spec.headers = f->headers;
    call_spec.body = f->body;
    call_spec.body_bytes = body_bytes;
    call_spec.connect_timeout_ms = 5000;
    call_spec.total_timeout_ms = spec->request_timeout_ns / 1000000;
    call_spec.head = on_head;
    call_spec.data = on_data;
    call_spec.done = on_done;
    call_spec.arg = f;
    return bt_call_start(f->client->upstream, &call_spec, &f->call);
}

static void fail_early(struct bt_client *client, size_t index)
{
    client->records[index].result = BT_CLIENT_DROPPED;
    client_ended(client, index);
}

void flight_start(struct bt_client *client, size_t index)
{
    struct bt_client_record *r = &client->records[index];
    struct flight *f = calloc(1, sizeof(*f));
    size_t body_bytes = 0;

    r->ttft_ns = r->ttst_ns = r->tpot_ns = -1;
    if (!f) {
        fail_early(client, index);
        return;
    }
    f->client = client;
    f->index = index;
    answer_init(&f->answer);
    ev_timer_init(&f->leave, on_leave, LEAVE_EARLY_S, 0.);
    f->leave.data = f;
    f->leave_after = client->spec.leave_after
                         ? client->spec.leave_after(client->spec.arg, index)
                         : UINT32_MAX;
    f->next = client->flights;
    if (f->next)
        f->next->prev = f;
    client->flights = f;
    client->in_flight++;
    f->body = make_body(client, index, &body_bytes);
    f->sent_ns = client_now_ns();
    r->send_ns = f->sent_ns - client->start_ns;
    r->late_ns = r->send_ns - client->spec.workload->requests[index].arrival_ns;
    if (!f->body || call(f, body_bytes) != BT_OK) {
        f->call = NULL;
        flight_free(f);
        fail_early(client, index);
    } else if (f->leave_after == 0) {
        ev_timer_start(client->loop, &f->leave);
    }
}
