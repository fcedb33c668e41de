/* Prometheus text on its own listener: the core's counters and gauges, the
 * shell's own, and one row per worker. Every name is explained in METRICS.md
 * (a check compares). Label values come from the configuration or from our own
 * name tables, never from a client.
 */
#include "recorder.h"
#include "serve_priv.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static const double ttft_bounds[] = {.005, .01, .025, .05, .1, .25, .5, 1,
                                     2.5,  5,   10,   20,  40, 60,  120};
static const double itl_bounds[] = {.001, .002, .005, .01, .02, .05,
                                    .1,   .2,   .5,   1,   2};
static const double duration_bounds[] = {.01, .05, .1, .25, .5,  1,   2.5,
                                         5,   10,  30, 60,  120, 300, 600};
static const double plan_bounds[] = {1e-6, 2e-6, 5e-6, 1e-5, 2e-5, 5e-5, 1e-4,
                                     2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2};
static const double lag_bounds[] = {.001, .005, .01, .05, .1, .5, 1, 5};

#define BOUNDS(h, b)                                                           \
    do {                                                                       \
        (h).bounds = (b);                                                      \
        (h).bound_count = sizeof(b) / sizeof((b)[0]);                          \
    } while (0)

void metrics_init(struct shell_counters *c)
{
    BOUNDS(c->ttft, ttft_bounds);
    BOUNDS(c->ttst, ttft_bounds);
    BOUNDS(c->itl, itl_bounds);
    BOUNDS(c->duration, duration_bounds);
    BOUNDS(c->plan, plan_bounds);
    BOUNDS(c->loop_lag, lag_bounds);
}

/* ---- groups ---- */

static void write_requests(struct bt_text *t, const struct bt_serve *serve,
                           const struct bt_core_counters *c)
{
    bt_prom_family(t, "baton_requests_total", "counter",
                   "Requests that reached the core, by their one outcome.");
    for (int i = 0; i < BT_OUTCOME_COUNT; i++)
        bt_prom_labelled(t, "baton_requests_total", "outcome",
                         bt_outcome_name((enum bt_outcome)i),
                         (double)c->outcomes[i]);
    bt_prom_one(t, "baton_requests_accepted_total", "counter",
                "Requests that reached the core; minus outcomes = in flight.",
                (double)c->requests);
    bt_prom_family(t, "baton_requests_in_flight", "gauge",
                   "Live requests by state of their life.");
    for (int i = 0; i < BT_REQUEST_DONE; i++)
        bt_prom_labelled(t, "baton_requests_in_flight", "state",
                         bt_request_state_name((enum bt_request_state)i),
                         (double)c->live[i]);
    bt_prom_one(t, "baton_queue_depth", "gauge",
                "Requests waiting for a worker.",
                (double)c->live[BT_REQUEST_QUEUED]);
    bt_prom_family(t, "baton_client_disconnects_total", "counter",
                   "Clients that left before their answer ended, by phase.");
    for (int i = 0; i < BT_REQUEST_DONE; i++)
        bt_prom_labelled(t, "baton_client_disconnects_total", "phase",
                         bt_request_state_name((enum bt_request_state)i),
                         (double)serve->counters.disconnects[i]);
    bt_prom_one(t, "baton_request_input_tokens_total", "counter",
                "Prompt tokens of ended requests.",
                (double)serve->counters.input_tokens);
    bt_prom_one(t, "baton_request_output_tokens_total", "counter",
                "Tokens answered.", (double)serve->counters.output_tokens);
    bt_prom_one(t, "baton_kv_hit_actual_tokens_total", "counter",
                "Cached prompt tokens as prefill workers report them.",
                (double)serve->counters.cached_tokens);
    bt_prom_one(t, "baton_client_params_removed_total", "counter",
                "Hand-off fields that clients sent and that were removed.",
                (double)serve->counters.client_params_removed);
}

static void write_times(struct bt_text *t, const struct bt_serve *serve)
{
    const struct shell_counters *c = &serve->counters;

    bt_prom_histogram_write(
        t, "baton_ttft_seconds",
        "Last request byte in to first token event out (streams).", &c->ttft);
    bt_prom_histogram_write(
        t, "baton_ttst_seconds",
        "Last request byte in to second token event out (streams).", &c->ttst);
    bt_prom_histogram_write(t, "baton_itl_seconds",
                            "Gap between token events (streams).", &c->itl);
    bt_prom_histogram_write(t, "baton_request_duration_seconds",
                            "Last request byte in to the outcome.",
                            &c->duration);
    bt_prom_histogram_write(t, "baton_plan_seconds",
                            "Prompt hashed, looked up, scored and booked.",
                            &c->plan);
    bt_prom_histogram_write(t, "baton_loop_lag_seconds",
                            "How late the event loop's 50 ms tick comes.",
                            &c->loop_lag);
}

static void write_plan(struct bt_text *t, const struct bt_serve *serve,
                       const struct bt_core_counters *c)
{
    bt_prom_family(t, "baton_plan_decisions_total", "counter",
                   "Requests ended, by the reason of their last placement.");
    for (int i = 0; i < BT_REASON_COUNT; i++)
        bt_prom_labelled(t, "baton_plan_decisions_total", "reason",
                         bt_reason_name((enum bt_reason)i),
                         (double)c->decisions[i]);
    bt_prom_family(
        t, "baton_plan_fallbacks_total", "counter",
        "Requests not routed as planned, or planned without knowledge.");
    for (int i = 1; i < BT_FALLBACK_COUNT; i++)
        bt_prom_labelled(t, "baton_plan_fallbacks_total", "reason",
                         bt_fallback_name((enum bt_fallback)i),
                         (double)c->fallbacks[i]);
    bt_prom_labelled(t, "baton_plan_fallbacks_total", "reason", "tokenize_late",
                     (double)serve->counters.tokenize_late);
    bt_prom_labelled(t, "baton_plan_fallbacks_total", "reason",
                     "tokenize_failed",
                     (double)serve->counters.tokenize_failed);
    bt_prom_labelled(t, "baton_plan_fallbacks_total", "reason", "tokenize_busy",
                     (double)serve->counters.tokenize_busy);
    for (int i = BT_HIDDEN_PART; i <= BT_HIDDEN_MEMBER; i++)
        bt_prom_labelled(t, "baton_plan_fallbacks_total", "reason",
                         bt_openai_hidden_name((enum bt_openai_hidden)i),
                         (double)serve->counters.hidden[i]);
    bt_prom_one(t, "baton_plan_differs_total", "counter",
                "Placements that differ from load + prefix.",
                (double)c->differs_from_baseline);
    bt_prom_one(t, "baton_plan_guard_total", "counter",
                "Placements where the guard kept load + prefix.",
                (double)c->guard_kept_baseline);
    bt_prom_one(
        t, "baton_pd_bypass_total", "counter",
        "Requests that one worker must serve whole (n > 1, batches, ...).",
        (double)serve->counters.pd_bypass);
    bt_prom_one(t, "baton_retries_total", "counter", "Legs sent again.",
                (double)c->retries);
    bt_prom_one(t, "baton_retries_denied_total", "counter",
                "Retries that the budget or the limit of attempts refused.",
                (double)c->retries_denied);
    bt_prom_one(t, "baton_late_events_total", "counter",
                "Answers for attempts that had ended.", (double)c->late_events);
    bt_prom_one(
        t, "baton_stranded_handoffs_total", "counter",
        "Hand-offs that nobody pulled; their blocks wait for the lease.",
        (double)c->stranded_handoffs);
}

/* Per stream; what a stream has not is -1. */
static const struct {
    const char *name, *help;
} stream_rows[] = {
    {"baton_kv_stream_lag_seconds",
     "Arrival of the last batch less its own time; clock skew is in it."},
    {"baton_kv_stream_held_batches", "Live batches held for a replay."},
    {"baton_kv_stream_held_bytes", "Their bytes."},
    {"baton_kv_stream_parked", "Stores that wait for their parent."},
};

static double stream_value(const struct bt_stream_info *info, size_t row_index)
{
    switch (row_index) {
    case 0:
        return info->lag_s;
    case 1:
        return info->held;
    case 2:
        return (double)info->held_bytes;
    case 3:
        return info->parked;
    }
    return 0;
}

/* labels: worker and rank, and room for one more. */
typedef void (*stream_fn)(struct bt_text *t, struct bt_prom_pair *labels,
                          const struct bt_stream_info *info, size_t i);

static void each_stream(struct bt_text *t, const struct bt_serve *serve,
                        stream_fn fn, size_t row_index)
{
    char rank[12];
    struct bt_stream_info info;

    for (uint32_t w = 0; w < serve->config->worker_count; w++)
        for (uint32_t r = 0;
             bt_event_plane_stream(serve->events, w, r, &info) == BT_OK; r++) {
            struct bt_prom_pair labels[4] = {
                {"worker", serve_worker_name(serve, w)},
                {"rank", rank},
            };

            snprintf(rank, sizeof(rank), "%u", r);
            fn(t, labels, &info, row_index);
        }
}

static void put_stream_row(struct bt_text *t, struct bt_prom_pair *labels,
                           const struct bt_stream_info *info, size_t i)
{
    bt_prom_row(t, stream_rows[i].name, labels, stream_value(info, i));
}

static void put_stream_cause(struct bt_text *t, struct bt_prom_pair *labels,
                             const struct bt_stream_info *info, size_t i)
{
    (void)i;
    labels[2].label = "cause";
    labels[2].value = bt_stream_cause_name(info->cause);
    bt_prom_row(t, "baton_kv_stream_cause", labels, 1);
}

#define STREAM_BYTES 1280 /* of all rows of a stream, at most */

static size_t stream_count(const struct bt_serve *serve)
{
    size_t count = 0;

    for (uint32_t i = 0; i < serve->config->worker_count; i++)
        count += serve->config->workers[i].ranks + 1;
    return count;
}

static void write_streams(struct bt_text *t, const struct bt_serve *serve)
{
    struct bt_stream_counts counts;

    bt_event_plane_counts(serve->events, &counts);
    bt_stream_counts_write(&counts, t);
    bt_prom_one(
        t, "baton_kv_healing_legs_total", "counter",
        "Prefills that asked their worker to announce its blocks again.",
        (double)serve->counters.healing_legs);
    bt_prom_one(t, "baton_kv_event_strangers_total", "counter",
                "Messages whose topic names no worker.",
                (double)bt_event_plane_strangers(serve->events));
    for (size_t i = 0; i < sizeof(stream_rows) / sizeof(stream_rows[0]); i++) {
        bt_prom_family(t, stream_rows[i].name, "gauge", stream_rows[i].help);
        each_stream(t, serve, put_stream_row, i);
    }
    bt_prom_family(t, "baton_kv_stream_cause", "gauge",
                   "Why each rank's stream is in its state; always 1.");
    each_stream(t, serve, put_stream_cause, 0);
}

static void write_index(struct bt_text *t, const struct bt_serve *serve)
{
    struct bt_prefix_index_stats stats;
    struct bt_approx_stats guesses;

    bt_core_index_stats(serve->core, &stats);
    bt_core_approx_stats(serve->core, &guesses);
    bt_prom_one(t, "baton_kv_index_blocks", "gauge",
                "Distinct block keys known.", (double)stats.blocks);
    bt_prom_one(t, "baton_kv_index_holdings", "gauge",
                "Engine blocks believed in, over all workers.",
                (double)stats.holdings);
    bt_prom_one(t, "baton_kv_index_dropped_total", "counter",
                "Blocks not indexed because a table was full.",
                (double)stats.dropped);
    bt_prom_one(t, "baton_kv_index_evicted_total", "counter",
                "Blocks given up to make room in a full index.",
                (double)stats.evicted);
    bt_prom_one(t, "baton_kv_index_collisions_total", "counter",
                "Stores of a known engine hash with other content.",
                (double)stats.collisions);
    bt_prom_one(t, "baton_kv_approximate_evicted_total", "counter",
                "Guesses given up for room, in the table or at a worker.",
                (double)guesses.evicted);
    bt_prom_one(t, "baton_kv_index_query_tokens_total", "counter",
                "Prompt tokens looked up.",
                (double)serve->counters.prompt_tokens_placed);
    bt_prom_one(t, "baton_kv_index_hit_tokens_total", "counter",
                "Of them, predicted to be cached where the request was sent.",
                (double)serve->counters.overlap_tokens);
}

static const char *role_name(unsigned int roles)
{
    if (roles == BT_ROLE_PREFILL)
        return "prefill";
    return roles == BT_ROLE_DECODE ? "decode" : "both";
}

struct column {
    const char *name, *help;
    double (*get)(const struct bt_core_worker_info *info, int64_t now);
};

static double get_up(const struct bt_core_worker_info *i, int64_t now)
{
    (void)now;
    return i->state == BT_WORKER_READY ? 1 : 0;
}

static double get_prefills(const struct bt_core_worker_info *i, int64_t now)
{
    (void)now;
    return i->prefill_requests;
}

static double get_prefill_tokens(const struct bt_core_worker_info *i,
                                 int64_t now)
{
    (void)now;
    return (double)i->prefill_tokens;
}

static double get_decodes(const struct bt_core_worker_info *i, int64_t now)
{
    (void)now;
    return i->decode_requests;
}

static double get_decode_tokens(const struct bt_core_worker_info *i,
                                int64_t now)
{
    (void)now;
    return (double)i->decode_tokens;
}

static double get_transfers(const struct bt_core_worker_info *i, int64_t now)
{
    (void)now;
    return i->transfers;
}

static double get_blocks(const struct bt_core_worker_info *i, int64_t now)
{
    (void)now;
    return i->index_blocks;
}

static double get_stream(const struct bt_core_worker_info *i, int64_t now)
{
    (void)now;
    return i->stream;
}

static double get_age(const struct bt_core_worker_info *i, int64_t now)
{
    return i->stats_at_ns == 0 ? -1 : (double)(now - i->stats_at_ns) / 1e9;
}

static double get_suspect(const struct bt_core_worker_info *i, int64_t now)
{
    return i->suspect_until_ns > now ? 1 : 0;
}

static double get_prefill_samples(const struct bt_core_worker_info *i,
                                  int64_t now)
{
    (void)now;
    return (double)i->prefill_samples;
}

static double get_decode_samples(const struct bt_core_worker_info *i,
                                 int64_t now)
{
    (void)now;
    return (double)i->decode_samples;
}

static double get_prefill_error(const struct bt_core_worker_info *i,
                                int64_t now)
{
    (void)now;
    return i->prefill_error;
}

static const struct column columns[] = {
    {"baton_worker_ready", "1 = in service.", get_up},
    {"baton_worker_prefill_requests", "Prefill legs out (own ledger).",
     get_prefills},
    {"baton_worker_prefill_tokens", "Uncached tokens in them.",
     get_prefill_tokens},
    {"baton_worker_decode_requests", "Decode slots booked (own ledger).",
     get_decodes},
    {"baton_worker_decode_tokens", "KV tokens booked (own ledger).",
     get_decode_tokens},
    {"baton_worker_transfers", "KV transfers booked in or out.", get_transfers},
    {"baton_worker_index_blocks", "Blocks it is believed to hold.", get_blocks},
    {"baton_kv_stream_state",
     "0 absent, 1 syncing, 2 exact, 3 partial, 4 degraded, 5 suspect.",
     get_stream},
    {"baton_worker_stats_age_seconds", "Age of its telemetry, -1 = never.",
     get_age},
    {"baton_worker_suspect", "1 = avoided after failures.", get_suspect},
    {"baton_worker_prefill_samples", "Prefill times its model learned from.",
     get_prefill_samples},
    {"baton_worker_decode_samples", "Decode steps its model learned from.",
     get_decode_samples},
    {"baton_worker_prefill_error",
     "Relative sigma of its prefill estimates, 0 = not learned.",
     get_prefill_error},
};

static double get_credit(const struct bt_core_worker_info *i, int64_t now)
{
    (void)now;
    return i->credit;
}

static double get_approx_blocks(const struct bt_core_worker_info *i,
                                int64_t now)
{
    (void)now;
    return i->approx_blocks;
}

static double get_hit_predicted(const struct bt_core_worker_info *i,
                                int64_t now)
{
    (void)now;
    return (double)i->hit_predicted;
}

static double get_hit_actual(const struct bt_core_worker_info *i, int64_t now)
{
    (void)now;
    return (double)i->hit_actual;
}

static double get_hit_unforeseen(const struct bt_core_worker_info *i,
                                 int64_t now)
{
    (void)now;
    return (double)i->hit_unforeseen;
}

static const struct column belief_columns[] = {
    {"baton_kv_index_credit", "What predicted hits were worth lately, 0 to 1.",
     get_credit},
    {"baton_worker_approximate_blocks",
     "Blocks guessed from own placements, beside those from events.",
     get_approx_blocks},
};

/* Of answers that told their cached tokens, since its process began. */
static const struct column hit_columns[] = {
    {"baton_worker_hit_predicted_tokens_total",
     "Prompt tokens predicted to be cached, where it could be checked.",
     get_hit_predicted},
    {"baton_worker_hit_found_tokens_total",
     "Of the same prompts, tokens the engine said were cached.",
     get_hit_actual},
    {"baton_worker_hit_unforeseen_tokens_total",
     "Of those found, beyond what was predicted.", get_hit_unforeseen},
};

static void write_columns(struct bt_text *t, const struct bt_serve *serve,
                          const char *type, const struct column *list,
                          size_t count)
{
    int64_t now = serve_now_ns();
    struct bt_core_worker_info info;

    for (size_t c = 0; c < count; c++) {
        bt_prom_family(t, list[c].name, type, list[c].help);
        for (uint32_t w = 0; w < serve->config->worker_count; w++) {
            if (bt_core_worker_get(serve->core, w, &info) != BT_OK)
                continue;
            const struct bt_prom_pair labels[] = {
                {"worker", serve_worker_name(serve, w)},
                {"role", role_name(info.roles)},
                {NULL, NULL},
            };

            bt_prom_row(t, list[c].name, labels, list[c].get(&info, now));
        }
    }
}

static void write_workers(struct bt_text *t, const struct bt_serve *serve)
{
    struct bt_core_worker_info info;

    write_columns(t, serve, "gauge", columns,
                  sizeof(columns) / sizeof(columns[0]));
    write_columns(t, serve, "gauge", belief_columns,
                  sizeof(belief_columns) / sizeof(belief_columns[0]));
    write_columns(t, serve, "counter", hit_columns,
                  sizeof(hit_columns) / sizeof(hit_columns[0]));
    bt_prom_family(t, "baton_workers", "gauge", "Workers by state.");
    for (int s = 0; s <= BT_WORKER_REFUSED; s++) {
        uint32_t n = 0;

        for (uint32_t w = 0; w < serve->config->worker_count; w++)
            if (bt_core_worker_get(serve->core, w, &info) == BT_OK &&
                (int)info.state == s)
                n++;
        bt_prom_labelled(t, "baton_workers", "state",
                         bt_worker_state_name((enum bt_worker_state)s), n);
    }
}

#define LINK_BYTES 256 /* of both rows of a link, at most */

static uint32_t link_count(const struct bt_serve *serve)
{
    const struct bt_network *net = bt_core_network(serve->core);

    return net == NULL ? 0 : bt_topology_link_count(bt_network_topology(net));
}

static void write_link_row(struct bt_text *t, const struct bt_serve *serve,
                           const char *name, bool in_force)
{
    const struct bt_network *net = bt_core_network(serve->core);
    char link[64];

    for (uint32_t i = 0; i < link_count(serve); i++) {
        const struct bt_topology *topology = bt_network_topology(net);
        uint64_t rate =
            in_force ? bt_network_rate(net, i)
                     : bt_topology_link_at(topology, i)->rate_bytes_per_s;

        bt_topology_link_name(topology, i, link, sizeof(link));
        bt_prom_labelled(t, name, "link", link, (double)rate);
    }
}

static void write_setups(struct bt_text *t, const struct bt_serve *serve)
{
    const struct bt_network *net = bt_core_network(serve->core);

    bt_prom_family(t, "baton_transfer_setup_seconds", "gauge",
                   "What a transfer takes beside its bytes, in force.");
    for (int i = BT_PATH_NVLINK; i < BT_PATH_UNKNOWN && net != NULL; i++)
        bt_prom_labelled(t, "baton_transfer_setup_seconds", "class",
                         bt_path_class_name((enum bt_path_class)i),
                         (double)bt_network_setup(net, (enum bt_path_class)i) /
                             1e9);
}

static void write_links(struct bt_text *t, const struct bt_serve *serve)
{
    bt_prom_family(t, "baton_link_rate_bytes", "gauge",
                   "Rate of a topology's link in force, bytes per second.");
    write_link_row(t, serve, "baton_link_rate_bytes", true);
    bt_prom_family(t, "baton_link_nominal_bytes", "gauge",
                   "Its rate by the topology file.");
    write_link_row(t, serve, "baton_link_nominal_bytes", false);
    write_setups(t, serve);
}

static void write_edge(struct bt_text *t, const struct bt_serve *serve)
{
    static const char *const classes[] = {"transport", "1xx", "2xx",
                                          "3xx",       "4xx", "5xx"};
    struct bt_httpd_counters h;

    bt_httpd_counters_get(serve->front, &h);
    bt_prom_one(t, "baton_http_requests_total", "counter",
                "Requests that reached a handler of the front.",
                (double)h.requests);
    bt_prom_family(t, "baton_http_refused_total", "counter",
                   "Requests refused before a handler, by status.");
    bt_prom_labelled(t, "baton_http_refused_total", "code", "400",
                     (double)h.refused_400);
    bt_prom_labelled(t, "baton_http_refused_total", "code", "413",
                     (double)h.refused_413);
    bt_prom_labelled(t, "baton_http_refused_total", "code", "431",
                     (double)h.refused_431);
    bt_prom_labelled(t, "baton_http_refused_total", "code", "503",
                     (double)h.refused_503);
    bt_prom_one(t, "baton_http_connections", "gauge",
                "Open client connections.", h.connections);
    bt_prom_one(t, "baton_http_body_bytes", "gauge", "Request bodies held.",
                (double)h.body_bytes);
    bt_prom_one(t, "baton_http_slow_clients_total", "counter",
                "Clients cut because they did not read.",
                (double)h.slow_clients);
    bt_prom_family(t, "baton_upstream_answers_total", "counter",
                   "Answers of workers to legs, by status class.");
    for (int i = 0; i < 6; i++)
        bt_prom_labelled(t, "baton_upstream_answers_total", "class", classes[i],
                         (double)serve->counters.upstream_answers[i]);
    bt_prom_one(t, "baton_log_folded_total", "counter",
                "Log lines folded away.", (double)bt_log_folded());
    bt_prom_one(t, "baton_decision_log_dropped_total", "counter",
                "Decision lines that could not be written.",
                (double)serve->counters.decisions_dropped);
    bt_prom_one(t, "baton_journal_left_out_total", "counter",
                "Events that found the journal full or broken.",
                (double)recorder_left_out(serve));
}

static void write_process(struct bt_text *t, const struct bt_serve *serve)
{
    struct rusage usage;
    long pages = 0;
    FILE *f = fopen("/proc/self/statm", "re");

    if (f != NULL) {
        if (fscanf(f, "%*s %ld", &pages) != 1) // NOLINT(cert-err34-c)
            pages = 0;
        fclose(f);
    }
    getrusage(RUSAGE_SELF, &usage);
    bt_prom_one(t, "process_resident_memory_bytes", "gauge", "Resident memory.",
                (double)pages * (double)sysconf(_SC_PAGESIZE));
    bt_prom_one(
        t, "process_cpu_seconds_total", "counter", "User and system time.",
        (double)usage.ru_utime.tv_sec + (double)usage.ru_stime.tv_sec +
            (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6);
    bt_prom_one(t, "baton_uptime_seconds", "gauge",
                "Since the server was made.",
                (double)(serve_now_ns() - serve->started_ns) / 1e9);
}

void metrics_handle(void *arg, struct bt_httpd_request *req)
{
    struct bt_serve *serve = arg;
    const struct bt_core_counters *counters = bt_core_counters_get(serve->core);
    struct bt_text text;
    char *buf;

    if (strcmp(bt_httpd_path(req), "/metrics") != 0) {
        reply_error(req, 404, "only /metrics is here");
        return;
    }
    buf =
        text_alloc(&text, 65536 + stream_count(serve) * STREAM_BYTES +
                              (size_t)link_count(serve) * LINK_BYTES +
                              (size_t)serve->config->worker_count *
                                  (sizeof(columns) / sizeof(columns[0])) * 320);
    if (buf == NULL) {
        reply_error(req, 503, "out of memory");
        return;
    }
    write_requests(&text, serve, counters);
    write_times(&text, serve);
    write_plan(&text, serve, counters);
    write_index(&text, serve);
    write_streams(&text, serve);
    write_workers(&text, serve);
    write_links(&text, serve);
    write_edge(&text, serve);
    write_process(&text, serve);
    if (text.overflow)
        reply_error(req, 500, "the metrics do not fit their buffer");
    else
        bt_httpd_reply(req, 200, BT_PROM_TYPE, buf, text.used);
    free(buf);
}
