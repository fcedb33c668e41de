/* Decides what a batch is and delivers its good events in order; what an event
 * means is kv_decode.c's, and sequence, restart and index are left to others.
 * Each event is read once; a bad one is passed over as bytes from its start, so
 * it cannot disturb the next (engine-wire.md 1.7).
 *
 *   batch: [ts, [event ...], rank?] or {"ts", "events", "data_parallel_rank"}
 *   event: [tag, field ...]         or {"type": tag, name: field ...}
 *
 * stats: `events` are those understood (an event without hashes is one, but is
 * not delivered), `skipped` the bad ones, `unknown_tags` the foreign ones.
 */
#include "baton/orchestrator/kv_events.h"

#include "kv_decode.h"
#include "kv_fields.h"
#include "kv_hashes.h"
#include <string.h>

struct batch {
    struct bt_kv_scratch *scratch;
    struct bt_kv_batch_stats *stats;
    bt_kv_event_fn fn;
    void *arg;
    bool has_events;
};

static void event_take(struct batch *b, const struct kv_fields *f)
{
    struct bt_kv_event event;
    memset(&event, 0, sizeof event);
    switch (bt_kv_event_decode(f, b->scratch, &event)) {
    case KV_GOOD:
        b->stats->events++;
        if (event.hash_count > 0 || event.type == BT_KV_CLEARED)
            b->fn(b->arg, &event);
        break;
    case KV_BAD:
        b->stats->skipped++;
        break;
    case KV_FOREIGN:
        b->stats->unknown_tags++;
        break;
    }
}

static bool events_take(struct batch *b, struct msgpack *m)
{
    struct msgpack_item list;
    if (!bt_msgpack_read(m, &list) || list.type != MSGPACK_ARRAY)
        return false;
    b->has_events = true;
    for (uint64_t i = 0; i < list.u; i++) {
        struct msgpack start = *m;
        struct kv_fields f;
        if (bt_kv_fields_read(m, b->scratch, &f)) {
            event_take(b, &f);
            continue;
        }
        *m = start;
        if (!bt_msgpack_skip(m, NULL))
            return false;
        b->stats->skipped++;
    }
    return true;
}

static bool ts_take(struct batch *b, struct msgpack *m)
{
    struct msgpack_item ts;
    if (!bt_msgpack_read(m, &ts))
        return false;
    if (ts.type == MSGPACK_FLOAT)
        b->stats->ts = ts.f;
    else if (bt_kv_is_int(&ts))
        b->stats->ts = (double)(int64_t)ts.u;
    else
        return false;
    return true;
}

static bool rank_take(struct batch *b, struct msgpack *m)
{
    struct msgpack_item rank;
    struct msgpack at = *m;
    if (!bt_msgpack_skip(m, NULL) || !bt_msgpack_read(&at, &rank))
        return false;
    if (bt_kv_is_int(&rank)) {
        b->stats->has_rank = true;
        b->stats->rank = (int64_t)rank.u;
    }
    return true;
}

static bool array_batch(struct batch *b, struct msgpack *m, uint64_t count)
{
    if (count < 2 || !ts_take(b, m) || !events_take(b, m))
        return false;
    if (count > 2 && !rank_take(b, m))
        return false;
    for (uint64_t i = 3; i < count; i++)
        if (!bt_msgpack_skip(m, NULL))
            return false;
    return true;
}

static bool map_batch(struct batch *b, struct msgpack *m, uint64_t pairs)
{
    for (uint64_t i = 0; i < pairs; i++) {
        struct msgpack at = *m;
        struct msgpack_item key;
        bool good;
        if (!bt_msgpack_skip(m, NULL) || !bt_msgpack_read(&at, &key))
            return false;
        if (bt_msgpack_is(&key, "ts"))
            good = ts_take(b, m);
        else if (bt_msgpack_is(&key, "events") && !b->has_events)
            good = events_take(b, m);
        else if (bt_msgpack_is(&key, "data_parallel_rank") ||
                 bt_msgpack_is(&key, "attn_dp_rank"))
            good = rank_take(b, m);
        else
            good = bt_msgpack_skip(m, NULL);
        if (!good)
            return false;
    }
    return b->has_events;
}

enum bt_status bt_kv_batch_decode(const void *payload, size_t bytes,
                                  struct bt_kv_scratch *scratch,
                                  struct bt_kv_batch_stats *stats_out,
                                  bt_kv_event_fn fn, void *arg)
{
    struct batch b = {
        .scratch = scratch, .stats = stats_out, .fn = fn, .arg = arg};
    struct msgpack m = {.at = payload};
    struct msgpack_item head;
    bool good = false;
    memset(stats_out, 0, sizeof *stats_out);
    if (bytes == 0)
        return BT_INVALID;
    m.end = m.at + bytes;
    if (!bt_msgpack_read(&m, &head))
        return BT_INVALID;
    if (head.type == MSGPACK_ARRAY)
        good = array_batch(&b, &m, head.u);
    else if (head.type == MSGPACK_MAP)
        good = map_batch(&b, &m, head.u);
    return good && m.at == m.end ? BT_OK : BT_INVALID;
}
