/* Seeded generator: Poisson arrivals; each arrival continues an old chat or
 * starts a new conversation (chat, question on a shared document, long unique
 * prompt). Shared texts are functions of the seed and their number, chosen by
 * Zipf. A next turn is the previous prompt, its answer and new tokens, so its
 * prefix is what an engine holds. Synthetic by name: it stands for no
 * particular production load. */
#include "baton/base/rng.h"
#include "baton/base/units.h"
#include "baton/bench/workload.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define LENGTH_MAX (1u << 20)
#define OPEN_CHATS 64 /* conversations that may still continue */
#define SHARED_MAX 4096

struct chat {
    size_t request; /* latest turn */
    uint32_t conversation, turn;
    int64_t ready_ns; /* earliest next turn */
};

struct generator {
    const struct bt_workload_options *options;
    struct bt_workload *workload;
    struct bt_rng rng;
    struct chat chats[OPEN_CHATS];
    size_t chat_count;
    uint32_t conversations;
    uint32_t *scratch; /* of the longest prompt */
    size_t scratch_size;
};

void bt_workload_options_init(struct bt_workload_options *options)
{
    memset(options, 0, sizeof(*options));
    options->seed = 1;
    options->requests = 100;
    options->rate_per_s = 10;
    options->vocabulary = 256;
    options->system_prompts = 4;
    options->system_tokens = 384;
    options->documents = 8;
    options->document_tokens_min = 1024;
    options->document_tokens_max = 2560;
    options->question_min = 24;
    options->question_max = 160;
    options->long_min = 1536;
    options->long_max = 3584;
    options->answer_min = 8;
    options->answer_max = 40;
    options->share_rag = 0.35;
    options->share_long = 0.25;
    options->follow_up = 0.45;
    options->turns_max = 6;
    options->think_s = 1.0;
}

static int range_ok(uint32_t low, uint32_t high)
{
    return low >= 1 && low <= high && high <= LENGTH_MAX;
}

static int share_ok(double share)
{
    return share >= 0 && share <= 1;
}

static enum bt_status check(const struct bt_workload_options *o)
{
    if (o->requests < 1 || !(o->rate_per_s > 0) || !isfinite(o->rate_per_s))
        return BT_INVALID;
    if (o->vocabulary < 2 || o->turns_max < 1 || !(o->think_s >= 0))
        return BT_INVALID;
    if (o->system_prompts < 1 || o->system_prompts > SHARED_MAX ||
        o->documents < 1 || o->documents > SHARED_MAX)
        return BT_INVALID;
    if (!range_ok(1, o->system_tokens) ||
        !range_ok(o->document_tokens_min, o->document_tokens_max) ||
        !range_ok(o->question_min, o->question_max) ||
        !range_ok(o->long_min, o->long_max) ||
        !range_ok(o->answer_min, o->answer_max))
        return BT_INVALID;
    if (!share_ok(o->share_rag) || !share_ok(o->share_long) ||
        !share_ok(o->share_rag + o->share_long) || !share_ok(o->follow_up))
        return BT_INVALID;
    return BT_OK;
}

static uint32_t draw_range(struct bt_rng *rng, uint32_t low, uint32_t high)
{
    return low + (uint32_t)bt_rng_below(rng, (uint64_t)high - low + 1);
}

/* Zipf with exponent 1 over n ranks; n is small. */
static uint32_t draw_zipf(struct bt_rng *rng, uint32_t n)
{
    double total = 0, at;

    for (uint32_t i = 0; i < n; i++)
        total += 1.0 / (i + 1.0);
    at = bt_rng_unit(rng) * total;
    for (uint32_t i = 0; i < n; i++) {
        at -= 1.0 / (i + 1.0);
        if (at < 0)
            return i;
    }
    return n - 1;
}

/* Tokens of a shared text depend on the seed and its name only. */
static void fill_shared(const struct generator *g, uint64_t name, uint32_t *out,
                        uint32_t count)
{
    uint64_t key = bt_mix64(g->options->seed ^ bt_mix64(name));

    for (uint32_t i = 0; i < count; i++)
        out[i] = (uint32_t)(bt_mix64(key + i) % g->options->vocabulary);
}

static void fill_new(struct generator *g, uint32_t *out, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        out[i] = (uint32_t)bt_rng_below(&g->rng, g->options->vocabulary);
}

static uint32_t document_tokens(const struct generator *g, uint32_t document)
{
    const struct bt_workload_options *o = g->options;
    uint64_t spread =
        (uint64_t)o->document_tokens_max - o->document_tokens_min + 1;

    return o->document_tokens_min +
           (uint32_t)(bt_mix64(o->seed + document) % spread);
}

static enum bt_status reserve(struct generator *g, size_t tokens)
{
    uint32_t *moved;

    if (tokens > LENGTH_MAX)
        return BT_TOO_LARGE;
    if (tokens <= g->scratch_size)
        return BT_OK;
    moved = realloc(g->scratch, tokens * sizeof(*moved));
    if (!moved)
        return BT_NO_MEMORY;
    g->scratch = moved;
    g->scratch_size = tokens;
    return BT_OK;
}

/* First turn into scratch; returns its length through count_out. */
static enum bt_status
make_first(struct generator *g, enum bt_workload_kind kind, uint32_t *count_out)
{
    const struct bt_workload_options *o = g->options;
    uint32_t shared = kind == BT_WORKLOAD_LONG ? 0 : o->system_tokens;
    uint32_t system = draw_zipf(&g->rng, o->system_prompts);
    uint32_t document = 0, middle = 0, fresh;
    enum bt_status status;

    if (kind == BT_WORKLOAD_RAG) {
        document = draw_zipf(&g->rng, o->documents);
        /* A document comes with its own instructions: one whole prefix. */
        system = document % o->system_prompts;
        middle = document_tokens(g, document);
    }
    fresh = kind == BT_WORKLOAD_LONG
                ? draw_range(&g->rng, o->long_min, o->long_max)
                : draw_range(&g->rng, o->question_min, o->question_max);
    status = reserve(g, (size_t)shared + middle + fresh);
    if (status != BT_OK)
        return status;
    fill_shared(g, 1 + system, g->scratch, shared);
    fill_shared(g, 100000 + document, g->scratch + shared, middle);
    fill_new(g, g->scratch + shared + middle, fresh);
    *count_out = shared + middle + fresh;
    return BT_OK;
}

static enum bt_status make_next(struct generator *g, const struct chat *chat,
                                uint32_t *count_out)
{
    const struct bt_workload_options *o = g->options;
    const struct bt_workload_request *last =
        &g->workload->requests[chat->request];
    uint32_t old = last->token_count, answer = last->max_tokens;
    uint32_t fresh = draw_range(&g->rng, o->question_min, o->question_max);
    enum bt_status status = reserve(g, (size_t)old + answer + fresh);

    if (status != BT_OK)
        return status;
    memcpy(g->scratch, bt_workload_prompt(g->workload, chat->request),
           old * sizeof(*g->scratch));
    if (o->answer)
        o->answer(o->answer_arg, g->scratch, old, answer, g->scratch + old);
    else
        fill_new(g, g->scratch + old, answer);
    fill_new(g, g->scratch + old + answer, fresh);
    *count_out = old + answer + fresh;
    return BT_OK;
}

/* A chat that may continue now, or NULL: uniform among those ready. */
static struct chat *pick_chat(struct generator *g, int64_t now_ns)
{
    size_t ready[OPEN_CHATS], count = 0;

    if (bt_rng_unit(&g->rng) >= g->options->follow_up)
        return NULL;
    for (size_t i = 0; i < g->chat_count; i++) {
        if (g->chats[i].ready_ns <= now_ns)
            ready[count++] = i;
    }
    return count ? &g->chats[ready[bt_rng_below(&g->rng, count)]] : NULL;
}

/* Remember a turn; the oldest place is reused when all are taken. */
static void keep_chat(struct generator *g, struct chat *chat, size_t request)
{
    const struct bt_workload_request *r = &g->workload->requests[request];

    if (r->turn + 1 >= g->options->turns_max || r->kind == BT_WORKLOAD_LONG) {
        if (chat)
            *chat = g->chats[--g->chat_count];
        return;
    }
    if (!chat)
        chat = g->chat_count < OPEN_CHATS ? &g->chats[g->chat_count++]
                                          : &g->chats[request % OPEN_CHATS];
    chat->request = request;
    chat->conversation = r->conversation;
    chat->turn = r->turn;
    chat->ready_ns = r->arrival_ns + (int64_t)(g->options->think_s * 1e9);
}

static enum bt_workload_kind draw_kind(struct generator *g)
{
    double at = bt_rng_unit(&g->rng);

    if (at < g->options->share_rag)
        return BT_WORKLOAD_RAG;
    if (at < g->options->share_rag + g->options->share_long)
        return BT_WORKLOAD_LONG;
    return BT_WORKLOAD_CHAT;
}

static enum bt_status make_request(struct generator *g, int64_t now_ns)
{
    struct chat *chat = pick_chat(g, now_ns);
    struct bt_workload_request r;
    enum bt_status status;
    uint32_t *tokens;

    memset(&r, 0, sizeof(r));
    r.arrival_ns = now_ns;
    if (chat) {
        r.kind = g->workload->requests[chat->request].kind;
        r.conversation = chat->conversation;
        r.turn = chat->turn + 1;
        status = make_next(g, chat, &r.token_count);
    } else {
        r.kind = draw_kind(g);
        r.conversation = g->conversations++;
        status = make_first(g, r.kind, &r.token_count);
    }
    if (status != BT_OK)
        return status;
    r.max_tokens =
        draw_range(&g->rng, g->options->answer_min, g->options->answer_max);
    status = bt_workload_append(g->workload, &r, &tokens);
    if (status != BT_OK)
        return status;
    memcpy(tokens, g->scratch, r.token_count * sizeof(*tokens));
    keep_chat(g, chat, g->workload->count - 1);
    return BT_OK;
}

enum bt_status bt_workload_generate(const struct bt_workload_options *options,
                                    struct bt_workload *workload)
{
    struct generator g;
    enum bt_status status = check(options);
    double now_s = 0;

    if (status != BT_OK)
        return status;
    memset(&g, 0, sizeof(g));
    g.options = options;
    g.workload = workload;
    bt_rng_seed(&g.rng, options->seed);
    for (size_t i = 0; i < options->requests && status == BT_OK; i++) {
        now_s += bt_rng_exponential(&g.rng, 1.0 / options->rate_per_s);
        status = make_request(&g, (int64_t)(now_s * 1e9));
    }
    free(g.scratch);
    if (status != BT_OK)
        bt_workload_fini(workload);
    return status;
}
