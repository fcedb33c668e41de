/* From text to token ids, off the decision's back: POST /tokenize on a ready
 * worker of the model, with a deadline and a limit on how many are out. Late,
 * failing or busy: the request is routed without overlap, and counted.
 *
 * Also the byte tokenizer of the emulated engine (`tokenizer: bytes`).
 */
#include "exchange.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define REPLY_MAX (32u << 20)

struct tokenizer {
    uint32_t in_flight;
    uint32_t next_worker; /* spreads the work */
};

struct tokenize_job {
    struct exchange *x;
    struct bt_call *call;
    struct leg leg; /* keeps body and reply */
    int64_t started_ns;
    ev_timer deadline;
};

enum bt_status tokenizer_start(struct bt_serve *serve)
{
    serve->tokenizer = calloc(1, sizeof(*serve->tokenizer));
    return serve->tokenizer == NULL ? BT_NO_MEMORY : BT_OK;
}

void tokenizer_stop(struct bt_serve *serve)
{
    free(serve->tokenizer);
    serve->tokenizer = NULL;
}

static void job_free(struct tokenize_job *job)
{
    struct bt_serve *serve = job->x->serve;

    ev_timer_stop(serve->loop, &job->deadline);
    leg_reset(&job->leg);
    job->x->tokenize = NULL;
    serve->tokenizer->in_flight--;
    free(job);
}

void tokenize_cancel(struct exchange *x)
{
    job_free(x->tokenize);
}

static void go_without(struct exchange *x, uint64_t *counter)
{
    ++*counter;
    x->tokenize_ns = serve_now_ns() - x->tokenize->started_ns;
    job_free(x->tokenize);
    exchange_submit(x, NULL, 0, 0);
}

static void on_deadline(struct ev_loop *loop, ev_timer *timer, int events)
{
    struct tokenize_job *job = timer->data;

    (void)loop;
    (void)events;
    go_without(job->x, &job->x->serve->counters.tokenize_late);
}

static void on_head(void *arg, const struct bt_call_head *head)
{
    struct tokenize_job *job = arg;

    leg_head(&job->leg, head);
}

static enum bt_status on_data(void *arg, const char *bytes, size_t count)
{
    struct tokenize_job *job = arg;

    leg_keep(&job->leg, bytes, count, REPLY_MAX);
    return BT_OK;
}

static void on_done(void *arg, const struct bt_call_end *end)
{
    struct tokenize_job *job = arg;
    struct exchange *x = job->x;
    struct shell_counters *counters = &x->serve->counters;
    size_t max = x->serve->config->limits.prompt_tokens, count = 0;
    size_t most = job->leg.reply_used / 2 + 1;
    uint32_t *ids;

    job->leg.call = NULL;
    if (end->status != BT_OK || end->http != 200 || job->leg.overflow) {
        go_without(x, &counters->tokenize_failed);
        return;
    }
    if (most > max)
        most = max;
    ids = malloc(most * sizeof(*ids));
    if (ids == NULL ||
        bt_openai_tokenize_reply(job->leg.reply, job->leg.reply_used, ids, most,
                                 &count) != BT_OK) {
        free(ids);
        go_without(x, &counters->tokenize_failed);
        return;
    }
    counters->tokenize_ok++;
    x->tokenize_ns = serve_now_ns() - job->started_ns;
    job_free(job);
    /* Where in them an image stands cannot be told: engines write one
     * placeholder or many. */
    exchange_submit(x, ids, count,
                    x->request.hidden == BT_HIDDEN_NOTHING ? count : 0);
    free(ids);
}

static bool pick_worker(struct exchange *x, uint32_t *worker_out)
{
    struct bt_serve *serve = x->serve;
    struct bt_core_worker_info info;
    uint32_t n = serve->config->worker_count;

    for (uint32_t i = 0; i < n; i++) {
        uint32_t w = (serve->tokenizer->next_worker + i) % n;

        if (bt_core_worker_get(serve->core, w, &info) != BT_OK ||
            info.state != BT_WORKER_READY || info.model != x->model)
            continue;
        serve->tokenizer->next_worker = w + 1;
        *worker_out = w;
        return true;
    }
    return false;
}

enum bt_status tokenize_start(struct exchange *x)
{
    struct bt_serve *serve = x->serve;
    struct bt_call_spec spec = {
        .head = on_head, .data = on_data, .done = on_done};
    struct tokenize_job *job;
    struct bt_text text;
    uint32_t worker;

    if (serve->tokenizer->in_flight >=
        serve->config->limits.tokenize_in_flight) {
        serve->counters.tokenize_busy++;
        return BT_LIMIT;
    }
    if (!pick_worker(x, &worker))
        return BT_NO_WORKER;
    job = calloc(1, sizeof(*job));
    if (job == NULL)
        return BT_NO_MEMORY;
    job->x = x;
    job->leg.worker = worker;
    job->started_ns = serve_now_ns();
    ev_timer_init(&job->deadline, on_deadline,
                  (double)serve->config->timeouts.tokenize / 1e9, 0.);
    job->deadline.data = job;
    x->tokenize = job;
    serve->tokenizer->in_flight++;
    job->leg.body = text_alloc(&text, x->request.root.bytes + 512);
    spec.arg = job;
    exchange_new_upstream_id(x);
    if (job->leg.body == NULL ||
        bt_openai_tokenize_body(&x->request, &text) != BT_OK) {
        job_free(job);
        return BT_NO_MEMORY;
    }
    spec.body_bytes = text.used;
    if (leg_start(x, &job->leg, "/tokenize", &spec) != BT_OK) {
        job_free(job);
        return BT_NO_MEMORY;
    }
    ev_timer_start(serve->loop, &job->deadline);
    return BT_OK;
}

/* ---- bytes ---- */

bool bytes_tokenize(const struct bt_openai_request *request, size_t max,
                    struct bt_bytes_prompt *out)
{
    /* A token per byte of text; the template adds less than JSON did, but for
     * the final "<|assistant|>". */
    size_t most = request->prompt.bytes + 16;

    memset(out, 0, sizeof(*out));
    out->max = most < max ? most : max;
    out->tokens = malloc((out->max + 1) * sizeof(*out->tokens));
    if (out->tokens != NULL &&
        bt_bytes_tokenize_json(request->prompt.at, request->prompt.bytes,
                               request->kind == BT_PROMPT_MESSAGES,
                               out) == BT_OK)
        return true;
    free(out->tokens);
    return false;
}
