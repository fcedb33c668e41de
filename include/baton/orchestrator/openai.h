/* OpenAI-style request bodies: what baton reads from them and how the bodies
 * of the two legs are made (vLLM NIXL pull dialect; engine-wire.md sections
 * 3.2, 3.3, 4.2, 4.4). Pure. Bodies are never parsed into a tree; the
 * kv_transfer_params that pass through are raw bytes.
 */
#ifndef BATON_ORCHESTRATOR_OPENAI_H
#define BATON_ORCHESTRATOR_OPENAI_H

#include "baton/base/status.h"
#include "baton/orchestrator/json.h"

enum bt_route { BT_ROUTE_COMPLETIONS, BT_ROUTE_CHAT };

enum bt_prompt_kind {
    BT_PROMPT_TEXT,        /* "..." */
    BT_PROMPT_TOKENS,      /* [1,2,3] */
    BT_PROMPT_TEXT_BATCH,  /* ["a","b"]: served whole by one worker */
    BT_PROMPT_TOKEN_BATCH, /* [[1],[2]]: likewise */
    BT_PROMPT_MESSAGES     /* chat */
};

/* What of a prompt its tokens do not show: two prompts may have the same
 * tokens, as a template and /tokenize give them, and yet be different ones
 * (engine-wire.md 2.3, 4.7). Such tokens name no block. */
enum bt_openai_hidden {
    BT_HIDDEN_NOTHING,
    BT_HIDDEN_PART,  /* from the first part of a message on that is not text:
                        image, audio, video, file, embeddings, unknown */
    BT_HIDDEN_MEMBER /* all of it: a member of the body changes the prompt */
};
/* "none", "multimodal", "hidden_member". */
const char *bt_openai_hidden_name(enum bt_openai_hidden hidden);

/* What baton needs to know of a body; spans point into it. */
struct bt_openai_request {
    enum bt_route route;
    struct bt_json root;
    struct bt_json model;  /* string */
    struct bt_json prompt; /* prompt or messages */
    enum bt_prompt_kind kind;
    bool stream;
    uint64_t max_tokens; /* max_completion_tokens wins for chat; 0 = none */
    uint64_t n;          /* 1 when absent */
    char salt[256];      /* decoded cache_salt, not terminated */
    size_t salt_bytes;
    int32_t priority;     /* larger first: vLLM's "priority" negated, cut to the
                             range; 0 when absent or no whole number */
    size_t client_params; /* client-supplied hand-off fields: removed */
    bool pd_allowed;      /* false: n > 1, best_of > 1, batches,
                             prompt_logprobs, echo + logprobs,
                             use_beam_search */
    size_t prompt_count;  /* 1, or the batch's size */
    enum bt_openai_hidden hidden;
    uint64_t truncate_tokens; /* truncate_prompt_tokens: the engine takes the
                                 last so many; 0 = all */
    const char *pd_refusal;   /* short reason name when !pd_allowed */
    const char *body;         /* the whole body as it came, not owned */
    size_t body_bytes;
};

/* Parse and validate. On failure message_out (>= 160 bytes, terminated) says
 * what is wrong in words fit for the client ("'prompt' is empty", with the
 * byte position for malformed JSON), never quoting prompt text. BT_INVALID /
 * BT_TYPE -> 400, BT_TOO_LARGE (depth) -> 400. Checks before leg P what would
 * make D refuse while parsing: stream_options without stream, min_tokens >
 * max_tokens, non-integer or zero max_tokens, empty prompt, mixed arrays. */
enum bt_status bt_openai_parse(enum bt_route route, const char *body,
                               size_t bytes, struct bt_openai_request *out,
                               char *message_out, size_t message_size);

/* Is this part of a message's content text, for every engine? */
bool bt_openai_part_is_text(const struct bt_json *part);

/* Token ids of a BT_PROMPT_TOKENS prompt into out; BT_INVALID for ids outside
 * u32, BT_TOO_LARGE when there are more than max. */
enum bt_status bt_openai_token_ids(const struct bt_openai_request *request,
                                   uint32_t *out, size_t max,
                                   size_t *count_out);

/* A vllm_xargs that has vLLM announce the reused prefix of the request again
 * (engine-wire.md 1.12, healing): the client's, whose bytes stay, and
 * kv_cache_report_mode. Needs at most its bytes + 64. BT_EXISTS: the client has
 * set that mode, BT_TYPE: its vllm_xargs is no object; both are to be left
 * alone, as nothing useful is in out. */
enum bt_status bt_openai_full_report(const struct bt_openai_request *request,
                                     struct bt_text *out);
/* Bodies of the legs; the output needs at most body bytes + xargs bytes + 512
 * (leg P) or body bytes + params bytes + 64 (leg D). xargs: vllm_xargs instead
 * of the client's, or NULL. params: raw JSON object of P's reply, or NULL for a
 * plain request. */
enum bt_status bt_openai_leg_prefill(const struct bt_openai_request *request,
                                     const struct bt_text *xargs,
                                     struct bt_text *out);
enum bt_status bt_openai_leg_decode(const struct bt_openai_request *request,
                                    const struct bt_json *params,
                                    struct bt_text *out);
/* Body of POST /tokenize for the prompt (completion or chat form). */
enum bt_status bt_openai_tokenize_body(const struct bt_openai_request *request,
                                       struct bt_text *out);
/* "tokens" of a /tokenize reply. */
enum bt_status bt_openai_tokenize_reply(const char *body, size_t bytes,
                                        uint32_t *out, size_t max,
                                        size_t *count_out);

/* Leg P's reply. */
struct bt_prefill_reply {
    bool has_params;       /* usable: all required keys, non-empty block list */
    struct bt_json params; /* raw span in the reply, byte for byte */
    const char *missing;   /* first missing or empty key when present but
                              unusable; NULL when absent or null */
    uint32_t prompt_tokens, cached_tokens; /* usage, 0 unknown */
};
/* BT_INVALID: unparsable; BT_PEER_ERROR: 200 with an "error" member. */
enum bt_status bt_openai_prefill_reply(const char *body, size_t bytes,
                                       struct bt_prefill_reply *out);

/* {"error":{"message":..,"type":..,"param":null,"code":..}} with the type that
 * fits the HTTP status (BadRequestError 400, NotFoundError 404, ...). */
void bt_openai_error(struct bt_text *out, int http_status, const char *message);

#endif
