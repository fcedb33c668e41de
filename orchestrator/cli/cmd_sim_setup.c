/* From the options of `baton sim` to a setup: where cluster files are, the
 * trace, the arms, knowledge and faults. Each value that cannot be read is one
 * line on stderr. A cluster NAME is looked for in this order: $BATON_CLUSTERS,
 * beside the program (../share/baton/clusters), the installed place, the
 * source tree the program was built from. */
#include "baton/base/units.h"
#include "cmd_sim.h"
#include "trace_find.h"
#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PATH_BYTES 1024
#define DIRS_MAX   4
#define QUANTUM_NS (3 * BT_NS_PER_S)
#define SPEED_MIN  1e-3
#define SPEED_MAX  1e6
#define SPAN_MAX_S 1e9 /* of a run, in virtual time: 30 years */

static int usage(const char *what, const char *value)
{
    fprintf(stderr, "baton sim: %s, got '%s'\n", what, value);
    return BT_EXIT_USAGE;
}

static int config_fault(const char *what)
{
    fprintf(stderr, "baton sim: %s\n", what);
    return BT_EXIT_CONFIG;
}

/* ---- small readers ---- */

static bool number(const char *text, double *out)
{
    char *end = NULL;
    double value = strtod(text, &end);

    if (end == text || *end != '\0' || !isfinite(value))
        return false;
    *out = value;
    return true;
}

/* The next of a list parted by `by`; false at the end. *rest moves on. */
static bool next_item(const char **rest, char by, char *out, size_t size)
{
    size_t length;

    if (**rest == '\0')
        return false;
    length = strcspn(*rest, (const char[]){by, '\0'});
    snprintf(out, size, "%.*s", (int)(length < size ? length : size - 1),
             *rest);
    *rest += length + ((*rest)[length] == by);
    return true;
}

/* "NAME=VALUE" in place. */
static char *split(char *item)
{
    char *value = strchr(item, '=');

    if (value)
        *value++ = '\0';
    return value;
}

static int on_off(const char *name, const char *text, bool *out)
{
    char what[64];

    if (!text)
        return 0;
    if (strcmp(text, "on") != 0 && strcmp(text, "off") != 0) {
        snprintf(what, sizeof(what), "--%s is on or off", name);
        return usage(what, text);
    }
    *out = strcmp(text, "on") == 0;
    return 0;
}

/* ---- cluster ---- */

static size_t cluster_dirs(char dirs[DIRS_MAX][PATH_BYTES])
{
    const char *told = getenv("BATON_CLUSTERS");
    char self[PATH_BYTES];
    ssize_t got = readlink("/proc/self/exe", self, sizeof(self) - 1);
    size_t n = 0;

    if (told && told[0])
        snprintf(dirs[n++], PATH_BYTES, "%s", told);
    if (got > 0) {
        char *slash;

        self[got] = '\0';
        slash = strrchr(self, '/');
        if (slash)
            *slash = '\0';
        snprintf(dirs[n++], PATH_BYTES, "%.900s/../share/baton/clusters", self);
    }
    snprintf(dirs[n++], PATH_BYTES, "%s", BATON_CLUSTER_DIR);
    snprintf(dirs[n++], PATH_BYTES, "%s", BATON_CLUSTER_SOURCE_DIR);
    return n;
}

static bool find_cluster(const char *name, char *path, size_t size)
{
    char dirs[DIRS_MAX][PATH_BYTES];
    size_t count = cluster_dirs(dirs);

    if (strchr(name, '/') || strstr(name, ".yaml")) {
        snprintf(path, size, "%s", name);
        return true;
    }
    for (size_t i = 0; i < count; i++) {
        int used = snprintf(path, size, "%s/%s.yaml", dirs[i], name);

        if (used > 0 && (size_t)used < size && access(path, R_OK) == 0)
            return true;
    }
    fprintf(stderr, "baton sim: no cluster '%s': no %s.yaml in", name, name);
    for (size_t i = 0; i < count; i++)
        fprintf(stderr, "%s %s", i ? "," : "", dirs[i]);
    fprintf(stderr, " (BATON_CLUSTERS names another folder)\n");
    return false;
}

static int take_cluster(const struct sim_options *o, struct sim_work *w)
{
    char path[PATH_BYTES + 256], error[BT_REPORT_ERROR_MIN] = "";

    if (!find_cluster(o->cluster, path, sizeof(path)))
        return BT_EXIT_CONFIG;
    if (bt_sim_cluster_load(path, &w->cluster, error, sizeof(error)) != BT_OK)
        return config_fault(error[0] ? error : path);
    return 0;
}

static void list_one(const char *path)
{
    struct bt_sim_cluster *c = calloc(1, sizeof(*c));
    char error[BT_REPORT_ERROR_MIN] = "";

    if (c && bt_sim_cluster_load(path, c, error, sizeof(error)) == BT_OK) {
        printf("  %s:", c->name);
        for (uint32_t i = 0; i < c->fabric_count; i++)
            printf(" %s", c->fabrics[i].name);
        printf("\n");
    } else {
        printf("  %s\n", error);
    }
    free(c);
}

static int is_yaml(const struct dirent *entry)
{
    size_t length = strlen(entry->d_name);

    return length > 5 && strcmp(entry->d_name + length - 5, ".yaml") == 0;
}

int sim_list(void)
{
    char dirs[DIRS_MAX][PATH_BYTES];
    size_t count = cluster_dirs(dirs);

    for (size_t i = 0; i < count; i++) {
        struct dirent **names;
        int n = scandir(dirs[i], &names, is_yaml, alphasort);

        if (n < 0)
            continue;
        printf("%s\n", dirs[i]);
        for (int k = 0; k < n; k++) {
            char path[PATH_BYTES + 300];

            snprintf(path, sizeof(path), "%s/%s", dirs[i], names[k]->d_name);
            list_one(path);
            free(names[k]);
        }
        free(names);
        return BT_EXIT_OK;
    }
    return config_fault("no folder with cluster files is found");
}

static int add_scenario(struct sim_work *w, uint32_t fabric)
{
    struct bt_report_setup *s = &w->setup;
    struct bt_report_scenario *x = &s->scenarios[s->scenario_count];

    if (s->scenario_count == BT_REPORT_SCENARIOS_MAX)
        return config_fault("more than 32 fabrics");
    s->scenario_count++;
    snprintf(x->name, sizeof(x->name), "%s", w->cluster.fabrics[fabric].name);
    x->cluster = &w->cluster;
    x->fabric = fabric;
    x->trace = &w->trace;
    x->knowledge = s->base.knowledge;
    x->faults = w->faults;
    x->fault_count = w->fault_count;
    return 0;
}

static int unknown_fabric(const struct sim_work *w, const char *name)
{
    fprintf(stderr, "baton sim: cluster %s has no fabric '%s'; it has:",
            w->cluster.name, name);
    for (uint32_t i = 0; i < w->cluster.fabric_count; i++)
        fprintf(stderr, " %s", w->cluster.fabrics[i].name);
    fputc('\n', stderr);
    return BT_EXIT_CONFIG;
}

/* Without --fabric: a uniform and an uneven one where the cluster has them,
 * else its first. */
static int take_fabrics(const struct sim_options *o, struct sim_work *w)
{
    bool all = o->fabric && strcmp(o->fabric, "all") == 0;
    const char *rest = o->fabric ? o->fabric : "flat-50,hetero";
    char name[BT_SIM_NAME_MAX];
    uint32_t index;
    int code = 0;

    if (o->fabric && !o->fabric[0])
        return usage("--fabric is NAME, NAME,NAME or all", o->fabric);
    for (uint32_t i = 0; all && code == 0 && i < w->cluster.fabric_count; i++)
        code = add_scenario(w, i);
    while (!all && code == 0 && next_item(&rest, ',', name, sizeof(name))) {
        if (bt_sim_fabric_find(&w->cluster, name, &index) == BT_OK)
            code = add_scenario(w, index);
        else if (o->fabric)
            return unknown_fabric(w, name);
    }
    if (code == 0 && w->setup.scenario_count == 0)
        code = w->cluster.fabric_count > 0
                   ? add_scenario(w, 0)
                   : config_fault("the cluster has no fabric");
    return code;
}

/* Workers of a fabric: its own counts replace those of the first pool of each
 * role, further ones are left out (bench/sim/setup.c). */
static uint32_t fabric_workers(const struct bt_sim_cluster *c,
                               const struct bt_sim_fabric *f)
{
    bool seen[2] = {false, false};
    uint32_t sum = 0;

    for (uint32_t i = 0; i < c->pool_count; i++) {
        const struct bt_sim_pool *p = &c->pools[i];
        bool prefill = p->roles == BT_ROLE_PREFILL;
        uint32_t other = prefill                      ? f->prefill_count
                         : p->roles == BT_ROLE_DECODE ? f->decode_count
                                                      : 0;

        if (other == 0)
            sum += p->count;
        else if (!seen[prefill])
            sum += other;
        seen[prefill] = seen[prefill] || other > 0;
    }
    return sum;
}

/* Every fabric that is run must have the worker that an option names. */
static int check_worker(const struct sim_work *w, const char *option,
                        uint32_t worker)
{
    for (uint32_t i = 0; i < w->setup.scenario_count; i++) {
        const struct bt_sim_fabric *f =
            &w->cluster.fabrics[w->setup.scenarios[i].fabric];
        uint32_t count = fabric_workers(&w->cluster, f);

        if (worker >= count) {
            fprintf(stderr,
                    "baton sim: %s names worker %u, but fabric %s has workers "
                    "0 to %u (in the order of the cluster's pools)\n",
                    option, worker, f->name, count - 1);
            return BT_EXIT_USAGE;
        }
    }
    return 0;
}

static int check_workers(const struct sim_options *o, const struct sim_work *w)
{
    int code = 0;

    for (size_t i = 0; i < w->fault_count && code == 0; i++)
        code = check_worker(w, "--faults", w->faults[i].worker);
    if (code == 0 && o->degrade)
        code =
            check_worker(w, "--degrade", w->cluster.fabrics[0].degraded_worker);
    return code;
}

/* The true rate of a worker's NIC, unknown to the planner. */
static int take_degrade(const struct sim_options *o, struct sim_work *w)
{
    char item[64];
    double worker, factor;
    char *value;

    if (!o->degrade)
        return 0;
    snprintf(item, sizeof(item), "%s", o->degrade);
    value = split(item);
    if (!value || !number(item, &worker) || !number(value, &factor) ||
        worker < 0 || worker > 65535 || worker != floor(worker) ||
        factor <= 0 || factor > 1)
        return usage("--degrade is WORKER=SHARE, such as 8=0.25: a number from "
                     "0 in the order of the cluster's pools, and a share above "
                     "0 and at most 1",
                     o->degrade);
    for (uint32_t i = 0; i < w->cluster.fabric_count; i++) {
        w->cluster.fabrics[i].degraded_worker = (uint32_t)worker;
        w->cluster.fabrics[i].degraded_factor = factor;
    }
    return 0;
}

/* ---- trace ---- */

static int take_mix(const char *mix, struct bt_trace_generate_options *g)
{
    static const char *const kinds[BT_MIX_COUNT] = {"chat", "agent", "tool",
                                                    "rag", "long"};
    const char *rest = mix;
    char item[64];
    double sum = 0;

    memset(g->mix, 0, sizeof(g->mix));
    while (next_item(&rest, ',', item, sizeof(item))) {
        char *value = split(item);
        double share = 1;
        int kind = 0;

        while (kind < BT_MIX_COUNT && strcmp(item, kinds[kind]) != 0)
            kind++;
        if (kind == BT_MIX_COUNT || (value && !number(value, &share)) ||
            !(share > 0))
            return usage("--generate is KIND or KIND=SHARE,... of chat, "
                         "agent, tool, rag, long",
                         mix);
        g->mix[kind] += share;
        sum += share;
    }
    if (!(sum > 0))
        return usage("--generate names at least one kind", mix);
    for (int i = 0; i < BT_MIX_COUNT; i++)
        g->mix[i] /= sum;
    return 0;
}

static int generate(const struct sim_options *o, struct sim_work *w)
{
    struct bt_trace_generate_options g;
    enum bt_status status;
    int code = 0;

    bt_trace_generate_options_init(&g);
    g.requests = o->requests ? o->requests : 2000;
    if (o->rate > 0)
        g.rate_per_s = o->rate;
    if (o->generate)
        code = take_mix(o->generate, &g);
    if (code != 0)
        return code;
    status = bt_trace_generate(&g, &w->trace);
    if (status != BT_OK)
        return config_fault(bt_status_text(status));
    return 0;
}

/* Stamps that are all whole multiples of 3 s are quantised (evaluation
 * reference, section 6.2): the seeds spread them. */
static bool quantised(const struct bt_trace *trace)
{
    for (size_t i = 0; i < trace->count; i++) {
        if (trace->requests[i].arrival_ns % QUANTUM_NS != 0)
            return false;
    }
    return trace->count > 100;
}

static int take_trace(const struct sim_options *o, struct sim_work *w)
{
    struct bt_trace_read_options options;
    char error[BT_REPORT_ERROR_MIN] = "", path[PATH_BYTES];

    if (!o->trace)
        return generate(o, w);
    (void)trace_find(o->trace, path, sizeof(path));
    bt_trace_read_options_init(&options);
    options.jitter_ns = 0; /* each seed has its own */
    options.requests_max = o->requests;
    if (bt_trace_load(path, &options, &w->trace, error, sizeof(error)) != BT_OK)
        return config_fault(error);
    if (w->trace.count == 0)
        return config_fault("the trace holds no request");
    if (quantised(&w->trace))
        w->setup.base.jitter_ns = QUANTUM_NS;
    return 0;
}

/* Virtual time is whole nanoseconds: a slow replay of a long trace would run
 * past their end. */
static int check_span(const struct sim_work *w)
{
    const struct bt_trace *t = &w->trace;
    double last = (double)t->requests[t->count - 1].arrival_ns / 1e9;

    for (uint32_t i = 0; i < w->speed_count; i++) {
        if (last / w->speeds[i] > SPAN_MAX_S) {
            fprintf(stderr,
                    "baton sim: at --speed %g the trace would last %.0f s; at "
                    "most %.0f\n",
                    w->speeds[i], last / w->speeds[i], SPAN_MAX_S);
            return BT_EXIT_USAGE;
        }
    }
    return 0;
}

/* ---- numbers ---- */

static int take_seeds(const struct sim_options *o, struct bt_report_setup *s)
{
    const char *rest = o->seeds;
    char item[32];

    s->seed_count = 0;
    while (next_item(&rest, ',', item, sizeof(item))) {
        char *end = NULL;
        unsigned long long value = strtoull(item, &end, 10);

        if (end == item || *end != '\0' || item[0] == '-' ||
            s->seed_count == BT_REPORT_SEEDS_MAX)
            return usage("--seeds is a number or a list of at most 64",
                         o->seeds);
        for (uint32_t i = 0; i < s->seed_count; i++) {
            if (s->seeds[i] == value)
                return usage("--seeds names one seed twice: no new knowledge",
                             o->seeds);
        }
        s->seeds[s->seed_count++] = value;
    }
    if (s->seed_count == 1 && !strchr(o->seeds, ',')) {
        if (s->seeds[0] < 1 || s->seeds[0] > BT_REPORT_SEEDS_MAX)
            return usage("--seeds is 1 to 64, or a list", o->seeds);
        s->seed_count = (uint32_t)s->seeds[0];
        for (uint32_t i = 0; i < s->seed_count; i++)
            s->seeds[i] = i + 1;
    }
    return s->seed_count ? 0 : usage("--seeds names no seed", o->seeds);
}

static int take_loads(const struct sim_options *o, struct sim_work *w)
{
    const char *rest = o->loads ? o->loads : "";
    char item[32];

    while (next_item(&rest, ',', item, sizeof(item))) {
        if (w->load_count == BT_REPORT_LOADS_MAX ||
            !number(item, &w->loads[w->load_count]) ||
            !(w->loads[w->load_count] > 0) || w->loads[w->load_count] > 100)
            return usage("--loads is at most 16 shares, each above 0 and at "
                         "most 100",
                         o->loads);
        w->load_count++;
    }
    return 0;
}

static int take_speeds(const struct sim_options *o, struct sim_work *w)
{
    if (o->speeds.count > BT_REPORT_LOADS_MAX)
        return usage("at most 16 speeds", o->speeds.items[0]);
    w->speeds[0] = 1;
    w->speed_count = 1;
    for (size_t i = 0; i < o->speeds.count; i++) {
        if (!number(o->speeds.items[i], &w->speeds[i]) ||
            w->speeds[i] < SPEED_MIN || w->speeds[i] > SPEED_MAX)
            return usage("--speed is a number from 0.001 to 1000000",
                         o->speeds.items[i]);
        w->speed_count = (uint32_t)i + 1;
    }
    return take_loads(o, w);
}

static int take_prices(const char *text, struct bt_place_prices *prices)
{
    const struct {
        const char *name;
        double *value;
    } known[] = {{"queue", &prices->queue},
                 {"eviction", &prices->eviction},
                 {"link", &prices->link},
                 {"hbm", &prices->hbm},
                 {"decode", &prices->decode}};
    const char *rest = text;
    char item[64];

    memset(prices, 0, sizeof(*prices));
    if (strcmp(text, "none") == 0)
        return 0;
    while (next_item(&rest, ',', item, sizeof(item))) {
        char *value = split(item);
        size_t i = 0;

        while (i < 5 && strcmp(item, known[i].name) != 0)
            i++;
        if (i == 5 || !value || !number(value, known[i].value))
            return usage("--prices is none or NAME=NUMBER,... of queue, "
                         "eviction, link, hbm, decode",
                         text);
    }
    return 0;
}

static int take_bias(const char *text, struct bt_sim_knowledge *k)
{
    const char *rest = text;
    char item[64];

    while (next_item(&rest, ',', item, sizeof(item))) {
        char *value = split(item);
        double share;

        if (!value || !number(value, &share) || share <= -1 || share > 100)
            return usage("--bias is compute=X,link=Y with X, Y above -1", text);
        if (strcmp(item, "compute") == 0)
            k->compute_bias = share;
        else if (strcmp(item, "link") == 0)
            k->link_bias = share;
        else
            return usage("--bias names compute or link", text);
    }
    return 0;
}

/* ---- faults ---- */

static bool fault_value(struct bt_sim_fault *f, const char *name,
                        const char *value)
{
    double x;

    if (strcmp(name, "at") == 0)
        return bt_duration_parse(value, &f->at_ns) == BT_OK;
    if (strcmp(name, "until") == 0)
        return bt_duration_parse(value, &f->until_ns) == BT_OK;
    if (!number(value, &x) || x < 0)
        return false;
    if (strcmp(name, "factor") == 0)
        f->factor = x;
    else if (strcmp(name, "worker") == 0 && x <= 65535)
        f->worker = (uint32_t)x;
    else
        return false;
    return true;
}

static bool read_fault(const char *text, struct bt_sim_fault *f)
{
    static const char *const kinds[] = {
#define X(code, name) name,
        BT_SIM_FAULT_LIST(X)
#undef X
    };
    const char *rest = text;
    bool worker = false, at = false;
    char item[64];
    int kind = 0;

    memset(f, 0, sizeof(*f));
    f->factor = 1;
    if (!next_item(&rest, ':', item, sizeof(item)))
        return false;
    while (kind < BT_SIM_FAULT_COUNT && strcmp(item, kinds[kind]) != 0)
        kind++;
    if (kind == BT_SIM_FAULT_COUNT)
        return false;
    f->kind = (enum bt_sim_fault_kind)kind;
    while (next_item(&rest, ',', item, sizeof(item))) {
        char *value = split(item);

        if (!value || !fault_value(f, item, value))
            return false;
        worker = worker || strcmp(item, "worker") == 0;
        at = at || strcmp(item, "at") == 0;
    }
    return worker && at && (f->until_ns == 0 || f->until_ns > f->at_ns);
}

static int take_faults(const struct sim_options *o, struct sim_work *w)
{
    for (size_t i = 0; i < o->faults.count; i++) {
        if (w->fault_count == SIM_FAULTS_MAX)
            return usage("--faults is given at most 64 times",
                         o->faults.items[i]);
        if (!read_fault(o->faults.items[i], &w->faults[w->fault_count++]))
            return usage("--faults is KIND:worker=N,at=T[,until=T]"
                         "[,factor=X], times with a unit; KIND is kill, "
                         "slow, nic, cut or hang",
                         o->faults.items[i]);
    }
    return 0;
}

/* ---- arms ---- */

static const char *const FEW[] = {"joint",       "netkv_static", "dynamo",
                                  "prefix_load", "power_of_two", "round_robin"};
static const char *const ALL[] = {"joint",
                                  "s1",
                                  "s2",
                                  "s3",
                                  "j0",
                                  "cla",
                                  "prefix_load",
                                  "dynamo",
                                  "dynamo_wspt",
                                  "lmetric",
                                  "two_tier",
                                  "sglang",
                                  "mooncake",
                                  "mooncake_fetch",
                                  "flowkv",
                                  "llmd",
                                  "llmd_token",
                                  "netkv_static",
                                  "netkv",
                                  "dualpath",
                                  "atom",
                                  "conditional",
                                  "deflect",
                                  "power_of_two",
                                  "least_loaded",
                                  "round_robin",
                                  "least_loaded+aggregated"};

static int add_defaults(struct bt_report_setup *s, const char *const *names,
                        size_t count)
{
    char error[BT_REPORT_ERROR_MIN] = "";

    for (size_t i = 0; i < count; i++) {
        enum bt_status status =
            bt_report_arm_add(s, names[i], error, sizeof(error));

        if (status != BT_OK && status != BT_NOT_FOUND)
            return config_fault(error);
    }
    return s->arm_count ? 0 : config_fault("no policy is there to compare");
}

static int take_arms(const struct sim_options *o, struct bt_report_setup *s)
{
    char error[BT_REPORT_ERROR_MIN] = "";

    for (size_t i = 0; i < o->policies.count; i++) {
        if (strcmp(o->policies.items[i], "all") == 0) {
            int code = add_defaults(s, ALL, sizeof(ALL) / sizeof(ALL[0]));

            if (code != 0)
                return code;
        } else if (bt_report_arm_add(s, o->policies.items[i], error,
                                     sizeof(error)) != BT_OK) {
            fprintf(stderr, "baton sim: %s\n", error);
            return BT_EXIT_USAGE;
        }
    }
    if (o->policies.count > 0 || o->study)
        return 0;
    if (o->report)
        return add_defaults(s, ALL, sizeof(ALL) / sizeof(ALL[0]));
    return add_defaults(s, FEW, sizeof(FEW) / sizeof(FEW[0]));
}

/* ---- all of it ---- */

/* Cost model reference, section 14: mu is the mean queue, epsilon 0.3, the
 * externalities in full. */
static const struct bt_place_prices DEFAULT_PRICES = {
    .queue = -1, .eviction = 0.3, .link = 1, .hbm = 1, .decode = 0.02};

static void set_time(int64_t value, int64_t *to)
{
    if (value >= 0)
        *to = value;
}

/* What stands in for events that cannot be believed. */
static int take_fallback(const struct sim_options *o,
                         struct bt_sim_knowledge *k)
{
    int code = on_off("approximate", o->approximate, &k->approximate);

    if (code == 0)
        code = on_off("self-check", o->self_check, &k->self_check);
    if (code == 0 && o->approximate_ttl == 0)
        code = usage("--approximate-ttl is above 0; --approximate off guesses "
                     "nothing",
                     "0s");
    if (code == 0 && o->approximate_ttl > 0 && !k->approximate)
        code = usage("--approximate-ttl does nothing with --approximate",
                     o->approximate);
    set_time(o->approximate_ttl, &k->approximate_ttl_ns);
    return code;
}

static int take_base(const struct sim_options *o, const struct sim_events *e,
                     struct bt_report_setup *s)
{
    struct bt_sim_config *c = &s->base;
    struct bt_sim_knowledge *k = &c->knowledge;
    int code = on_off("hold", o->hold, &c->hold.enabled);

    c->local = c->fetch = true; /* what the cluster's workers can */
    c->prices = DEFAULT_PRICES;
    if (code == 0)
        code = on_off("local", o->local, &c->local);
    if (code == 0)
        code = on_off("fetch", o->fetch, &c->fetch);
    if (code == 0)
        code = on_off("prefetch", o->prefetch, &c->hold.prefetch);
    if (code == 0)
        code = take_fallback(o, k);
    if (code == 0 && o->prices)
        code = take_prices(o->prices, &c->prices);
    if (code == 0 && o->bias)
        code = take_bias(o->bias, k);
    set_time(o->lead, &c->hold.lead_ns);
    set_time(o->patience, &c->hold.patience_ns);
    if (e->lag_count > 0)
        k->event_lag_ns = e->lags[0];
    set_time(o->telemetry, &k->telemetry_ns);
    set_time(o->telemetry_lag, &k->telemetry_lag_ns);
    if (e->loss_count > 0)
        k->event_loss = e->losses[0];
    k->events_off = e->loss_count > 0 && e->losses[0] >= 1;
    k->event_replay = k->event_replay && !o->no_event_replay;
    k->calibrate = k->calibrate && !o->no_learning;
    k->output_known = o->output_known ? 1 : k->output_known;
    if (o->warmup >= 0)
        c->warmup = o->warmup;
    c->aggregated = o->aggregated;
    c->check = o->check;
    s->regret_every = (uint32_t)o->regret;
    s->median_of_seeds = o->median;
    s->jobs.jobs = (uint32_t)o->jobs;
    s->jobs.progress = isatty(STDERR_FILENO);
    return code;
}

static int take_journal(const struct sim_options *o, struct sim_work *w)
{
    struct bt_report_setup *s = &w->setup;
    FILE *to;

    if (!o->journal)
        return 0;
    if (o->capacity || o->report || o->study || s->scenario_count != 1 ||
        s->arm_count != 1 || s->seed_count != 1 || w->speed_count != 1)
        return usage("--journal needs one fabric, policy, speed and seed",
                     o->journal);
    to = fopen(o->journal, "w"); /* before the run, with the reason */
    if (!to || fclose(to) != 0) {
        fprintf(stderr, "baton sim: %s: %s\n", o->journal, strerror(errno));
        return BT_EXIT_FAILED;
    }
    s->base.journal = o->journal;
    return 0;
}

int sim_prepare(const struct sim_options *o, struct sim_work *w)
{
    int code;

    bt_report_setup_init(&w->setup);
    code = sim_events_take(o, &w->events);
    if (code == 0)
        code = take_base(o, &w->events, &w->setup);
    if (code == 0)
        code = take_seeds(o, &w->setup);
    if (code == 0)
        code = take_speeds(o, w);
    if (code == 0)
        code = take_faults(o, w);
    if (code == 0)
        code = take_arms(o, &w->setup);
    if (code == 0)
        code = take_cluster(o, w);
    if (code == 0)
        code = take_degrade(o, w);
    if (code == 0)
        code = take_fabrics(o, w);
    if (code == 0)
        code = check_workers(o, w);
    if (code == 0)
        code = take_trace(o, w);
    if (code == 0)
        code = check_span(w);
    if (code == 0)
        code = take_journal(o, w);
    if (o->jitter >= 0)
        w->setup.base.jitter_ns = o->jitter;
    return code;
}

void sim_work_fini(struct sim_work *work)
{
    bt_trace_fini(&work->trace);
}
