/* What the demo runs: fleet, links, workload. All figures of the default demo
 * stand here. KV bytes per token are a scaled-down stand-in (2 KiB where an 8B
 * model has 128 KiB) and so are the links: what counts is the ratio of
 * transfer time to prefill time. */
#include "baton/base/units.h"
#include "baton/planner/block_hash.h"
#include "demo_priv.h"
#include <math.h>
#include <string.h>

#define MODEL        "demo"
#define COMPUTE      "h100-70b-tp8"
#define KV_BYTES     2048u
#define BLOCK_TOKENS 16u
#define BLOCKS       8192u
#define SEQS         256u
#define FAST_RATE    1000000000u
#define SLOW_RATE    25000000u
#define VOCABULARY   256u /* the byte tokenizer's */

void bt_demo_options_init(struct bt_demo_options *options)
{
    static const char *const policies[] = {"round_robin", "least_loaded",
                                           "prefix_load", "joint"};

    memset(options, 0, sizeof(*options));
    for (size_t i = 0; i < 4; i++)
        options->policies[i] = policies[i];
    options->policy_count = 4;
    options->seed = 1;
    options->rate_per_s = 16;
    options->duration_ns = 9 * BT_NS_PER_S;
    options->trace_speed = 4;
    options->trace_divisor = 16;
    options->speedup = 1;
    options->rails = 1;
    options->slo_ttft_ns = 400 * BT_NS_PER_MS;
    options->slo_tpot_ns = 25 * BT_NS_PER_MS;
}

static void add_engine(struct bt_cluster_spec *spec, const char *name,
                       bool prefill)
{
    struct bt_cluster_engine *e = &spec->engines[spec->engine_count++];

    snprintf(e->name, sizeof(e->name), "%s", name);
    e->prefill = prefill;
}

static void add_link(struct bt_cluster_spec *spec, uint32_t from, uint32_t to,
                     bool slow)
{
    struct bt_cluster_link *l = &spec->links[spec->link_count++];

    l->from = from;
    l->to = to;
    snprintf(l->link_class, sizeof(l->link_class), "%s",
             slow ? "slow" : "fast");
    l->rate_bytes_per_s = slow ? SLOW_RATE : FAST_RATE;
    l->setup_ns = BT_NS_PER_MS;
}

void demo_topology(const struct bt_demo_options *options,
                   struct bt_cluster_spec *spec)
{
    memset(spec, 0, sizeof(*spec));
    add_engine(spec, "p0", true);
    add_engine(spec, "p1", true);
    add_engine(spec, "d0", false);
    add_engine(spec, "d1", false);
    for (uint32_t p = 0; p < 2; p++) {
        for (uint32_t d = 2; d < 4; d++)
            add_link(spec, p, d, !options->uniform && p == 0 && d == 3);
    }
    spec->model = MODEL;
    spec->compute = COMPUTE;
    spec->speedup = options->speedup;
    spec->seed = options->seed;
    spec->kv_bytes_per_token = KV_BYTES;
    spec->block_tokens = BLOCK_TOKENS;
    spec->block_count = BLOCKS;
    spec->seqs_max = SEQS;
    spec->verbose = options->verbose;
    spec->port = (uint16_t)options->port;
}

static void answer(void *arg, const uint32_t *prompt, size_t count,
                   uint32_t max_tokens, uint32_t *out)
{
    if (bt_oracle_output(arg, prompt, count, max_tokens, out) != BT_OK)
        memset(out, 0, max_tokens * sizeof(*out));
}

static enum bt_status generate(struct demo *demo)
{
    const struct bt_demo_options *o = demo->options;
    struct bt_workload_options options;

    bt_workload_options_init(&options);
    options.seed = o->seed;
    options.rate_per_s = o->rate_per_s;
    options.requests =
        o->requests
            ? o->requests
            : (size_t)(o->rate_per_s * (double)o->duration_ns / 1e9 + 0.5);
    options.vocabulary = VOCABULARY;
    options.answer = answer;
    options.answer_arg = &demo->oracle;
    return bt_workload_generate(&options, &demo->workload);
}

static enum bt_status read_trace(struct demo *demo)
{
    const struct bt_demo_options *o = demo->options;
    struct bt_trace_options options;
    char error[512] = "";
    enum bt_status status;

    bt_trace_options_init(&options);
    options.seed = o->seed;
    options.vocabulary = VOCABULARY;
    options.speed = o->trace_speed;
    options.tokens_divisor = (uint32_t)o->trace_divisor;
    options.requests_max = o->requests;
    options.duration_ns = o->duration_ns;
    status = bt_trace_read(o->trace, &options, &demo->workload, error,
                           sizeof(error));
    if (status != BT_OK)
        fprintf(stderr, "baton demo: %s\n", error);
    return status;
}

/* A request that no engine could hold would only show as an error: say so. */
static enum bt_status check_fits(const struct demo *demo)
{
    uint64_t room = (uint64_t)demo->spec.block_count * demo->spec.block_tokens;

    for (size_t i = 0; i < demo->workload.count; i++) {
        const struct bt_workload_request *r = &demo->workload.requests[i];

        if ((uint64_t)r->token_count + r->max_tokens > room / 2) {
            fprintf(stderr,
                    "baton demo: request %zu has %u + %u tokens, more than "
                    "half of an engine's %llu: use a larger --trace-tokens\n",
                    i, r->token_count, r->max_tokens, (unsigned long long)room);
            return BT_TOO_LARGE;
        }
    }
    return BT_OK;
}

enum bt_status demo_workload_make(struct demo *demo)
{
    const struct bt_demo_options *o = demo->options;
    enum bt_status status;

    bt_oracle_init(&demo->oracle, MODEL, o->seed, BT_NS_PLAIN);
    demo->oracle.kv_bytes_per_token = demo->spec.kv_bytes_per_token;
    demo->oracle.block_tokens = demo->spec.block_tokens;
    demo->workload.requests_max = 200000;
    demo->workload.tokens_max = (size_t)64 << 20;
    if (o->trace) {
        status = read_trace(demo);
        if (status != BT_OK)
            return status;
    } else {
        status = generate(demo);
        if (status != BT_OK)
            fprintf(stderr, "baton demo: cannot make the workload: %s\n",
                    bt_status_text(status));
    }
    if (status == BT_OK)
        status = check_fits(demo);
    if (status == BT_OK)
        status = bt_workload_stats_get(&demo->workload, demo->spec.block_tokens,
                                       &demo->report->workload);
    if (status == BT_OK)
        status =
            bt_expected_create(&demo->workload, &demo->oracle, &demo->expected);
    return status;
}
