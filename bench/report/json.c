/* JSON of matrices and capacities; README.md states the schema. Written by
 * hand, field by field, so that the text of a configuration is canonical: its
 * hash is the configuration's (setup.c). Numbers that are not finite, and
 * figures that were not computed, are null. */
#include "report_priv.h"
#include <math.h>
#include <string.h>

#define UNKNOWN ((double)NAN)

void report_json_text(FILE *to, const char *text)
{
    fputc('"', to);
    for (const unsigned char *c = (const unsigned char *)text; *c; c++) {
        if (*c == '"' || *c == '\\')
            fprintf(to, "\\%c", *c);
        else if (*c < 0x20)
            fprintf(to, "\\u%04x", *c);
        else
            fputc(*c, to);
    }
    fputc('"', to);
}

static void number(FILE *to, double value)
{
    if (isfinite(value))
        fprintf(to, "%.9g", value);
    else
        fputs("null", to);
}

void report_json_number(FILE *to, const char *name, double value)
{
    fprintf(to, "\"%s\":", name);
    number(to, value);
}

void report_json_summary(FILE *to, const struct bt_sim_summary *summary)
{
    fprintf(to, "{\"measured\":%zu,\"ok\":%zu,\"met\":%zu", summary->measured,
            summary->ok, summary->met);
    for (size_t i = 0; i < REPORT_FIELD_COUNT; i++) {
        double value = report_field_value(&REPORT_FIELDS[i], summary);

        if (strncmp(REPORT_FIELDS[i].name, "regret", 6) == 0 && value < 0)
            value = UNKNOWN;
        fputc(',', to);
        report_json_number(to, REPORT_FIELDS[i].name, value);
    }
    fputc(',', to);
    report_json_number(to, "decisions_per_s", summary->decisions_per_s);
    fputc('}', to);
}

static void result_body(FILE *to, const struct bt_report_result *r)
{
    fputs(",\"summary\":", to);
    report_json_summary(to, &r->all);
    fputs(",\"classes\":[", to);
    for (int i = 0; i < BT_REPORT_CLASSES; i++) {
        if (i)
            fputc(',', to);
        report_json_summary(to, &r->by_class[i]);
    }
    fputs("],\"bytes_by_class\":{", to);
    for (int i = 0; i < BT_PATH_CLASS_COUNT; i++) {
        if (i)
            fputc(',', to);
        report_json_number(to, bt_path_class_name((enum bt_path_class)i),
                           r->bytes_by_class[i]);
    }
    fputs("},", to);
    report_json_number(to, "nic_in_imbalance", r->nic_imbalance);
    fputc(',', to);
    report_json_number(to, "wait_max_s", r->wait_max_s);
    fprintf(to,
            ",\"prefetches\":%llu,\"prefetches_used\":%llu,"
            "\"transfers_to_avoid\":%lld,",
            (unsigned long long)r->prefetches,
            (unsigned long long)r->prefetches_used,
            (long long)r->transfers_to_avoid);
    report_json_number(to, "wall_s", r->wall_s);
}

void report_json_result(FILE *to, const struct bt_report_result *r)
{
    fprintf(to, "\"status\":\"%s\",\"error\":", bt_status_name(r->status));
    if (r->status != BT_OK) {
        report_json_text(to, r->error);
        return;
    }
    fprintf(to,
            "null,\"effects_hash\":\"%016llx\",\"events\":%llu,"
            "\"requests\":%llu",
            (unsigned long long)r->effects_hash, (unsigned long long)r->events,
            (unsigned long long)r->requests);
    result_body(to, r);
}

/* ---- configuration ---- */

static void pool_json(FILE *to, const struct bt_sim_pool *p)
{
    fputs("{\"name\":", to);
    report_json_text(to, p->name);
    fprintf(to,
            ",\"roles\":%u,\"count\":%u,\"kv_tokens\":%llu,"
            "\"host_tokens\":%llu,\"disk_tokens\":%llu,\"decode_slots\":%u,"
            "\"prefill_chunk\":%u,\"local_chunk\":%u,\"fetch\":%s}",
            p->roles, p->count, (unsigned long long)p->kv_tokens,
            (unsigned long long)p->host_tokens,
            (unsigned long long)p->disk_tokens, p->decode_slots,
            p->prefill_chunk, p->local_chunk, p->fetch ? "true" : "false");
}

static void fabric_json(FILE *to, const struct bt_sim_fabric *f)
{
    fputs("{\"name\":", to);
    report_json_text(to, f->name);
    fprintf(to,
            ",\"nic_bytes_per_s\":%llu,\"slow_nic_bytes_per_s\":%llu,"
            "\"racks\":%u,\"rack_up_bytes_per_s\":%llu,\"setup_ns\":%lld,"
            "\"per_descriptor_ns\":%lld,",
            (unsigned long long)f->nic_bytes_per_s,
            (unsigned long long)f->slow_nic_bytes_per_s, f->racks,
            (unsigned long long)f->rack_up_bytes_per_s, (long long)f->setup_ns,
            (long long)f->per_descriptor_ns);
    report_json_number(to, "background", f->background);
    fprintf(to, ",\"background_period_ns\":%lld,",
            (long long)f->background_period_ns);
    report_json_number(to, "degraded_factor", f->degraded_factor);
    fprintf(to, ",\"degraded_worker\":%u,\"prefill\":%u,\"decode\":%u}",
            f->degraded_worker, f->prefill_count, f->decode_count);
}

static void cluster_json(FILE *to, const struct bt_sim_cluster *c)
{
    static const char *const overlaps[] = {"none", "chunk", "layer"};

    fputs("{\"name\":", to);
    report_json_text(to, c->name);
    fprintf(to,
            ",\"kv_bytes_per_token\":%llu,\"descriptor_tokens\":%u,"
            "\"engine\":{\"overlap\":\"%s\",\"pieces\":%u,"
            "\"allocate_first\":%s,\"whole_prompt\":%s,\"late_decode\":%s},"
            "\"pools\":[",
            (unsigned long long)c->kv_bytes_per_token, c->descriptor_tokens,
            overlaps[c->mode.overlap], c->mode.pieces,
            c->mode.allocate_first ? "true" : "false",
            c->mode.whole_prompt ? "true" : "false",
            c->mode.late_decode ? "true" : "false");
    for (uint32_t i = 0; i < c->pool_count; i++) {
        if (i)
            fputc(',', to);
        pool_json(to, &c->pools[i]);
    }
    fputs("]}", to);
}

static void knowledge_json(FILE *to, const struct bt_sim_knowledge *k)
{
    fputc('{', to);
    report_json_number(to, "compute_bias", k->compute_bias);
    fputc(',', to);
    report_json_number(to, "link_bias", k->link_bias);
    fprintf(to,
            ",\"shuffled_costs\":%s,\"telemetry_ns\":%lld,"
            "\"telemetry_lag_ns\":%lld,\"event_lag_ns\":%lld,",
            k->shuffled_costs ? "true" : "false", (long long)k->telemetry_ns,
            (long long)k->telemetry_lag_ns, (long long)k->event_lag_ns);
    report_json_number(to, "event_loss", k->event_loss);
    fprintf(to,
            ",\"event_replay\":%s,\"event_reorder\":%s,"
            "\"events_off\":%s,\"approximate\":%s,"
            "\"approximate_ttl_ns\":%lld,\"self_check\":%s,"
            "\"calibrate\":%s,\"output_known\":%u}",
            k->event_replay ? "true" : "false",
            k->event_reorder ? "true" : "false",
            k->events_off ? "true" : "false", k->approximate ? "true" : "false",
            (long long)(k->approximate ? k->approximate_ttl_ns : 0),
            k->self_check ? "true" : "false", k->calibrate ? "true" : "false",
            k->output_known);
}

static void faults_json(FILE *to, const struct bt_sim_config *config)
{
    static const char *const names[] = {
#define X(code, name) name,
        BT_SIM_FAULT_LIST(X)
#undef X
    };

    fputc('[', to);
    for (size_t i = 0; i < config->fault_count; i++) {
        const struct bt_sim_fault *f = &config->faults[i];

        fprintf(to,
                "%s{\"kind\":\"%s\",\"worker\":%u,\"at_ns\":%lld,"
                "\"until_ns\":%lld,",
                i ? "," : "", names[f->kind], f->worker, (long long)f->at_ns,
                (long long)f->until_ns);
        report_json_number(to, "factor", f->factor);
        fputc('}', to);
    }
    fputc(']', to);
}

static void decision_json(FILE *to, const struct bt_sim_config *c)
{
    fprintf(to,
            "\"hold\":{\"enabled\":%s,\"lead_ns\":%lld,\"patience_ns\":%lld,"
            "\"ask_max\":%u,",
            c->hold.enabled ? "true" : "false", (long long)c->hold.lead_ns,
            (long long)c->hold.patience_ns, c->hold.ask_max);
    report_json_number(to, "ageing", c->hold.ageing);
    fputc(',', to);
    report_json_number(to, "fairness", c->hold.fairness);
    fputc(',', to);
    report_json_number(to, "oldest_share", c->hold.oldest_share);
    fprintf(to, ",\"prefetch\":%s", c->hold.prefetch ? "true" : "false");
    fputs("},\"prices\":{", to);
    report_json_number(to, "queue", c->prices.queue);
    fputc(',', to);
    report_json_number(to, "eviction", c->prices.eviction);
    fputc(',', to);
    report_json_number(to, "link", c->prices.link);
    fputc(',', to);
    report_json_number(to, "hbm", c->prices.hbm);
    fputc(',', to);
    report_json_number(to, "decode", c->prices.decode);
    fprintf(to, "},\"slo\":{\"ttft_base_ns\":%lld,",
            (long long)c->slo.ttft_base_ns);
    report_json_number(to, "ttft_factor", c->slo.ttft_factor);
    fprintf(to, ",\"tpot_ns\":%lld}", (long long)c->slo.tpot_ns);
}

static void trace_json(FILE *to, const struct bt_sim_config *c)
{
    fputs("\"trace\":{\"name\":", to);
    report_json_text(to, c->trace->name);
    fprintf(to,
            ",\"synthetic\":%s,\"requests\":%zu,\"block_tokens\":%u,"
            "\"first\":%zu,\"count\":%zu,\"jitter_ns\":%lld}",
            c->trace->synthetic ? "true" : "false", c->trace->count,
            c->trace->block_tokens, c->first,
            c->count ? c->count : c->trace->count - c->first,
            (long long)c->jitter_ns);
}

void report_json_config(FILE *to, const struct bt_sim_config *c)
{
    fputs("\"policy\":", to);
    report_json_text(to, c->policy);
    fprintf(to, ",\"aggregated\":%s,\"local\":%s,\"fetch\":%s,",
            c->aggregated ? "true" : "false", c->local ? "true" : "false",
            c->fetch ? "true" : "false");
    decision_json(to, c);
    fputc(',', to);
    trace_json(to, c);
    fputc(',', to);
    report_json_number(to, "speed", c->speed);
    fputc(',', to);
    report_json_number(to, "warmup", c->warmup);
    fputs(",\"knowledge\":", to);
    knowledge_json(to, &c->knowledge);
    fputs(",\"faults\":", to);
    faults_json(to, c);
    fputs(",\"cluster\":", to);
    cluster_json(to, c->cluster);
    fputs(",\"fabric\":", to);
    fabric_json(to, &c->cluster->fabrics[c->fabric]);
}

/* ---- matrix ---- */

static void group_json(FILE *to, const struct bt_report_matrix *m,
                       const uint32_t at[3])
{
    const struct bt_report_setup *s = m->setup;
    const struct bt_report_result *results =
        bt_report_group(m, at[0], at[1], at[2]);
    struct bt_sim_config config;
    struct bt_report_row row;

    bt_report_config(s, at[0], at[2], m->speeds[at[0]][at[1]], 0, &config);
    bt_report_row_get(m, at[0], at[1], at[2], &row);
    fputs("{\"scenario\":", to);
    report_json_text(to, s->scenarios[at[0]].name);
    fputc(',', to);
    report_json_number(to, m->loads_are_shares ? "load" : "named_speed",
                       m->loads[at[1]]);
    fputs(",\"arm\":", to);
    report_json_text(to, s->arms[at[2]].name);
    fprintf(to, ",\"configuration_hash\":\"%016llx\",\"configuration\":{",
            (unsigned long long)bt_report_config_hash(&config));
    report_json_config(to, &config);
    fprintf(to, "},\"failed\":%u,\"mean\":", row.failed);
    report_json_summary(to, &row.mean.all);
    fputs(",\"runs\":[", to);
    for (uint32_t i = 0; i < s->seed_count; i++) {
        fprintf(to, "%s{\"seed\":%llu,", i ? "," : "",
                (unsigned long long)s->seeds[i]);
        report_json_result(to, &results[i]);
        fputc('}', to);
    }
    fputs("]}", to);
}

void report_json_cells(FILE *to, const struct bt_report_matrix *m)
{
    const char *comma = "";

    for (uint32_t i = 0; i < m->setup->scenario_count; i++) {
        for (uint32_t l = 0; l < m->load_count; l++) {
            for (uint32_t a = 0; a < m->setup->arm_count; a++) {
                fprintf(to, "%s\n", comma);
                group_json(to, m, (const uint32_t[3]){i, l, a});
                comma = ",";
            }
        }
    }
}

void report_json_setup(FILE *to, const struct bt_report_setup *s)
{
    fputs("\"seeds\":[", to);
    for (uint32_t i = 0; i < s->seed_count; i++)
        fprintf(to, "%s%llu", i ? "," : "", (unsigned long long)s->seeds[i]);
    fputc(']', to);
}

enum bt_status bt_report_print_json(const struct bt_report_matrix *matrix,
                                    FILE *to)
{
    fputs("{\"schema\":\"baton.sim/1\",", to);
    report_json_setup(to, matrix->setup);
    fputs(",\"groups\":[", to);
    report_json_cells(to, matrix);
    fputs("],", to);
    report_json_number(to, "wall_s", matrix->wall_s);
    fputs("}\n", to);
    return ferror(to) ? BT_IO : BT_OK;
}

/* ---- capacity ---- */

static void capacity_json(FILE *to, const struct bt_report_setup *s,
                          const struct bt_report_capacity *c, size_t at)
{
    const struct bt_report_search *x = &c->search;

    fputs("{\"scenario\":", to);
    report_json_text(to, s->scenarios[at / s->arm_count].name);
    fputs(",\"arm\":", to);
    report_json_text(to, s->arms[at % s->arm_count].name);
    fputs(",\"family\":", to);
    report_json_text(to, s->arms[at % s->arm_count].family);
    fputc(',', to);
    report_json_number(to, "speed", c->error[0] ? UNKNOWN : x->low);
    fputc(',', to);
    report_json_number(to, "fails_at", x->high > 0 ? x->high : UNKNOWN);
    fprintf(to,
            ",\"runs\":%u,\"below_failed\":%s,\"above_met\":%s,"
            "\"none_met\":%s,\"all_met\":%s,\"out_of_probes\":%s,\"error\":",
            c->runs, x->below_failed ? "true" : "false",
            x->above_met ? "true" : "false", x->none_met ? "true" : "false",
            x->all_met ? "true" : "false", x->out_of_probes ? "true" : "false");
    if (c->error[0])
        report_json_text(to, c->error);
    else
        fputs("null", to);
    fputs(",\"at\":", to);
    report_json_summary(to, &c->at.all);
    fputc('}', to);
}

void report_json_capacity(FILE *to, const struct bt_report_setup *setup,
                          const struct bt_report_capacity *capacity)
{
    size_t count = (size_t)setup->scenario_count * setup->arm_count;

    for (size_t i = 0; i < count; i++) {
        fprintf(to, "%s\n", i ? "," : "");
        capacity_json(to, setup, &capacity[i], i);
    }
}

void report_json_difference(FILE *to, const struct bt_report_difference *d)
{
    fprintf(to, "\"known\":%s,\"pairs\":%zu,\"seeds\":%u,",
            d->known ? "true" : "false", d->pairs, d->seeds);
    report_json_number(to, "subject_s", d->known ? d->subject : UNKNOWN);
    fputc(',', to);
    report_json_number(to, "rival_s", d->known ? d->rival : UNKNOWN);
    fputs(",\"relative\":{", to);
    report_json_number(to, "mean", d->relative.mean);
    fputc(',', to);
    report_json_number(to, "low95", d->relative.low);
    fputc(',', to);
    report_json_number(to, "high95", d->relative.high);
    fputs("},", to);
    report_json_number(to, "answered_subject", d->answered_subject);
    fputc(',', to);
    report_json_number(to, "answered_rival", d->answered_rival);
}
