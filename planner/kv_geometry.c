/* Bytes and descriptors of a prompt's KV. Decides how layers of each kind count
 * and knows the published configurations; leaves rates and times to
 * transfer_cost.c, and whether the receiver's blocks may be used to the
 * caller.
 *
 * Invariant: results saturate at UINT64_MAX; more tokens never cost less, more
 * held tokens never cost more.
 */
#include "baton/planner/kv_geometry.h"

#include <string.h>

#define FULL(heads, head)                                                      \
    .kind = BT_KV_FULL, .kv_heads = (heads), .head_k = (head), .head_v = (head)
#define MLA  .kind = BT_KV_MLA, .lora_rank = 512, .rope_dim = 64
#define BF16 .dtype_bytes = 2

/* cost-models.md section 2; layer counts from the models' own configurations.
 * 656 bytes for 576 elements: fp8 latent with its scales, bf16 rope part. */
static const struct bt_kv_geometry presets[] = {
    {"llama-3.2-1b", 1, {{.layers = 16, FULL(8, 64), BF16}}},
    {"llama-3.2-3b", 1, {{.layers = 28, FULL(8, 128), BF16}}},
    {"llama-3.1-8b", 1, {{.layers = 32, FULL(8, 128), BF16}}},
    {"llama-3.1-70b", 1, {{.layers = 80, FULL(8, 128), BF16}}},
    {"llama-3.1-405b", 1, {{.layers = 126, FULL(8, 128), BF16}}},
    {"mistral-7b", 1, {{.layers = 32, FULL(8, 128), BF16}}},
    {"mixtral-8x7b", 1, {{.layers = 32, FULL(8, 128), BF16}}},
    {"mistral-large-123b", 1, {{.layers = 88, FULL(8, 128), BF16}}},
    {"qwen2.5-7b", 1, {{.layers = 28, FULL(4, 128), BF16}}},
    {"qwen2.5-72b", 1, {{.layers = 80, FULL(8, 128), BF16}}},
    {"qwen3-8b", 1, {{.layers = 36, FULL(8, 128), BF16}}},
    {"qwen3-32b", 1, {{.layers = 64, FULL(8, 128), BF16}}},
    {"qwen3-30b-a3b", 1, {{.layers = 48, FULL(4, 128), BF16}}},
    {"qwen3-235b-a22b", 1, {{.layers = 94, FULL(4, 128), BF16}}},
    {"glm-4.5", 1, {{.layers = 92, FULL(8, 128), BF16}}},
    {"glm-4.5-air", 1, {{.layers = 46, FULL(8, 128), BF16}}},
    {"gpt-oss-120b",
     2,
     {{.layers = 18, FULL(8, 64), BF16},
      {.kind = BT_KV_WINDOW,
       .layers = 18,
       .kv_heads = 8,
       .head_k = 64,
       .head_v = 64,
       BF16,
       .window_tokens = 128}}},
    {"deepseek-v3", 1, {{.layers = 61, MLA, BF16}}},
    {"deepseek-v3-fp8", 1, {{.layers = 61, MLA, .dtype_bytes = 1}}},
    {"deepseek-v3-fp8_ds_mla",
     1,
     {{.layers = 61, MLA, .dtype_bytes = 656.0 / 576}}},
    {"deepseek-v3.2-fp8_ds_mla",
     1,
     {{.layers = 61, MLA, .dtype_bytes = 656.0 / 576, .extra_bytes = 132}}},
    {"kimi-k2", 1, {{.layers = 61, MLA, BF16}}},
};

#define PRESETS (sizeof(presets) / sizeof(presets[0]))

enum bt_status bt_kv_preset(const char *name, struct bt_kv_geometry *out)
{
    for (size_t i = 0; i < PRESETS; i++) {
        if (strcmp(presets[i].name, name) != 0)
            continue;
        *out = presets[i];
        return BT_OK;
    }
    return BT_NOT_FOUND;
}

const char *bt_kv_preset_name(size_t i)
{
    return i < PRESETS ? presets[i].name : NULL;
}

static uint64_t add(uint64_t a, uint64_t b)
{
    return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}

static uint64_t times(uint64_t a, uint64_t b)
{
    uint64_t product;

    return __builtin_mul_overflow(a, b, &product) ? UINT64_MAX : product;
}

static uint64_t ceil_div(uint64_t a, uint64_t b)
{
    return a / b + (a % b != 0);
}

/* Elements of a token in one layer; none for a state. */
static uint64_t elements(const struct bt_kv_group *g)
{
    switch (g->kind) {
    case BT_KV_FULL:
    case BT_KV_WINDOW:
        return times(g->kv_heads, (uint64_t)g->head_k + g->head_v);
    case BT_KV_MLA:
        return (uint64_t)g->lora_rank + g->rope_dim;
    case BT_KV_STATE:
        return 0;
    }
    return 0;
}

/* A width that is not a number or negative counts as the widest: a bad
 * configuration must look dear, not free. Rounded: 656/576 * 576 is 656. */
static uint64_t token_layer_bytes(const struct bt_kv_group *g)
{
    double bytes = (double)elements(g) * g->dtype_bytes;

    if (g->kind == BT_KV_STATE)
        return 0;
    if (!(bytes >= 0 && bytes < 9e18))
        return UINT64_MAX;
    return add((uint64_t)(bytes + 0.5), g->extra_bytes);
}

static uint32_t groups_of(const struct bt_kv_geometry *g)
{
    return g->group_count < BT_KV_GROUPS_MAX ? g->group_count
                                             : BT_KV_GROUPS_MAX;
}

uint64_t bt_kv_bytes_per_token(const struct bt_kv_geometry *g)
{
    uint64_t sum = 0;

    for (uint32_t i = 0; i < groups_of(g); i++) {
        const struct bt_kv_group *group = &g->groups[i];

        if (group->kind == BT_KV_FULL || group->kind == BT_KV_MLA)
            sum = add(sum, times(group->layers, token_layer_bytes(group)));
    }
    return sum;
}

/* Blocks of this group that travel out of `lacking` at the end of the prompt.
 * A window only needs its last tokens. */
static uint64_t group_blocks(const struct bt_kv_group *g, uint64_t tokens,
                             uint64_t lacking, uint32_t block)
{
    uint64_t span = (uint64_t)g->window_tokens + block;
    uint64_t window;

    if (g->kind != BT_KV_WINDOW)
        return lacking;
    window = ceil_div(tokens < span ? tokens : span, block);
    return lacking < window ? lacking : window;
}

uint64_t bt_kv_bytes(const struct bt_kv_geometry *g, uint64_t tokens,
                     uint64_t held, uint32_t block_tokens)
{
    uint32_t block = block_tokens > 0 ? block_tokens : 1;
    uint64_t all = ceil_div(tokens, block);
    uint64_t lacking = held / block < all ? all - held / block : 0;
    uint64_t sum = 0;

    for (uint32_t i = 0; lacking > 0 && i < groups_of(g); i++) {
        const struct bt_kv_group *group = &g->groups[i];
        uint64_t layer;

        if (group->kind == BT_KV_STATE)
            layer = group->state_bytes;
        else
            layer =
                times(times(group_blocks(group, tokens, lacking, block), block),
                      token_layer_bytes(group));
        sum = add(sum, times(group->layers, layer));
    }
    return sum;
}

uint32_t bt_kv_replication(const struct bt_kv_geometry *g, uint32_t tp_d)
{
    uint64_t most = 1;

    for (uint32_t i = 0; i < groups_of(g); i++) {
        const struct bt_kv_group *group = &g->groups[i];
        uint64_t heads = group->kind == BT_KV_MLA ? 1 : group->kv_heads;
        uint64_t rho;

        if (group->kind == BT_KV_STATE || heads == 0)
            continue;
        rho = ceil_div(tp_d, heads);
        most = rho > most ? rho : most;
    }
    return (uint32_t)most;
}

uint64_t bt_kv_descriptors(uint64_t blocks, uint32_t regions, uint32_t tp_p,
                           uint32_t tp_d)
{
    uint32_t p = tp_p > 0 ? tp_p : 1;
    uint32_t d = tp_d > 0 ? tp_d : 1;
    uint64_t ratio = p > d ? ceil_div(p, d) : ceil_div(d, p);

    return times(times(blocks, regions), ratio);
}

uint64_t bt_kv_descriptors_coalesced(uint64_t runs_source, uint64_t runs_dest)
{
    if (runs_source == 0 || runs_dest == 0)
        return 0;
    return add(runs_source, runs_dest - 1);
}
