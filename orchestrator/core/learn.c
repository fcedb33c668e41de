/* What is observed of workers and links, given to planner/calibrate.h. Decides
 * only which observations are clean enough to learn from:
 *
 *   prefill   done - max(sent, end of the prefill before it), when it was first
 *             in its worker's queue, nothing left that queue otherwise since it
 *             was sent, nothing decodes there, no fetch delayed it, and it is
 *             known how much was cached
 *   decode    second token - first, each alone in its event, at the batch and
 *             tokens of the own ledger, when d prefills nothing
 *   transfer  first token - leg D sent, less one step, when d had room, for
 *             engines that send after the prefill only; links of the path when
 *             setup and descriptors are small beside the bytes: from 64 MiB, or
 *             10 ms of a slower link (by its nominal rate: to count a transfer
 *             because it was slow would teach that the link is); set-up of the
 *             path's class when nothing went beside it and bytes and
 *             descriptors are at most 10 ms. Links are learned with the
 *             configured set-up, not with the learned one: that takes a link
 *             that has become slow for set-up, until the link is known
 *   output    tokens of requests that ended well
 *   total     first token - placement, over the total that was predicted then,
 *             of every request: what the parts do not see is in it, so it alone
 *             tells how far a prediction can be trusted
 *
 * Garbage that passes here is calibrate.c's to refuse. */
#include "core_internal.h"

#include "baton/base/units.h"

#define LINK_BYTES_MIN   (64ULL << 20)
#define LINK_PER_SECOND  100u /* 10 ms of the link */
#define LINK_FIXED       2    /* bytes take so many times setup + descriptors */
#define LINK_AGE_STEP_NS BT_NS_PER_S
#define SETUP_REST_NS    (10 * BT_NS_PER_MS)
#define OUTPUT_SEEN_MIN  50u /* before the configured expectation is left */
#define OUTPUT_DECAY     0.999
#define TOTAL_SMALL_NS   (100 * BT_NS_PER_MS)
#define TOTAL_DECAY      0.995
#define TOTAL_SEEN_MIN   32
#define TOTAL_P90        (1 + 1.2816 * 0.3) /* before it is known */

static void start_model(const struct bt_core *core, struct model_state *m)
{
    bt_length_init(&m->output, OUTPUT_DECAY,
                   core->config.expected_output_tokens);
    for (int size = 0; size < TOTAL_SIZES; size++) {
        bt_residual_init(&m->total[size], TOTAL_DECAY);
        for (int i = 0; i < BT_REASON_COUNT; i++)
            bt_residual_init(&m->totals[i][size], TOTAL_DECAY);
    }
}

void core_learn_start(struct bt_core *core)
{
    struct calibration *c = core->calibration;
    const struct bt_topology *t = core->config.topology;

    if (c == NULL)
        return;
    for (uint32_t i = 0; i < core->config.worker_count; i++) {
        bt_compute_calibration_init(&c->workers[i],
                                    &core->worker_configs[i].compute);
        core->workers[i].model = &c->workers[i].model;
    }
    for (uint32_t l = 0; t != NULL && l < bt_topology_link_count(t); l++)
        bt_link_calibration_init(&c->links[l],
                                 bt_topology_link_at(t, l)->rate_bytes_per_s);
    for (int i = 0; i < BT_PATH_CLASS_COUNT && core->network != NULL; i++)
        bt_setup_calibration_init(
            &c->setups[i],
            bt_network_setup(core->network, (enum bt_path_class)i));
    for (uint32_t m = 0; m < core->config.model_count; m++)
        start_model(core, &core->models[m]);
}

/* ---- prefill ---- */

static bool fetch_was_hidden(const struct request *r)
{
    const struct bt_place_terms *t = &r->record.placement.chosen.terms;

    return r->source.tokens == 0 ||
           (t->fetch_ns <= t->queue_ns &&
            r->prefetch_until_ns - r->sent_ns <= t->queue_ns);
}

static bool prefill_is_clean(const struct bt_core *core,
                             const struct request *r)
{
    const struct worker *w = &core->workers[r->booking.p];
    struct bt_ledger_worker booked;

    bt_ledger_worker_get(core->ledger, r->booking.p, &booked);
    return core_worker_is_current(core, r->p) && r->booking.prefill_held &&
           r->booking.prefill_prev == 0 &&
           w->prefill_disturbed_ns < r->sent_ns &&
           booked.decode_requests == 0 && fetch_was_hidden(r);
}

void core_learn_prefill(struct bt_core *core, const struct request *r,
                        const struct bt_ev_prefill_done *ev)
{
    struct worker *w = &core->workers[r->booking.p];
    uint32_t tokens = r->prompt_tokens;
    uint32_t cached = ev->cached_tokens;
    uint32_t predicted = r->record.placement.chosen.terms.overlap_p;
    struct bt_compute_calibration *c;
    int64_t start = r->sent_ns;

    if (core->calibration == NULL || !prefill_is_clean(core, r))
        return;
    if (ev->prompt_tokens != 0)
        tokens = ev->prompt_tokens;
    if (cached == 0 && predicted > 0 && ev->prompt_tokens != 0)
        return; /* not reported, or a miss: nobody can tell */
    if (cached == 0)
        cached = predicted;
    if (cached >= tokens)
        cached = tokens - 1;
    if (w->prefill_end_ns > start)
        start = w->prefill_end_ns;
    c = &core->calibration->workers[r->booking.p];
    w->prefill_seen++;
    bt_compute_observe_prefill(c, tokens - cached, cached,
                               core->now_ns - start);
    w->prefill_error = bt_compute_prefill_sigma(c);
}

void core_learn_prefill_end(struct bt_core *core, const struct request *r,
                            bool done)
{
    struct worker *w = &core->workers[r->booking.p];

    if (!r->booking.prefill_held)
        return;
    w->prefill_end_ns = core->now_ns;
    if (!done)
        w->prefill_disturbed_ns = core->now_ns;
}

/* ---- transfer ---- */

void core_learn_handoff(struct bt_core *core, struct request *r)
{
    uint32_t d = bt_worker_slot(r->d);

    r->transfer_clean =
        core->calibration != NULL && r->booking.transfer_held &&
        core->config.models[r->ask.model].mode.overlap == BT_OVERLAP_NONE &&
        core_decode_free_ns(core, d, 0, r->output_tokens) <= core->now_ns;
}

static uint64_t descriptors_of(const struct bt_core *core,
                               const struct request *r)
{
    const struct bt_core_model_config *m = &core->config.models[r->ask.model];
    uint32_t regions = m->mode.descriptors_per_block;
    uint64_t block = m->kv_bytes_per_token * m->block_tokens;

    if (block == 0)
        return 0;
    return (r->booking.transfer_bytes + block - 1) / block *
           (regions == 0 ? 1 : regions);
}

struct transfer_seen {
    struct bt_path path;
    uint64_t bytes;
    int64_t ns, posting_ns;
    uint32_t handle;
};

static bool tells_of_link(const struct bt_core *core,
                          const struct transfer_seen *seen, uint32_t link,
                          int64_t fixed_ns)
{
    uint64_t rate =
        bt_topology_link_at(core->config.topology, link)->rate_bytes_per_s;
    double alone_ns;

    if (seen->ns <= fixed_ns || rate == 0)
        return false;
    if (seen->bytes >= LINK_BYTES_MIN)
        return true;
    alone_ns = (double)seen->bytes * 1e9 / (double)rate;
    return seen->bytes >= rate / LINK_PER_SECOND &&
           alone_ns >= (double)fixed_ns * LINK_FIXED;
}

/* Bytes of own transfers beside it. What is not known to have arrived counts
 * only while the model is not too fast, see bt_network_unproven_beside(): a
 * rate is then seen too low now and then, and the best of many is in force. */
static uint64_t bytes_beside(const struct bt_core *core,
                             const struct transfer_seen *seen, uint32_t link)
{
    uint64_t own = bt_network_passed_beside(core->network, seen->handle, link,
                                            core->now_ns);
    uint64_t unproven = bt_network_unproven_beside(core->network, seen->handle,
                                                   link, core->now_ns);

    return own > unproven ? own - unproven : 0;
}

/* Bytes beside it on the link that carried most of them. */
static uint64_t learn_links(struct bt_core *core,
                            const struct transfer_seen *seen)
{
    int64_t fixed = seen->path.setup_ns + seen->posting_ns;
    uint64_t most = 0;

    for (uint32_t i = 0; i < seen->path.count; i++) {
        uint32_t link = seen->path.links[i];
        struct bt_link_calibration *c = &core->calibration->links[link];
        uint64_t own = bytes_beside(core, seen, link);

        if (own > most)
            most = own;
        if (tells_of_link(core, seen, link, fixed) &&
            bt_link_observe(c, seen->bytes, own, seen->ns - fixed))
            bt_network_rate_set(core->network, link, bt_link_rate(c));
    }
    return most;
}

/* A slow link that is avoided gets its rate back step by step, see
 * bt_link_age(). */
void core_learn_age(struct bt_core *core)
{
    struct calibration *c = core->calibration;
    const struct bt_topology *t = core->config.topology;

    if (c == NULL || core->network == NULL || core->now_ns < c->age_at_ns)
        return;
    c->age_at_ns = core->now_ns + LINK_AGE_STEP_NS;
    for (uint32_t l = 0; l < bt_topology_link_count(t); l++) {
        if (bt_link_age(&c->links[l], core->now_ns))
            bt_network_rate_set(core->network, l, bt_link_rate(&c->links[l]));
    }
}

/* Time of the bytes alone, at nominal rates and at those in force. */
struct wire {
    double nominal_ns, ns;
};

static double bytes_ns(uint64_t bytes, uint64_t rate)
{
    return rate == 0 ? 0 : (double)bytes * 1e9 / (double)rate;
}

static struct wire wire_of(const struct bt_core *core,
                           const struct transfer_seen *seen)
{
    const struct bt_path *path = &seen->path;
    uint64_t rate = path->rate_bytes_per_s; /* the flow's own limit is in it */

    for (uint32_t i = 0; i < path->count; i++) {
        uint64_t of_link = bt_network_rate(core->network, path->links[i]);

        if (rate == 0 || of_link < rate)
            rate = of_link;
    }
    return (struct wire){bytes_ns(seen->bytes, path->rate_bytes_per_s),
                         bytes_ns(seen->bytes, rate)};
}

static void learn_setup(struct bt_core *core, const struct transfer_seen *seen,
                        uint64_t own_bytes)
{
    enum bt_path_class class = seen->path.path_class;
    struct bt_setup_calibration *c = &core->calibration->setups[class];
    struct wire wire = wire_of(core, seen);

    if (own_bytes == 0 &&
        wire.nominal_ns + (double)seen->posting_ns <= (double)SETUP_REST_NS &&
        bt_setup_observe(c, seen->ns - seen->posting_ns - (int64_t)wire.ns))
        bt_network_setup_set(core->network, class, bt_setup_ns(c));
}

void core_learn_first_token(struct bt_core *core, const struct request *r)
{
    uint32_t d = bt_worker_slot(r->d);
    struct bt_ledger_worker booked;
    struct transfer_seen seen;

    if (core->calibration == NULL || core->network == NULL ||
        !r->transfer_clean || !r->booking.transfer_held)
        return;
    bt_ledger_worker_get(core->ledger, d, &booked);
    bt_topology_path(core->config.topology, bt_worker_slot(r->p), d,
                     &seen.path);
    seen.bytes = r->booking.transfer_bytes;
    seen.posting_ns =
        (int64_t)descriptors_of(core, r) * seen.path.per_descriptor_ns;
    seen.handle = 2 * r->booking.handle;
    seen.ns = core->now_ns - r->sent_ns -
              bt_decode_step_ns(core->workers[d].model, booked.decode_requests,
                                booked.decode_tokens);
    if (seen.path.count == 0 || seen.ns <= 0)
        return;
    learn_setup(core, &seen, learn_links(core, &seen));
}

/* ---- decode ---- */

void core_learn_second_token(struct bt_core *core, const struct request *r)
{
    uint32_t d = bt_worker_slot(r->d);
    int64_t gap = core->now_ns - r->record.first_token_ns;
    struct bt_ledger_worker booked;

    if (core->calibration == NULL || gap <= 0)
        return;
    bt_ledger_worker_get(core->ledger, d, &booked);
    if (booked.prefill_requests > 0)
        return;
    core->workers[d].decode_seen++;
    bt_compute_observe_decode(&core->calibration->workers[d],
                              booked.decode_requests, booked.decode_tokens,
                              gap);
}

/* ---- output length ---- */

void core_learn_output(struct bt_core *core, const struct request *r)
{
    struct model_state *m = &core->models[r->ask.model];

    if (core->calibration == NULL || r->record.output_tokens == 0)
        return;
    bt_length_observe(&m->output, r->record.output_tokens);
    m->output_seen++;
}

/* The configured expectation, later the median; never above max_tokens. */
uint32_t core_expected_output(const struct bt_core *core, uint32_t model,
                              uint32_t max_tokens)
{
    uint64_t expected = core->config.expected_output_tokens;

    if (core->models[model].output_seen >= OUTPUT_SEEN_MIN)
        expected = bt_length_quantile(&core->models[model].output, 0.5);
    if (max_tokens != 0 && (max_tokens < expected || expected == 0))
        expected = max_tokens;
    if (expected > UINT32_MAX)
        expected = UINT32_MAX;
    return expected == 0 ? 1 : (uint32_t)expected;
}

/* ---- the whole of it ---- */

static int size_of(int64_t total_ns)
{
    int size = 0;

    for (int64_t limit = TOTAL_SMALL_NS;
         size < TOTAL_SIZES - 1 && total_ns >= limit; limit *= 4)
        size++;
    return size;
}

void core_promise(struct bt_core *core, struct request *r)
{
    struct bt_decision *record = &r->record;

    r->promised_at_ns = core->now_ns;
    r->promised_ns = record->placement.chosen.terms.total_ns;
    record->total_p90_ns = bt_core_total_p90_ns(core, r->ask.model,
                                                record->reason, r->promised_ns);
}

void core_learn_total(struct bt_core *core, const struct request *r)
{
    struct model_state *m = &core->models[r->ask.model];
    int size = size_of(r->promised_ns);
    double ratio;

    if (core->calibration == NULL || r->promised_ns <= 0 ||
        r->promised_ns >= BT_COST_INFINITE)
        return;
    ratio = (double)(core->now_ns - r->promised_at_ns) / (double)r->promised_ns;
    bt_residual_observe(&m->total[size], ratio);
    bt_residual_observe(&m->totals[r->record.reason][size], ratio);
}

/* Weight of TOTAL_SEEN_MIN observations is less than their number. */
static bool is_known(const struct bt_residual *r)
{
    return r->total >= TOTAL_SEEN_MIN * 0.9;
}

int64_t bt_core_total_p90_ns(const struct bt_core *core, uint32_t model,
                             enum bt_reason reason, int64_t total_ns)
{
    const struct bt_residual *same, *all;
    double ratio = TOTAL_P90, ns;

    if (model >= core->config.model_count || reason >= BT_REASON_COUNT)
        return total_ns;
    same = &core->models[model].totals[reason][size_of(total_ns)];
    all = &core->models[model].total[size_of(total_ns)];
    if (is_known(same))
        ratio = bt_residual_quantile(same, 0.9);
    else if (is_known(all))
        ratio = bt_residual_quantile(all, 0.9);
    ns = (double)total_ns * ratio;
    return ns < (double)BT_COST_INFINITE ? (int64_t)ns : BT_COST_INFINITE;
}

enum bt_status bt_core_worker_model(const struct bt_core *core, uint32_t slot,
                                    struct bt_compute_model *model_out,
                                    double *sigma_out)
{
    if (slot >= core->config.worker_count)
        return BT_NOT_FOUND;
    *model_out = *core->workers[slot].model;
    *sigma_out = core->workers[slot].prefill_error;
    return BT_OK;
}
