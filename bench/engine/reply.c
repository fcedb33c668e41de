/* From progress to bytes: JSON replies, SSE chunks, usage, errors, in vLLM's
 * shapes. Decides framing only; what is generated when is compute.c's.
 *
 * Generated text, ids and the model name need no escaping here: text is drawn
 * from 64 plain characters, ids are sanitised, model names are plain.
 *
 * Invariants: each call is answered once; a stream whose client reads slowly
 * is resumed from `sent` by its drain call-back, nothing is buffered here.
 */
#include "engine_priv.h"

#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void bt_reply_tree(struct bt_httpd_request *req, json_t *root)
{
    char *text = root == NULL ? NULL : json_dumps(root, JSON_COMPACT);
    json_decref(root);
    if (text == NULL) {
        bt_reply_error(req, 503, "out of memory", NULL);
    } else {
        bt_reply_json(req, 200, text, strlen(text));
    }
    free(text);
}

void bt_reply_json(struct bt_httpd_request *req, int http_status,
                   const char *json, size_t bytes)
{
    bt_httpd_reply(req, http_status, "application/json", json, bytes);
}

static const char *error_type(int http_status)
{
    switch (http_status) {
    case 400:
    case 405:
        return "BadRequestError";
    case 404:
        return "NotFoundError";
    case 422:
        return "UnprocessableEntityError";
    case 501:
        return "NotImplementedError";
    case 503:
        return "ServiceUnavailableError";
    default:
        return "InternalServerError";
    }
}

/* {"error": ...} as malloc'd text; NULL: no memory. */
static char *error_text(int http_status, const char *message, const char *param)
{
    json_t *root = json_pack("{s:{s:s, s:s, s:s?, s:i}}", "error", "message",
                             message, "type", error_type(http_status), "param",
                             param, "code", http_status);
    char *text = root == NULL ? NULL : json_dumps(root, JSON_COMPACT);
    json_decref(root);
    return text;
}

void bt_reply_error(struct bt_httpd_request *req, int http_status,
                    const char *message, const char *param)
{
    char *text = error_text(http_status, message, param);
    const char *body = text != NULL ? text : "{\"error\":{}}";
    bt_reply_json(req, http_status, body, strlen(body));
    free(text);
}

/* ---- usage ---- */

struct usage {
    uint64_t prompt, completion, cached;
};

/* What vLLM counts as cached: the local hit, or with a hand-off all but the
 * token computed here. */
static uint64_t cached_tokens(const struct bt_seq *seq)
{
    uint64_t cached = (uint64_t)seq->hit_blocks * seq->oracle.block_tokens +
                      seq->pulled_tokens;
    return cached < seq->prompt_count ? cached : seq->prompt_count - 1;
}

static struct usage usage_of(const struct bt_call *call)
{
    struct usage u = {0};
    for (uint32_t i = 0; i < call->seq_count; i++) {
        const struct bt_seq *seq = call->seqs[i];
        u.completion += seq->out_count;
        if (i % call->copies == 0) { /* n answers share one prompt */
            u.prompt += seq->prompt_count;
            u.cached += cached_tokens(seq);
        }
    }
    return u;
}

static void write_usage(FILE *f, const struct usage *u)
{
    uint64_t total = u->prompt + u->completion;
    fprintf(f,
            "\"usage\":{\"prompt_tokens\":%llu,\"total_tokens\":%llu,"
            "\"completion_tokens\":%llu,\"prompt_tokens_details\":"
            "{\"cached_tokens\":%llu}}",
            (unsigned long long)u->prompt, (unsigned long long)total,
            (unsigned long long)u->completion, (unsigned long long)u->cached);
}

/* ---- whole replies ---- */

static void write_text(FILE *f, const struct bt_seq *seq)
{
    const uint32_t *out = seq->tokens + seq->prompt_count;
    for (uint32_t i = 0; i < seq->out_count; i++) {
        fputc((int)out[i], f);
    }
}

static void write_choice(FILE *f, const struct bt_call *call,
                         const struct bt_seq *seq)
{
    if (call->chat) {
        fprintf(f,
                "{\"index\":%u,\"message\":{\"role\":\"assistant\","
                "\"content\":\"",
                seq->index);
        write_text(f, seq);
        fprintf(f, "\",\"refusal\":null,\"tool_calls\":[],\"reasoning\":null}"
                   ",\"logprobs\":null,\"finish_reason\":\"length\","
                   "\"stop_reason\":null,\"token_ids\":null}");
        return;
    }
    fprintf(f, "{\"index\":%u,\"text\":\"", seq->index);
    write_text(f, seq);
    fprintf(f, "\",\"logprobs\":null,\"finish_reason\":\"length\","
               "\"stop_reason\":null,\"token_ids\":null,"
               "\"prompt_logprobs\":null,\"prompt_token_ids\":null}");
}

static void write_params(FILE *f, const struct bt_seq *seq)
{
    const struct bt_engine *e = seq->engine;
    if (!seq->leased) {
        fprintf(f, "null");
        return;
    }
    fprintf(f, "{\"do_remote_prefill\":true,\"do_remote_decode\":false,"
               "\"remote_block_ids\":[[");
    for (uint32_t i = 0; i < bt_seq_prompt_blocks(seq); i++) {
        fprintf(f, "%s%u", i == 0 ? "" : ",", seq->blocks[i]);
    }
    fprintf(f,
            "]],\"remote_engine_id\":\"%s\",\"remote_request_id\":\"%s\","
            "\"remote_host\":\"%s\",\"remote_port\":%u,\"tp_size\":1,"
            "\"remote_num_tokens\":%u,\"remote_blocks_expiry_time\":null,"
            "\"transfer_mode\":\"pull\"}",
            e->id, seq->lease_id, e->address, bt_agent_port(e->agent),
            seq->prompt_count);
}

static void write_head(FILE *f, const struct bt_call *call, const char *object)
{
    fprintf(f,
            "{\"id\":\"%s\",\"object\":\"%s\",\"created\":%lld,"
            "\"model\":\"%s\",",
            call->id, object, call->created_s, call->model);
}

static void reply_whole(struct bt_call *call)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *f = open_memstream(&text, &bytes);
    if (f == NULL) {
        bt_reply_error(call->http, 500, "out of memory", NULL);
        return;
    }
    struct usage u = usage_of(call);
    write_head(f, call, call->chat ? "chat.completion" : "text_completion");
    fprintf(f, "\"choices\":[");
    for (uint32_t i = 0; i < call->seq_count; i++) {
        fprintf(f, "%s", i == 0 ? "" : ",");
        write_choice(f, call, call->seqs[i]);
    }
    fprintf(f, "],\"service_tier\":null,\"system_fingerprint\":null,");
    write_usage(f, &u);
    fprintf(f, ",\"prompt_logprobs\":null,\"kv_transfer_params\":");
    write_params(f, call->seqs[0]);
    fprintf(f, "}");
    if (fclose(f) != 0) {
        bt_reply_error(call->http, 500, "out of memory", NULL);
    } else {
        bt_reply_json(call->http, 200, text, bytes);
    }
    free(text);
}

/* ---- streams ---- */

static void on_drain(void *arg)
{
    struct bt_call *call = arg;
    call->blocked = false;
    bt_call_progress(call);
}

static void begin_stream(struct bt_call *call)
{
    if (!call->begun) {
        call->begun = true;
        bt_httpd_stream_begin(call->http, 200,
                              "text/event-stream; charset=utf-8", on_drain,
                              call);
    }
}

/* False: full, or the client has gone. */
static bool send_event(struct bt_call *call, const char *bytes, size_t count)
{
    enum bt_status status = bt_httpd_stream_write(call->http, bytes, count);
    if (status != BT_OK) {
        call->blocked = true;
    }
    return status != BT_LIMIT && call->http != NULL;
}

__attribute__((format(printf, 4, 5))) static void
append(char *buf, size_t size, size_t *used, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int n = vsnprintf(buf + *used, size - *used, format, args);
    va_end(args);
    if (n > 0) {
        *used += (size_t)n < size - *used ? (size_t)n : size - *used - 1;
    }
}

static void append_usage(char *buf, size_t size, size_t *used,
                         const struct bt_call *call)
{
    struct usage u = usage_of(call);
    uint64_t total = u.prompt + u.completion;
    append(buf, size, used,
           ",\"usage\":{\"prompt_tokens\":%llu,\"total_tokens\":%llu,"
           "\"completion_tokens\":%llu",
           (unsigned long long)u.prompt, (unsigned long long)total,
           (unsigned long long)u.completion);
    append(buf, size, used,
           ",\"prompt_tokens_details\":"
           "{\"cached_tokens\":%llu}}",
           (unsigned long long)u.cached);
}

static void append_head(char *buf, size_t size, size_t *used,
                        const struct bt_call *call)
{
    append(buf, size, used,
           "data: {\"id\":\"%s\",\"object\":\"%s\",\"created\":%lld,"
           "\"model\":\"%s\",\"choices\":[",
           call->id, call->chat ? "chat.completion.chunk" : "text_completion",
           call->created_s, call->model);
}

/* One token, or with token < 0 the first chat chunk (role). */
static size_t chunk(char *buf, size_t size, const struct bt_call *call,
                    const struct bt_seq *seq, int token, bool last)
{
    size_t used = 0;
    const char *end = last ? "\"length\"" : "null";
    append_head(buf, size, &used, call);
    if (token < 0) {
        append(buf, size, &used,
               "{\"index\":%u,\"delta\":{\"role\":\"assistant\",\"content\":"
               "\"\"},\"logprobs\":null,\"finish_reason\":null}]",
               seq->index);
    } else if (call->chat) {
        append(buf, size, &used,
               "{\"index\":%u,\"delta\":{\"content\":\"%c\"},\"logprobs\":null,"
               "\"finish_reason\":%s%s}]",
               seq->index, token, end, last ? ",\"stop_reason\":null" : "");
    } else {
        append(buf, size, &used,
               "{\"index\":%u,\"text\":\"%c\",\"logprobs\":null,"
               "\"finish_reason\":%s,\"stop_reason\":null}]",
               seq->index, token, end);
    }
    if (call->continuous_usage) {
        append_usage(buf, size, &used, call);
    }
    append(buf, size, &used, "}\n\n");
    return used;
}

static bool send_chunk(struct bt_call *call, const struct bt_seq *seq,
                       int token, bool last)
{
    char buf[1024];
    size_t used = chunk(buf, sizeof(buf), call, seq, token, last);
    return send_event(call, buf, used);
}

/* Send what one sequence has new; false: stop for now. */
static bool send_tokens(struct bt_call *call, struct bt_seq *seq)
{
    while (seq->sent < seq->out_count) {
        if (call->blocked || call->http == NULL) {
            return false;
        }
        uint32_t token = seq->tokens[seq->prompt_count + seq->sent];
        bool last = seq->sent + 1 == seq->max_tokens;
        if (call->chat && !seq->role_sent) {
            if (!send_chunk(call, seq, -1, false)) {
                return false;
            }
            seq->role_sent = true;
            continue;
        }
        if (!send_chunk(call, seq, (int)token, last)) {
            return false;
        }
        seq->sent++;
    }
    return true;
}

static void end_stream(struct bt_call *call)
{
    char buf[1024];
    size_t used = 0;
    if (call->include_usage) {
        append_head(buf, sizeof(buf), &used, call);
        append(buf, sizeof(buf), &used, "]");
        append_usage(buf, sizeof(buf), &used, call);
        append(buf, sizeof(buf), &used, "}\n\n");
    }
    append(buf, sizeof(buf), &used, "data: [DONE]\n\n");
    if (send_event(call, buf, used)) {
        call->ended = true;
        bt_httpd_stream_end(call->http);
    }
}

void bt_call_progress(struct bt_call *call)
{
    if (call == NULL || call->http == NULL || call->ended || call->blocked) {
        return;
    }
    if (!call->stream) {
        if (call->done_count == call->seq_count) {
            call->ended = true;
            reply_whole(call);
        }
        return;
    }
    begin_stream(call);
    for (uint32_t i = 0; i < call->seq_count; i++) {
        if (!send_tokens(call, call->seqs[i])) {
            return;
        }
    }
    if (call->done_count == call->seq_count && !call->blocked) {
        end_stream(call);
    }
}

void bt_call_fail(struct bt_call *call, int http_status, const char *message)
{
    if (call->http == NULL || call->ended) {
        return;
    }
    call->ended = true;
    if (!call->begun) {
        bt_reply_error(call->http, http_status, message, NULL);
        return;
    }
    char *text = error_text(http_status, message, NULL);
    char buf[512];
    size_t used = 0;
    append(buf, sizeof(buf), &used, "data: %s\n\ndata: [DONE]\n\n",
           text != NULL ? text : "{\"error\":{}}");
    free(text);
    if (send_event(call, buf, used)) {
        bt_httpd_stream_end(call->http);
    } else if (call->http != NULL) {
        bt_httpd_stream_abort(call->http);
    }
}

/* ---- life of a call ---- */

static void on_over(void *arg)
{
    struct bt_call *call = arg;
    struct bt_engine *e = call->engine;
    call->http = NULL;
    if (!call->reaping) {
        call->reaping = true;
        call->next_reap = e->reap;
        e->reap = call;
    }
    if (!e->stopping) {
        bt_engine_kick(e);
    }
}

void bt_call_watch(struct bt_call *call)
{
    bt_httpd_watch(call->http, on_over, on_over, call);
}

static void call_free(struct bt_call *call)
{
    struct bt_engine *e = call->engine;
    for (uint32_t i = 0; i < call->seq_count; i++) {
        struct bt_seq *seq = call->seqs[i];
        bt_engine_abort(seq);
        if (seq->state == BT_SEQ_DONE) {
            bt_seq_free(seq);
        }
    }
    if (call->prev == NULL) {
        e->calls = call->next;
    } else {
        call->prev->next = call->next;
    }
    if (call->next != NULL) {
        call->next->prev = call->prev;
    }
    free(call->seqs);
    free(call);
}

void bt_call_reap(struct bt_engine *e)
{
    while (e->reap != NULL) {
        struct bt_call *call = e->reap;
        e->reap = call->next_reap;
        call_free(call);
    }
}
