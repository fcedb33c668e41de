/* Kinds of traffic the generator knows, and their draws. Decides how long,
 * how many turns, how much is shared; leaves arrivals and block ids to
 * trace_generate.c. The figures are made up: agents so that turns,
 * appends and the mean context come near those DualPath reports (60 to 157,
 * 429 to 608, 17K to 33K tokens), the rest by judgement. They stand for no
 * production load.
 */
#include "trace_mix.h"
#include <assert.h>
#include <math.h>

static const struct mix_kind kinds[BT_MIX_COUNT] = {
    [BT_MIX_CHAT] = {.name = "chat",
                     .systems = 8,
                     .system_tokens = {200, 2000},
                     .first_tokens = {50, 8000},
                     .append_tokens = {20, 1500},
                     .turns = {1, 6},
                     .gap_s = 90,
                     .output_share = 1},
    [BT_MIX_AGENT] = {.name = "agent",
                      .systems = 4,
                      .system_tokens = {2000, 5000},
                      .first_tokens = {200, 2000},
                      .append_tokens = {250, 608},
                      .turns = {40, 120},
                      .gap_s = 8,
                      .output_share = 0.5},
    [BT_MIX_TOOL] = {.name = "tool",
                     .systems = 24,
                     .system_tokens = {2000, 6000},
                     .first_tokens = {60, 1200},
                     .append_tokens = {60, 400},
                     .turns = {1, 3},
                     .gap_s = 15,
                     .output_share = 0.25},
    [BT_MIX_RAG] = {.name = "rag",
                    .systems = 2,
                    .system_tokens = {200, 600},
                    .documents = 200,
                    .document_tokens = {3000, 16000},
                    .first_tokens = {20, 300},
                    .append_tokens = {20, 300},
                    .turns = {1, 3},
                    .gap_s = 45,
                    .output_share = 0.7},
    [BT_MIX_LONG] = {.name = "long",
                     .first_tokens = {16000, 120000},
                     .append_tokens = {20, 300},
                     .turns = {1, 1},
                     .output_share = 1},
};

const struct mix_kind *mix_kind_of(enum bt_trace_mix kind)
{
    assert(kind < BT_MIX_COUNT);
    return &kinds[kind];
}

const char *bt_trace_mix_name(enum bt_trace_mix kind)
{
    return mix_kind_of(kind)->name;
}

uint32_t mix_draw(struct bt_rng *rng, struct span span)
{
    double low = (double)span.min, high = (double)span.max + 1;
    double value = low * pow(high / low, bt_rng_unit(rng));

    return value < high ? (uint32_t)value : span.max;
}

uint32_t mix_zipf(struct bt_rng *rng, uint32_t n)
{
    double at = pow((double)n + 1, bt_rng_unit(rng)) - 1;

    return at < n ? (uint32_t)at : n - 1;
}

uint32_t mix_output(struct bt_rng *rng, double mean, uint32_t max)
{
    double value = bt_rng_exponential(rng, mean);

    if (value < 1)
        return 1;
    return value < (double)max ? (uint32_t)value : max;
}
