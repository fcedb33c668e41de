/* The NIXL-like hand-off. Prefill side: blocks of finished requests are leased
 * to a peer until it says DONE or the lease ends. Decode side: blocks that are
 * not held here are pulled. Decides what to lease and what to pull; leases and
 * bytes are the transfer agent's, used through its public calls only.
 *
 * Invariants: a leased block keeps one reference of the pool; it is given up
 * exactly once (the agent's event, or the end of the engine). Blocks that a
 * pull writes are not findable before it has ended well, nor reused before it
 * has ended.
 */
#include "engine_priv.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EVENTS_AT_ONCE 16
#define REGION_NAME    "kv"
/* Of all leases; a block may be in many. Bounds the agent's table: 28 bytes
 * each. */
#define LEASE_BLOCKS_MIN (1u << 17)
#define LEASE_BLOCKS_MAX (1u << 23)
#define BEAT_MAX_NS      5000000000LL

/* ---- leases ---- */

static void lease_end(struct bt_engine *e, struct bt_lease *lease)
{
    if (e->leases == lease) {
        e->leases = lease->next;
    } else {
        lease->prev->next = lease->next;
    }
    if (lease->next != NULL) {
        lease->next->prev = lease->prev;
    }
    e->lease_count--;
    e->leased_blocks -= lease->block_count;
    while (lease->block_count > 0) {
        bt_pool_put(&e->pool, lease->blocks[--lease->block_count]);
    }
    free(lease->blocks);
    free(lease);
    if (!e->stopping) {
        bt_engine_kick(e);
    }
}

static struct bt_lease *lease_new(const struct bt_seq *seq)
{
    struct bt_lease *lease = calloc(1, sizeof(*lease));
    if (lease == NULL) {
        return NULL;
    }
    lease->block_count = seq->block_count;
    /* copied: the reply still lists seq->blocks */
    lease->blocks = malloc(seq->block_count * sizeof(*lease->blocks));
    if (lease->blocks == NULL) {
        free(lease);
        return NULL;
    }
    memcpy(lease->blocks, seq->blocks,
           seq->block_count * sizeof(*lease->blocks));
    return lease;
}

bool bt_handoff_lease(struct bt_seq *seq)
{
    struct bt_engine *e = seq->engine;
    struct bt_lease *lease = lease_new(seq);
    if (lease == NULL) {
        return false;
    }
    snprintf(seq->lease_id, sizeof(seq->lease_id), "%.104s-%u-%08llx",
             seq->call->id, seq->index,
             (unsigned long long)(seq->serial & 0xffffffff));
    const struct bt_agent_publication publication = {
        .region = e->region_id,
        .request_id = seq->lease_id,
        .blocks = lease->blocks,
        .count = lease->block_count,
        .lease_ns = e->lease_ns,
        .owner = lease,
    };
    if (bt_agent_publish(e->agent, &publication) != BT_OK) {
        free(lease->blocks);
        free(lease);
        return false;
    }
    seq->block_count = 0;
    lease->next = e->leases;
    if (e->leases != NULL) {
        e->leases->prev = lease;
    }
    e->leases = lease;
    e->lease_count++;
    e->leased_blocks += lease->block_count;
    return true;
}

void bt_handoff_expire_all(struct bt_engine *e)
{
    bt_agent_expire(e->agent, e->region_id);
}

/* ---- pulls ---- */

static void record_pull(struct bt_seq *seq, const struct bt_agent_event *end)
{
    struct bt_engine *e = seq->engine;
    struct bt_engine_metrics *m = &e->metrics;
    uint32_t size = seq->oracle.block_tokens;
    uint32_t hit = seq->hit_blocks * size;
    seq->pulled_tokens = seq->prompt_count > hit ? seq->prompt_count - hit : 0;
    m->external_queries += seq->pulled_tokens;
    m->external_hits += seq->pulled_tokens;
    m->prompt_external += seq->pulled_tokens;
    e->totals.prefill_tokens_pulled += seq->pulled_tokens;
    e->totals.blocks_pulled += seq->block_count - seq->hit_blocks;
    if (end->bytes > 0) {
        bt_metric_add(m, BT_HIST_XFER_TIME, (double)end->duration_ns / 1e9);
        bt_metric_add(m, BT_HIST_XFER_POST, 0.0);
        bt_metric_add(m, BT_HIST_XFER_BYTES, (double)end->bytes);
        bt_metric_add(m, BT_HIST_XFER_DESCRIPTORS, end->descriptors);
        bt_handoff_note(e, end);
    }
}

/* Everything is here; the last token is computed by the first decode step. */
static void pull_landed(struct bt_seq *seq, const struct bt_agent_event *end)
{
    record_pull(seq, end);
    bt_seq_announce(seq, seq->hit_blocks);
    bt_seq_fill(seq, seq->prompt_count - 1);
    bt_seq_move(seq, &seq->engine->decoding, BT_SEQ_DECODING);
}

static void pull_failed(struct bt_seq *seq, enum bt_status status)
{
    struct bt_engine *e = seq->engine;
    char message[160];
    e->metrics.nixl_failed_transfers++;
    e->totals.pulls_failed++;
    if (e->recompute) {
        bt_seq_release_blocks(seq);
        seq->has_remote = false;
        bt_seq_move(seq, &e->waiting, BT_SEQ_WAITING);
        return;
    }
    snprintf(message, sizeof(message), "KV transfer failed: %s",
             bt_status_name(status));
    bt_engine_fail(seq, 500, message);
}

static void orphan_free(struct bt_seq *seq)
{
    seq->pulling = false;
    bt_seq_move(seq, NULL, BT_SEQ_DONE);
    bt_seq_release_blocks(seq);
    bt_seq_free(seq);
}

static void on_pulled(struct bt_seq *seq, const struct bt_agent_event *end)
{
    struct bt_engine *e = seq->engine;
    seq->pulling = false;
    if (seq->call == NULL) {
        orphan_free(seq);
    } else if (end->status == BT_OK) {
        pull_landed(seq, end);
    } else {
        pull_failed(seq, end->status);
    }
    bt_engine_kick(e);
}

static const char *remote_region(const struct bt_seq *seq)
{
    return seq->remote.region[0] != '\0' ? seq->remote.region : REGION_NAME;
}

void bt_handoff_pull(struct bt_seq *seq)
{
    struct bt_engine *e = seq->engine;
    const struct bt_agent_pull pull = {
        .region = e->region_id,
        .host = seq->remote.host,
        .port = seq->remote.port,
        .remote_region = remote_region(seq),
        .request_id = seq->remote.request_id,
        .remote = seq->remote.blocks + seq->hit_blocks,
        .local = seq->blocks + seq->hit_blocks,
        .count = seq->block_count - seq->hit_blocks,
        .deadline_ns = e->pull_timeout_ns,
        .estimate_ns = seq->remote.estimate_ns,
        .owner = seq,
    };
    assert(seq->remote.block_count >= seq->block_count);
    bt_seq_move(seq, &e->pulling, BT_SEQ_PULLING);
    enum bt_status status = bt_agent_pull(e->agent, &pull, &seq->pull_id);
    seq->pulling = status == BT_OK;
    if (status != BT_OK) {
        pull_failed(seq, status);
    }
}

void bt_handoff_release(struct bt_seq *seq)
{
    bt_agent_release(seq->engine->agent, seq->remote.host, seq->remote.port,
                     remote_region(seq), seq->remote.request_id);
}

static void on_beat_timer(struct ev_loop *loop, ev_timer *w, int revents)
{
    struct bt_engine *e = w->data;
    (void)loop;
    (void)revents;
    for (struct bt_seq *s = e->waiting_pull.head; s != NULL; s = s->next) {
        bt_agent_beat(e->agent, s->remote.host, s->remote.port,
                      remote_region(s), s->remote.request_id);
    }
}

/* ---- events of the agent ---- */

static void on_event(struct bt_engine *e, const struct bt_agent_event *event)
{
    switch (event->kind) {
    case BT_AGENT_PULLED:
        on_pulled(event->owner, event);
        break;
    case BT_AGENT_EXPIRED:
        e->metrics.nixl_expired++;
        e->totals.leases_expired++;
        lease_end(e, event->owner);
        break;
    case BT_AGENT_RELEASED:
    case BT_AGENT_WITHDRAWN:
        lease_end(e, event->owner);
        break;
    case BT_AGENT_REFUSED:
        fprintf(stderr, "engine %s: peer '%s' refused: %s\n", e->name,
                event->peer, event->detail);
        break;
    case BT_AGENT_RAIL:
        fprintf(stderr, "engine %s: %s\n", e->name, event->detail);
        break;
    case BT_AGENT_ASKED: /* no keyed region here */
    case BT_AGENT_LEFT:
        break;
    }
}

static void on_agent(struct ev_loop *loop, ev_io *w, int revents)
{
    struct bt_engine *e = w->data;
    struct bt_agent_event events[EVENTS_AT_ONCE];
    (void)loop;
    (void)revents;
    /* what is left wakes the loop again */
    size_t count = bt_agent_progress(e->agent, events, EVENTS_AT_ONCE);
    for (size_t i = 0; i < count; i++) {
        on_event(e, &events[i]);
    }
}

/* ---- life ---- */

static enum bt_status add_paces(struct bt_engine *e,
                                const struct bt_engine_config *config)
{
    for (size_t i = 0; i < config->pace_count; i++) {
        const struct bt_engine_pace *p = &config->paces[i];
        enum bt_status status =
            bt_agent_pace(e->agent, p->peer, p->rate_bytes_per_s, p->setup_ns,
                          p->link_class != NULL ? p->link_class : "default");
        if (status != BT_OK) {
            snprintf(e->error, sizeof(e->error), "pace %.64s: %s", p->peer,
                     bt_status_text(status));
            return status;
        }
    }
    return BT_OK;
}

static struct bt_kv_layout layout_of(const struct bt_engine *e,
                                     const struct bt_engine_config *config)
{
    struct bt_kv_layout layout = {
        .version = config->kv_layout_version,
        .block_tokens = e->oracle.block_tokens,
        .block_bytes = e->block_bytes,
        .model_hash = bt_oracle_absorb(e->oracle.model_seed, e->oracle.layers),
    };
    return layout;
}

static void start_watchers(struct bt_engine *e)
{
    double beat = (double)e->lease_ns / 6e9;
    beat = beat < 5.0 ? beat : 5.0;
    ev_timer_init(&e->beat_timer, on_beat_timer, beat, beat);
    ev_io_init(&e->agent_io, on_agent, bt_agent_fd(e->agent), EV_READ);
    e->beat_timer.data = e;
    e->agent_io.data = e;
    ev_timer_start(e->loop, &e->beat_timer);
    ev_io_start(e->loop, &e->agent_io);
}

static enum bt_status open_agent(struct bt_engine *e,
                                 const struct bt_engine_config *config)
{
    int64_t beat = e->lease_ns / 6;
    uint64_t blocks = 8ull * e->pool.count;
    blocks = blocks < LEASE_BLOCKS_MIN ? LEASE_BLOCKS_MIN : blocks;
    blocks = blocks > LEASE_BLOCKS_MAX ? LEASE_BLOCKS_MAX : blocks;
    struct bt_agent_config agent = {
        .api_version = BT_AGENT_API_VERSION,
        .name = e->name,
        .fabric = config->fabric,
        .rails = config->rails,
        .rail_count = config->rail_count,
        .transports = config->transports,
        .listen = e->address,
        .key = config->transfer_key,
        .insecure = config->transfer_key == NULL, /* as vLLM's NIXL is */
        .checksums = true,
        .beat_ns = beat < BEAT_MAX_NS ? beat : 0,
        .leases_max = BT_ENGINE_LEASES_MAX,
        .lease_blocks_max = blocks,
    };
    for (uint32_t i = 0; i < config->rail_count && i < BT_RAILS_MAX; i++) {
        snprintf(e->rail_names[i], sizeof(e->rail_names[i]), "%s",
                 config->rails[i].name);
    }
    e->rail_count = config->rail_count;
    return bt_agent_open(&agent, &e->agent, e->error, sizeof(e->error));
}

enum bt_status bt_handoff_start(struct bt_engine *e,
                                const struct bt_engine_config *config,
                                char *error_out, size_t error_size)
{
    e->layout = layout_of(e, config);
    const struct bt_agent_region region = {
        .name = REGION_NAME,
        .base = e->region,
        .block_count = e->pool.count,
        .layout = e->layout,
        .serve = BT_AGENT_SERVE_LEASED,
    };
    enum bt_status status = open_agent(e, config);
    if (status == BT_OK) {
        status = add_paces(e, config);
    }
    if (status == BT_OK) {
        status = bt_agent_region(e->agent, &region, &e->region_id, e->error,
                                 sizeof(e->error));
    }
    if (status != BT_OK) {
        if (error_out != e->error) {
            snprintf(error_out, error_size, "%s", e->error);
        }
        return status;
    }
    start_watchers(e);
    return BT_OK;
}

/* The agent's events end with it: what it would have given back is ours. */
void bt_handoff_stop(struct bt_engine *e)
{
    if (e->agent != NULL) {
        ev_io_stop(e->loop, &e->agent_io);
        ev_timer_stop(e->loop, &e->beat_timer);
        bt_agent_close(e->agent);
        e->agent = NULL;
    }
    while (e->pulling.head != NULL) {
        orphan_free(e->pulling.head);
    }
    while (e->leases != NULL) {
        lease_end(e, e->leases);
    }
}
