/* What an event plane has counted, as Prometheus text: one wording for all that
 * consume KV events (`baton serve`, `baton index`). METRICS.md says what each
 * is.
 */
#include "baton/orchestrator/event_plane.h"

#include "baton/orchestrator/promtext.h"

static void write_errors(struct bt_text *t, const struct bt_stream_counts *c)
{
    const struct {
        const char *reason;
        uint64_t count;
    } errors[] = {
        {"frames", c->frame_errors},
        {"sequence", c->sequence_errors},
        {"msgpack", c->batch_errors},
        {"event", c->event_errors},
        {"unknown_parent", c->unknown_parents},
        {"unknown_tag", c->unknown_tags},
        {"foreign", c->foreign},
        {"other_group", c->other_groups},
        {"block_size", c->size_mismatches},
        {"rank", c->rank_mismatches},
        {"eagle", c->eagle_mismatches},
    };

    bt_prom_family(t, "baton_kv_event_errors_total", "counter",
                   "Messages or events that could not be used.");
    for (size_t i = 0; i < sizeof(errors) / sizeof(errors[0]); i++)
        bt_prom_labelled(t, "baton_kv_event_errors_total", "reason",
                         errors[i].reason, (double)errors[i].count);
}

static void write_parked(struct bt_text *t, const struct bt_stream_counts *c)
{
    bt_prom_family(t, "baton_kv_event_parked_total", "counter",
                   "Stores of unknown parents, by what became of them.");
    bt_prom_labelled(t, "baton_kv_event_parked_total", "fate", "parked",
                     (double)c->parked);
    bt_prom_labelled(t, "baton_kv_event_parked_total", "fate", "attached",
                     (double)c->attached);
    bt_prom_labelled(t, "baton_kv_event_parked_total", "fate", "dropped",
                     (double)c->parked_dropped);
    bt_prom_family(t, "baton_kv_event_hash_checks_total", "counter",
                   "Chains whose announced hashes were computed again.");
    bt_prom_labelled(t, "baton_kv_event_hash_checks_total", "result", "same",
                     (double)c->hash_same);
    bt_prom_labelled(t, "baton_kv_event_hash_checks_total", "result", "other",
                     (double)c->hash_other);
}

static void write_kinds(struct bt_text *t, const struct bt_stream_counts *c)
{
    static const char *const kinds[] = {"stored", "removed", "cleared",
                                        "ignored"};

    bt_prom_family(t, "baton_kv_events_total", "counter", "KV events by type.");
    for (int i = 0; i < 4; i++)
        bt_prom_labelled(t, "baton_kv_events_total", "type", kinds[i],
                         (double)c->events[i]);
}

static void write_holes(struct bt_text *t, const struct bt_stream_counts *c)
{
    bt_prom_one(t, "baton_kv_event_gaps_total", "counter", "Holes noticed.",
                (double)c->gaps);
    bt_prom_one(t, "baton_kv_event_missing_total", "counter",
                "Batches that the holes spanned.", (double)c->missing);
    bt_prom_one(t, "baton_kv_event_duplicates_total", "counter",
                "Batches that came twice.", (double)c->duplicates);
    bt_prom_one(t, "baton_kv_event_dropped_total", "counter",
                "Live batches not held during a replay.",
                (double)c->held_dropped);
    bt_prom_one(t, "baton_kv_index_resets_total", "counter",
                "Times a rank's blocks were forgotten.", (double)c->resets);
    bt_prom_family(t, "baton_kv_event_replays_total", "counter",
                   "Replays by outcome.");
    bt_prom_labelled(t, "baton_kv_event_replays_total", "outcome", "complete",
                     (double)c->replays_complete);
    bt_prom_labelled(t, "baton_kv_event_replays_total", "outcome", "partial",
                     (double)c->replays_partial);
    bt_prom_labelled(t, "baton_kv_event_replays_total", "outcome", "timeout",
                     (double)c->replays_failed);
}

void bt_stream_counts_write(const struct bt_stream_counts *c, struct bt_text *t)
{
    write_kinds(t, c);
    write_errors(t, c);
    bt_prom_one(t, "baton_kv_event_bytes_total", "counter", "Payloads applied.",
                (double)c->bytes);
    bt_prom_one(t, "baton_kv_event_batches_total", "counter",
                "Batches applied.", (double)c->batches);
    write_holes(t, c);
    write_parked(t, c);
}
