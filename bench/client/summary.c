/* Figures of a run from its records. Decides what counts: latencies of whole
 * answers only, misses against the SLO are all that did not end well. */
#include "baton/bench/stats.h"
#include "client_priv.h"
#include <stdlib.h>
#include <string.h>

static int64_t get_ttft(const struct bt_client_record *r)
{
    return r->ttft_ns;
}

static int64_t get_ttst(const struct bt_client_record *r)
{
    return r->ttst_ns;
}

static int64_t get_tpot(const struct bt_client_record *r)
{
    return r->tpot_ns;
}

static int64_t get_late(const struct bt_client_record *r)
{
    return r->late_ns;
}

static void quantiles(const struct bt_client *client, double *scratch,
                      int64_t (*get)(const struct bt_client_record *),
                      struct bt_client_quantiles *out)
{
    size_t n = 0;

    for (size_t i = 0; i < client->spec.workload->count; i++) {
        const struct bt_client_record *r = &client->records[i];

        if ((r->result == BT_CLIENT_OK || r->result == BT_CLIENT_WRONG) &&
            get(r) >= 0)
            scratch[n++] = (double)get(r) / 1e6;
    }
    bt_stat_sort(scratch, n);
    out->mean = bt_stat_mean(scratch, n);
    out->p50 = bt_stat_quantile(scratch, n, 0.50);
    out->p95 = bt_stat_quantile(scratch, n, 0.95);
    out->p99 = bt_stat_quantile(scratch, n, 0.99);
}

static size_t count_results(const struct bt_client *client,
                            const struct bt_client_slo *slo,
                            struct bt_client_summary *out)
{
    size_t met = 0;
    int64_t end_ns = 0;

    for (size_t i = 0; i < client->spec.workload->count; i++) {
        const struct bt_client_record *r = &client->records[i];

        if (r->send_ns + r->e2e_ns > end_ns)
            end_ns = r->send_ns + r->e2e_ns;
        if (r->result == BT_CLIENT_WRONG)
            out->wrong++;
        else if (r->result == BT_CLIENT_OK)
            out->ok++;
        else if (r->result != BT_CLIENT_LEFT)
            out->errors++;
        if (r->result != BT_CLIENT_OK)
            continue;
        out->prompt_tokens += r->prompt_tokens;
        out->answer_tokens += r->answer_tokens;
        out->cached_tokens += r->cached_tokens;
        if (r->ttft_ns <= slo->ttft_ns && r->tpot_ns <= slo->tpot_ns)
            met++;
    }
    out->span_s = (double)end_ns / 1e9;
    return met;
}

enum bt_status bt_client_summarise(const struct bt_client *client,
                                   const struct bt_client_slo *slo,
                                   struct bt_client_summary *out)
{
    size_t count = client->spec.workload->count, met;
    double *scratch = malloc((count + 1) * sizeof(*scratch));
    struct bt_client_quantiles late;

    if (!scratch)
        return BT_NO_MEMORY;
    memset(out, 0, sizeof(*out));
    out->requests = count;
    met = count_results(client, slo, out);
    quantiles(client, scratch, get_ttft, &out->ttft_ms);
    quantiles(client, scratch, get_ttst, &out->ttst_ms);
    quantiles(client, scratch, get_tpot, &out->tpot_ms);
    quantiles(client, scratch, get_late, &late);
    out->late_ms_p99 = late.p99;
    out->itl_ms.mean = bt_histogram_mean(&client->gaps) / 1e6;
    out->itl_ms.p50 = (double)bt_histogram_quantile(&client->gaps, 0.50) / 1e6;
    out->itl_ms.p95 = (double)bt_histogram_quantile(&client->gaps, 0.95) / 1e6;
    out->itl_ms.p99 = (double)bt_histogram_quantile(&client->gaps, 0.99) / 1e6;
    out->goodput_rps = out->span_s > 0 ? (double)met / out->span_s : 0;
    out->slo_share = count ? (double)met / (double)count : 0;
    free(scratch);
    return BT_OK;
}
