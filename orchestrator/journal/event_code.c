/* The event record. Tokens never get here: a store with own keys is written as
 * pairs of engine hash and own key, which the core's index can name after the
 * step; one that only counts, or only names, keeps its hashes. A block that was
 * not applied (parent unknown, index full) is left out. The parent is kept: no
 * key comes of it any more, but it decides what makes room in a full index.
 *
 * Removals take a copy from every entry of a hash, so how often and as what a
 * hash was stored must come back exactly. Not kept apart: the same engine hash
 * in two namespaces of one worker, which engines that hash the salt in cannot
 * have. */
#include "codes.h"

#include <stdlib.h>
#include <string.h>

#define ARRAY_MAX (1u << 22)

/* What is written of the blocks of a store. */
enum store_form {
    FORM_NOTHING,
    FORM_PAIRS,
    FORM_COUNTED,
    FORM_NAMED,
    FORM_COUNT
};

/* Room for `count` numbers in the arrays of the event being read. */
static uint64_t *take(struct coder *c, struct event_arrays *arrays,
                      size_t count)
{
    uint64_t *numbers;

    if (c->bad || count > ARRAY_MAX ||
        (!c->writing && count > (c->size - c->at) / 8)) {
        c->bad = true;
        return NULL;
    }
    if (count <= arrays->capacity)
        return arrays->numbers;
    numbers = realloc(arrays->numbers, count * sizeof(*numbers));
    if (numbers == NULL) {
        c->bad = true;
        return NULL;
    }
    arrays->numbers = numbers;
    arrays->capacity = count;
    return numbers;
}

static void code_worker_state(struct coder *c, struct bt_ev_worker_state *e)
{
    coder_u32(c, &e->worker);
    e->state =
        (enum bt_worker_state)coder_enum(c, e->state, BT_WORKER_REFUSED + 1u);
    coder_u64(c, &e->incarnation);
    coder_u32(c, &e->block_tokens);
    coder_u64(c, &e->kv_capacity_tokens);
}

static void code_worker_stats(struct coder *c, struct bt_ev_worker_stats *e)
{
    coder_u32(c, &e->worker);
    coder_u32(c, &e->running);
    coder_u32(c, &e->waiting);
    coder_f64(c, &e->kv_usage);
}

/* Whether the step applied it as the chain it is. */
static bool parent_is_known(const struct bt_ev_kv_store *e,
                            const struct bt_core *core)
{
    uint64_t key;

    return !e->store->has_parent ||
           bt_core_own_key(core, e->worker, e->rank, e->store->parent, &key) ==
               BT_OK;
}

static enum store_form form_of(const struct bt_ev_kv_store *e,
                               const struct bt_core *core)
{
    switch (bt_kv_store_kind_of(e->store)) {
    case BT_KV_STORE_KEYED:
        return parent_is_known(e, core) ? FORM_PAIRS : FORM_NOTHING;
    case BT_KV_STORE_GIVEN:
        return FORM_PAIRS;
    case BT_KV_STORE_COUNTED:
        return FORM_COUNTED;
    case BT_KV_STORE_PLACEHOLDER:
        return FORM_NAMED;
    case BT_KV_STORE_REFUSED:
        break;
    }
    return FORM_NOTHING;
}

static uint32_t write_blocks(struct coder *c, const struct bt_ev_kv_store *e,
                             enum store_form form, const struct bt_core *core)
{
    uint32_t count = 0;

    if (form == FORM_NOTHING)
        return 0;
    for (size_t i = 0; i < e->store->hash_count && !c->bad; i++) {
        uint64_t hash = e->store->hashes[i], key = 0;

        if (form == FORM_PAIRS &&
            bt_core_own_key(core, e->worker, e->rank, hash, &key) != BT_OK)
            continue;
        coder_u64(c, &hash);
        if (form == FORM_PAIRS)
            coder_u64(c, &key);
        count++;
    }
    return count;
}

static void write_store(struct coder *c, const struct bt_ev_kv_store *e,
                        const struct bt_core *core)
{
    uint32_t worker = e->worker, rank = e->rank, count = 0;
    enum store_form form = form_of(e, core);
    bool has_parent = e->store->has_parent != 0;
    uint64_t parent = has_parent ? e->store->parent : 0;
    size_t count_at;

    coder_u32(c, &worker);
    coder_u32(c, &rank);
    (void)coder_enum(c, e->store->tier, BT_TIERS);
    (void)coder_enum(c, form, FORM_COUNT);
    coder_bool(c, &has_parent);
    coder_u64(c, &parent);
    count_at = c->at;
    coder_u32(c, &count);
    count = write_blocks(c, e, form, core);
    if (c->bad)
        return;
    for (size_t i = 0; i < 4; i++)
        c->data[count_at + i] = (unsigned char)(count >> (8 * i));
}

static void read_store(struct coder *c, struct bt_ev_kv_store *e,
                       struct event_arrays *arrays)
{
    struct bt_kv_store *s = &arrays->store;
    enum store_form form;
    uint32_t count = 0;
    uint64_t *numbers;
    bool has_parent = false;

    memset(s, 0, sizeof(*s));
    coder_u32(c, &e->worker);
    coder_u32(c, &e->rank);
    s->tier = (enum bt_tier)coder_enum(c, 0, BT_TIERS);
    form = (enum store_form)coder_enum(c, 0, FORM_COUNT);
    coder_bool(c, &has_parent);
    s->has_parent = has_parent;
    coder_u64(c, &s->parent);
    coder_u32(c, &count);
    numbers = take(c, arrays, (form == FORM_PAIRS ? 2 : 1) * (size_t)count);
    for (size_t i = 0; i < count && !c->bad; i++) {
        coder_u64(c, &numbers[i]);
        if (form == FORM_PAIRS)
            coder_u64(c, &numbers[count + i]);
    }
    s->hashes = numbers;
    s->hash_count = count;
    s->full_attention = form != FORM_COUNTED;
    /* Without full attention the keys are not looked at. */
    if (numbers != NULL && form == FORM_PAIRS)
        s->own_keys = numbers + count;
    else if (form == FORM_COUNTED)
        s->own_keys = numbers;
    e->store = s;
}

static void code_numbers(struct coder *c, const uint64_t **numbers,
                         size_t *count, struct event_arrays *arrays)
{
    uint32_t n = (uint32_t)*count;
    uint64_t *into;

    coder_u32(c, &n);
    if (arrays == NULL) { /* writing needs none */
        coder_u64_write(c, *numbers, n);
        return;
    }
    into = take(c, arrays, n);
    if (into != NULL)
        coder_u64_read(c, into, n);
    *numbers = n == 0 ? NULL : into;
    *count = n;
}

/* Copies left of each of `count` hashes that have just been read. */
static uint32_t *take_copies(struct coder *c, struct event_arrays *arrays,
                             size_t count)
{
    uint32_t *copies;

    if (c->bad || count <= arrays->copies_capacity)
        return arrays->copies;
    copies = realloc(arrays->copies, count * sizeof(*copies));
    if (copies == NULL) {
        c->bad = true;
        return NULL;
    }
    arrays->copies = copies;
    arrays->copies_capacity = count;
    return copies;
}

static void code_remaining(struct coder *c, struct bt_ev_kv_remove *e,
                           struct event_arrays *arrays)
{
    uint32_t *into = arrays == NULL ? NULL : take_copies(c, arrays, e->count);

    for (size_t i = 0; i < e->count && !c->bad; i++) {
        uint32_t copies = arrays == NULL ? e->remaining[i] : 0;

        coder_u32(c, &copies);
        if (into != NULL)
            into[i] = copies;
    }
    if (arrays != NULL)
        e->remaining = e->count == 0 ? NULL : into;
}

static void code_remove(struct coder *c, struct bt_ev_kv_remove *e,
                        struct event_arrays *arrays)
{
    bool says = e->remaining != NULL;

    coder_u32(c, &e->worker);
    coder_u32(c, &e->rank);
    e->tier = (enum bt_tier)coder_enum(c, e->tier, BT_TIERS);
    code_numbers(c, &e->hashes, &e->count, arrays);
    coder_bool(c, &says);
    if (says && !c->bad)
        code_remaining(c, e, arrays);
}

static void code_clear(struct coder *c, struct bt_ev_kv_clear *e)
{
    coder_u32(c, &e->worker);
    coder_u32(c, &e->rank);
    coder_bool(c, &e->all_ranks);
    coder_bool(c, &e->has_tier);
    e->tier = (enum bt_tier)coder_enum(c, e->tier, BT_TIERS);
}

static void code_stream(struct coder *c, struct bt_ev_kv_stream *e)
{
    coder_u32(c, &e->worker);
    coder_u32(c, &e->rank);
    e->state =
        (enum bt_stream_state)coder_enum(c, e->state, BT_STREAM_SUSPECT + 1u);
    e->cause =
        (enum bt_stream_cause)coder_enum(c, e->cause, BT_STREAM_CAUSE_COUNT);
}

static void code_counting(struct coder *c, struct bt_ev_kv_counting *e)
{
    coder_u32(c, &e->worker);
    coder_u32(c, &e->rank);
    e->counting =
        (enum bt_kv_counting)coder_enum(c, e->counting, BT_KV_COUNT_SET + 1u);
}

static void code_request(struct coder *c, struct bt_ev_request *e,
                         struct event_arrays *arrays)
{
    coder_u64(c, &e->cookie);
    coder_u32(c, &e->model);
    coder_u64(c, &e->ns);
    coder_u32(c, &e->prompt_tokens);
    coder_bool(c, &e->tokens_known);
    coder_u32(c, &e->max_tokens);
    coder_bool(c, &e->pd_allowed);
    coder_u64(c, &e->body_bytes);
    coder_i64(c, &e->tokenize_ns);
    coder_u64(c, &e->tenant);
    coder_i32(c, &e->priority);
    coder_bool(c, &e->whole_answer);
    code_numbers(c, &e->keys, &e->key_count, arrays);
}

static void code_prefill_done(struct coder *c, struct bt_ev_prefill_done *e)
{
    coder_u64(c, &e->request.v);
    coder_u32(c, &e->attempt);
    coder_bool(c, &e->has_params);
    coder_u32(c, &e->prompt_tokens);
    coder_u32(c, &e->cached_tokens);
}

static void code_leg_failed(struct coder *c, struct bt_ev_leg_failed *e)
{
    int32_t status = e->status;

    coder_u64(c, &e->request.v);
    coder_u32(c, &e->attempt);
    e->leg = (enum bt_leg)coder_enum(c, e->leg, BT_LEG_DECODE + 1u);
    e->how = (enum bt_leg_failure)coder_enum(c, e->how, BT_FAIL_TRUNCATED + 1u);
    coder_i32(c, &status);
    e->status = status;
    coder_bool(c, &e->bytes_sent);
}

static void code_progress(struct coder *c, struct bt_ev_progress *e)
{
    coder_u64(c, &e->request.v);
    coder_u32(c, &e->attempt);
    coder_u32(c, &e->tokens);
    coder_u32(c, &e->cached_tokens);
}

static void code_event(struct coder *c, struct bt_event *e,
                       const struct bt_core *core, struct event_arrays *arrays)
{
    switch (e->type) {
    case BT_EV_TICK:
        return;
    case BT_EV_WORKER_STATE:
        code_worker_state(c, &e->u.worker_state);
        return;
    case BT_EV_WORKER_STATS:
        code_worker_stats(c, &e->u.worker_stats);
        return;
    case BT_EV_KV_STORE:
        if (c->writing)
            write_store(c, &e->u.kv_store, core);
        else
            read_store(c, &e->u.kv_store, arrays);
        return;
    case BT_EV_KV_REMOVE:
        code_remove(c, &e->u.kv_remove, arrays);
        return;
    case BT_EV_KV_CLEAR:
        code_clear(c, &e->u.kv_clear);
        return;
    case BT_EV_KV_COUNTING:
        code_counting(c, &e->u.kv_counting);
        return;
    case BT_EV_KV_STREAM:
        code_stream(c, &e->u.kv_stream);
        return;
    case BT_EV_REQUEST:
        code_request(c, &e->u.request, arrays);
        return;
    case BT_EV_CLIENT_GONE:
        coder_u64(c, &e->u.client_gone.v);
        return;
    case BT_EV_PREFILL_DONE:
        code_prefill_done(c, &e->u.prefill_done);
        return;
    case BT_EV_LEG_FAILED:
        code_leg_failed(c, &e->u.leg_failed);
        return;
    case BT_EV_FIRST_TOKEN:
    case BT_EV_TOKENS:
    case BT_EV_DECODE_DONE:
        code_progress(c, &e->u.progress);
        return;
    }
    c->bad = true;
}

static void code_head(struct coder *c, struct bt_event *e)
{
    e->type =
        (enum bt_event_type)coder_enum(c, e->type, BT_EV_DECODE_DONE + 1u);
    coder_i64(c, &e->now_ns);
}

void journal_event_write(struct coder *c, const struct bt_event *event,
                         const struct bt_core *core)
{
    struct bt_event copy = *event;

    code_head(c, &copy);
    code_event(c, &copy, core, NULL);
}

void journal_event_read(struct coder *c, struct bt_event *event,
                        struct event_arrays *arrays)
{
    memset(event, 0, sizeof(*event));
    code_head(c, event);
    if (!c->bad)
        code_event(c, event, NULL, arrays);
    if (c->at != c->size)
        c->bad = true;
}
