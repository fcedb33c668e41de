/* The same events by the ways that production has: from token ids, which the
 * index hashes itself (XXH3 chain), and from payloads, which production's
 * decoder reads first. Over the head of the log, as much as SAMPLE tokens; the
 * payloads and tokens are made before the clock starts. What the index holds
 * afterwards is what the same events with own keys leave: checked each time.
 */
#include "baton/orchestrator/kv_events.h"
#include "index_parts.h"
#include <stdlib.h>
#include <string.h>

#define SAMPLE       (8u << 20) /* tokens */
#define SAMPLE_QUICK (64u << 10)
#define ROUNDS       3
#define EVENT_MAX    65536u /* hashes or tokens of one event */

struct feed {
    struct index_bench *bench;
    size_t requests, events; /* of the log's head */
    uint64_t blocks;         /* stored and removed there */
    uint32_t *tokens;        /* of the stores, one after the other */
    size_t token_count;
    uint32_t worker; /* of the payload that is decoded */
    uint64_t blocks_due, holdings_due;
};

/* Whole requests while the sample lasts. */
static void choose_sample(struct feed *f)
{
    const struct index_log *log = f->bench->log;
    size_t most = f->bench->options->quick ? SAMPLE_QUICK : SAMPLE;
    uint32_t bt = f->bench->keys->block_tokens;

    for (; f->requests < log->request_count; f->requests++) {
        const struct index_request *r = &log->requests[f->requests];
        size_t stored = 0, all = 0;

        for (size_t i = 0; i < r->event_count; i++) {
            const struct index_event *e = &log->events[r->event_at + i];

            all += e->count;
            stored += e->store ? e->count : 0;
        }
        if (f->requests > 0 && f->token_count + stored * bt > most)
            break;
        f->token_count += stored * bt;
        f->blocks += all;
        f->events = r->event_at + r->event_count;
    }
}

static enum bt_status make_tokens(struct feed *f)
{
    const struct index_log *log = f->bench->log;
    uint32_t *at;

    f->tokens = malloc((f->token_count + 1) * sizeof(*f->tokens));
    if (!f->tokens)
        return BT_NO_MEMORY;
    at = f->tokens;
    for (size_t i = 0; i < f->events; i++) {
        const struct index_event *e = &log->events[i];

        for (uint32_t j = 0; e->store && j < e->count; j++) {
            index_keys_tokens(f->bench->keys, log->places[e->at + j], at);
            at += f->bench->keys->block_tokens;
        }
    }
    return BT_OK;
}

static struct bt_kv_store store_of(const struct feed *f,
                                   const struct index_event *e,
                                   const uint32_t *tokens)
{
    uint32_t bt = f->bench->keys->block_tokens;

    return (struct bt_kv_store){.hashes = f->bench->log->hashes + e->at,
                                .hash_count = e->count,
                                .parent = e->parent,
                                .has_parent = e->has_parent,
                                .tokens = tokens,
                                .token_count = (size_t)e->count * bt,
                                .block_tokens = bt,
                                .tier = BT_TIER_DEVICE,
                                .full_attention = 1};
}

/* ---- what is due ---- */

static enum bt_status own_keys(struct feed *f)
{
    struct index_bench *b = f->bench;
    struct bt_prefix_index_stats s;

    if (index_bench_fresh(b) != BT_OK)
        return BT_NO_MEMORY;
    for (size_t i = 0; i < f->events; i++)
        index_apply(b->index, b->log, &b->log->events[i]);
    bt_prefix_index_stats_get(b->index, &s);
    f->blocks_due = s.blocks;
    f->holdings_due = s.holdings;
    return BT_OK;
}

/* The last of each stored chain is looked up by the replay's own key. */
static enum bt_status check(struct feed *f, const char *way)
{
    struct index_bench *b = f->bench;
    struct bt_prefix_index_stats s;
    size_t wrong = 0;

    bt_prefix_index_stats_get(b->index, &s);
    for (size_t i = 0; i < f->events; i++) {
        const struct index_event *e = &b->log->events[i];
        size_t last = e->at + e->count - 1;
        uint64_t key;

        if (e->store &&
            bt_prefix_index_own_key(b->index, e->worker, 0,
                                    b->log->hashes[last], &key) == BT_OK)
            wrong += key != b->log->keys[last];
    }
    if (wrong == 0 && s.blocks == f->blocks_due &&
        s.holdings == f->holdings_due)
        return BT_OK;
    snprintf(b->error, BT_MICRO_INDEX_ERROR_MAX,
             "%u workers, blocks of %u: fed %s the index holds %llu blocks "
             "and %llu holdings, with own keys %llu and %llu; %zu keys differ",
             b->log->workers, b->keys->block_tokens, way,
             (unsigned long long)s.blocks, (unsigned long long)s.holdings,
             (unsigned long long)f->blocks_due,
             (unsigned long long)f->holdings_due, wrong);
    return BT_BUG;
}

/* ---- from tokens ---- */

static enum bt_status tokens_round(struct feed *f)
{
    struct index_bench *b = f->bench;
    const uint32_t *tokens = f->tokens;
    int64_t from;
    double rate;

    if (index_bench_fresh(b) != BT_OK)
        return BT_NO_MEMORY;
    from = index_cpu_ns();
    for (size_t i = 0; i < f->events; i++) {
        const struct index_event *e = &b->log->events[i];

        if (e->store) {
            struct bt_kv_store store = store_of(f, e, tokens);

            (void)bt_prefix_index_store(b->index, e->worker, 0, &store);
            tokens += store.token_count;
        } else {
            index_apply(b->index, b->log, e);
        }
    }
    rate = (double)f->blocks * 1e9 / (double)(index_cpu_ns() - from + 1);
    if (rate > b->run->events_from_tokens)
        b->run->events_from_tokens = rate;
    return check(f, "with tokens");
}

/* ---- from the wire ---- */

static void write_request(const struct feed *f, const struct index_request *r,
                          const uint32_t **tokens, struct index_wire *w)
{
    const struct index_log *log = f->bench->log;
    uint32_t count = 0;

    for (size_t i = 0; i < r->event_count; i++) {
        const struct index_event *e = &log->events[r->event_at + i];

        count += e->store ? 1 : e->count;
    }
    index_wire_batch(w, count);
    for (size_t i = 0; i < r->event_count; i++) {
        const struct index_event *e = &log->events[r->event_at + i];

        if (e->store) {
            struct bt_kv_store store = store_of(f, e, *tokens);

            index_wire_stored(w, &store);
            *tokens += store.token_count;
        }
        for (uint32_t j = 0; !e->store && j < e->count; j++)
            index_wire_removed(w, log->hashes[e->at + j]);
    }
    index_wire_rank(w);
}

static void on_event(void *arg, const struct bt_kv_event *event)
{
    struct feed *f = arg;

    if (event->type == BT_KV_STORED)
        (void)bt_prefix_index_store(f->bench->index, f->worker, 0,
                                    &event->store);
    else if (event->type == BT_KV_REMOVED)
        bt_prefix_index_remove(f->bench->index, f->worker, 0, event->hashes,
                               event->hash_count, event->tier);
}

/* ends[i]: where the payload of request i ends. */
static enum bt_status decode_all(struct feed *f, const struct index_wire *w,
                                 const size_t *ends,
                                 struct bt_kv_scratch *scratch, double *rate)
{
    struct bt_kv_batch_stats stats;
    enum bt_status status = BT_OK;
    size_t at = 0;
    int64_t from;

    if (index_bench_fresh(f->bench) != BT_OK)
        return BT_NO_MEMORY;
    from = index_cpu_ns();
    for (size_t i = 0; i < f->requests && status == BT_OK; i++) {
        f->worker = f->bench->log->requests[i].worker;
        status = bt_kv_batch_decode(w->bytes + at, ends[i] - at, scratch,
                                    &stats, on_event, f);
        at = ends[i];
    }
    *rate = (double)f->blocks * 1e9 / (double)(index_cpu_ns() - from + 1);
    return status == BT_OK ? check(f, "from the wire") : status;
}

static bool scratch_init(struct bt_kv_scratch *s)
{
    memset(s, 0, sizeof(*s));
    s->hashes = malloc(EVENT_MAX * sizeof(*s->hashes));
    s->tokens = malloc(EVENT_MAX * sizeof(*s->tokens));
    s->mm = malloc(EVENT_MAX * sizeof(*s->mm));
    s->mm_per_block = malloc(EVENT_MAX * sizeof(*s->mm_per_block));
    s->remaining = malloc(EVENT_MAX * sizeof(*s->remaining));
    s->hashes_max = s->tokens_max = s->mm_max = s->mm_per_block_max = EVENT_MAX;
    return s->hashes && s->tokens && s->mm && s->mm_per_block && s->remaining;
}

static void scratch_fini(struct bt_kv_scratch *s)
{
    free(s->hashes);
    free(s->tokens);
    free(s->mm);
    free(s->mm_per_block);
    free(s->remaining);
}

static enum bt_status wire(struct feed *f, bool as_maps)
{
    struct index_wire w = {.as_maps = as_maps};
    size_t *ends = calloc(f->requests + 1, sizeof(*ends));
    struct bt_micro_index_run *run = f->bench->run;
    double *best =
        as_maps ? &run->events_from_map_wire : &run->events_from_array_wire;
    const uint32_t *tokens = f->tokens;
    struct bt_kv_scratch scratch;
    enum bt_status status =
        scratch_init(&scratch) && ends ? BT_OK : BT_NO_MEMORY;

    for (size_t i = 0; i < f->requests && status == BT_OK; i++) {
        write_request(f, &f->bench->log->requests[i], &tokens, &w);
        ends[i] = w.count;
        status = w.failed ? BT_NO_MEMORY : BT_OK;
    }
    *(as_maps ? &run->wire_bytes_map : &run->wire_bytes_array) = w.count;
    for (int i = 0; i < ROUNDS && status == BT_OK; i++) {
        double rate = 0;

        status = decode_all(f, &w, ends, &scratch, &rate);
        *best = rate > *best ? rate : *best;
    }
    index_wire_fini(&w);
    scratch_fini(&scratch);
    free(ends);
    return status;
}

enum bt_status index_measure_feeds(struct index_bench *b)
{
    struct feed f = {.bench = b};
    enum bt_status status;

    choose_sample(&f);
    b->run->token_blocks = f.blocks;
    status = make_tokens(&f);
    if (status == BT_OK)
        status = own_keys(&f);
    for (int i = 0; i < ROUNDS && status == BT_OK; i++)
        status = tokens_round(&f);
    if (status == BT_OK)
        status = wire(&f, false);
    if (status == BT_OK)
        status = wire(&f, true);
    free(f.tokens);
    return status;
}
