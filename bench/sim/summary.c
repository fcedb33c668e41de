/* What a run is worth: quantiles, attainment, shares, errors of prediction.
 * Over the measured requests; those that did not end well count as misses and
 * are left out of the quantiles. Definitions: the metrics table of the
 * evaluation reference.
 */
#include "baton/bench/sim.h"
#include "baton/planner/topology.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SECOND   1e-9
#define ERROR_NS 1000000 /* a term below 1 ms is not judged */

struct column {
    double *values;
    size_t count;
};

struct columns {
    double *memory;
    struct column ttft, ttst, tpot, slowdown, regret, bias, total, prefill,
        transfer, queue;
};
#define COLUMNS 10u

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return x < y ? -1 : x > y;
}

static void sort(struct column *c)
{
    qsort(c->values, c->count, sizeof(double), by_value);
}

/* Nearest rank of a sorted column; 0 of an empty one. */
static double quantile(const struct column *c, double q)
{
    double rank = ceil(q * (double)c->count);
    size_t at = rank < 1 ? 0 : (size_t)rank - 1;

    if (c->count == 0)
        return 0;
    return c->values[at < c->count ? at : c->count - 1];
}

static double mean(const struct column *c)
{
    double sum = 0;

    for (size_t i = 0; i < c->count; i++)
        sum += c->values[i];
    return c->count == 0 ? 0 : sum / (double)c->count;
}

static void quantiles(struct column *c, struct bt_sim_quantiles *out)
{
    sort(c);
    out->mean = mean(c);
    out->p50 = quantile(c, 0.5);
    out->p90 = quantile(c, 0.9);
    out->p95 = quantile(c, 0.95);
    out->p99 = quantile(c, 0.99);
    out->max = quantile(c, 1);
}

static void add(struct column *c, double value)
{
    c->values[c->count++] = value;
}

static bool columns_init(struct columns *c, size_t n)
{
    struct column *all[COLUMNS] = {
        &c->ttft, &c->ttst,  &c->tpot,    &c->slowdown, &c->regret,
        &c->bias, &c->total, &c->prefill, &c->transfer, &c->queue};

    memset(c, 0, sizeof(*c));
    c->memory = calloc(n * COLUMNS + 1, sizeof(double));
    if (c->memory == NULL)
        return false;
    for (size_t i = 0; i < COLUMNS; i++)
        all[i]->values = c->memory + i * n;
    return true;
}

/* ---- one request ---- */

static int class_of(uint32_t tokens)
{
    return tokens < 1024 ? 0 : tokens < 8192 ? 1 : tokens < 32768 ? 2 : 3;
}

static bool is_ok(const struct bt_sim_record *r)
{
    return r->outcome == BT_OUTCOME_OK && r->first_token_ns != 0;
}

/* Mean time between tokens; one token has none. */
static double tpot_ns(const struct bt_sim_record *r)
{
    if (r->output_tokens < 2)
        return 0;
    return (double)(r->finished_ns - r->first_token_ns) /
           (double)(r->output_tokens - 1);
}

static bool has_met(const struct bt_sim_record *r,
                    const struct bt_core_slo_config *slo)
{
    int64_t ttft = r->first_token_ns - r->arrival_ns;

    return is_ok(r) && (r->ttft_slo_ns == 0 || ttft <= r->ttft_slo_ns) &&
           (slo->tpot_ns == 0 || tpot_ns(r) <= (double)slo->tpot_ns);
}

static void judge(struct column *c, int64_t predicted, int64_t real)
{
    if (real >= ERROR_NS && predicted < BT_COST_INFINITE)
        add(c, fabs((double)predicted / (double)real - 1));
}

static void predictions(struct columns *c, const struct bt_sim_record *r,
                        struct bt_sim_summary *out)
{
    int64_t real = r->first_token_ns - r->predicted_at_ns;
    int64_t wait = r->predicted.queue_ns; /* the prefix comes meanwhile */

    if (r->predicted.fetch_ns > wait)
        wait = r->predicted.fetch_ns;
    if (r->predicted.total_ns <= 0 || r->predicted.total_ns >= BT_COST_INFINITE)
        return;
    judge(&c->total, r->predicted.total_ns, real);
    judge(&c->prefill, r->predicted.prefill_ns,
          r->prefill_done_ns - r->prefill_start_ns);
    judge(&c->transfer, r->predicted.transfer_ns,
          r->transfer_end_ns - r->transfer_start_ns);
    judge(&c->queue, wait, r->prefill_start_ns - r->predicted_at_ns);
    if (real <= 0)
        return;
    add(&c->bias, (double)r->predicted.total_ns / (double)real - 1);
    out->coverage_p90 += real <= r->predicted_p90_ns;
}

static void latencies(struct columns *c, const struct bt_sim_record *r)
{
    double ttft = (double)(r->first_token_ns - r->arrival_ns);

    add(&c->ttft, ttft * SECOND);
    if (r->second_token_ns != 0)
        add(&c->ttst, (double)(r->second_token_ns - r->arrival_ns) * SECOND);
    if (r->output_tokens > 1)
        add(&c->tpot, tpot_ns(r) * SECOND);
    if (r->unloaded_ttft_ns > 0)
        add(&c->slowdown, ttft / (double)r->unloaded_ttft_ns);
}

/* KV that lies at d before its decode starts, and slots that wait for it. */
static void early(const struct bt_sim_record *r, struct bt_sim_summary *out)
{
    if (r->transfer_end_ns == 0)
        return;
    if (r->first_token_ns > r->transfer_end_ns)
        out->hbm_byte_seconds +=
            (double)r->transfer_bytes *
            (double)(r->first_token_ns - r->transfer_end_ns) * SECOND;
    if (r->transfer_end_ns > r->slot_ns)
        out->slot_idle_seconds +=
            (double)(r->transfer_end_ns - r->slot_ns) * SECOND;
}

/* ---- whole run ---- */

static void imbalance(const struct bt_sim_result *result, unsigned int role,
                      double *out)
{
    double sum = 0, most = 0;
    size_t n = 0;

    for (uint32_t i = 0; i < result->worker_count; i++) {
        if ((result->roles[i] & role) == 0)
            continue;
        n++;
        sum += result->busy_share[i];
        if (result->busy_share[i] > most)
            most = result->busy_share[i];
    }
    *out = sum > 0 ? most * (double)n / sum : 0;
}

static void link_bytes(const struct bt_sim_result *result,
                       struct bt_sim_summary *out)
{
    double nic = 0;

    for (size_t i = 0; i < BT_PATH_CLASS_COUNT; i++)
        out->bytes_moved += (double)result->bytes_by_class[i];
    for (size_t i = 0; i < result->link_count; i++) {
        const struct bt_sim_link_use *l = &result->links[i];

        if (l->kind == BT_LINK_NIC_OUT && l->rate_bytes_per_s > nic)
            nic = l->rate_bytes_per_s;
    }
    for (size_t i = 0; i < result->link_count; i++) {
        const struct bt_sim_link_use *l = &result->links[i];
        bool is_nic = l->kind == BT_LINK_NIC_OUT || l->kind == BT_LINK_NIC_IN;
        bool up = l->kind == BT_LINK_RACK_UP || l->kind == BT_LINK_POD_UP;

        if (up || (is_nic && l->rate_bytes_per_s < nic))
            out->bytes_hot += l->bytes;
    }
}

struct tokens {
    double input, cached, fetched;
};

static void collect(const struct bt_sim_result *result,
                    const struct bt_core_slo_config *slo, int prompt_class,
                    struct columns *c, struct bt_sim_summary *out)
{
    struct tokens t = {0};
    double changed = 0;

    for (size_t i = 0; i < result->count; i++) {
        const struct bt_sim_record *r = &result->records[i];

        if (!r->measured ||
            (prompt_class >= 0 && class_of(r->input_tokens) != prompt_class))
            continue;
        out->measured++;
        changed += r->differs;
        if (r->regret_ns >= 0)
            add(&c->regret, (double)r->regret_ns * SECOND);
        if (!is_ok(r))
            continue;
        out->ok++;
        out->met += has_met(r, slo);
        t.input += r->input_tokens;
        t.cached += r->cached_tokens;
        t.fetched += r->fetched_tokens;
        out->bytes_fetched += (double)r->fetch_bytes;
        latencies(c, r);
        predictions(c, r, out);
        early(r, out);
    }
    if (out->measured > 0)
        out->changed_share = changed / (double)out->measured;
    if (t.input > 0) {
        /* what was fetched counts as cached when the prefill begins */
        out->hit_share = t.cached / t.input;
        out->fetched_share = t.fetched / t.input;
    }
}

static double measured_seconds(const struct bt_sim_result *result)
{
    int64_t from = INT64_MAX, to = 0;

    for (size_t i = 0; i < result->count; i++) {
        const struct bt_sim_record *r = &result->records[i];

        if (r->measured && r->arrival_ns < from)
            from = r->arrival_ns;
        if (r->measured && r->arrival_ns > to)
            to = r->arrival_ns;
    }
    return to > from ? (double)(to - from) * SECOND : 0;
}

static double median(struct column *c)
{
    sort(c);
    return quantile(c, 0.5);
}

void bt_sim_summarise(const struct bt_sim_result *result,
                      const struct bt_core_slo_config *slo, int prompt_class,
                      struct bt_sim_summary *out)
{
    double seconds = measured_seconds(result);
    struct columns c;

    memset(out, 0, sizeof(*out));
    out->regret_mean_s = out->regret_p99_s = -1;
    if (!columns_init(&c, result->count))
        return;
    collect(result, slo, prompt_class, &c, out);
    quantiles(&c.ttft, &out->ttft);
    quantiles(&c.ttst, &out->ttst);
    quantiles(&c.tpot, &out->tpot);
    quantiles(&c.slowdown, &out->slowdown);
    if (out->measured > 0)
        out->attainment = (double)out->met / (double)out->measured;
    if (seconds > 0)
        out->goodput_per_s = (double)out->met / seconds;
    out->error_total = median(&c.total);
    out->error_prefill = median(&c.prefill);
    out->error_transfer = median(&c.transfer);
    out->error_queue = median(&c.queue);
    out->coverage_p90 =
        c.bias.count == 0 ? 0 : out->coverage_p90 / (double)c.bias.count;
    out->bias_total = median(&c.bias);
    if (c.regret.count > 0) {
        sort(&c.regret);
        out->regret_mean_s = mean(&c.regret);
        out->regret_p99_s = quantile(&c.regret, 0.99);
    }
    link_bytes(result, out);
    imbalance(result, BT_ROLE_PREFILL, &out->imbalance_prefill);
    imbalance(result, BT_ROLE_DECODE, &out->imbalance_decode);
    if (result->wall_s > 0)
        out->decisions_per_s = (double)result->count / result->wall_s;
    free(c.memory);
}

bool bt_sim_meets(const struct bt_sim_summary *summary)
{
    return summary->measured > 0 && summary->attainment >= 0.95 &&
           summary->slowdown.p99 <= 10;
}
