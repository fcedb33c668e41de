/* Seeded generator of traces without tokens: arrivals, sessions, and which
 * blocks are old. Decides the order of events; what a kind of request looks
 * like is trace_mix.c's. Synthetic, and labelled so.
 *
 * A text is the head of an earlier prompt: where its blocks stand and how many
 * are full. A new prompt copies the full blocks of the text it extends and
 * gets fresh ids for the rest, partial blocks included, so that equal ids are
 * equal prefixes by construction.
 *
 * Each arrival draws its kind; it continues the session of that kind that has
 * waited longest, when one is due, else it starts a session. Invariant: the
 * shares of kinds are those of the mix whatever the turns.
 */
#include "baton/base/units.h"
#include "trace_mix.h"
#include "trace_priv.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define CONTEXT_MAX 131072u
#define SESSIONS_MAX                                                           \
    8192u /* open, per kind; one more replaces none: it ends                   \
           */
#define TENANTS_MAX 4096u
#define ON_MEAN_S   5.0 /* mean length of a burst */

struct text {
    uint64_t at;     /* in trace->blocks */
    uint32_t blocks; /* full ones */
    uint32_t tokens;
    bool known; /* some request holds it */
};

struct session {
    int64_t ready_ns;
    struct text text; /* prompt and answer of the last turn */
    uint32_t id, tenant, turn, turns;
};

/* Open sessions of a kind, a heap by ready_ns and id. */
struct waiting {
    struct session *items;
    uint32_t count;
};

struct generator {
    const struct bt_trace_generate_options *o;
    struct bt_trace *trace;
    struct bt_rng rng;
    struct waiting waiting[BT_MIX_COUNT];
    struct pair_map shared; /* (kind and tenant, which) -> index in texts */
    struct text *texts;
    size_t text_count, text_capacity;
    uint32_t sessions;
    double on_s;     /* time inside bursts */
    double on_end_s; /* end of the present burst on that clock */
    double burst_s;  /* its length */
    double off_s;    /* time between bursts */
};

/* ---- options ---- */

void bt_trace_generate_options_init(struct bt_trace_generate_options *o)
{
    memset(o, 0, sizeof(*o));
    o->seed = 1;
    o->requests = 1000;
    o->rate_per_s = 4;
    o->burst = 1;
    o->mix[BT_MIX_CHAT] = 0.4;
    o->mix[BT_MIX_AGENT] = 0.3;
    o->mix[BT_MIX_TOOL] = 0.15;
    o->mix[BT_MIX_RAG] = 0.1;
    o->mix[BT_MIX_LONG] = 0.05;
    o->block_tokens = MOONCAKE_BLOCK;
    o->tenants = 1;
    o->output_mean = 343;
}

static enum bt_status check(const struct bt_trace_generate_options *o)
{
    double sum = 0;

    for (size_t i = 0; i < BT_MIX_COUNT; i++) {
        if (!(o->mix[i] >= 0))
            return BT_INVALID;
        sum += o->mix[i];
    }
    if (!(fabs(sum - 1) < 1e-6))
        return BT_INVALID;
    if (o->requests < 1 || o->requests > TRACE_REQUESTS_MAX ||
        !(o->rate_per_s > 1e-6 && o->rate_per_s < 1e6) ||
        !(o->burst >= 1 && o->burst <= 1000) || o->tenants > TENANTS_MAX)
        return BT_INVALID;
    if (o->block_tokens < 1 || o->block_tokens > TRACE_BLOCK_MAX ||
        !(o->output_mean >= 1 && o->output_mean <= 100000) ||
        o->input_fixed > TRACE_INPUT_MAX || o->output_fixed > TRACE_OUTPUT_MAX)
        return BT_INVALID;
    if (!(o->hit_fixed >= 0 && o->hit_fixed <= 1) ||
        (o->hit_fixed > 0 && o->input_fixed == 0))
        return BT_INVALID;
    return BT_OK;
}

/* ---- arrivals ---- */

/* Poisson on a clock that runs during bursts only. The pause after a burst is
 * in proportion to it, so that the mean rate holds over short traces too. */
static int64_t next_arrival(struct generator *g)
{
    double burst = g->o->burst;

    g->on_s += bt_rng_exponential(&g->rng, 1 / (g->o->rate_per_s * burst));
    while (burst > 1 && g->on_s > g->on_end_s) {
        g->off_s += g->burst_s * (burst - 1);
        g->burst_s = bt_rng_exponential(&g->rng, ON_MEAN_S);
        g->on_end_s += g->burst_s;
    }
    return (int64_t)((g->on_s + g->off_s) * 1e9);
}

static enum bt_trace_mix draw_kind(struct generator *g)
{
    double at = bt_rng_unit(&g->rng);
    enum bt_trace_mix last = BT_MIX_CHAT;

    for (size_t i = 0; i < BT_MIX_COUNT; i++) {
        if (g->o->mix[i] <= 0)
            continue;
        last = (enum bt_trace_mix)i;
        at -= g->o->mix[i];
        if (at < 0)
            break;
    }
    return last;
}

/* ---- open sessions ---- */

static bool before(const struct session *a, const struct session *b)
{
    return a->ready_ns != b->ready_ns ? a->ready_ns < b->ready_ns
                                      : a->id < b->id;
}

static void wait_push(struct waiting *w, const struct session *session)
{
    uint32_t at = w->count;

    if (w->count == SESSIONS_MAX)
        return; /* the session ends here */
    w->count++;
    while (at > 0 && before(session, &w->items[(at - 1) / 2])) {
        w->items[at] = w->items[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    w->items[at] = *session;
}

static bool wait_pop(struct waiting *w, int64_t now_ns, struct session *out)
{
    struct session last;
    uint32_t at = 0, child = 1;

    if (w->count == 0 || w->items[0].ready_ns > now_ns)
        return false;
    *out = w->items[0];
    last = w->items[--w->count];
    while (child < w->count) {
        if (child + 1 < w->count &&
            before(&w->items[child + 1], &w->items[child]))
            child++;
        if (!before(&w->items[child], &last))
            break;
        w->items[at] = w->items[child];
        at = child;
        child = 2 * at + 1;
    }
    if (w->count > 0)
        w->items[at] = last;
    return true;
}

/* ---- texts ---- */

static enum bt_status find_text(struct generator *g, uint64_t owner,
                                uint64_t which, struct span span,
                                size_t *index_out)
{
    uint64_t index = 0;
    bool found = false;
    enum bt_status status =
        pair_map_get(&g->shared, owner, which, g->text_count, &index, &found);

    if (status != BT_OK)
        return status;
    if (!found) {
        if (g->text_count == g->text_capacity) {
            size_t more = g->text_capacity ? 2 * g->text_capacity : 256;
            void *grown = realloc(g->texts, more * sizeof(*g->texts));

            if (!grown)
                return BT_NO_MEMORY;
            g->texts = grown;
            g->text_capacity = more;
        }
        g->texts[g->text_count++] =
            (struct text){.tokens = mix_draw(&g->rng, span)};
    }
    *index_out = (size_t)index;
    return BT_OK;
}

/* The request at the end of the trace is the first that holds the text. */
static void settle_text(const struct generator *g, struct text *text,
                        uint32_t tokens)
{
    const struct bt_trace_request *q = &g->trace->requests[g->trace->count - 1];

    if (text->known)
        return;
    text->known = true;
    text->at = q->block_at;
    text->blocks = tokens / g->o->block_tokens;
}

/* A prompt of request->input_tokens that begins with a text's full blocks. */
static enum bt_status put(struct generator *g, const struct text *text,
                          struct bt_trace_request *request)
{
    uint32_t size = g->o->block_tokens, old = 0;
    uint64_t *blocks = NULL;
    enum bt_status status;

    request->block_count = (request->input_tokens + size - 1) / size;
    if (text && text->known)
        old = text->blocks;
    status = trace_append(g->trace, request, &blocks);
    if (status != BT_OK)
        return status;
    if (old > request->block_count)
        old = request->block_count;
    for (uint32_t i = 0; i < old; i++)
        blocks[i] = g->trace->blocks[text->at + i];
    for (uint32_t i = old; i < request->block_count; i++)
        blocks[i] = g->trace->block_ids++;
    return BT_OK;
}

/* ---- requests ---- */

static uint32_t draw_tenant(struct generator *g)
{
    if (g->o->tenants < 2)
        return 0;
    return 1 + (uint32_t)bt_rng_below(&g->rng, g->o->tenants);
}

static uint32_t draw_output(struct generator *g, const struct mix_kind *kind)
{
    if (g->o->output_fixed)
        return g->o->output_fixed;
    return mix_output(&g->rng, g->o->output_mean * kind->output_share,
                      TRACE_OUTPUT_MAX);
}

/* First turn: system prompt, document, new text; the longest part that some
 * request holds is old. */
static enum bt_status first_turn(struct generator *g, enum bt_trace_mix kind,
                                 struct session *s,
                                 struct bt_trace_request *request)
{
    const struct mix_kind *k = mix_kind_of(kind);
    uint64_t owner = 1 + (uint64_t)kind + (uint64_t)s->tenant * 16;
    size_t system = SIZE_MAX, document = SIZE_MAX, old = SIZE_MAX;
    uint32_t which = 0, tokens = 0, both;
    enum bt_status status = BT_OK;

    if (k->systems) {
        which = mix_zipf(&g->rng, k->systems);
        status = find_text(g, owner, which, k->system_tokens, &system);
        if (status != BT_OK)
            return status;
        tokens = g->texts[system].tokens;
        old = system;
    }
    both = tokens;
    if (k->documents) {
        status = find_text(g, owner + ((uint64_t)(which + 1) << 32),
                           mix_zipf(&g->rng, k->documents), k->document_tokens,
                           &document);
        if (status != BT_OK)
            return status;
        both += g->texts[document].tokens;
        if (g->texts[document].known)
            old = document;
    }
    request->input_tokens = both + mix_draw(&g->rng, k->first_tokens);
    status = put(g, old == SIZE_MAX ? NULL : &g->texts[old], request);
    if (status == BT_OK && system != SIZE_MAX)
        settle_text(g, &g->texts[system], tokens);
    if (status == BT_OK && document != SIZE_MAX)
        settle_text(g, &g->texts[document], both);
    return status;
}

static void start_session(struct generator *g, enum bt_trace_mix kind,
                          struct session *s)
{
    memset(s, 0, sizeof(*s));
    s->id = ++g->sessions;
    s->tenant = draw_tenant(g);
    s->turns = mix_draw(&g->rng, mix_kind_of(kind)->turns);
}

static void keep_session(struct generator *g, enum bt_trace_mix kind,
                         struct session *s, int64_t now_ns)
{
    const struct mix_kind *k = mix_kind_of(kind);
    const struct bt_trace_request *q = &g->trace->requests[g->trace->count - 1];

    if (++s->turn >= s->turns)
        return;
    s->text = (struct text){.at = q->block_at,
                            .blocks = q->input_tokens / g->o->block_tokens,
                            .tokens = q->input_tokens + q->output_tokens,
                            .known = true};
    if (s->text.tokens + k->append_tokens.max > CONTEXT_MAX)
        return;
    s->ready_ns =
        now_ns + (int64_t)(bt_rng_exponential(&g->rng, k->gap_s) * 1e9);
    wait_push(&g->waiting[kind], s);
}

static enum bt_status by_kind(struct generator *g, int64_t now_ns)
{
    enum bt_trace_mix kind = draw_kind(g);
    const struct mix_kind *k = mix_kind_of(kind);
    bool old = false;
    struct bt_trace_request request = {.arrival_ns = now_ns};
    struct session s;
    enum bt_status status;

    old = wait_pop(&g->waiting[kind], now_ns, &s);
    if (!old)
        start_session(g, kind, &s);
    request.session = s.id;
    request.turn = s.turn;
    request.tenant = s.tenant;
    request.output_tokens = draw_output(g, k);
    if (old) {
        request.input_tokens =
            s.text.tokens + mix_draw(&g->rng, k->append_tokens);
        status = put(g, &s.text, &request);
    } else {
        status = first_turn(g, kind, &s, &request);
    }
    if (status == BT_OK)
        keep_session(g, kind, &s, now_ns);
    return status;
}

/* All prompts alike: the first share of each is common to its tenant. */
static enum bt_status fixed(struct generator *g, int64_t now_ns)
{
    static const struct span unused = {1, 1};
    uint32_t common =
        (uint32_t)floor(g->o->hit_fixed * (double)g->o->input_fixed + 1e-9);
    struct bt_trace_request request = {.arrival_ns = now_ns,
                                       .input_tokens = g->o->input_fixed,
                                       .tenant = draw_tenant(g)};
    size_t text = 0;
    enum bt_status status = find_text(g, request.tenant, 0, unused, &text);

    request.output_tokens = draw_output(g, mix_kind_of(BT_MIX_CHAT));
    if (status == BT_OK)
        status = put(g, &g->texts[text], &request);
    if (status == BT_OK)
        settle_text(g, &g->texts[text], common);
    return status;
}

static enum bt_status make(struct generator *g)
{
    enum bt_status status = BT_OK;

    for (size_t i = 0; i < BT_MIX_COUNT; i++) {
        g->waiting[i].items =
            malloc(SESSIONS_MAX * sizeof(*g->waiting[i].items));
        if (!g->waiting[i].items)
            return BT_NO_MEMORY;
    }
    for (size_t i = 0; i < g->o->requests && status == BT_OK; i++) {
        int64_t now_ns = next_arrival(g);

        status = g->o->input_fixed ? fixed(g, now_ns) : by_kind(g, now_ns);
    }
    return status;
}

enum bt_status bt_trace_generate(const struct bt_trace_generate_options *o,
                                 struct bt_trace *out)
{
    struct bt_trace trace = {.block_tokens = o->block_tokens,
                             .has_prefixes = true,
                             .synthetic = true};
    struct generator g = {.o = o, .trace = &trace};
    enum bt_status status = check(o);

    if (status != BT_OK)
        return status;
    bt_rng_seed(&g.rng, o->seed);
    status = make(&g);
    for (size_t i = 0; i < BT_MIX_COUNT; i++)
        free(g.waiting[i].items);
    pair_map_fini(&g.shared);
    free(g.texts);
    if (status == BT_OK)
        status = trace_settle(&trace, 0, 0);
    if (status != BT_OK) {
        bt_trace_fini(&trace);
        return status;
    }
    snprintf(trace.name, sizeof(trace.name), "synthetic, seed %llu",
             (unsigned long long)o->seed);
    *out = trace;
    return BT_OK;
}
