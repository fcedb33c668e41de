/* KV bytes and descriptors against cost-models.md section 2, W2 and W3. */
#include "baton/planner/kv_geometry.h"
#include "cost_digits.h"

static struct bt_kv_geometry preset(const char *name)
{
    struct bt_kv_geometry g;

    assert_int_equal(bt_kv_preset(name, &g), BT_OK);
    return g;
}

static void table_of_section_2(void **state)
{
    static const struct {
        const char *name;
        uint64_t bytes;
    } rows[] = {
        {"llama-3.2-1b", 32768},
        {"llama-3.2-3b", 114688},
        {"llama-3.1-8b", 131072},
        {"llama-3.1-70b", 327680},
        {"llama-3.1-405b", 516096},
        {"mistral-7b", 131072},
        {"mixtral-8x7b", 131072},
        {"mistral-large-123b", 360448},
        {"qwen2.5-7b", 57344},
        {"qwen2.5-72b", 327680},
        {"qwen3-8b", 147456},
        {"qwen3-32b", 262144},
        {"qwen3-30b-a3b", 98304},
        {"qwen3-235b-a22b", 192512},
        {"glm-4.5", 376832},
        {"glm-4.5-air", 188416},
        {"gpt-oss-120b", 36864},
        {"deepseek-v3", 70272},
        {"deepseek-v3-fp8", 35136},
        {"deepseek-v3-fp8_ds_mla", 40016},
        {"deepseek-v3.2-fp8_ds_mla", 61 * (656 + 132)},
        {"kimi-k2", 70272},
    };
    size_t count = 0;

    (void)state;
    while (bt_kv_preset_name(count) != NULL)
        count++;
    assert_int_equal(count, sizeof(rows) / sizeof(rows[0]));
    for (size_t i = 0; i < count; i++) {
        struct bt_kv_geometry g = preset(rows[i].name);

        assert_string_equal(g.name, rows[i].name);
        assert_int_equal(bt_kv_bytes_per_token(&g), rows[i].bytes);
    }
}

static void unknown_preset_leaves_out_alone(void **state)
{
    struct bt_kv_geometry g = {.group_count = 7};

    (void)state;
    assert_int_equal(bt_kv_preset("llama-9", &g), BT_NOT_FOUND);
    assert_int_equal(g.group_count, 7);
}

static void w2_bytes(void **state)
{
    struct bt_kv_geometry llama = preset("llama-3.1-70b");
    struct bt_kv_geometry qwen = preset("qwen3-235b-a22b");
    struct bt_kv_geometry deepseek = preset("deepseek-v3");

    (void)state;
    assert_int_equal(bt_kv_bytes(&llama, 12035, 256 * 16, 16), 2605711360);
    assert_int_equal(bt_kv_bytes(&llama, 5000, 0, 16), 1641021440);
    assert_int_equal(bt_kv_replication(&qwen, 8), 2);
    assert_int_equal(bt_kv_bytes_per_token(&qwen) * 2, 385024);
    assert_int_equal(bt_kv_replication(&deepseek, 8), 8);
    assert_int_equal(bt_kv_bytes(&deepseek, 8192, 0, 16) * 8, 4605345792);
}

/* The 8K column of the table. */
static void prompts_of_8k(void **state)
{
    struct bt_kv_geometry g = preset("llama-3.1-8b");

    (void)state;
    assert_int_equal(bt_kv_bytes(&g, 8192, 0, 16), 1ULL << 30);
    g = preset("deepseek-v3");
    assert_int_equal(bt_kv_bytes(&g, 8192, 0, 16) >> 20, 549);
    /* 18 full layers and the last 128 + 16 tokens of 18 others. */
    g = preset("gpt-oss-120b");
    assert_int_equal(bt_kv_bytes(&g, 8192, 0, 16),
                     36864ULL * 8192 + 18ULL * 2048 * 144);
}

static void held_blocks(void **state)
{
    struct bt_kv_geometry g = preset("gpt-oss-120b");

    (void)state;
    /* One token into the next block: that block travels, and of the window
     * layers no more than it either. */
    assert_int_equal(bt_kv_bytes(&g, 8193, 8192, 16), 36864ULL * 2 * 16);
    /* Held tokens of an open block do not count. */
    assert_int_equal(bt_kv_bytes(&g, 32, 31, 16), 36864ULL * 2 * 16);
    assert_int_equal(bt_kv_bytes(&g, 32, 32, 16), 0);
    assert_int_equal(bt_kv_bytes(&g, 32, 90000, 16), 0);
    assert_int_equal(bt_kv_bytes(&g, 0, 0, 16), 0);
}

static void state_layers_are_constant(void **state)
{
    struct bt_kv_geometry g = {
        .group_count = 2,
        .groups = {{.kind = BT_KV_STATE, .layers = 10, .state_bytes = 5000},
                   {.kind = BT_KV_FULL,
                    .layers = 2,
                    .kv_heads = 1,
                    .head_k = 8,
                    .head_v = 8,
                    .dtype_bytes = 2,
                    .extra_bytes = 4}}};

    (void)state;
    assert_int_equal(bt_kv_bytes_per_token(&g), 2 * (32 + 4));
    assert_int_equal(bt_kv_bytes(&g, 100, 0, 10), 50000 + 100 * 72);
    assert_int_equal(bt_kv_bytes(&g, 1000, 900, 10), 50000 + 100 * 72);
}

static void bad_geometry_is_dear(void **state)
{
    struct bt_kv_geometry g = preset("llama-3.1-8b");

    (void)state;
    g.groups[0].dtype_bytes = (double)NAN;
    assert_true(bt_kv_bytes(&g, 1, 0, 16) == UINT64_MAX);
    g.groups[0].dtype_bytes = -1;
    assert_true(bt_kv_bytes_per_token(&g) == UINT64_MAX);
    g = preset("llama-3.1-8b");
    assert_true(bt_kv_bytes(&g, UINT64_MAX, 0, 16) == UINT64_MAX);
    g.group_count = 1000; /* the rest of the array is empty */
    assert_int_equal(bt_kv_bytes(&g, 16, 0, 16), 16 * 131072);
}

static void w3_descriptors(void **state)
{
    (void)state;
    assert_int_equal(bt_kv_descriptors(8192 / 16, 80 * 2, 8, 8), 81920);
    assert_int_equal(bt_kv_descriptors(8192 / 16, 80 * 2, 4, 8), 163840);
    assert_int_equal(bt_kv_descriptors(8192 / 16, 80 * 2, 8, 4), 163840);
    assert_int_equal(bt_kv_descriptors(10, 1, 0, 0), 10);
    assert_true(bt_kv_descriptors(UINT64_MAX, 2, 8, 8) == UINT64_MAX);
    assert_int_equal(bt_kv_descriptors_coalesced(7, 5), 11);
    assert_int_equal(bt_kv_descriptors_coalesced(7, 0), 0);
    assert_int_equal(bt_kv_descriptors_coalesced(0, 5), 0);
    assert_true(bt_kv_descriptors_coalesced(UINT64_MAX, 5) == UINT64_MAX);
}

static void replication(void **state)
{
    struct bt_kv_geometry g = preset("qwen3-235b-a22b"); /* 4 heads */

    (void)state;
    assert_int_equal(bt_kv_replication(&g, 1), 1);
    assert_int_equal(bt_kv_replication(&g, 4), 1);
    assert_int_equal(bt_kv_replication(&g, 16), 4);
    assert_int_equal(bt_kv_replication(&g, 0), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(table_of_section_2),
        cmocka_unit_test(unknown_preset_leaves_out_alone),
        cmocka_unit_test(w2_bytes),
        cmocka_unit_test(prompts_of_8k),
        cmocka_unit_test(held_blocks),
        cmocka_unit_test(state_layers_are_constant),
        cmocka_unit_test(bad_geometry_is_dear),
        cmocka_unit_test(w3_descriptors),
        cmocka_unit_test(replication),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
