/* Shapes answers: depths per rank in, one JSON object out (index_query.h says
 * what each figure means). Decides nothing about who is asked.
 */
#include "baton/orchestrator/index_query.h"

#include <stdlib.h>
#include <string.h>

/* Names of the figures of an instance. */
struct words {
    const char *gpu, *dp, *cpu, *disk;
};
static const struct words words_of[] = {
    [BT_INDEX_DYNAMO] = {"gpu", "dp", "cpu", "disk"},
    [BT_INDEX_MOONCAKE] = {"GPU", "DP", "CPU", "DISK"},
};

static uint64_t tokens(const struct bt_index_view *v, size_t i,
                       enum bt_tier tier)
{
    return (uint64_t)v->block_tokens *
           v->depths[(size_t)v->rows[i].row * BT_TIERS + tier];
}

static uint32_t any_depth(const struct bt_index_view *v, size_t i)
{
    return v->depths[(size_t)v->rows[i].row * BT_TIERS + BT_TIER_EXTERNAL];
}

/* First row of the next instance. */
static size_t next_instance(const struct bt_index_view *v, size_t i)
{
    const char *name = v->rows[i].instance;

    while (i < v->row_count && (v->rows[i].instance == name ||
                                strcmp(v->rows[i].instance, name) == 0))
        i++;
    return i;
}

static uint64_t most(const struct bt_index_view *v, size_t from, size_t to,
                     enum bt_tier tier)
{
    uint64_t best = 0;

    for (size_t i = from; i < to; i++)
        if (tokens(v, i, tier) > best)
            best = tokens(v, i, tier);
    return best;
}

/* How little an answer that rests on such a stream is worth. */
static int badness(enum bt_stream_state state)
{
    switch (state) {
    case BT_STREAM_EXACT:
        return 0;
    case BT_STREAM_PARTIAL:
        return 1;
    case BT_STREAM_DEGRADED:
        return 2;
    case BT_STREAM_SUSPECT:
        return 3;
    case BT_STREAM_SYNCING:
        return 4;
    case BT_STREAM_ABSENT:
        return 5;
    }
    return 5;
}

bool bt_index_state_is_worse(enum bt_stream_state a, enum bt_stream_state b)
{
    return badness(a) > badness(b);
}

/* ---- writing ---- */

static void name(struct bt_text *t, bool first, const char *word)
{
    if (!first)
        bt_text_str(t, ",");
    bt_text_quoted(t, word, strlen(word));
    bt_text_str(t, ":");
}

static void figure(struct bt_text *t, const char *word, uint64_t value)
{
    bt_text_str(t, ",\"");
    bt_text_str(t, word);
    bt_text_str(t, "\":");
    bt_text_u64(t, value);
}

/* {"0":32,"1":0} */
static void by_rank(struct bt_text *t, const struct bt_index_view *v,
                    size_t from, size_t to)
{
    bt_text_str(t, "{");
    for (size_t i = from; i < to; i++) {
        bt_text_str(t, i == from ? "\"" : ",\"");
        bt_text_u64(t, v->rows[i].rank);
        bt_text_str(t, "\":");
        bt_text_u64(t, tokens(v, i, BT_TIER_DEVICE));
    }
    bt_text_str(t, "}");
}

static void one_instance(struct bt_text *t, const struct bt_index_view *v,
                         size_t from, size_t to, const struct words *w)
{
    const struct bt_index_row *worst = &v->rows[from];

    for (size_t i = from; i < to; i++)
        if (bt_index_state_is_worse(v->rows[i].state, worst->state))
            worst = &v->rows[i];
    bt_text_str(t, "{\"longest_matched\":");
    bt_text_u64(t, most(v, from, to, BT_TIER_EXTERNAL));
    figure(t, w->gpu, most(v, from, to, BT_TIER_DEVICE));
    name(t, false, w->dp);
    by_rank(t, v, from, to);
    figure(t, w->cpu, most(v, from, to, BT_TIER_HOST));
    figure(t, w->disk, most(v, from, to, BT_TIER_DISK));
    bt_text_str(t, ",\"state\":\"");
    bt_text_str(t, bt_stream_state_name(worst->state));
    bt_text_str(t, "\",\"cause\":\"");
    bt_text_str(t, bt_stream_cause_name(worst->cause));
    bt_text_str(t, "\",\"exact\":");
    bt_text_str(t, worst->state == BT_STREAM_EXACT ? "true" : "false");
    bt_text_str(t, "}");
}

static void instances(struct bt_text *t, const struct bt_index_view *v,
                      const struct words *w)
{
    for (size_t i = 0, next; i < v->row_count; i = next) {
        next = next_instance(v, i);
        name(t, i == 0, v->rows[i].instance);
        one_instance(t, v, i, next, w);
    }
}

static void scores(struct bt_text *t, const struct bt_index_view *v)
{
    for (size_t i = 0, next; i < v->row_count; i = next) {
        next = next_instance(v, i);
        name(t, i == 0, v->rows[i].instance);
        by_rank(t, v, i, next);
    }
}

/* ends[d]: rows whose depth is d; from the deepest on they add up. */
static enum bt_status frequencies(struct bt_text *t,
                                  const struct bt_index_view *v)
{
    uint32_t deepest = 0, holders = 0;
    uint32_t *ends;

    for (size_t i = 0; i < v->row_count; i++)
        if (any_depth(v, i) > deepest)
            deepest = any_depth(v, i);
    ends = calloc((size_t)deepest + 1, sizeof(*ends));
    if (ends == NULL)
        return BT_NO_MEMORY;
    for (size_t i = 0; i < v->row_count; i++)
        ends[any_depth(v, i)]++;
    holders = (uint32_t)v->row_count;
    for (uint32_t d = 0; d < deepest; d++) {
        holders -= ends[d];
        if (d > 0)
            bt_text_str(t, ",");
        bt_text_u64(t, holders);
    }
    free(ends);
    return BT_OK;
}

size_t bt_index_answer_bytes(const struct bt_index_view *v)
{
    size_t bytes = 256 + 6 * strlen(v->tenant);
    uint32_t deepest = 0;

    for (size_t i = 0; i < v->row_count; i++) {
        /* Its name may be escaped, once in each map; figures of 20 digits. */
        bytes += 512 + 12 * strlen(v->rows[i].instance);
        if (any_depth(v, i) > deepest)
            deepest = any_depth(v, i);
    }
    return bytes + (size_t)deepest * 11;
}

enum bt_status bt_index_answer(const struct bt_index_view *v,
                               enum bt_index_shape shape, struct bt_text *t)
{
    enum bt_status status = BT_OK;

    switch (shape) {
    case BT_INDEX_DYNAMO:
        bt_text_str(t, "{\"scores\":{");
        scores(t, v);
        bt_text_str(t, "},\"frequencies\":[");
        status = frequencies(t, v);
        bt_text_str(t, "],\"instances\":{");
        instances(t, v, &words_of[shape]);
        bt_text_str(t, "}}");
        break;
    case BT_INDEX_MOONCAKE:
        bt_text_str(t, "{");
        name(t, true, v->tenant);
        bt_text_str(t, "{");
        instances(t, v, &words_of[shape]);
        bt_text_str(t, "}}");
        break;
    }
    return status;
}
