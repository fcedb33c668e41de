/* KV events from the caches to the core: what one instant changed on a worker
 * is a batch. A batch arrives after its lag, in order unless told otherwise.
 * One that is lost is noticed by the number of the next one. What follows is
 * what the live plane does (orchestrator/events): the missing ones are asked
 * for, later ones are held and the stream is syncing; the answer is all that
 * the engine had sent when it was asked. Unless that comes, after three asks,
 * or without a replay socket, the stream goes on without what was missed, as
 * degraded: nothing is forgotten, and a removal may have been missed.
 *
 *   exact --gap--> syncing --answer--> exact
 *     |               \--3 x silent--> degraded --aged out--> partial
 *     \------gap, no replay-----------/  (as many blocks stored as it has)
 *
 * Unlike the live plane it does not read a stream anew after a failed replay.
 *
 * Invariant: held[0] is a lost batch; a lost one is applied only out of a
 * replay.
 *
 * Own keys are made here: one per block id of the trace, which names the
 * whole prefix, as the engine hash does.
 */
#include "sim_priv.h"

#include <stdlib.h>
#include <string.h>

#define FLYING_MAX (1u << 20)

/* As the live shell: batches held at most, asks in a row, patience of each. */
#define HELD_MAX       4096u
#define ASKS_MAX       3u
#define KEPT_MAX       10000u /* by an engine, to be read back */
#define SILENCE_NS     (2 * BT_NS_PER_S)
#define REPLAY_WORK_NS (5 * BT_NS_PER_MS)

bool sim_kv_plane_init(struct sim *s)
{
    struct sim_kv_plane *k = &s->kv;
    size_t n = s->worker_count;

    k->pending = calloc(n, sizeof(*k->pending));
    k->dirty = calloc(n, sizeof(*k->dirty));
    k->is_dirty = calloc(n, sizeof(*k->is_dirty));
    k->streams = calloc(n, sizeof(*k->streams));
    k->flying_free = SIM_NONE;
    return k->pending != NULL && k->dirty != NULL && k->is_dirty != NULL &&
           k->streams != NULL;
}

static void batch_fini(struct sim_kv_batch *b)
{
    free(b->items);
    free(b->ids);
    free(b->keys);
}

void sim_kv_plane_fini(struct sim *s)
{
    struct sim_kv_plane *k = &s->kv;

    for (uint32_t i = 0; k->pending != NULL && i < s->worker_count; i++)
        batch_fini(&k->pending[i]);
    for (uint32_t i = 0; k->streams != NULL && i < s->worker_count; i++)
        free(k->streams[i].held);
    batch_fini(&k->spare);
    for (uint32_t i = 0; i < k->flying_count; i++) {
        batch_fini(k->flying[i]);
        free(k->flying[i]);
    }
    free(k->pending);
    free(k->dirty);
    free(k->is_dirty);
    free(k->streams);
    free(k->flying);
}

static bool room(struct sim_kv_batch *b)
{
    void *memory;

    if (b->item_count == b->item_capacity) {
        uint32_t n = b->item_capacity == 0 ? 16 : b->item_capacity * 2;

        memory = realloc(b->items, n * sizeof(*b->items));
        if (memory == NULL)
            return false;
        b->items = memory;
        b->item_capacity = n;
    }
    if (b->id_count == b->id_capacity) {
        uint32_t n = b->id_capacity == 0 ? 64 : b->id_capacity * 2;

        memory = realloc(b->ids, n * sizeof(*b->ids));
        if (memory == NULL)
            return false;
        b->ids = memory;
        memory = realloc(b->keys, n * sizeof(*b->keys));
        if (memory == NULL)
            return false;
        b->keys = memory;
        b->id_capacity = n;
    }
    return true;
}

void sim_kv_note(struct sim *s, uint32_t worker, bool removed,
                 enum bt_tier tier, uint64_t id)
{
    struct sim_kv_plane *k = &s->kv;
    struct sim_kv_batch *b = &k->pending[worker];
    struct sim_kv_item *item;

    if (s->config->knowledge.events_off)
        return;
    if (!room(b)) {
        sim_fail(s, BT_NO_MEMORY);
        return;
    }
    if (!k->is_dirty[worker]) {
        k->is_dirty[worker] = true;
        k->dirty[k->dirty_count++] = worker;
    }
    b->ids[b->id_count] = id;
    b->keys[b->id_count++] = sim_key_of(id);
    item = &b->items[b->item_count];
    if (b->item_count > 0 && item[-1].remove == removed &&
        item[-1].tier == tier) {
        item[-1].count++;
        return;
    }
    *item = (struct sim_kv_item){.remove = removed, .tier = tier, .count = 1};
    b->item_count++;
}

static void apply(struct sim *s, uint32_t worker, const struct sim_kv_batch *b)
{
    uint32_t at = 0;

    for (uint32_t i = 0; i < b->item_count; i++) {
        const struct sim_kv_item *item = &b->items[i];
        struct bt_kv_store store = {.own_keys = &b->keys[at],
                                    .hashes = &b->ids[at],
                                    .hash_count = item->count,
                                    .block_tokens = s->block_tokens,
                                    .tier = item->tier,
                                    .full_attention = 1};
        struct bt_event event = {.type = BT_EV_KV_STORE};

        event.u.kv_store.worker = worker;
        event.u.kv_store.store = &store;
        if (item->remove) {
            event.type = BT_EV_KV_REMOVE;
            event.u.kv_remove = (struct bt_ev_kv_remove){.worker = worker,
                                                         .hashes = &b->ids[at],
                                                         .count = item->count,
                                                         .tier = item->tier};
        }
        sim_step_core(s, &event);
        at += item->count;
    }
}

static uint32_t flying_slot(struct sim_kv_plane *k)
{
    uint32_t at = k->flying_free;
    struct sim_kv_batch **grown;

    if (at != SIM_NONE) {
        k->flying_free = k->flying[at]->next_free;
        return at;
    }
    if (k->flying_count == FLYING_MAX)
        return SIM_NONE;
    if ((k->flying_count & (k->flying_count - 1)) == 0) {
        size_t n = k->flying_count == 0 ? 1 : (size_t)k->flying_count * 2;

        grown = realloc(k->flying, n * sizeof(struct sim_kv_batch *));
        if (grown == NULL)
            return SIM_NONE;
        k->flying = grown;
    }
    k->flying[k->flying_count] = calloc(1, sizeof(struct sim_kv_batch));
    return k->flying[k->flying_count] == NULL ? SIM_NONE : k->flying_count++;
}

/* The batch flies: its buffers change place with those of the free slot. */
static void fly(struct sim *s, uint32_t worker)
{
    const struct bt_sim_knowledge *known = &s->config->knowledge;
    struct sim_kv_plane *k = &s->kv;
    struct sim_kv_stream *stream = &k->streams[worker];
    uint32_t slot = flying_slot(k);
    int64_t at = s->now_ns;
    struct sim_kv_batch b;

    if (slot == SIM_NONE) {
        sim_fail(s, BT_NO_MEMORY);
        return;
    }
    b = *k->flying[slot]; /* empty */
    *k->flying[slot] = k->pending[worker];
    k->pending[worker] = b;
    k->flying[slot]->worker = worker;
    k->flying[slot]->incarnation = s->workers[worker].incarnation;
    k->flying[slot]->sent_ns = s->now_ns;
    k->flying[slot]->lost = bt_rng_unit(&s->rng_kv) < known->event_loss;
    if (known->event_lag_ns > 0)
        at += (int64_t)bt_rng_exponential(&s->rng_kv,
                                          (double)known->event_lag_ns);
    if (!known->event_reorder && at < stream->last_ns)
        at = stream->last_ns;
    stream->last_ns = at;
    sim_after(s, at, SIM_EV_KV_OUT, slot, 0);
}

/* At once. What the core may cause by it is the worker's next batch. */
static void deliver(struct sim *s, uint32_t worker)
{
    struct sim_kv_plane *k = &s->kv;
    struct sim_kv_batch b = k->pending[worker];

    k->pending[worker] = k->spare;
    k->spare = (struct sim_kv_batch){0};
    apply(s, worker, &b);
    b.item_count = b.id_count = 0;
    k->spare = b;
}

bool sim_kv_flush(struct sim *s)
{
    const struct bt_sim_knowledge *known = &s->config->knowledge;
    struct sim_kv_plane *k = &s->kv;
    bool any = k->dirty_count > 0;

    while (k->dirty_count > 0) {
        uint32_t worker = k->dirty[--k->dirty_count];

        k->is_dirty[worker] = false;
        if (k->pending[worker].item_count == 0)
            continue; /* it died with them unsent */
        if (known->event_lag_ns > 0 || known->event_loss > 0)
            fly(s, worker);
        else
            deliver(s, worker);
    }
    return any;
}

/* ---- the receiver ---- */

static void tell_state(struct sim *s, uint32_t worker,
                       enum bt_stream_state state, enum bt_stream_cause cause)
{
    struct bt_event event = {.type = BT_EV_KV_STREAM};

    event.u.kv_stream.worker = worker;
    event.u.kv_stream.state = state;
    event.u.kv_stream.cause = cause;
    sim_step_core(s, &event);
}

static void tell_worth(struct sim *s, uint32_t worker)
{
    const struct sim_kv_stream *stream = &s->kv.streams[worker];

    if (stream->hole)
        tell_state(s, worker, BT_STREAM_DEGRADED, stream->hole_cause);
    else if (stream->missed)
        tell_state(s, worker, BT_STREAM_PARTIAL, BT_CAUSE_AGED_OUT);
    else
        tell_state(s, worker, BT_STREAM_EXACT, stream->exact_cause);
}

static void set_hole(struct sim_kv_stream *stream, enum bt_stream_cause cause)
{
    stream->hole = true;
    stream->hole_cause = cause;
    stream->stored = 0;
}

/* True: whatever the hole left behind has been evicted since. */
static bool hole_is_over(const struct sim *s, uint32_t worker,
                         const struct sim_kv_batch *b)
{
    struct sim_kv_stream *stream = &s->kv.streams[worker];
    uint32_t blocks = s->workers[worker].tiers[BT_TIER_DEVICE].capacity;

    if (!stream->hole)
        return false;
    for (uint32_t i = 0; i < b->item_count; i++)
        if (!b->items[i].remove && b->items[i].tier == BT_TIER_DEVICE)
            stream->stored += b->items[i].count;
    if (blocks == 0 || stream->stored < blocks)
        return false;
    stream->hole = false;
    stream->missed = true;
    return true;
}

static void give_back(struct sim_kv_plane *k, uint32_t batch)
{
    struct sim_kv_batch *b = k->flying[batch];

    b->item_count = b->id_count = 0;
    b->next_free = k->flying_free;
    k->flying_free = batch;
}

/* While it is syncing, what it is worth is told at the end of that. */
static void take(struct sim *s, uint32_t batch)
{
    struct sim_kv_batch *b = s->kv.flying[batch];
    uint32_t worker = b->worker;
    bool over;

    apply(s, worker, b);
    over = hole_is_over(s, worker, b);
    give_back(&s->kv, batch);
    if (over && !s->kv.streams[worker].syncing)
        tell_worth(s, worker);
}

static bool hold(struct sim_kv_stream *stream, uint32_t batch)
{
    if (stream->held_count == stream->held_capacity) {
        uint32_t n =
            stream->held_capacity == 0 ? 16 : stream->held_capacity * 2;
        uint32_t *held = realloc(stream->held, n * sizeof(*held));

        if (held == NULL)
            return false;
        stream->held = held;
        stream->held_capacity = n;
    }
    stream->held[stream->held_count++] = batch;
    return true;
}

static void drop_first(struct sim_kv_stream *stream, uint32_t n)
{
    stream->held_count -= n;
    memmove(stream->held, stream->held + n,
            stream->held_count * sizeof(*stream->held));
}

static void ask_replay(struct sim *s, uint32_t worker)
{
    const struct bt_sim_knowledge *known = &s->config->knowledge;
    struct sim_kv_stream *stream = &s->kv.streams[worker];
    int64_t after = 3 * known->event_lag_ns + REPLAY_WORK_NS;

    if (!stream->syncing)
        tell_state(s, worker, BT_STREAM_SYNCING, BT_CAUSE_GAP);
    stream->syncing = true;
    stream->silent = bt_rng_unit(&s->rng_kv) < known->event_loss;
    stream->asked_ns = s->now_ns;
    if (stream->silent)
        after = SILENCE_NS;
    sim_after(s, s->now_ns + after, SIM_EV_KV_REPLAY, worker,
              ++stream->version);
}

/* Those that came, without those that did not. */
static void go_on_without(struct sim *s, uint32_t worker,
                          enum bt_stream_cause cause)
{
    struct sim_kv_stream *stream = &s->kv.streams[worker];

    stream->syncing = true; /* told once, at the end */
    for (uint32_t i = 0; i < stream->held_count; i++) {
        if (!s->kv.flying[stream->held[i]]->lost) {
            take(s, stream->held[i]);
            continue;
        }
        set_hole(stream, cause);
        give_back(&s->kv, stream->held[i]);
    }
    stream->held_count = stream->asks = 0;
    stream->syncing = false;
    tell_worth(s, worker);
}

/* All up to the first one that was sent too late to be in the answer, and is
 * lost; true: others came after it. */
static bool read_back(struct sim *s, uint32_t worker)
{
    struct sim_kv_stream *stream = &s->kv.streams[worker];
    int64_t reaches = stream->asked_ns + s->config->knowledge.event_lag_ns;
    bool more = false;
    uint32_t n = 0;

    for (; n < stream->held_count; n++) {
        const struct sim_kv_batch *b = s->kv.flying[stream->held[n]];

        if (b->lost && b->sent_ns > reaches)
            break;
        take(s, stream->held[n]);
    }
    drop_first(stream, n);
    for (uint32_t i = 0; i < stream->held_count && !more; i++)
        more = !s->kv.flying[stream->held[i]]->lost;
    return more;
}

void sim_kv_replay(struct sim *s, uint32_t worker, uint64_t version)
{
    struct sim_kv_stream *stream = &s->kv.streams[worker];

    if (!stream->syncing || version != stream->version)
        return;
    if (stream->silent || !s->workers[worker].up) {
        if (++stream->asks < ASKS_MAX)
            ask_replay(s, worker);
        else
            go_on_without(s, worker, BT_CAUSE_REPLAY_FAILED);
        return;
    }
    stream->asks = 0;
    if (read_back(s, worker)) {
        ask_replay(s, worker);
        return;
    }
    stream->syncing = false;
    stream->exact_cause = BT_CAUSE_REPLAYED;
    tell_worth(s, worker);
}

void sim_kv_arrive(struct sim *s, uint32_t batch)
{
    struct sim_kv_batch *b = s->kv.flying[batch];
    struct sim_kv_stream *stream = &s->kv.streams[b->worker];
    uint32_t worker = b->worker;

    if (b->incarnation != s->workers[worker].incarnation) {
        give_back(&s->kv, batch);
        return;
    }
    if (!b->lost && stream->held_count == 0) {
        take(s, batch);
        return;
    }
    if (stream->held_count >= HELD_MAX)
        b->lost = true; /* no room: it must be read back as well */
    if (!hold(stream, batch)) {
        sim_fail(s, BT_NO_MEMORY);
        return;
    }
    if (stream->held_count >= KEPT_MAX) {
        go_on_without(s, worker,
                      s->config->knowledge.event_replay ? BT_CAUSE_REPLAY_SHORT
                                                        : BT_CAUSE_NO_REPLAY);
        return;
    }
    if (b->lost || stream->syncing)
        return; /* nobody can know yet, or it is known */
    if (s->config->knowledge.event_replay)
        ask_replay(s, worker);
    else
        go_on_without(s, worker, BT_CAUSE_NO_REPLAY);
}

/* What a dead worker had not sent yet is never sent, and another process
 * starts another stream. */
void sim_kv_forget(struct sim *s, uint32_t worker)
{
    struct sim_kv_stream *stream = &s->kv.streams[worker];

    s->kv.pending[worker].item_count = 0;
    s->kv.pending[worker].id_count = 0;
    for (uint32_t i = 0; i < stream->held_count; i++)
        give_back(&s->kv, stream->held[i]);
    stream->held_count = stream->asks = 0;
    stream->syncing = stream->hole = stream->missed = false;
    stream->exact_cause = BT_CAUSE_FROM_START;
}
