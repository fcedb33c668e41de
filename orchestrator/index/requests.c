/* Bodies of /register and /unregister: Mooncake's names of the fields and
 * Dynamo's mean the same (index_service.h). Checks form and length only; what
 * an endpoint may look like is the event plane's.
 */
#include "service_impl.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#define AT(member) offsetof(struct bt_index_instance, member)

/* Later names win over earlier ones. */
static const struct {
    const char *name;
    size_t offset;
} texts[] = {
    {"modelname", AT(model)},
    {"model", AT(model)},
    {"model_name", AT(model)},
    {"instance_id", AT(instance)},
    {"tenant_id", AT(tenant)},
    {"additionalsalt", AT(additional_salt)},
    {"additional_salt", AT(additional_salt)},
    {"routing_group", AT(routing_group)},
    {"lora_name", AT(lora)},
    {"endpoint", AT(endpoint)},
    {"replay_endpoint", AT(replay)},
    {"type", AT(type)},
};

/* SGLang's name for it, and ours. */
static const char *read_eagle(const struct bt_json *root, bool *out,
                              struct bt_index_fault *fault)
{
    static const char *const names[] = {"is_eagle", "eagle"};
    struct bt_json value;

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (bt_index_once(root, names[i], fault) != NULL)
            return fault->text;
        if (!bt_json_member(root, names[i], &value, NULL) ||
            value.type == BT_JSON_NULL)
            continue;
        if (value.type != BT_JSON_TRUE && value.type != BT_JSON_FALSE)
            return bt_index_fault(fault, "'%s' is neither true nor false",
                                  names[i]);
        *out = value.type == BT_JSON_TRUE;
    }
    return NULL;
}

static const char *read_fields(const struct bt_json *root,
                               struct bt_index_instance *out,
                               struct bt_index_fault *says)
{
    const char *fault = NULL;

    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]) && fault == NULL;
         i++)
        fault = bt_index_text_field(root, texts[i].name,
                                    (char *)out + texts[i].offset, says);
    if (fault == NULL)
        fault = bt_index_u32_field(root, "block_size", 1u << 20,
                                   &out->block_tokens, says);
    if (fault == NULL)
        fault =
            bt_index_u32_field(root, "dp_rank", 65535, &out->first_rank, says);
    if (fault == NULL)
        fault = bt_index_u32_field(root, "ranks", BT_SNAPSHOT_RANKS_MAX,
                                   &out->ranks, says);
    if (fault == NULL)
        fault = read_eagle(root, &out->eagle, says);
    if (fault == NULL && out->instance[0] == '\0')
        fault = "'instance_id' is needed";
    if (fault == NULL && out->model[0] == '\0')
        fault = "'model_name' (or 'modelname') is needed";
    return fault;
}

const char *read_instance(const char *body, size_t bytes,
                          struct bt_index_instance *out,
                          struct bt_index_fault *says)
{
    struct bt_index_instance in;
    struct bt_json root;
    const char *fault = bt_index_root(body, bytes, &root, says);

    bt_index_instance_init(&in);
    if (fault == NULL)
        fault = read_fields(&root, &in, says);
    if (fault != NULL)
        return fault;
    if (in.block_tokens == 0)
        return "'block_size' (tokens per block, above 0) is needed";
    if (in.endpoint[0] == '\0')
        return "'endpoint' (tcp://HOST:PORT of its KV events) is needed";
    if (in.ranks == 0)
        return "'ranks' is 0";
    if (in.type[0] != '\0' && strcasecmp(in.type, "vllm") != 0 &&
        strcasecmp(in.type, "sglang") != 0 &&
        strcasecmp(in.type, "mooncake") != 0)
        return "'type' is vLLM, SGLang or Mooncake";
    *out = in;
    return NULL;
}

const char *read_identity(const char *body, size_t bytes,
                          struct bt_index_instance *out, bool *has_rank_out,
                          struct bt_index_fault *says)
{
    struct bt_index_instance in;
    struct bt_json root, value;
    const char *fault = bt_index_root(body, bytes, &root, says);

    bt_index_instance_init(&in);
    if (fault == NULL)
        fault = read_fields(&root, &in, says);
    if (fault != NULL)
        return fault;
    *has_rank_out = bt_json_member(&root, "dp_rank", &value, NULL) &&
                    value.type != BT_JSON_NULL;
    *out = in;
    return NULL;
}

void write_instance(struct bt_text *t, const struct bt_index_instance *in)
{
    bt_text_str(t, "{\"instance_id\":");
    bt_text_quoted(t, in->instance, strlen(in->instance));
    field_str(t, "model_name", in->model);
    field_str(t, "tenant_id", in->tenant);
    field_str(t, "additional_salt", in->additional_salt);
    field_str(t, "routing_group", in->routing_group);
    field_str(t, "lora_name", in->lora);
    field_str(t, "type", in->type);
    field_str(t, "endpoint", in->endpoint);
    field_str(t, "replay_endpoint", in->replay);
    field_u64(t, "block_size", in->block_tokens);
    field_u64(t, "dp_rank", in->first_rank);
    field_u64(t, "ranks", in->ranks);
    bt_text_str(t, in->eagle ? ",\"eagle\":true" : ",\"eagle\":false");
}
