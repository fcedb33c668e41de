/* One client request from the parsed body to its one outcome: the client's
 * side (http), the two legs, and what must live until the core says FINISHED.
 *
 *   front_handle -> exchange_open -> [tokenize] -> exchange_submit -> core
 *   core effects -> exchange_perform -> leg_prefill_send / leg_decode_send
 *   leg call-backs -> events -> core -> ... -> FINISHED -> exchange_finish
 *
 * Invariant: the exchange is freed when the core has finished it AND the
 * client's side has ended; http is NULL once the client's side has ended.
 */
#ifndef BATON_SHELL_EXCHANGE_H
#define BATON_SHELL_EXCHANGE_H

#include "baton/orchestrator/bytes_tokenizer.h"
#include "baton/orchestrator/openai.h"
#include "said.h"
#include "serve_priv.h"

#define REQUEST_ID_MAX  128
#define UPSTREAM_ID_MAX 40

struct leg {
    struct bt_call *call; /* NULL: not out */
    uint32_t attempt;
    uint32_t worker;
    char *body;  /* owned while the call is out */
    char *reply; /* leg P's reply, or D's unstreamed one */
    size_t reply_used, reply_size;
    int status;    /* HTTP, 0 before the head */
    bool sse;      /* the reply is an event stream */
    bool json;     /* ... or JSON */
    bool overflow; /* the reply is larger than the limit */
    bool has_rank; /* one of the worker's ranks should take it */
    uint32_t rank;
    int64_t transfer_ns; /* foreseen for the pull that it starts; 0: none */
};

struct exchange {
    struct bt_serve *serve;
    struct exchange *prev, *next;
    struct bt_httpd_request *http;
    struct bt_request_id id;
    bool submitted, finished;
    bool cut;    /* ended by the server's drain */
    bool paused; /* the worker is held up because the client does not read */
    char request_id[REQUEST_ID_MAX + 1];
    char upstream_id[UPSTREAM_ID_MAX + 1]; /* of the current pair of legs */
    struct bt_openai_request request;      /* spans into the client's body */
    uint32_t model;
    const char *adapter; /* config's string, NULL = base model */
    uint64_t ns;
    uint64_t *keys;
    size_t key_count;
    uint32_t prompt_tokens;
    bool tokens_known;
    enum bt_openai_hidden hidden; /* why keys end before the tokens do */
    struct leg prefill, decode;
    char *params_reply; /* leg P's reply that holds params */
    struct bt_json params;
    struct said said;
    char *held; /* stream bytes before the first whole event */
    size_t held_used;
    bool stream_started; /* the client got its head */
    bool error_relayed;  /* D's own error event went through */
    char tail[2];        /* last two bytes of the stream */
    uint64_t tokens_seen;
    int64_t arrived_ns, first_token_ns, last_token_ns;
    int64_t tokenize_ns, plan_ns;
    struct tokenize_job *tokenize;
    struct bt_decision decision; /* once the core has finished it */
};

#define HELD_MAX 65536u

/* exchange.c */
struct exchange *exchange_open(struct bt_serve *serve,
                               struct bt_httpd_request *http);
void exchange_discard(struct exchange *x); /* answered before the core */
/* Hash (tokens may be NULL: unknown) and hand it to the core. The first `told`
 * tokens show all there is of the prompt up to them. */
void exchange_submit(struct exchange *x, const uint32_t *tokens, size_t count,
                     size_t told);
void exchange_fail_leg(struct exchange *x, enum bt_leg leg,
                       enum bt_leg_failure how, int status);
enum bt_status exchange_event(struct exchange *x, struct bt_event *event);
void exchange_new_upstream_id(struct exchange *x);

/* prompt.c */
/* Sets keys, key_count, prompt_tokens, hidden; BT_NO_MEMORY: no keys. */
enum bt_status prompt_hash(struct exchange *x, const uint32_t *tokens,
                           size_t count, size_t told);

/* legs.c: what both legs share */
struct bt_call_head;
enum bt_status leg_start(struct exchange *x, struct leg *leg, const char *path,
                         const struct bt_call_spec *call_backs);
void leg_reset(struct leg *leg);
enum bt_status leg_keep(struct leg *leg, const char *bytes, size_t count,
                        size_t limit);
const char *leg_path(const struct exchange *x);
bool leg_map_end(const struct bt_call_end *end, enum bt_leg_failure *how_out);
void leg_head(struct leg *leg, const struct bt_call_head *head);
void leg_count(struct bt_serve *serve, const struct bt_call_end *end);

/* leg_prefill.c, leg_decode.c */
void leg_prefill_send(struct exchange *x, const struct bt_effect *effect);
void leg_decode_send(struct exchange *x, const struct bt_effect *effect);
/* Tell the core that the stream lives (its client is slow). */
void leg_decode_alive(struct exchange *x);
void handoff_release(struct exchange *x, uint32_t worker);

/* tokenize.c */
enum bt_status tokenize_start(struct exchange *x);
void tokenize_cancel(struct exchange *x);
enum bt_status tokenizer_start(struct bt_serve *serve);
void tokenizer_stop(struct bt_serve *serve);
/* The byte tokenizer of the emulated engine: 1 token per UTF-8 byte; chat as
 * "<|role|>content\n" ... "<|assistant|>". False: no memory, too long or
 * malformed. out->tokens is the caller's to free. */
bool bytes_tokenize(const struct bt_openai_request *request, size_t max,
                    struct bt_bytes_prompt *out);

#endif
