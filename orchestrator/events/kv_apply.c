/* Decides of each decoded event whether it counts: locality, group, block size,
 * known parent; tells the sink what does and counts what does not. Also what
 * only shows in the events: decode errors over 1 %, copies beyond the engine's
 * blocks, hashes that are not the operator's, a wrong rank label. The sequence
 * is kv_stream.c's and has been settled before.
 * Invariant: every store that is left out costs hits, never invents one.
 */
#include "kv_apply.h"

#include "baton/orchestrator/kv_events.h"
#include "kv_identity.h"
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define LEVEL_WARN 1
#define LEVEL_INFO 2
#define LINE_MAX_  256

__attribute__((format(printf, 4, 5))) static void say(const struct kv_apply *a,
                                                      int level,
                                                      const char *word,
                                                      const char *format, ...)
{
    char line[LINE_MAX_];
    int at = snprintf(line, sizeof(line), "worker=%s rank=%" PRIu32 " ",
                      a->c.name, a->c.rank);
    va_list args;

    if (a->c.sink->say == NULL)
        return;
    if (at < 0 || (size_t)at >= sizeof(line))
        at = 0;
    va_start(args, format);
    vsnprintf(line + at, sizeof(line) - (size_t)at, format, args);
    va_end(args);
    a->c.sink->say(a->c.sink->arg, level, word, line);
}

static void begin(struct kv_apply *a)
{
    kv_groups_init(&a->groups);
    a->counting = BT_KV_COUNT_COPIES;
    a->block_tokens = 0;
    a->reference = a->c.block_tokens;
    a->size_count = 0;
    a->size_bad = false;
    a->leaks = false;
}

void kv_apply_init(struct kv_apply *a, const struct kv_apply_config *config)
{
    memset(a, 0, sizeof(*a));
    a->c = *config;
    kv_parked_init(&a->parked, config->parked_max, config->budget,
                   config->counts);
    begin(a);
}

void kv_apply_fini(struct kv_apply *a)
{
    kv_parked_fini(&a->parked);
}

/* ---- forgetting ---- */

static void clear_all(struct kv_apply *a)
{
    struct bt_ev_kv_clear clear = {.worker = a->c.source, .rank = a->c.rank};

    kv_parked_clear(&a->parked, NULL);
    a->counting = BT_KV_COUNT_COPIES;
    a->leaks = false;
    a->c.sink->clear(a->c.sink->arg, a->c.source, a->c.rank, &clear);
}

void kv_apply_forget(struct kv_apply *a)
{
    clear_all(a);
    begin(a);
}

void kv_apply_resume(struct kv_apply *a, const struct bt_stream_mark *mark)
{
    a->counting = mark->counting;
    a->leaks = mark->counting == BT_KV_COUNT_SET;
    a->block_tokens = mark->block_tokens;
    if (a->reference == 0)
        a->reference = mark->block_tokens;
    kv_groups_resume(&a->groups, mark);
}

static void on_cleared(struct kv_apply *a, const struct bt_kv_event *event)
{
    struct bt_ev_kv_clear clear = {.worker = a->c.source,
                                   .rank = a->c.rank,
                                   .has_tier = true,
                                   .tier = event->tier};

    a->c.counts->events[2]++;
    if (!event->has_tier) {
        clear_all(a);
        kv_stream_cleared(a->c.stream);
        return;
    }
    kv_parked_clear(&a->parked, &clear.tier);
    a->c.sink->clear(a->c.sink->arg, a->c.source, a->c.rank, &clear);
}

/* ---- stores ---- */

static void tell_size(struct kv_apply *a, uint32_t size)
{
    for (uint32_t i = 0; i < a->size_count; i++)
        if (a->sizes[i] == size)
            return;
    if (a->size_count == KV_SIZES_MAX)
        return;
    a->sizes[a->size_count++] = size;
    a->c.sink->block_size(a->c.sink->arg, a->c.source, a->c.rank, size);
}

/* Is it of the block size that counts? The engine's fine-grained partial
 * entries are smaller, single and hang on a block that nobody announces; they
 * are no mismatch. Slower tiers may have sizes of their own: their stores are
 * left out too, but say nothing about the model's. */
static bool size_fits(struct kv_apply *a, const struct bt_kv_store *store)
{
    uint32_t size = store->block_tokens;
    bool device = store->tier == BT_TIER_DEVICE;

    if (size == 0)
        return true; /* placeholder: hashes only */
    if (device && store->hash_count == 1 && store->has_parent &&
        size < a->reference) {
        a->c.counts->events[3]++;
        return false;
    }
    if (device)
        a->block_tokens = size;
    if (device && a->reference == 0)
        a->reference = size;
    if (a->reference == 0 || size == a->reference)
        return true;
    a->c.counts->size_mismatches++;
    if (device) {
        a->size_bad = true;
        tell_size(a, size);
    }
    return false;
}

static void check_identity(struct kv_apply *a, const struct bt_kv_store *store)
{
    if (store->tier != BT_TIER_DEVICE)
        return;
    switch (kv_identity_check(a->c.hash, &a->c.root, store)) {
    case KV_IDENTITY_SKIPPED:
        return;
    case KV_IDENTITY_SAME:
        a->c.counts->hash_same++;
        return;
    case KV_IDENTITY_OTHER:
        a->c.counts->hash_other++;
        if (!a->hash_said)
            say(a, LEVEL_WARN, "kv_hash_other",
                "hash=%s first=%016" PRIx64 " why=\"announced hashes are "
                "not those of the configured algorithm and seed\"",
                bt_engine_hash_name(a->c.hash), store->hashes[0]);
        a->hash_said = true;
        return;
    }
}

/* Requests are hashed one way only: what is hashed the other way is never hit.
 * Placeholders and own keys have no shape. */
static void check_eagle(struct kv_apply *a, const struct bt_kv_store *store)
{
    bool pairs = store->eagle != 0;

    if (a->c.eagle == BT_EAGLE_UNTOLD || store->own_keys != NULL ||
        store->token_count == 0 || pairs == (a->c.eagle == BT_EAGLE_ON))
        return;
    a->c.counts->eagle_mismatches++;
    if (!*a->c.eagle_said)
        say(a, LEVEL_WARN, "kv_eagle_mismatch",
            "events=%s configured=%s why=\"requests are hashed as configured, "
            "so nothing will match; see models[].engine.eagle\"",
            pairs ? "pairs" : "tokens", pairs ? "off" : "on");
    *a->c.eagle_said = true;
}

static void count_stored(struct kv_apply *a, const struct bt_kv_store *store)
{
    a->stored = true;
    a->c.counts->stored_blocks += store->hash_count;
    if (store->tier == BT_TIER_DEVICE)
        kv_stream_stored(a->c.stream, store->hash_count);
}

static bool on_attach(void *arg, const struct bt_kv_store *store)
{
    struct kv_apply *a = arg;

    if (a->c.sink->store(a->c.sink->arg, a->c.source, a->c.rank, store) !=
        BT_OK)
        return false;
    count_stored(a, store);
    return true;
}

static void on_stored(struct kv_apply *a, const struct bt_kv_event *event)
{
    const struct bt_kv_store *store = &event->store;
    enum bt_status status;

    a->c.counts->events[0]++;
    if (kv_groups_learn(&a->groups, event)) {
        /* What the other group has left is not to be believed. */
        clear_all(a);
        kv_stream_missed(a->c.stream, BT_CAUSE_GROUPS);
    }
    if (!kv_groups_takes(&a->groups, event)) {
        a->c.counts->other_groups++;
        return;
    }
    if (!size_fits(a, store))
        return;
    check_identity(a, store);
    check_eagle(a, store);
    status = a->c.sink->store(a->c.sink->arg, a->c.source, a->c.rank, store);
    if (status == BT_NOT_FOUND) {
        a->c.counts->unknown_parents++;
        kv_parked_add(&a->parked, a->now_ns, store);
    } else if (status == BT_OK) {
        count_stored(a, store);
        kv_parked_attach(&a->parked, store->hashes, store->hash_count,
                         on_attach, a);
    }
}

static void on_removed(struct kv_apply *a, const struct bt_kv_event *event)
{
    struct bt_ev_kv_remove remove = {.rank = a->c.rank,
                                     .hashes = event->hashes,
                                     .remaining = event->remaining,
                                     .count = event->hash_count,
                                     .tier = event->tier};

    a->c.counts->events[1]++;
    if (!kv_groups_takes(&a->groups, event)) {
        a->c.counts->other_groups++;
        return;
    }
    a->c.counts->removed_blocks += event->hash_count;
    for (size_t i = 0; a->parked.count > 0 && i < event->hash_count; i++)
        if (event->remaining == NULL || event->remaining[i] == 0)
            kv_parked_removed(&a->parked, event->hashes[i], event->tier);
    a->c.sink->remove(a->c.sink->arg, a->c.source, a->c.rank, &remove);
}

static void on_event(void *arg, const struct bt_kv_event *event)
{
    struct kv_apply *a = arg;

    if (!event->local) {
        a->c.counts->foreign++;
        a->c.counts->events[3]++;
        return;
    }
    switch (event->type) {
    case BT_KV_STORED:
        on_stored(a, event);
        return;
    case BT_KV_REMOVED:
        on_removed(a, event);
        return;
    case BT_KV_CLEARED:
        on_cleared(a, event);
        return;
    }
}

/* ---- what shows over many events ---- */

static void window(struct kv_apply *a, uint64_t events, uint64_t bad)
{
    bool bad_window;

    if (a->window_events == 0)
        a->window_ns = a->now_ns;
    a->window_events += events;
    a->window_bad += bad;
    if (a->window_events < KV_WINDOW_EVENTS &&
        a->now_ns - a->window_ns < KV_WINDOW_NS)
        return;
    bad_window = a->window_bad * 100 > a->window_events;
    if (bad_window && !a->errors_said)
        say(a, LEVEL_WARN, "kv_decode_errors",
            "bad=%" PRIu64 " of=%" PRIu64 " why=\"events that this version "
            "cannot read, the index misses blocks\"",
            a->window_bad, a->window_events);
    if (bad_window)
        kv_stream_damaged(a->c.stream, BT_CAUSE_DECODE_ERRORS);
    a->errors_said = bad_window;
    a->window_events = a->window_bad = 0;
}

static void check_label(struct kv_apply *a,
                        const struct bt_kv_batch_stats *stats)
{
    if (!a->c.port_is_rank || !stats->has_rank ||
        stats->rank == (int64_t)a->c.rank)
        return;
    a->c.counts->rank_mismatches++;
    if (!a->label_said)
        say(a, a->c.ranks > 1 ? LEVEL_WARN : LEVEL_INFO, "kv_rank_label",
            "label=%" PRId64 " why=\"the port is trusted\"", stats->rank);
    a->label_said = true;
}

/* Only the last copy's removal is sent by some engines: then copies that are
 * counted leak, and more of them than the engine has blocks proves it. */
/* Too many copies prove something only while no removal can have been missed:
 * a hole leaves copies behind too, also in what outlives it. */
static bool copies_tell(const struct kv_apply *a)
{
    const struct kv_stream *s = a->c.stream;

    return s->state == BT_STREAM_EXACT ||
           (s->state == BT_STREAM_PARTIAL && s->cause == BT_CAUSE_JOINED_LATE);
}

static void check_copies(struct kv_apply *a)
{
    const struct bt_event_sink *sink = a->c.sink;
    uint64_t blocks = a->c.stream->blocks, copies;

    if (a->c.removals != BT_REMOVALS_AUTO || a->leaks || blocks == 0 ||
        !copies_tell(a))
        return;
    copies = sink->copies(sink->arg, a->c.source, a->c.rank);
    if (copies <= blocks)
        return;
    a->leaks = true;
    say(a, LEVEL_WARN, "kv_copies_leak",
        "copies=%" PRIu64 " blocks=%" PRIu64
        " why=\"removals are of last copies, counted so from now on\"",
        copies, blocks);
}

static void count_set(struct kv_apply *a)
{
    const struct bt_event_sink *sink = a->c.sink;

    a->counting = BT_KV_COUNT_SET;
    sink->counting(sink->arg, a->c.source, a->c.rank, BT_KV_COUNT_SET);
}

/* The sink keeps the way of counting only as long as the rank has entries. */
static void check_counting(struct kv_apply *a)
{
    if (!a->stored || a->counting == BT_KV_COUNT_SET)
        return;
    check_copies(a);
    if (a->c.removals == BT_REMOVALS_LAST || a->leaks || a->heals)
        count_set(a);
}

void kv_apply_heal(struct kv_apply *a, bool on)
{
    a->heals = on;
    if (on && a->counting != BT_KV_COUNT_SET)
        count_set(a);
}

static bool is_emptied(const struct kv_apply *a)
{
    const struct bt_event_sink *sink = a->c.sink;

    return a->counting == BT_KV_COUNT_SET &&
           sink->copies(sink->arg, a->c.source, a->c.rank) == 0;
}

void kv_apply_batch(struct kv_apply *a, int64_t now_ns, const void *payload,
                    size_t bytes)
{
    struct bt_kv_batch_stats stats;
    uint64_t cut = 0;

    a->now_ns = now_ns;
    a->stored = false;
    if (is_emptied(a))
        a->counting = BT_KV_COUNT_COPIES; /* to be told again */
    if (bt_kv_batch_decode(payload, bytes, a->c.scratch, &stats, on_event, a) !=
        BT_OK) {
        a->c.counts->batch_errors++;
        cut = 1; /* at least */
    }
    a->c.counts->event_errors += stats.skipped;
    a->c.counts->unknown_tags += stats.unknown_tags;
    a->c.counts->events[3] += stats.unknown_tags;
    check_label(a, &stats);
    check_counting(a);
    window(a, stats.events + stats.skipped + cut, stats.skipped + cut);
}
