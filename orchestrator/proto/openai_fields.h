/* Private to orchestrator/proto: what the openai_*.c files share. */
#ifndef BATON_PROTO_OPENAI_FIELDS_H
#define BATON_PROTO_OPENAI_FIELDS_H

#include "baton/orchestrator/openai.h"

/* Names that begin so are hand-off fields of the SGLang dialect. */
#define BT_OPENAI_BOOTSTRAP "bootstrap_"

/* Is this a hand-off field, never taken from a client? */
bool bt_openai_is_handoff(const struct bt_json *key);

/* A JSON list of token ids: BT_TYPE not a list, BT_INVALID an item that is no
 * u32, BT_TOO_LARGE more than max. */
enum bt_status bt_openai_ids_read(const struct bt_json *array, uint32_t *out,
                                  size_t max, size_t *count_out);

/* Sets hidden and truncate_tokens; root, prompt and kind are set. */
void bt_openai_hidden_find(struct bt_openai_request *request);

#endif
