/* Reads queries: which fields, of what type, how many. Leaves to its users
 * which models and instances there are. No text, token or key of a request
 * goes into a message.
 */
#include "baton/orchestrator/index_query.h"

#include "baton/planner/block_hash.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SALT_MAX 8192u /* bytes of lora_name or cache_salt */

/* ---- fields ---- */

/* Present and not null. */
static bool member(const struct bt_json *object, const char *name,
                   struct bt_json *out)
{
    return bt_json_member(object, name, out, NULL) && out->type != BT_JSON_NULL;
}

static bool has_control(const char *text, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        if ((unsigned char)text[i] < 0x20 || text[i] == 0x7f)
            return true;
    return false;
}

const char *bt_index_text_field(const struct bt_json *object, const char *name,
                                char out[BT_INDEX_TEXT_MAX],
                                struct bt_index_fault *fault)
{
    char text[BT_INDEX_TEXT_MAX];
    struct bt_json value;
    uint64_t number;
    size_t bytes = 0;

    if (!member(object, name, &value))
        return bt_index_once(object, name, fault);
    if (bt_index_once(object, name, fault) != NULL)
        return fault->text;
    if (value.type == BT_JSON_NUMBER) {
        if (bt_json_u64(&value, &number) != BT_OK)
            return bt_index_fault(
                fault, "'%s' is neither a string nor a whole number", name);
        bytes = (size_t)snprintf(text, sizeof(text), "%llu",
                                 (unsigned long long)number);
    } else if (value.type != BT_JSON_STRING) {
        return bt_index_fault(
            fault, "'%s' is neither a string nor a whole number", name);
    } else if (bt_json_string(&value, text, sizeof(text) - 1, &bytes) !=
               BT_OK) {
        return bt_index_fault(fault, "'%s' is longer than %d bytes", name,
                              BT_INDEX_TEXT_MAX - 1);
    }
    if (has_control(text, bytes))
        return bt_index_fault(fault, "'%s' has control characters", name);
    memcpy(out, text, bytes);
    out[bytes] = '\0';
    return NULL;
}

const char *bt_index_u32_field(const struct bt_json *object, const char *name,
                               uint32_t max, uint32_t *out,
                               struct bt_index_fault *fault)
{
    struct bt_json value;
    uint64_t number;

    if (!member(object, name, &value))
        return bt_index_once(object, name, fault);
    if (bt_index_once(object, name, fault) != NULL)
        return fault->text;
    if (bt_json_u64(&value, &number) != BT_OK || number > max)
        return bt_index_fault(fault, "'%s' is not a whole number, 0 to %u",
                              name, max);
    *out = (uint32_t)number;
    return NULL;
}

/* ---- arrays ---- */

/* Signed ones are the same bits: hashes travel as i64 or u64. */
static bool read_hash(const struct bt_json *item, uint64_t *out)
{
    struct bt_json digits = *item;

    if (item->type != BT_JSON_NUMBER || item->bytes < 2 || item->at[0] != '-')
        return bt_json_u64(item, out) == BT_OK;
    digits.at++;
    digits.bytes--;
    if (bt_json_u64(&digits, out) != BT_OK || *out > (uint64_t)INT64_MAX + 1)
        return false;
    *out = 0 - *out;
    return true;
}

/* Room for every item: an item and its comma take two bytes at least. */
static size_t items_at_most(const struct bt_json *array, size_t max)
{
    size_t most = array->bytes / 2 + 1;

    return most < max ? most : max;
}

static const char *read_tokens(const struct bt_json *array, size_t max,
                               struct bt_index_query *q,
                               struct bt_index_fault *fault)
{
    size_t room = items_at_most(array, max), cursor = 0;
    struct bt_json item;
    uint64_t value;

    q->tokens = malloc((room + 1) * sizeof(*q->tokens));
    if (q->tokens == NULL)
        return "out of memory";
    while (bt_json_next(array, &cursor, NULL, &item)) {
        if (q->token_count == room)
            return bt_index_fault(fault,
                                  "'token_ids' has more tokens than "
                                  "the %zu that are accepted",
                                  max);
        if (bt_json_u64(&item, &value) != BT_OK || value > UINT32_MAX)
            return bt_index_fault(fault,
                                  "token_ids[%zu] is not a token id, 0 "
                                  "to 4294967295",
                                  q->token_count);
        q->tokens[q->token_count++] = (uint32_t)value;
    }
    return NULL;
}

static const char *read_hashes(const struct bt_json *array, const char *name,
                               size_t max, struct bt_index_query *q,
                               struct bt_index_fault *fault)
{
    size_t room = items_at_most(array, max), cursor = 0;
    struct bt_json item;

    q->keys = malloc((room + 1) * sizeof(*q->keys));
    if (q->keys == NULL)
        return "out of memory";
    while (bt_json_next(array, &cursor, NULL, &item)) {
        if (q->key_count == room)
            return bt_index_fault(fault,
                                  "'%s' has more hashes than the %zu "
                                  "that are accepted",
                                  name, max);
        if (!read_hash(&item, &q->keys[q->key_count]))
            return bt_index_fault(fault, "%s[%zu] is not a whole 64-bit number",
                                  name, q->key_count);
        q->key_count++;
    }
    return NULL;
}

/* ---- the query ---- */

static const char *read_model(const struct bt_json *root,
                              struct bt_index_query *q,
                              struct bt_index_fault *fault)
{
    struct bt_json value;
    bool plain = member(root, "model", &value);
    bool named = member(root, "model_name", &value);

    if (plain == named)
        return plain ? "'model' (Mooncake's shape) and 'model_name' (Dynamo's) "
                       "exclude each other"
                     : "'model' (for Mooncake's shape) or 'model_name' "
                       "(Dynamo's) is needed";
    q->shape = plain ? BT_INDEX_MOONCAKE : BT_INDEX_DYNAMO;
    return bt_index_text_field(root, plain ? "model" : "model_name", q->model,
                               fault);
}

static const char *read_scope(const struct bt_json *root,
                              struct bt_index_query *q,
                              struct bt_index_fault *says)
{
    static const struct {
        const char *name;
        size_t offset;
    } texts[] = {
        {"tenant_id", offsetof(struct bt_index_query, tenant)},
        {"instance_id", offsetof(struct bt_index_query, instance)},
        {"additionalsalt", offsetof(struct bt_index_query, additional_salt)},
        {"additional_salt", offsetof(struct bt_index_query, additional_salt)},
        {"routing_group", offsetof(struct bt_index_query, routing_group)},
    };
    const char *fault = read_model(root, q, says);
    struct bt_json value;

    memcpy(q->tenant, BT_INDEX_TENANT, sizeof(BT_INDEX_TENANT));
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]) && fault == NULL;
         i++)
        fault = bt_index_text_field(root, texts[i].name,
                                    (char *)q + texts[i].offset, says);
    if (fault == NULL)
        fault = bt_index_u32_field(root, "block_size", 1u << 20,
                                   &q->block_tokens, says);
    if (fault == NULL && member(root, "block_size", &value) &&
        q->block_tokens == 0)
        fault = "'block_size' is 0";
    return fault;
}

/* One of the two that make the namespace; malloc'd so that it may be long. */
static const char *read_secret(const struct bt_json *root, const char *name,
                               char *buf, size_t *bytes_out,
                               struct bt_index_fault *fault)
{
    struct bt_json value;
    const char *twice = bt_index_once(root, name, fault);

    *bytes_out = 0;
    if (twice != NULL || !member(root, name, &value))
        return twice;
    if (value.type != BT_JSON_STRING)
        return bt_index_fault(fault, "'%s' is not a string", name);
    if (bt_json_string(&value, buf, SALT_MAX, bytes_out) != BT_OK)
        return bt_index_fault(fault, "'%s' is longer than %u bytes", name,
                              SALT_MAX);
    return NULL;
}

static const char *read_namespace(const struct bt_json *root,
                                  struct bt_index_query *q,
                                  struct bt_index_fault *says)
{
    char lora[SALT_MAX], salt[SALT_MAX];
    size_t lora_bytes, salt_bytes;
    const char *fault = read_secret(root, "lora_name", lora, &lora_bytes, says);

    if (fault == NULL)
        fault = read_secret(root, "cache_salt", salt, &salt_bytes, says);
    if (fault == NULL)
        q->ns = bt_ns_seed(lora, lora_bytes, salt, salt_bytes);
    return fault;
}

static const char *read_by_hash(const struct bt_json *root, size_t max,
                                struct bt_index_query *q,
                                struct bt_index_fault *fault)
{
    static const char *const names[] = {"seq_hashes", "block_hashes",
                                        "block_hash"};
    struct bt_json value;

    if (member(root, "cache_salt", &value))
        return "'cache_salt' has no meaning here: the hashes carry it already";
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (!member(root, names[i], &value))
            continue;
        if (bt_index_once(root, names[i], fault) != NULL)
            return fault->text;
        if (value.type != BT_JSON_ARRAY)
            return bt_index_fault(fault, "'%s' is not an array", names[i]);
        return read_hashes(&value, names[i], max, q, fault);
    }
    return "'seq_hashes', 'block_hashes' or 'block_hash' is needed";
}

static const char *read_by_tokens(const struct bt_json *root, size_t max,
                                  struct bt_index_query *q,
                                  struct bt_index_fault *says)
{
    struct bt_json value;
    const char *fault = read_namespace(root, q, says);

    if (fault != NULL)
        return fault;
    if (!member(root, "token_ids", &value))
        return "'token_ids' is needed";
    if (value.type != BT_JSON_ARRAY)
        return "'token_ids' is not an array";
    fault = bt_index_once(root, "token_ids", says);
    return fault != NULL ? fault : read_tokens(&value, max, q, says);
}

const char *bt_index_query_read(const struct bt_index_body *body,
                                struct bt_index_query *out,
                                struct bt_index_fault *says)
{
    struct bt_index_query q = {.by_hash = body->by_hash};
    struct bt_json root;
    const char *fault = bt_index_root(body->bytes, body->count, &root, says);

    if (fault != NULL)
        return fault;
    fault = read_scope(&root, &q, says);
    if (fault == NULL)
        fault = body->by_hash
                    ? read_by_hash(&root, body->items_max, &q, says)
                    : read_by_tokens(&root, body->items_max, &q, says);
    if (fault != NULL)
        bt_index_query_fini(&q);
    else
        *out = q;
    return fault;
}

enum bt_status bt_index_query_keys(struct bt_index_query *q,
                                   uint32_t block_tokens, bool eagle)
{
    size_t count;

    if (q->by_hash)
        return BT_OK;
    count = q->token_count / block_tokens;
    free(q->keys);
    q->keys = malloc((count + 1) * sizeof(*q->keys));
    q->key_count = 0;
    if (q->keys == NULL)
        return BT_NO_MEMORY;
    q->key_count =
        eagle ? bt_block_keys_eagle(q->tokens, q->token_count, block_tokens,
                                    q->ns, q->keys, count)
              : bt_block_keys(q->tokens, q->token_count, block_tokens, q->ns,
                              q->keys, count);
    return BT_OK;
}

void bt_index_query_fini(struct bt_index_query *q)
{
    free(q->tokens);
    free(q->keys);
    q->tokens = NULL;
    q->keys = NULL;
    q->token_count = q->key_count = 0;
}
