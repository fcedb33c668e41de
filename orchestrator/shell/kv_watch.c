/* Looks at what the self-check found of each worker, once a second, and says
 * what an operator must know: its hits are disproved (its streams are then read
 * anew, where they can be replayed), they are believed again, or it has hits
 * that nothing foresaw. Decides when to speak and to ask, and when prefills ask
 * a worker to announce its blocks again (workers[].healing): for some minutes
 * after a hole. Whether a worker is believed is the core's (credit.c).
 *
 * Each is said once, until its opposite: another process, or a prediction.
 */
#include "serve_priv.h"

#include <inttypes.h>
#include <stdlib.h>

#define EVERY_NS BT_NS_PER_S
/* So many prompts were found cached, and nothing was ever predicted, though the
 * worker has announced so many blocks (engine-wire.md 1.13). */
#define UNFORESEEN_CHECKS 8u
#define UNFORESEEN_BLOCKS 1000u
/* After the last hole; what no prompt has touched by then is not in use. */
#define HEAL_NS (300 * BT_NS_PER_S)

struct watched {
    bool disproved, unforeseen; /* as said */
    bool wants;                 /* its streams are to be read anew */
    bool asked;
    int64_t asked_ns;
    bool heals;
    uint64_t holes; /* of its streams, when last looked at */
    int64_t hole_ns;
};

struct kv_watch {
    int64_t due_ns;
    struct watched at[]; /* by slot */
};

enum bt_status kv_watch_start(struct bt_serve *serve)
{
    serve->kv_watch =
        calloc(1, sizeof(*serve->kv_watch) +
                      serve->config->worker_count * sizeof(struct watched));
    return serve->kv_watch == NULL ? BT_NO_MEMORY : BT_OK;
}

void kv_watch_stop(struct bt_serve *serve)
{
    free(serve->kv_watch);
    serve->kv_watch = NULL;
}

/* ---- disproved ---- */

static void read_anew(struct bt_serve *serve, uint32_t slot, uint32_t ranks)
{
    uint32_t asked = 0;

    for (uint32_t r = 0; r < ranks; r++)
        asked += bt_event_plane_resync(serve->events, slot, r) == BT_OK;
    if (asked > 0)
        bt_log(BT_LOG_INFO, "kv_stream_resync",
               "worker=%s ranks=%" PRIu32 " why=disproved",
               serve_worker_name(serve, slot), asked);
}

static void look_at_credit(struct bt_serve *serve, uint32_t slot,
                           const struct bt_core_worker_info *info, int64_t now)
{
    struct watched *w = &serve->kv_watch->at[slot];
    bool disproved = info->cause == BT_CAUSE_DISPROVED;

    if (disproved != w->disproved)
        bt_log(disproved ? BT_LOG_WARN : BT_LOG_INFO,
               disproved ? "kv_stream_disproved" : "kv_stream_recovered",
               "worker=%s credit=%.2f predicted=%" PRIu64 " found=%" PRIu64,
               serve_worker_name(serve, slot), info->credit,
               info->hit_predicted, info->hit_actual);
    if (disproved != w->disproved)
        w->wants = disproved && serve->config->workers[slot].replay != NULL;
    w->disproved = disproved;
    if (!w->wants ||
        (w->asked && now - w->asked_ns < serve->config->events.cooldown_ns))
        return;
    w->wants = false;
    w->asked = true;
    w->asked_ns = now;
    read_anew(serve, slot, info->ranks);
}

/* ---- unforeseen ---- */

static uint64_t blocks_announced(const struct bt_serve *serve, uint32_t slot,
                                 uint32_t ranks)
{
    struct bt_stream_info info;
    uint64_t blocks = 0;

    for (uint32_t r = 0; r < ranks; r++)
        if (bt_event_plane_stream(serve->events, slot, r, &info) == BT_OK)
            blocks += info.counts.stored_blocks;
    return blocks;
}

static void look_at_unforeseen(struct bt_serve *serve, uint32_t slot,
                               const struct bt_core_worker_info *info)
{
    struct watched *w = &serve->kv_watch->at[slot];
    bool blind = info->hit_predicted == 0 &&
                 info->hit_unforeseen_checks >= UNFORESEEN_CHECKS;
    uint64_t blocks;

    if (!blind || w->unforeseen) {
        w->unforeseen = blind;
        return;
    }
    blocks = blocks_announced(serve, slot, info->ranks);
    if (blocks <= UNFORESEEN_BLOCKS)
        return;
    w->unforeseen = true;
    bt_log(BT_LOG_WARN, "kv_hits_unforeseen",
           "worker=%s checks=%" PRIu64 " found=%" PRIu64 " blocks=%" PRIu64
           " why=\"the engine finds prefixes cached, the index never does: "
           "look at the block size, the hash domain (engine.eagle, cache_salt, "
           "adapter) and the tokenizer of the model\"",
           serve_worker_name(serve, slot), info->hit_checks,
           info->hit_unforeseen, blocks);
}

/* ---- healing ---- */

struct holes {
    bool open; /* a stream is not exact, but was or is heard */
    uint64_t count;
};

static struct holes holes_of(const struct bt_serve *serve, uint32_t slot,
                             uint32_t ranks)
{
    struct holes holes = {false, 0};
    struct bt_stream_info info;

    for (uint32_t r = 0; r < ranks; r++) {
        if (bt_event_plane_stream(serve->events, slot, r, &info) != BT_OK)
            continue;
        holes.open = holes.open || info.state == BT_STREAM_DEGRADED ||
                     info.state == BT_STREAM_PARTIAL;
        holes.count += info.counts.gaps + info.counts.resets;
    }
    return holes;
}

static void look_at_holes(struct bt_serve *serve, uint32_t slot, uint32_t ranks,
                          int64_t now)
{
    struct watched *w = &serve->kv_watch->at[slot];
    struct holes holes = holes_of(serve, slot, ranks);
    bool heals;

    if (!holes.open || w->hole_ns == 0 || holes.count != w->holes)
        w->hole_ns = now;
    w->holes = holes.count;
    heals = holes.open && now - w->hole_ns < HEAL_NS;
    if (heals || w->heals) /* again: a source may have been added anew */
        bt_event_plane_heal(serve->events, slot, heals);
    if (heals == w->heals)
        return;
    w->heals = heals;
    bt_log(BT_LOG_INFO, heals ? "kv_healing" : "kv_healing_over", "worker=%s",
           serve_worker_name(serve, slot));
}

bool kv_watch_heals(const struct bt_serve *serve, uint32_t slot)
{
    return serve->kv_watch->at[slot].heals;
}

void kv_watch_tick(struct bt_serve *serve, int64_t now_ns)
{
    struct kv_watch *watch = serve->kv_watch;
    struct bt_core_worker_info info;

    if (now_ns < watch->due_ns)
        return;
    watch->due_ns = now_ns + EVERY_NS;
    for (uint32_t i = 0; i < serve->config->worker_count; i++) {
        if (bt_core_worker_get(serve->core, i, &info) != BT_OK)
            continue;
        look_at_credit(serve, i, &info, now_ns);
        look_at_unforeseen(serve, i, &info);
        if (serve->config->workers[i].healing)
            look_at_holes(serve, i, info.ranks, now_ns);
    }
}
