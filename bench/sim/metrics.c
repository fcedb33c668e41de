/* What a run leaves behind: a record per request with what was predicted and
 * what was true, use of workers and links, and the hash of all effects. The
 * hash is over integers only.
 */
#include "sim_priv.h"

#include <stdlib.h>
#include <xxhash.h>

/* ---- unloaded times: what SLO and slowdown are measured by ---- */

static int64_t whole_prefill_ns(const struct sim *s, uint32_t tokens)
{
    int64_t best = BT_COST_INFINITE;

    for (uint32_t i = 0; i < s->worker_count; i++) {
        const struct sim_worker *w = &s->workers[i];
        int64_t ns;

        if ((w->roles & BT_ROLE_PREFILL) == 0 ||
            (i > 0 && w->pool == s->workers[i - 1].pool))
            continue;
        ns = bt_prefill_ns(&w->compute, tokens, 0);
        if (ns < best)
            best = ns;
    }
    return best;
}

static int64_t first_step_ns(const struct sim *s, uint32_t tokens)
{
    for (uint32_t i = 0; i < s->worker_count; i++)
        if ((s->workers[i].roles & BT_ROLE_DECODE) != 0)
            return bt_decode_step_ns(&s->workers[i].compute, 1, tokens);
    return 0;
}

/* Of the whole prompt over the fastest NIC there is. */
static int64_t idle_transfer_ns(const struct sim *s, uint32_t tokens)
{
    uint64_t nic = 1, rho = s->cluster->mode.replication;
    uint64_t blocks = (tokens + s->block_tokens - 1) / s->block_tokens;
    double bytes;

    if (s->config->aggregated)
        return 0;
    for (uint32_t i = 0; i < s->worker_count; i++)
        if (s->workers[i].nic_bytes_per_s > nic)
            nic = s->workers[i].nic_bytes_per_s;
    bytes = (double)(blocks * s->block_tokens * (rho == 0 ? 1 : rho) *
                     s->cluster->kv_bytes_per_token);
    return sim_flow_setup_ns(s, blocks * s->block_tokens) +
           (int64_t)(bytes / (double)nic * 1e9);
}

void sim_metrics_open(struct sim *s)
{
    size_t first = (size_t)((double)s->request_count * s->config->warmup);
    const struct bt_core_slo_config *slo = &s->config->slo;

    if (first >= s->request_count)
        first = s->request_count - 1;
    s->measure_from_ns = s->arrivals[first];
    s->measure_to_ns = s->arrivals[s->request_count - 1];
    for (size_t i = 0; i < s->request_count; i++) {
        struct bt_sim_record *r = &s->result->records[i];
        const struct bt_trace_request *t = s->requests[i].trace;

        *r = (struct bt_sim_record){.arrival_ns = s->arrivals[i],
                                    .input_tokens = t->input_tokens,
                                    .output_tokens = t->output_tokens,
                                    .p = BT_PLACE_NONE,
                                    .d = BT_PLACE_NONE,
                                    .source = BT_PLACE_NONE,
                                    .measured = i >= first,
                                    .regret_ns = -1};
        r->unloaded_prefill_ns = whole_prefill_ns(s, t->input_tokens);
        r->unloaded_ttft_ns = r->unloaded_prefill_ns +
                              idle_transfer_ns(s, t->input_tokens) +
                              first_step_ns(s, t->input_tokens);
        r->ttft_slo_ns =
            slo->ttft_base_ns +
            (int64_t)(slo->ttft_factor * (double)r->unloaded_prefill_ns);
    }
}

/* ---- along the way ---- */

void sim_metrics_busy(struct sim *s, uint32_t worker, int64_t from_ns,
                      int64_t to_ns, double prefill_part)
{
    struct sim_worker *w = &s->workers[worker];

    if (from_ns < s->measure_from_ns)
        from_ns = s->measure_from_ns;
    if (to_ns > s->measure_to_ns)
        to_ns = s->measure_to_ns;
    if (to_ns <= from_ns)
        return;
    w->busy_ns += to_ns - from_ns;
    w->prefill_ns += (int64_t)((double)(to_ns - from_ns) * prefill_part);
}

void sim_metrics_transfer(struct sim *s, uint32_t a, uint32_t b, double bytes)
{
    enum bt_path_class path_class = bt_topology_class_of(s->truth, a, b);

    s->result->bytes_by_class[path_class] += (uint64_t)bytes;
}

/* The first leg goes out: what the policy said of it. */
void sim_metrics_sent(struct sim *s, uint32_t request, uint32_t p, uint32_t d)
{
    struct bt_sim_record *r = sim_record(s, request);
    const struct sim_seen *seen = sim_policy_seen(s, p, d);
    const struct bt_place_candidate *chosen, *baseline;

    if (r->dispatched_ns == 0)
        r->dispatched_ns = s->now_ns;
    r->predicted_at_ns = s->now_ns;
    r->predicted.total_ns = 0; /* the core's own choice: sim_metrics_decision */
    if (seen == NULL)
        return;
    chosen = &seen->placement.chosen;
    baseline = &seen->placement.baseline;
    r->predicted = chosen->terms;
    r->predicted_overlap = chosen->terms.overlap_p;
    r->reason = seen->placement.reason;
    r->differs = baseline->d != BT_PLACE_NONE &&
                 (baseline->p != chosen->p || baseline->d != chosen->d);
    r->regret_ns = seen->regret_ns;
}

void sim_metrics_decision(struct sim *s, uint32_t request,
                          const struct bt_decision *decision)
{
    const struct bt_place_candidate *c = &decision->placement.chosen;
    struct bt_sim_record *r = sim_record(s, request);

    r->finished_ns = s->now_ns;
    r->outcome = decision->outcome;
    r->p = c->p;
    r->d = c->d;
    r->predicted_p90_ns = decision->total_p90_ns;
    if (r->predicted.total_ns == 0) {
        r->reason = decision->reason;
        r->predicted = c->terms;
    }
}

void sim_hash_effect(struct sim *s, const struct bt_effect *fx)
{
    const struct bt_decision *d = fx->decision;
    uint64_t words[] = {
        s->result->effects_hash,
        (uint64_t)s->now_ns,
        fx->type,
        fx->request.v,
        fx->cookie,
        fx->attempt,
        fx->leg,
        fx->worker.v,
        fx->peer.v,
        fx->with_params,
        fx->source.tokens,
        fx->source.tokens == 0 ? 0 : fx->source.worker,
        fx->source.tokens == 0 ? 0 : (uint64_t)fx->source.tier,
        d == NULL ? 0 : (uint64_t)d->outcome,
        d == NULL ? 0 : (uint64_t)d->reason,
        d == NULL ? 0 : d->output_tokens,
    };

    s->result->effects_hash = XXH3_64bits(words, sizeof(words));
}

/* ---- the end ---- */

static void link_use(struct sim *s, uint32_t link, double seconds)
{
    const struct bt_topology_link *l = bt_topology_link_at(s->truth, link);
    struct bt_sim_link_use *use = &s->result->links[link];
    double can = (double)l->rate_bytes_per_s * seconds;

    bt_topology_link_name(s->truth, link, use->name, sizeof(use->name));
    use->kind = l->kind;
    use->rate_bytes_per_s = (double)l->rate_bytes_per_s;
    use->bytes = s->net.bytes[link];
    use->busy_share = can > 0 ? use->bytes / can : 0;
}

void sim_metrics_close(struct sim *s)
{
    struct bt_sim_result *r = s->result;
    double seconds = (double)(s->measure_to_ns - s->measure_from_ns) * 1e-9;
    double whole = (double)s->arrivals[s->request_count - 1] * 1e-9;
    uint32_t links = s->net.link_count;

    r->count = s->request_count;
    r->sim_s = whole;
    r->counters = *bt_core_counters_get(s->core);
    r->worker_count = s->worker_count;
    r->roles = calloc(s->worker_count, sizeof(*r->roles));
    r->busy_share = calloc(s->worker_count, sizeof(*r->busy_share));
    r->prefill_share = calloc(s->worker_count, sizeof(*r->prefill_share));
    r->links = calloc(links + 1u, sizeof(*r->links));
    if (r->roles == NULL || r->busy_share == NULL || r->prefill_share == NULL ||
        r->links == NULL) {
        sim_fail(s, BT_NO_MEMORY);
        return;
    }
    r->link_count = links;
    for (uint32_t i = 0; i < links; i++)
        link_use(s, i, whole);
    for (uint32_t i = 0; i < s->worker_count; i++) {
        const struct sim_worker *w = &s->workers[i];

        r->roles[i] = w->roles;
        if (seconds > 0)
            r->busy_share[i] = (double)w->busy_ns * 1e-9 / seconds;
        if (w->busy_ns > 0)
            r->prefill_share[i] = (double)w->prefill_ns / (double)w->busy_ns;
    }
}
