/* The NIXL-like hand-off. Prefill side: blocks of finished requests are leased
 * to a peer until it says DONE or the lease ends. Decode side: blocks that are
 * not held here are pulled. Decides leases and what to pull; bytes move in
 * transfer/.
 *
 * Invariants: a leased block keeps one reference of the pool; it is given up
 * exactly once (DONE, expiry, stop). Blocks that a pull writes are not
 * findable before it has ended well, nor reused before it has ended.
 */
#include "engine_priv.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

static uint64_t id_hash(const char *id)
{
    return XXH3_64bits(id, strlen(id));
}

/* ---- leases ---- */

static struct bt_lease *lease_find(struct bt_engine *e, const char *id)
{
    uint64_t hash = id_hash(id);
    struct bt_lease *lease = e->leases;
    while (lease != NULL &&
           (lease->hash != hash || strcmp(lease->id, id) != 0)) {
        lease = lease->next;
    }
    return lease;
}

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

static void lease_expire(struct bt_engine *e, struct bt_lease *lease)
{
    e->expired[e->expired_next++ % BT_ENGINE_EXPIRED_MAX] = lease->hash;
    e->metrics.nixl_expired++;
    e->totals.leases_expired++;
    lease_end(e, lease);
}

bool bt_handoff_lease(struct bt_seq *seq)
{
    struct bt_engine *e = seq->engine;
    if (e->lease_count >= BT_ENGINE_LEASES_MAX) {
        return false;
    }
    struct bt_lease *lease = calloc(1, sizeof(*lease));
    if (lease == NULL) {
        return false;
    }
    snprintf(lease->id, sizeof(lease->id), "%.104s-%u-%08llx", seq->call->id,
             seq->index, (unsigned long long)(seq->serial & 0xffffffff));
    memcpy(seq->lease_id, lease->id, sizeof(lease->id));
    lease->hash = id_hash(lease->id);
    lease->expires_ns = bt_engine_now() + e->lease_ns;
    lease->block_count = seq->block_count;
    /* copied: the reply still lists seq->blocks */
    lease->blocks = malloc(seq->block_count * sizeof(*lease->blocks));
    if (lease->blocks == NULL) {
        free(lease);
        return false;
    }
    memcpy(lease->blocks, seq->blocks,
           seq->block_count * sizeof(*lease->blocks));
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

static void on_lease_timer(struct ev_loop *loop, ev_timer *w, int revents)
{
    struct bt_engine *e = w->data;
    int64_t now = bt_engine_now();
    struct bt_lease *next = NULL;
    (void)loop;
    (void)revents;
    for (struct bt_lease *l = e->leases; l != NULL; l = next) {
        next = l->next;
        if (now >= l->expires_ns) {
            lease_expire(e, l);
        }
    }
}

void bt_handoff_expire_all(struct bt_engine *e)
{
    while (e->leases != NULL) {
        lease_expire(e, e->leases);
    }
}

/* ---- source call-backs ---- */

static bool lease_covers(const struct bt_lease *lease, const uint32_t *blocks,
                         size_t count)
{
    uint32_t at = 0;
    for (size_t i = 0; i < count; i++) {
        uint32_t tries = 0;
        while (tries < lease->block_count && lease->blocks[at] != blocks[i]) {
            at = (at + 1) % lease->block_count;
            tries++;
        }
        if (tries == lease->block_count) {
            return false;
        }
    }
    return true;
}

static enum bt_status on_check(void *arg, const char *request_id,
                               const uint32_t *blocks, size_t count)
{
    struct bt_engine *e = arg;
    struct bt_lease *lease = lease_find(e, request_id);
    if (lease != NULL) {
        return lease_covers(lease, blocks, count) ? BT_OK : BT_NOT_FOUND;
    }
    uint64_t hash = id_hash(request_id);
    for (uint32_t i = 0; i < BT_ENGINE_EXPIRED_MAX; i++) {
        if (e->expired[i] == hash) {
            return BT_LEASE_EXPIRED;
        }
    }
    return BT_NOT_FOUND;
}

static void on_released(void *arg, const char *request_id)
{
    struct bt_engine *e = arg;
    struct bt_lease *lease = lease_find(e, request_id);
    if (lease != NULL) {
        lease_end(e, lease);
    }
}

static void on_renewed(void *arg, const char *request_id)
{
    struct bt_engine *e = arg;
    struct bt_lease *lease = lease_find(e, request_id);
    if (lease != NULL) {
        int64_t until = bt_engine_now() + e->lease_ns / 3 * 2;
        lease->expires_ns =
            until > lease->expires_ns ? until : lease->expires_ns;
    }
}

/* ---- pulls ---- */

static void record_pull(struct bt_seq *seq, const struct bt_kv_pull_end *end)
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
    }
}

/* Everything is here; the last token is computed by the first decode step. */
static void pull_landed(struct bt_seq *seq, const struct bt_kv_pull_end *end)
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

static void on_pulled(void *arg, const struct bt_kv_pull_end *end)
{
    struct bt_seq *seq = arg;
    struct bt_engine *e = seq->engine;
    seq->pull = NULL;
    if (seq->call == NULL) {
        bt_seq_move(seq, NULL, BT_SEQ_DONE);
        bt_seq_release_blocks(seq);
        bt_seq_free(seq);
    } else if (end->status == BT_OK) {
        pull_landed(seq, end);
    } else {
        pull_failed(seq, end->status);
    }
    if (!e->stopping) {
        bt_engine_kick(e);
    }
}

void bt_handoff_pull(struct bt_seq *seq)
{
    struct bt_engine *e = seq->engine;
    struct bt_kv_pull_spec spec = {
        .host = seq->remote.host,
        .port = seq->remote.port,
        .request_id = seq->remote.request_id,
        .remote = seq->remote.blocks + seq->hit_blocks,
        .local = seq->blocks + seq->hit_blocks,
        .count = seq->block_count - seq->hit_blocks,
        .deadline_ns = e->pull_timeout_ns,
    };
    assert(seq->remote.block_count >= seq->block_count);
    bt_seq_move(seq, &e->pulling, BT_SEQ_PULLING);
    enum bt_status status =
        bt_kv_pull_start(e->sink, &spec, on_pulled, seq, &seq->pull);
    if (status != BT_OK) {
        seq->pull = NULL;
        pull_failed(seq, status);
    }
}

void bt_handoff_release(struct bt_seq *seq)
{
    bt_kv_sink_release(seq->engine->sink, seq->remote.host, seq->remote.port,
                       seq->remote.request_id);
}

static void on_beat_timer(struct ev_loop *loop, ev_timer *w, int revents)
{
    struct bt_engine *e = w->data;
    (void)loop;
    (void)revents;
    for (struct bt_seq *s = e->waiting_pull.head; s != NULL; s = s->next) {
        bt_kv_sink_beat(e->sink, s->remote.host, s->remote.port,
                        s->remote.request_id);
    }
}

/* ---- life ---- */

static enum bt_status add_paces(struct bt_engine *e,
                                const struct bt_engine_config *config)
{
    for (size_t i = 0; i < config->pace_count; i++) {
        const struct bt_engine_pace *p = &config->paces[i];
        enum bt_status status =
            bt_fabric_pace(e->fabric, p->peer, p->rate_bytes_per_s, p->setup_ns,
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

static void start_timers(struct bt_engine *e)
{
    double lease = (double)e->lease_ns / 1e9;
    double tick = lease / 20 < 0.5 ? lease / 20 : 0.5;
    double beat = lease / 6 < 5.0 ? lease / 6 : 5.0;
    ev_timer_init(&e->lease_timer, on_lease_timer, tick, tick);
    ev_timer_init(&e->beat_timer, on_beat_timer, beat, beat);
    e->lease_timer.data = e;
    e->beat_timer.data = e;
    ev_timer_start(e->loop, &e->lease_timer);
    ev_timer_start(e->loop, &e->beat_timer);
}

static enum bt_status start_sink(struct bt_engine *e,
                                 const struct bt_kv_layout *layout)
{
    int64_t beat = e->lease_ns / 6;
    struct bt_kv_sink_config sink = {
        .name = e->name,
        .layout = *layout,
        .region = e->region,
        .block_count = e->pool.count,
        .beat_ns = beat < 5000000000LL ? beat : 0,
    };
    return bt_kv_sink_create(e->fabric, &sink, &e->sink);
}

enum bt_status bt_handoff_start(struct bt_engine *e,
                                const struct bt_engine_config *config,
                                char *error_out, size_t error_size)
{
    struct bt_fabric_config fabric = {.transports = config->transports};
    enum bt_status status = bt_fabric_ucx_create(e->loop, &fabric, &e->fabric,
                                                 error_out, error_size);
    if (status != BT_OK) {
        return status;
    }
    status = add_paces(e, config);
    if (status != BT_OK) {
        snprintf(error_out, error_size, "%s", e->error);
        return status;
    }
    struct bt_kv_source_config source = {
        .name = e->name,
        .address = e->address,
        .layout = layout_of(e, config),
        .region = e->region,
        .block_count = e->pool.count,
        .check = on_check,
        .released = on_released,
        .renewed = on_renewed,
        .arg = e,
    };
    status = bt_kv_source_start(e->fabric, &source, &e->source, error_out,
                                error_size);
    if (status != BT_OK) {
        return status;
    }
    status = start_sink(e, &source.layout);
    if (status != BT_OK) {
        snprintf(error_out, error_size, "KV sink: %s", bt_status_text(status));
        return status;
    }
    start_timers(e);
    return BT_OK;
}

void bt_handoff_stop(struct bt_engine *e)
{
    ev_timer_stop(e->loop, &e->lease_timer);
    ev_timer_stop(e->loop, &e->beat_timer);
    if (e->sink != NULL) {
        bt_kv_sink_destroy(e->sink);
    }
    if (e->source != NULL) {
        bt_kv_source_stop(e->source);
    }
    if (e->fabric != NULL) {
        bt_fabric_destroy(e->fabric);
    }
    e->sink = NULL;
    e->source = NULL;
    e->fabric = NULL;
    while (e->leases != NULL) {
        lease_end(e, e->leases);
    }
}
