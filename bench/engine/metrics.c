/* See metrics.h. Decides names, labels and bucket bounds; what is counted when
 * is the sequence code's. Names carry the prefix vllm: and counters end in
 * _total, as vLLM exposes them.
 */
#include "metrics.h"

#include <string.h>

static const double ttft_bounds[] = {
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1,   0.25,  0.5,    0.75, 1.0,
    2.5,   5.0,   7.5,  10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0, 0};
static const double itl_bounds[] = {0.01, 0.025, 0.05, 0.075, 0.1,  0.15, 0.2,
                                    0.3,  0.4,   0.5,  0.75,  1.0,  2.5,  5.0,
                                    7.5,  10.0,  20.0, 40.0,  80.0, 0};
static const double e2e_bounds[] = {
    0.3,  0.5,  0.8,  1.0,  1.5,   2.0,   2.5,   5.0,   10.0,   15.0,   20.0,
    30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0, 0};
static const double token_bounds[] = {1,     2,     5,     10,     20,   50,
                                      100,   200,   500,   1000,   2000, 5000,
                                      10000, 20000, 50000, 100000, 0};
static const double iteration_bounds[] = {
    1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 0};
static const double xfer_bounds[] = {0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.2,
                                     0.3,   0.5,  0.75,  1.0,  5.0,   0};
static const double post_bounds[] = {0.001, 0.005, 0.01, 0.025, 0.05,
                                     0.075, 0.1,   0.2,  0.3,   0.5,
                                     0.75,  1.0,   5.0,  0};
static const double bytes_bounds[] = {
    2048.0,       8192.0,       32768.0,    131072.0,    524288.0,
    2097152.0,    8388608.0,    33554432.0, 134217728.0, 536870912.0,
    2147483648.0, 8589934592.0, 0};
static const double descriptor_bounds[] = {10,   20,    30,    50,    75,
                                           100,  200,   400,   1000,  2000,
                                           4000, 10000, 20000, 50000, 0};

static const struct {
    const char *name;
    const double *bounds; /* a 0 ends them */
} hists[BT_HISTS] = {
    [BT_HIST_TTFT] = {"time_to_first_token_seconds", ttft_bounds},
    [BT_HIST_ITL] = {"inter_token_latency_seconds", itl_bounds},
    [BT_HIST_TPOT] = {"request_time_per_output_token_seconds", itl_bounds},
    [BT_HIST_E2E] = {"e2e_request_latency_seconds", e2e_bounds},
    [BT_HIST_QUEUE] = {"request_queue_time_seconds", e2e_bounds},
    [BT_HIST_INFERENCE] = {"request_inference_time_seconds", e2e_bounds},
    [BT_HIST_PREFILL] = {"request_prefill_time_seconds", e2e_bounds},
    [BT_HIST_DECODE] = {"request_decode_time_seconds", e2e_bounds},
    [BT_HIST_PREFILL_COMPUTED] = {"request_prefill_kv_computed_tokens",
                                  token_bounds},
    [BT_HIST_ITERATION_TOKENS] = {"iteration_tokens_total", iteration_bounds},
    [BT_HIST_PROMPT_TOKENS] = {"request_prompt_tokens", token_bounds},
    [BT_HIST_GENERATION_TOKENS] = {"request_generation_tokens", token_bounds},
    [BT_HIST_XFER_TIME] = {"nixl_xfer_time_seconds", xfer_bounds},
    [BT_HIST_XFER_POST] = {"nixl_post_time_seconds", post_bounds},
    [BT_HIST_XFER_BYTES] = {"nixl_bytes_transferred", bytes_bounds},
    [BT_HIST_XFER_DESCRIPTORS] = {"nixl_num_descriptors", descriptor_bounds},
};

void bt_metric_add(struct bt_engine_metrics *m, enum bt_engine_hist hist,
                   double value)
{
    struct bt_metric_hist *h = &m->hists[hist];
    const double *bounds = hists[hist].bounds;
    size_t i = 0;
    while (bounds[i] > 0 && value > bounds[i]) {
        i++;
    }
    h->buckets[i]++;
    h->count++;
    h->sum += value;
}

static void type_line(FILE *out, const char *name, const char *type)
{
    fprintf(out, "# HELP vllm:%s vLLM's metric of this name.\n", name);
    fprintf(out, "# TYPE vllm:%s %s\n", name, type);
}

static void gauge(FILE *out, const char *name, const char *model, double value)
{
    type_line(out, name, "gauge");
    fprintf(out, "vllm:%s{engine=\"0\",model_name=\"%s\"} %.17g\n", name, model,
            value);
}

static void counter(FILE *out, const char *name, const char *model,
                    uint64_t value)
{
    type_line(out, name, "counter");
    fprintf(out, "vllm:%s_total{engine=\"0\",model_name=\"%s\"} %llu\n", name,
            model, (unsigned long long)value);
}

/* One sample of a counter or gauge family with a label of its own. */
static void labelled(FILE *out, const char *name, const char *model,
                     const char *label, const char *value, uint64_t count)
{
    fprintf(out, "vllm:%s{engine=\"0\",model_name=\"%s\",%s=\"%s\"} %llu\n",
            name, model, label, value, (unsigned long long)count);
}

static void histogram(FILE *out, const char *name, const char *model,
                      const struct bt_metric_hist *h, const double *bounds)
{
    uint64_t sum = 0;
    type_line(out, name, "histogram");
    for (size_t i = 0; bounds[i] > 0; i++) {
        sum += h->buckets[i];
        fprintf(out,
                "vllm:%s_bucket{engine=\"0\",le=\"%.10g\",model_name=\"%s\"} "
                "%llu\n",
                name, bounds[i], model, (unsigned long long)sum);
    }
    fprintf(out,
            "vllm:%s_bucket{engine=\"0\",le=\"+Inf\",model_name=\"%s\"} %llu\n",
            name, model, (unsigned long long)h->count);
    fprintf(out, "vllm:%s_count{engine=\"0\",model_name=\"%s\"} %llu\n", name,
            model, (unsigned long long)h->count);
    fprintf(out, "vllm:%s_sum{engine=\"0\",model_name=\"%s\"} %.17g\n", name,
            model, h->sum);
}

static void write_gauges(const struct bt_engine_gauges *g, FILE *out)
{
    gauge(out, "num_requests_running", g->model, g->running);
    gauge(out, "num_requests_waiting", g->model, g->waiting);
    type_line(out, "num_requests_waiting_by_reason", "gauge");
    labelled(out, "num_requests_waiting_by_reason", g->model, "reason",
             "capacity", g->waiting_capacity);
    labelled(out, "num_requests_waiting_by_reason", g->model, "reason",
             "deferred", g->waiting_deferred);
    gauge(out, "kv_cache_usage_perc", g->model, g->kv_usage);
    type_line(out, "cache_config_info", "gauge");
    fprintf(out,
            "vllm:cache_config_info{block_size=\"%u\",enable_prefix_caching="
            "\"True\",engine=\"0\",num_gpu_blocks=\"%u\"} 1.0\n",
            g->block_tokens, g->block_count);
    type_line(out, "lora_requests_info", "gauge");
    fprintf(out,
            "vllm:lora_requests_info{max_lora=\"%u\",running_lora_adapters="
            "\"%s\",waiting_lora_adapters=\"%s\"} %.17g\n",
            g->adapters_max, g->running_adapters, g->waiting_adapters,
            g->start_time_s);
}

static void write_counters(const struct bt_engine_metrics *m, const char *model,
                           FILE *out)
{
    counter(out, "prefix_cache_queries", model, m->prefix_queries);
    counter(out, "prefix_cache_hits", model, m->prefix_hits);
    counter(out, "external_prefix_cache_queries", model, m->external_queries);
    counter(out, "external_prefix_cache_hits", model, m->external_hits);
    counter(out, "num_preemptions", model, 0);
    counter(out, "prompt_tokens", model, m->prompt_tokens);
    type_line(out, "prompt_tokens_by_source", "counter");
    labelled(out, "prompt_tokens_by_source_total", model, "source",
             "local_compute", m->prompt_computed);
    labelled(out, "prompt_tokens_by_source_total", model, "source",
             "local_cache_hit", m->prompt_local);
    labelled(out, "prompt_tokens_by_source_total", model, "source",
             "external_kv_transfer", m->prompt_external);
    counter(out, "prompt_tokens_cached", model,
            m->prompt_local + m->prompt_external);
    counter(out, "generation_tokens", model, m->generation_tokens);
    type_line(out, "request_success", "counter");
    labelled(out, "request_success_total", model, "finished_reason", "length",
             m->success_length);
    labelled(out, "request_success_total", model, "finished_reason", "abort",
             m->success_abort);
    labelled(out, "request_success_total", model, "finished_reason", "error",
             m->success_error);
    counter(out, "nixl_num_failed_transfers", model, m->nixl_failed_transfers);
    counter(out, "nixl_num_failed_notifications", model,
            m->nixl_failed_notifications);
    counter(out, "nixl_num_kv_expired_reqs", model, m->nixl_expired);
}

void bt_metrics_write(const struct bt_engine_metrics *m,
                      const struct bt_engine_gauges *g, FILE *out)
{
    write_gauges(g, out);
    write_counters(m, g->model, out);
    for (size_t i = 0; i < BT_HISTS; i++) {
        histogram(out, hists[i].name, g->model, &m->hists[i], hists[i].bounds);
    }
    fprintf(out,
            "# HELP process_start_time_seconds Start time of the process.\n"
            "# TYPE process_start_time_seconds gauge\n"
            "process_start_time_seconds %.17g\n",
            g->start_time_s);
}
