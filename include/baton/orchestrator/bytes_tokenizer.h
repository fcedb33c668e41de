/* The `bytes` tokenizer (`tokenizer: bytes`, spoken by the emulated engine):
 * one token per UTF-8 byte. Pure.
 *
 * Each call appends to out[*count ...] and moves *count; BT_TOO_LARGE (nothing
 * more is written) when max would be passed.
 *
 * Chat template: every message is "<|" role "|>" content "\n"; a final
 * "<|assistant|>" asks for the answer. Content parts of type text are joined
 * without a separator; other parts and null count as empty. */
#ifndef BATON_ORCHESTRATOR_BYTES_TOKENIZER_H
#define BATON_ORCHESTRATOR_BYTES_TOKENIZER_H

#include "baton/base/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum bt_status bt_bytes_tokenize_text(const char *text, size_t bytes,
                                      uint32_t *out, size_t max, size_t *count);
enum bt_status bt_bytes_tokenize_role(const char *role, size_t bytes,
                                      uint32_t *out, size_t max, size_t *count);
enum bt_status bt_bytes_tokenize_message_end(uint32_t *out, size_t max,
                                             size_t *count);
enum bt_status bt_bytes_tokenize_answer(uint32_t *out, size_t max,
                                        size_t *count);

/* A prompt's tokens in the caller's memory, at most max. */
struct bt_bytes_prompt {
    uint32_t *tokens;
    size_t max;
    size_t count;      /* start with 0, or behind what is there already */
    size_t text_count; /* written: tokens before the first part that is not
                          text (count without one); from there on prompts with
                          the same tokens may differ */
};
/* Raw JSON of a prompt: a string, or with `chat` an array of messages.
 * BT_TYPE: neither; BT_INVALID: malformed; BT_TOO_LARGE. On failure count and
 * text_count say nothing. */
enum bt_status bt_bytes_tokenize_json(const char *json, size_t bytes, bool chat,
                                      struct bt_bytes_prompt *prompt);

#endif
