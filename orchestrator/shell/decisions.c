/* The decision log: one JSON object per request, on every path. The last
 * decisions.ring of them are kept with their candidate tables for the admin
 * API and `baton explain`; the file (if any) gets the line without the table.
 * Never a prompt, token id, salt or adapter text: hashes only.
 */
#include "exchange.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LINE_MAX_BYTES 16384

struct entry {
    char id[REQUEST_ID_MAX + 1];
    char *line; /* owned, terminated */
};

struct decision_ring {
    struct entry *entries;
    size_t size, count, next;
    int fd; /* -1: no file */
};

enum bt_status decisions_start(struct bt_serve *serve, char *error,
                               size_t error_size)
{
    const char *path = serve->config->decision_file;
    struct decision_ring *ring = calloc(1, sizeof(*ring));

    if (ring == NULL)
        return BT_NO_MEMORY;
    serve->decisions = ring;
    ring->fd = -1;
    ring->size = serve->config->decision_ring;
    ring->entries = calloc(ring->size + 1, sizeof(*ring->entries));
    if (ring->entries == NULL)
        return BT_NO_MEMORY;
    if (path == NULL)
        return BT_OK;
    /* Non-blocking: a FIFO without a reader must not stop the loop. */
    ring->fd = open(
        path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK, 0640);
    if (ring->fd < 0) {
        snprintf(error, error_size, "decisions.file %s: %s", path,
                 strerror(errno));
        return BT_IO;
    }
    return BT_OK;
}

void decisions_stop(struct bt_serve *serve)
{
    struct decision_ring *ring = serve->decisions;

    for (size_t i = 0; ring->entries != NULL && i < ring->size; i++)
        free(ring->entries[i].line);
    free(ring->entries);
    if (ring->fd >= 0)
        close(ring->fd);
    free(ring);
    serve->decisions = NULL;
}

/* ---- rendering ---- */

static void key(struct bt_text *t, const char *name)
{
    bt_text_str(t, t->used > 0 && t->at[t->used - 1] != '{' ? ",\"" : "\"");
    bt_text_str(t, name);
    bt_text_str(t, "\":");
}

static void put_str(struct bt_text *t, const char *name, const char *value)
{
    key(t, name);
    bt_text_quoted(t, value, strlen(value));
}

static void put_u64(struct bt_text *t, const char *name, uint64_t value)
{
    key(t, name);
    bt_text_u64(t, value);
}

/* A duration in ms, null when one of its ends did not happen. */
static void put_ms(struct bt_text *t, const char *name, int64_t from,
                   int64_t to)
{
    key(t, name);
    if (from == 0 || to == 0)
        bt_text_str(t, "null");
    else
        bt_text_fixed(t, (double)(to - from) / 1e6, 3);
}

static void put_term(struct bt_text *t, const char *name, int64_t ns)
{
    key(t, name);
    if (ns >= BT_COST_INFINITE)
        bt_text_str(t, "null");
    else
        bt_text_fixed(t, (double)ns / 1e6, 3);
}

static void put_worker(struct bt_text *t, const struct bt_serve *serve,
                       const char *name, uint32_t slot)
{
    key(t, name);
    if (slot == BT_PLACE_NONE) {
        bt_text_str(t, "null");
        return;
    }
    bt_text_quoted(t, serve_worker_name(serve, slot),
                   strlen(serve_worker_name(serve, slot)));
}

static void put_hex(struct bt_text *t, const char *name, uint64_t value)
{
    char hex[20];

    snprintf(hex, sizeof(hex), "%016" PRIx64, value);
    put_str(t, name, hex);
}

static void put_terms(struct bt_text *t, const char *prefix,
                      const struct bt_place_terms *terms)
{
    char name[48];
    const struct {
        const char *name;
        int64_t ns;
    } parts[] = {
        {"queue_ms", terms->queue_ns},     {"fetch_ms", terms->fetch_ns},
        {"prefill_ms", terms->prefill_ns}, {"transfer_ms", terms->transfer_ns},
        {"arrival_ms", terms->arrival_ns}, {"slot_ms", terms->slot_ns},
        {"step_ms", terms->step_ns},       {"total_ms", terms->total_ns},
        {"price_ms", terms->price_ns},
    };

    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
        snprintf(name, sizeof(name), "%s%s", prefix, parts[i].name);
        put_term(t, name, parts[i].ns);
    }
}

static const char *link_class(const struct bt_serve *serve, uint32_t p,
                              uint32_t d)
{
    uint32_t n = serve->config->worker_count;

    if (p >= n || d >= n || p == d)
        return "none";
    return serve->link_classes[serve->core_links[p * n + d].class_index];
}

static const char *tier_name(enum bt_tier tier)
{
    switch (tier) {
    case BT_TIER_DEVICE:
        return "device";
    case BT_TIER_HOST:
        return "host";
    case BT_TIER_DISK:
        return "disk";
    case BT_TIER_EXTERNAL:
        return "external";
    }
    return "-";
}

/* Where a prefix is loaded or fetched from; nothing when it is not. */
static void put_source(struct bt_text *t, const struct bt_serve *serve,
                       const struct bt_place_candidate *c)
{
    if (c->source.tokens == 0)
        return;
    put_worker(t, serve, "source", c->source.worker);
    put_str(t, "source_tier", tier_name(c->source.tier));
    put_u64(t, "source_tokens", c->source.tokens);
    put_u64(t, "fetch_bytes", c->terms.fetch_bytes);
}

void decisions_candidate(struct bt_text *t, const struct bt_serve *serve,
                         const struct bt_place_candidate *c)
{
    bt_text_str(t, "{");
    put_worker(t, serve, "prefill", c->p);
    put_worker(t, serve, "decode", c->d);
    put_str(t, "path_class", link_class(serve, c->p, c->d));
    put_u64(t, "hit_p", c->terms.overlap_p);
    put_u64(t, "hit_d", c->terms.overlap_d);
    put_u64(t, "kv_bytes", c->terms.kv_bytes);
    put_source(t, serve, c);
    put_terms(t, "", &c->terms);
    bt_text_str(t, "}");
}

static void put_stamp(struct bt_text *t)
{
    char stamp[64];

    bt_log_stamp(stamp, sizeof(stamp));
    put_str(t, "ts", stamp);
}

static void put_identity(struct bt_text *t, const struct exchange *x,
                         const struct bt_decision *d)
{
    const struct bt_serve *serve = x->serve;

    put_u64(t, "schema", 1);
    put_stamp(t);
    put_str(t, "request_id", x->request_id);
    put_str(t, "policy", d->policy == NULL ? "-" : d->policy->name);
    put_str(t, "model", serve->config->models[d->model].name);
    put_hex(t, "namespace", d->ns);
    if (d->tenant != 0)
        put_hex(t, "tenant", d->tenant);
    if (d->priority != 0) {
        key(t, "priority");
        bt_text_i64(t, d->priority);
    }
    if (d->ttft_slo_ns != 0)
        put_term(t, "ttft_slo_ms", d->ttft_slo_ns);
    put_str(t, "route",
            x->request.route == BT_ROUTE_CHAT ? "chat" : "completions");
    key(t, "stream");
    bt_text_str(t, x->request.stream ? "true" : "false");
    put_u64(t, "input_tokens", d->prompt_tokens);
    key(t, "tokens_known");
    bt_text_str(t, d->tokens_known ? "true" : "false");
    put_str(t, "prompt_hidden", bt_openai_hidden_name(x->hidden));
    put_u64(t, "named_tokens",
            (uint64_t)x->key_count *
                serve->config->models[d->model].block_size);
    put_u64(t, "max_tokens", d->max_tokens);
    put_u64(t, "output_tokens", d->output_tokens);
    put_u64(t, "body_bytes", d->body_bytes);
    put_str(t, "index_state", bt_stream_state_name(d->index_state));
    put_str(t, "index_cause", bt_stream_cause_name(d->index_cause));
}

/* What was known of the prompt's prefix where it was prefilled. */
static void put_overlap(struct bt_text *t, const struct bt_decision *d)
{
    put_str(t, "overlap_source", bt_overlap_source_name(d->overlap_source));
    put_u64(t, "overlap_raw_tokens", d->overlap_raw_tokens);
    put_u64(t, "overlap_rank", d->overlap_rank);
    key(t, "credit");
    bt_text_fixed(t, d->credit, 4);
    put_u64(t, "common_tokens", d->common_tokens);
    put_u64(t, "copies", d->copies);
}

static void put_choice(struct bt_text *t, const struct exchange *x,
                       const struct bt_decision *d)
{
    const struct bt_serve *serve = x->serve;
    const struct bt_placement *m = &d->placement;

    put_str(t, "reason", bt_reason_name(d->reason));
    put_str(t, "fallback", bt_fallback_name(d->fallback));
    put_u64(t, "placements", d->placements);
    put_u64(t, "asks", d->asks);
    if (d->provisional.d != BT_PLACE_NONE) {
        put_worker(t, serve, "provisional_prefill", d->provisional.p);
        put_worker(t, serve, "provisional_decode", d->provisional.d);
        put_term(t, "provisional_total_ms", d->provisional.terms.total_ns);
    }
    if (d->placements == 0)
        return;
    key(t, "handoff_moved");
    bt_text_str(t, d->handoff_moved ? "true" : "false");
    put_u64(t, "candidates_considered", m->considered);
    put_worker(t, serve, "prefill", m->chosen.p);
    put_worker(t, serve, "decode", m->chosen.d);
    put_str(t, "path_class", link_class(serve, m->chosen.p, m->chosen.d));
    put_u64(t, "hit_p", m->chosen.terms.overlap_p);
    put_u64(t, "hit_d", m->chosen.terms.overlap_d);
    put_overlap(t, d);
    put_u64(t, "kv_bytes", m->chosen.terms.kv_bytes);
    put_source(t, serve, &m->chosen);
    put_terms(t, "pred_", &m->chosen.terms);
    put_term(t, "predicted_p90_ms", d->total_p90_ns);
    if (m->second.d != BT_PLACE_NONE) {
        put_worker(t, serve, "second_prefill", m->second.p);
        put_worker(t, serve, "second_decode", m->second.d);
        put_term(t, "second_total_ms", m->second.terms.total_ns);
    }
    if (m->baseline.d != BT_PLACE_NONE) {
        put_worker(t, serve, "baseline_prefill", m->baseline.p);
        put_worker(t, serve, "baseline_decode", m->baseline.d);
        put_term(t, "baseline_total_ms", m->baseline.terms.total_ns);
    }
}

static void put_realised(struct bt_text *t, const struct exchange *x,
                         const struct bt_decision *d)
{
    int64_t step = d->placement.chosen.terms.step_ns;

    put_term(t, "plan_ms", x->plan_ns);
    put_term(t, "tokenize_ms", d->tokenize_ns);
    put_ms(t, "queue_ms", d->received_ns, d->placed_ns);
    put_ms(t, "act_prefill_ms", d->prefill_sent_ns, d->prefill_done_ns);
    /* From the hand-off to the first token, less one predicted step: the
     * engine's own wait for a slot is in it. */
    key(t, "act_transfer_ms");
    if (d->prefill_done_ns == 0 || d->decode_sent_ns == 0 ||
        d->first_token_ns == 0)
        bt_text_str(t, "null");
    else
        bt_text_fixed(
            t, (double)(d->first_token_ns - d->decode_sent_ns - step) / 1e6, 3);
    put_str(t, "act_source", "first_token_minus_step");
    put_ms(t, "ttft_ms", d->received_ns, d->first_token_ns);
    put_ms(t, "ttst_ms", d->received_ns, d->second_token_ns);
    put_ms(t, "total_ms", d->received_ns, d->finished_ns);
    put_u64(t, "cached_tokens_prefill", d->prefill_cached_tokens);
    put_u64(t, "cached_tokens_decode", d->decode_cached_tokens);
    put_str(t, "outcome", bt_outcome_name(d->outcome));
    put_u64(t, "status", (uint64_t)(d->status < 0 ? 0 : d->status));
    put_str(t, "phase", bt_request_state_name(d->phase));
}

static const char *how_name(const struct bt_attempt *a)
{
    if (a->ok)
        return "ok";
    switch (a->how) {
    case BT_FAIL_REFUSED:
        return "refused";
    case BT_FAIL_RESET:
        return "reset";
    case BT_FAIL_TIMEOUT:
        return "timeout";
    case BT_FAIL_HTTP:
        return "http";
    case BT_FAIL_BODY:
        return "body";
    case BT_FAIL_TRUNCATED:
        return "truncated";
    }
    return "-";
}

static void put_attempts(struct bt_text *t, const struct bt_serve *serve,
                         const struct bt_decision *d)
{
    uint32_t n = d->attempt_count < BT_ATTEMPTS_KEPT ? d->attempt_count
                                                     : BT_ATTEMPTS_KEPT;

    key(t, "attempts");
    bt_text_str(t, "[");
    for (uint32_t i = 0; i < n; i++) {
        const struct bt_attempt *a = &d->attempts[i];

        bt_text_str(t, i == 0 ? "{" : ",{");
        put_str(t, "leg", a->leg == BT_LEG_PREFILL ? "prefill" : "decode");
        put_worker(t, serve, "worker", bt_worker_slot(a->worker));
        put_str(t, "end", a->ended_ns == 0 ? "open" : how_name(a));
        put_u64(t, "status", (uint64_t)(a->status < 0 ? 0 : a->status));
        put_ms(t, "ms", a->sent_ns, a->ended_ns);
        bt_text_str(t, "}");
    }
    bt_text_str(t, "]");
}

/* ---- ring and file ---- */

static void put_file(struct bt_serve *serve, struct bt_text *t)
{
    struct decision_ring *ring = serve->decisions;

    if (ring->fd < 0)
        return;
    if (t->overflow) {
        serve->counters.decisions_dropped++;
        return;
    }
    t->at[t->used] = '\n';
    if (write(ring->fd, t->at, t->used + 1) != (ssize_t)(t->used + 1))
        serve->counters.decisions_dropped++;
}

static void put_ring(struct decision_ring *ring, const char *id,
                     const struct bt_text *t)
{
    struct entry *e;
    char *line;

    if (ring->size == 0)
        return;
    line = malloc(t->used + 1);
    if (line == NULL)
        return;
    memcpy(line, t->at, t->used);
    line[t->used] = '\0';
    e = &ring->entries[ring->next];
    free(e->line);
    e->line = line;
    snprintf(e->id, sizeof(e->id), "%s", id);
    ring->next = (ring->next + 1) % ring->size;
    if (ring->count < ring->size)
        ring->count++;
}

void decisions_record(struct bt_serve *serve, const struct exchange *x,
                      const struct bt_decision *d)
{
    char buf[LINE_MAX_BYTES];
    struct bt_text t;

    bt_text_init(&t, buf, sizeof(buf) - 2);
    bt_text_str(&t, "{");
    put_identity(&t, x, d);
    put_choice(&t, x, d);
    put_realised(&t, x, d);
    put_attempts(&t, serve, d);
    bt_text_str(&t, "}");
    put_file(serve, &t);
    t.used--; /* reopen the object for the table */
    key(&t, "candidates");
    bt_text_str(&t, "[");
    for (uint32_t i = 0; i < d->candidate_count; i++) {
        if (i > 0)
            bt_text_str(&t, ",");
        decisions_candidate(&t, serve, &d->candidates[i]);
    }
    bt_text_str(&t, "]}");
    if (t.overflow)
        serve->counters.decisions_dropped++;
    else
        put_ring(serve->decisions, x->request_id, &t);
}

const char *decisions_recent(const struct bt_serve *serve, size_t i)
{
    const struct decision_ring *ring = serve->decisions;

    if (i >= ring->count)
        return NULL;
    return ring->entries[(ring->next + ring->size - 1 - i) % ring->size].line;
}

const char *decisions_find(const struct bt_serve *serve, const char *id)
{
    const struct decision_ring *ring = serve->decisions;

    for (size_t i = 0; i < ring->count; i++) {
        size_t at = (ring->next + ring->size - 1 - i) % ring->size;

        if (strcmp(ring->entries[at].id, id) == 0)
            return ring->entries[at].line;
    }
    return NULL;
}
