/* How many bytes and descriptors the KV of a prompt is (cost-models.md
 * section 2). Pure; u64 bytes, saturating.
 */
#ifndef BATON_PLANNER_KV_GEOMETRY_H
#define BATON_PLANNER_KV_GEOMETRY_H

#include "baton/base/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum bt_kv_kind {
    BT_KV_FULL,   /* MHA, GQA: kv_heads * (head_k + head_v) * dtype_bytes */
    BT_KV_MLA,    /* (lora_rank + rope_dim) * dtype_bytes, one head */
    BT_KV_WINDOW, /* as full, but min(L, window + block) tokens */
    BT_KV_STATE   /* constant state per request (recurrent layers) */
};
/* Layers that are alike. */
struct bt_kv_group {
    enum bt_kv_kind kind;
    uint32_t layers;
    uint32_t kv_heads, head_k, head_v; /* full, window */
    uint32_t lora_rank, rope_dim;      /* mla */
    double dtype_bytes;                /* 2 bf16, 1 fp8; 656.0/576 fp8_ds_mla */
    uint32_t extra_bytes;   /* per token and layer: indexer, scales */
    uint32_t window_tokens; /* window */
    uint32_t state_bytes;   /* state, per layer */
};
#define BT_KV_GROUPS_MAX 8
struct bt_kv_geometry {
    const char *name;
    uint32_t group_count;
    struct bt_kv_group groups[BT_KV_GROUPS_MAX];
};

/* Published configurations ("llama-3.1-70b", "deepseek-v3", ...): the table of
 * section 2. BT_NOT_FOUND leaves out untouched. */
enum bt_status bt_kv_preset(const char *name, struct bt_kv_geometry *out);
const char *bt_kv_preset_name(size_t i); /* NULL past the end */

/* Bytes per token of the layers that grow without bound. */
uint64_t bt_kv_bytes_per_token(const struct bt_kv_geometry *g);
/* Bytes of a prompt of L tokens in blocks, of which the receiver holds the
 * first `held` tokens; partial tail block in full. Windows: of the last
 * min(L, window + block) tokens those in blocks it lacks; state: once, unless
 * it holds every block. A width that is no number or negative gives
 * UINT64_MAX; block_tokens 0 counts as 1. */
uint64_t bt_kv_bytes(const struct bt_kv_geometry *g, uint64_t tokens,
                     uint64_t held, uint32_t block_tokens);
/* rho: max(1, tp_d / kv_heads) rounded up, MLA: tp_d; the greatest over the
 * groups. */
uint32_t bt_kv_replication(const struct bt_kv_geometry *g, uint32_t tp_d);
/* Descriptors per rank: blocks * regions * max(tp)/min(tp), the ratio rounded
 * up; tp 0 counts as 1. */
uint64_t bt_kv_descriptors(uint64_t blocks, uint32_t regions, uint32_t tp_p,
                           uint32_t tp_d);
/* After coalescing r_s source and r_d destination runs: the upper bound
 * r_s + r_d - 1 (0 when either is 0). */
uint64_t bt_kv_descriptors_coalesced(uint64_t runs_source, uint64_t runs_dest);

#endif
