/* What `baton probe` found, as tables for people or as one JSON object. JSON
 * is what `baton agent --calibration` reads. */
#include "cmd_probe.h"

#include "baton/base/units.h"

#include <assert.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static double rate_of(const struct probe_pair *pair)
{
    return 1e9 / pair->fit.byte_ns;
}

/* ---- tables ---- */

static void rails_text(const struct probe *p, uint32_t to,
                       const struct probe_pair *pair, char *out, size_t size)
{
    const struct probe_agent *agent = &p->agents[to];
    size_t used = 0;

    out[0] = '\0';
    for (uint32_t r = 0; r < agent->rail_count && used < size; r++) {
        if (pair->rail_bytes[r] == 0)
            continue;
        int n =
            snprintf(out + used, size - used, "%s%s %.0f%%",
                     used > 0 ? ", " : "", agent->rails[r],
                     100.0 * (double)pair->rail_bytes[r] / (double)pair->bytes);
        used += n > 0 ? (size_t)n : 0;
    }
}

static void path_row(const struct probe *p, uint32_t from, uint32_t to)
{
    const struct probe_pair *pair = &p->pairs[(size_t)from * p->count + to];
    char rate[32], setup[32], per[32], credit[32], begin[32], rails[160];

    printf("%-15s %-15s ", p->agents[from].name, p->agents[to].name);
    if (!pair->measured) {
        printf("not measured: %s\n", pair->reason);
        return;
    }
    rails_text(p, to, pair, rails, sizeof(rails));
    printf(
        "%12s %10s %10s %10s %6.1f%% %6.1f%% %10s%s %s\n",
        bt_rate_format((uint64_t)rate_of(pair), rate, sizeof(rate)),
        bt_duration_format((int64_t)pair->fit.setup_ns, setup, sizeof(setup)),
        bt_size_format((uint64_t)pair->fit.credit_bytes, credit,
                       sizeof(credit)),
        bt_duration_format((int64_t)pair->fit.descriptor_ns, per, sizeof(per)),
        pair->fit.sigma * 100, pair->fit.residual_p95 * 100,
        bt_size_format(pair->fit.linear_from, begin, sizeof(begin)),
        pair->fit.is_line ? "" : "?", rails);
}

static void print_paths(const struct probe *p)
{
    printf("%-15s %-15s %12s %10s %10s %10s %7s %7s %10s %s\n", "FROM", "TO",
           "RATE", "SET-UP", "CREDIT", "DESCRIPTOR", "SIGMA", "P95",
           "LINE FROM", "RAILS");
    for (uint32_t i = 0; i < p->count * p->count; i++) {
        if (p->pairs[i].wanted)
            path_row(p, i / p->count, i % p->count);
    }
}

static void fan_text(const struct probe_fan *fan, char out[48])
{
    char rate[32];

    if (fan->rounds == 0)
        snprintf(out, 48, "-");
    else
        snprintf(
            out, 48, "%s (%u, %.0f%%)",
            bt_rate_format((uint64_t)fan->rate_bytes_per_s, rate, sizeof(rate)),
            fan->flows, fan->share * 100);
}

static void print_ends(const struct probe *p)
{
    char out[48], in[48], in_force[2][32];

    printf("\n%-15s %-15s %12s %12s %26s %26s\n", "AGENT", "WORKER", "OUT",
           "IN", "ALL OUT (FLOWS, LEAST)", "ALL IN (FLOWS, LEAST)");
    for (uint32_t a = 0; a < p->count; a++) {
        const struct probe_agent *agent = &p->agents[a];

        if (!agent->reached) {
            printf("%s: not reached: %s\n", agent->url, agent->reason);
            continue;
        }
        fan_text(&p->out[a], out);
        fan_text(&p->in[a], in);
        printf("%-15s %-15s %12s %12s %26s %26s\n", agent->name, agent->worker,
               bt_rate_format((uint64_t)p->out_rate[a], in_force[0], 32),
               bt_rate_format((uint64_t)p->in_rate[a], in_force[1], 32), out,
               in);
    }
}

static void print_cases(const struct probe *p)
{
    printf("\n%-22s %7s %9s %9s %9s %9s  %s\n", "PREDICTED, MEASURED", "PULLS",
           "MEDIAN", "P95", "WORST", "BIAS", "LIMITS");
    for (uint32_t i = 0; i < p->case_count; i++) {
        const struct probe_case *c = &p->cases[i];

        printf("%-22s %7u %8.1f%% %8.1f%% %8.1f%% %+8.1f%%  %.0f %% / %.0f %% "
               "%s",
               c->name, c->error.count, c->error.median * 100,
               c->error.p95 * 100, c->error.worst * 100, c->error.bias * 100,
               c->median_max * 100, c->p95_max * 100,
               c->met ? "met" : "NOT MET");
        if (c->failed > 0)
            printf(", %u failed", c->failed);
        printf("\n");
    }
}

static void print_table(const struct probe *p)
{
    char bytes[32], spent[32];

    print_paths(p);
    print_ends(p);
    if (p->pairwise_ratio > 0)
        printf("\n%u pairs without a common end at once: %.0f %% of their "
               "rates alone\n",
               p->pairwise_flows, p->pairwise_ratio * 100);
    if (p->o.verify)
        print_cases(p);
    printf(
        "\n%s moved in %s\n", bt_size_format(p->bytes, bytes, sizeof(bytes)),
        bt_duration_format(probe_now_ns() - p->began_ns, spent, sizeof(spent)));
}

/* ---- JSON ---- */

static json_t *rails_json(const struct probe *p, uint32_t to,
                          const struct probe_pair *pair)
{
    json_t *rails = json_object();

    for (uint32_t r = 0; r < p->agents[to].rail_count; r++)
        json_object_set_new(rails, p->agents[to].rails[r],
                            json_integer((json_int_t)pair->rail_bytes[r]));
    return rails;
}

static json_t *path_json(const struct probe *p, uint32_t from, uint32_t to)
{
    const struct probe_pair *pair = &p->pairs[(size_t)from * p->count + to];
    const struct probe_agent *source = &p->agents[from];
    const struct bt_probe_fit *fit = &pair->fit;
    json_t *path =
        json_pack("{s:s, s:s, s:s, s:I, s:b, s:I, s:I}", "from", source->name,
                  "to", p->agents[to].name, "host", source->host, "port",
                  (json_int_t)source->port, "measured", pair->measured, "pulls",
                  (json_int_t)pair->pulls, "bytes", (json_int_t)pair->bytes);

    if (!pair->measured) {
        json_object_set_new(path, "reason", json_string(pair->reason));
        return path;
    }
    json_object_update_new(
        path,
        json_pack("{s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:I, "
                  "s:b, s:I, s:o}",
                  "rate_bytes_per_s", rate_of(pair), "setup_ns", fit->setup_ns,
                  "descriptor_ns", fit->descriptor_ns, "credit_bytes",
                  fit->credit_bytes, "setup_error_ns", fit->setup_error_ns,
                  "descriptor_error_ns", fit->descriptor_error_ns, "rate_error",
                  fit->byte_error_ns / fit->byte_ns, "sigma", fit->sigma,
                  "residual_median", fit->residual_median, "residual_p95",
                  fit->residual_p95, "linear_from",
                  (json_int_t)fit->linear_from, "is_line", fit->is_line,
                  "granted_after_ns", (json_int_t)pair->setup_ns, "rail_bytes",
                  rails_json(p, to, pair)));
    return path;
}

static json_t *fan_json(const struct probe_fan *fan)
{
    return json_pack("{s:I, s:I, s:f, s:f}", "flows", (json_int_t)fan->flows,
                     "rounds", (json_int_t)fan->rounds, "rate_bytes_per_s",
                     fan->rate_bytes_per_s, "least_share", fan->share);
}

static json_t *agent_json(const struct probe *p, uint32_t a)
{
    const struct probe_agent *agent = &p->agents[a];

    if (!agent->reached)
        return json_pack("{s:s, s:b, s:s}", "url", agent->url, "reached", 0,
                         "reason", agent->reason);
    return json_pack("{s:s, s:b, s:s, s:s, s:s, s:f, s:f, s:o, s:o}", "url",
                     agent->url, "reached", 1, "name", agent->name, "worker",
                     agent->worker, "fabric", agent->fabric, "out_bytes_per_s",
                     p->out_rate[a], "in_bytes_per_s", p->in_rate[a], "all_out",
                     fan_json(&p->out[a]), "all_in", fan_json(&p->in[a]));
}

static json_t *case_json(const struct probe_case *c)
{
    return json_pack("{s:s, s:I, s:I, s:I, s:f, s:f, s:f, s:f, s:f, s:f, s:b}",
                     "case", c->name, "flows", (json_int_t)c->flows, "pulls",
                     (json_int_t)c->error.count, "failed",
                     (json_int_t)c->failed, "median", c->error.median, "p95",
                     c->error.p95, "worst", c->error.worst, "bias",
                     c->error.bias, "median_max", c->median_max, "p95_max",
                     c->p95_max, "met", c->met);
}

static void print_json(const struct probe *p)
{
    json_t *agents = json_array(), *paths = json_array(), *cases = json_array();

    for (uint32_t a = 0; a < p->count; a++)
        json_array_append_new(agents, agent_json(p, a));
    for (uint32_t a = 0; a < p->count; a++) {
        for (uint32_t b = 0; b < p->count; b++) {
            if (p->pairs[a * p->count + b].wanted)
                json_array_append_new(paths, path_json(p, a, b));
        }
    }
    for (uint32_t i = 0; i < p->case_count; i++)
        json_array_append_new(cases, case_json(&p->cases[i]));
    json_t *root = json_pack(
        "{s:i, s:I, s:I, s:o, s:o, s:f, s:o}", "probe_schema", 1, "seed",
        (json_int_t)p->o.seed, "bytes", (json_int_t)p->bytes, "agents", agents,
        "paths", paths, "pairwise_ratio", p->pairwise_ratio, "cases", cases);
    if (root == NULL || json_dumpf(root, stdout, JSON_INDENT(1)) != 0)
        fprintf(stderr, "baton probe: out of memory\n");
    printf("\n");
    json_decref(root);
}

void probe_print(const struct probe *p)
{
    assert(p->count > 0);
    if (p->o.json)
        print_json(p);
    else
        print_table(p);
}
