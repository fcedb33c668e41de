/* baton sim: compare policies in the simulator. Options and the choice between
 * a plain matrix, a capacity search, a written report and a named study; the
 * work is bench/report's, reading of values is cmd_sim_setup.c's. */
#include "cmd_sim.h"
#include "baton/base/units.h"
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TUNE_SHARE 0.2

#define AT(member) offsetof(struct sim_options, member)
static const struct bt_option table[] = {
    {"cluster", 'c', BT_OPTION_STRING, "FILE",
     "cluster file, or the name of one (h100-70b-8p8d)", AT(cluster)},
    {"list", 0, BT_OPTION_FLAG, NULL,
     "print the clusters that are found and their fabrics", AT(list)},
    {"fabric", 'f', BT_OPTION_STRING, "NAME",
     "of the cluster: NAME,NAME or all (flat-50,hetero)", AT(fabric)},
    {"trace", 't', BT_OPTION_STRING, "FILE",
     "Mooncake or Bailian JSONL, Azure or BurstGPT CSV", AT(trace)},
    {"generate", 'g', BT_OPTION_STRING, "MIX",
     "synthetic trace: chat, agent, tool, rag, long as KIND=SHARE,... (mixed)",
     AT(generate)},
    {"rate", 'r', BT_OPTION_DOUBLE, "R",
     "of a synthetic trace: arrivals per second (4)", AT(rate)},
    {"policy", 'p', BT_OPTION_LIST, "SPEC",
     "NAME[:knob=a|b][+switch] or all; repeatable (joint and five rivals)",
     AT(policies)},
    {"speed", 'x', BT_OPTION_LIST, "X",
     "arrival rate as a multiple of the trace's; repeatable (1)", AT(speeds)},
    {"seeds", 's', BT_OPTION_STRING, "N",
     "how many (1..N), or a list such as 3,7 (1)", AT(seeds)},
    {"requests", 'n', BT_OPTION_U64, "N",
     "of the trace, 0: all; synthetic: 2000 (0)", AT(requests)},
    {"warmup", 0, BT_OPTION_DOUBLE, "SHARE",
     "of the requests, not measured (0.1)", AT(warmup)},
    {"jitter", 0, BT_OPTION_DURATION, "TIME",
     "on each arrival, by seed (3s where stamps are whole 3 s)", AT(jitter)},
    {"hold", 0, BT_OPTION_STRING, "ON", "late dispatch, on or off (on)",
     AT(hold)},
    {"lead", 0, BT_OPTION_DURATION, "TIME", "work dispatched ahead of a worker",
     AT(lead)},
    {"patience", 0, BT_OPTION_DURATION, "TIME",
     "then no veto holds a request back", AT(patience)},
    {"local", 0, BT_OPTION_STRING, "ON", "prefill on decode workers (on)",
     AT(local)},
    {"fetch", 0, BT_OPTION_STRING, "ON", "prefixes from peers (on)", AT(fetch)},
    {"prefetch", 0, BT_OPTION_STRING, "ON",
     "to the likely worker while a request is held (on)", AT(prefetch)},
    {"prices", 0, BT_OPTION_STRING, "LIST",
     "none or queue=A,eviction=B,link=C,hbm=D,decode=E (-1,.3,1,1,.02)",
     AT(prices)},
    {"aggregated", 0, BT_OPTION_FLAG, NULL,
     "no disaggregation: all workers serve whole requests", AT(aggregated)},
    {"event-lag", 0, BT_OPTION_STRING, "TIME",
     "of KV events, mean; staleness: TIME,TIME,... (0s,100ms,1s,10s,1m)",
     AT(event_lag)},
    {"event-loss", 0, BT_OPTION_STRING, "SHARE",
     "of event batches; 1: none; staleness: SHARE,SHARE,... (0,.01,.1)",
     AT(event_loss)},
    {"no-event-replay", 0, BT_OPTION_FLAG, NULL,
     "what is lost is not asked for again", AT(no_event_replay)},
    {"approximate", 0, BT_OPTION_STRING, "ON",
     "blocks guessed where events cannot be believed (on)", AT(approximate)},
    {"approximate-ttl", 0, BT_OPTION_DURATION, "TIME",
     "that a guessed block counts (1h)", AT(approximate_ttl)},
    {"self-check", 0, BT_OPTION_STRING, "ON",
     "predicted hits against what engines report (on)", AT(self_check)},
    {"telemetry", 0, BT_OPTION_DURATION, "TIME",
     "between reports of a worker, 0s: none (100ms)", AT(telemetry)},
    {"telemetry-lag", 0, BT_OPTION_DURATION, "TIME", "age of a report",
     AT(telemetry_lag)},
    {"bias", 0, BT_OPTION_STRING, "LIST",
     "compute=X,link=Y: the planner's models are off by this share", AT(bias)},
    {"no-learning", 0, BT_OPTION_FLAG, NULL, "models are not calibrated",
     AT(no_learning)},
    {"output-known", 0, BT_OPTION_FLAG, NULL,
     "the planner is told output lengths", AT(output_known)},
    {"degrade", 0, BT_OPTION_STRING, "W=X",
     "NIC of worker W (from 0) truly runs at share X; nobody is told",
     AT(degrade)},
    {"faults", 0, BT_OPTION_LIST, "SPEC",
     "KIND:worker=N,at=T[,until=T][,factor=X]; kill slow nic cut hang",
     AT(faults)},
    {"check", 0, BT_OPTION_FLAG, NULL, "invariants after each step", AT(check)},
    {"regret", 0, BT_OPTION_U64, "N",
     "true cost of all pairs for one in N decisions, 0: none (0)", AT(regret)},
    {"journal", 0, BT_OPTION_STRING, "FILE",
     "record the core's events (one run only)", AT(journal)},
    {"capacity", 0, BT_OPTION_FLAG, NULL,
     "search the highest speed at which 95 % meet the SLO", AT(capacity)},
    {"median", 0, BT_OPTION_FLAG, NULL,
     "capacity: most seeds meet the rule instead of all", AT(median)},
    {"tune", 0, BT_OPTION_FLAG, NULL,
     "choose settings on the first 20 %, measure the rest", AT(tune)},
    {"report", 0, BT_OPTION_STRING, "DIR",
     "write the A/B matrix: results.json, results.txt, index.html", AT(report)},
    {"subject", 0, BT_OPTION_STRING, "SPEC",
     "report: compared with all others (the first policy)", AT(subject)},
    {"loads", 0, BT_OPTION_STRING, "LIST",
     "report: shares of the best capacity (0.5,0.8,0.95,1.1)", AT(loads)},
    {"study", 0, BT_OPTION_STRING, "NAME",
     "a table with verdicts: " BT_REPORT_STUDIES, AT(study)},
    {"only", 0, BT_OPTION_STRING, "ID", "study: this row only", AT(only)},
    {"jobs", 'j', BT_OPTION_U64, "N", "processes at once (processors)",
     AT(jobs)},
    {"output", 'o', BT_OPTION_STRING, "FORM", "table or json (table)",
     AT(output)},
    {"verbose", 'v', BT_OPTION_FLAG, NULL, "say what runs", AT(verbose)},
    {NULL, 0, BT_OPTION_FLAG, NULL, NULL, 0},
};
#undef AT

static int say(enum bt_status status, const char *what)
{
    if (!what[0])
        what = status == BT_IO ? "no process can be started, or the output "
                                 "cannot be written"
                               : bt_status_text(status);
    fprintf(stderr, "baton sim: %s\n", what);
    return bt_status_class_of(status) == BT_CLASS_CONFIG ? BT_EXIT_CONFIG
                                                         : BT_EXIT_FAILED;
}

static bool json(const struct sim_options *o)
{
    return strcmp(o->output, "json") == 0;
}

/* Cells that failed make the command fail, after its table. */
static int failures(const struct bt_report_matrix *m)
{
    size_t failed = 0, first = 0;

    for (size_t i = m->count; i-- > 0;) {
        if (m->results[i].status != BT_OK) {
            failed++;
            first = i;
        }
    }
    if (failed == 0)
        return BT_EXIT_OK;
    fflush(stdout);
    fprintf(stderr, "baton sim: %zu of %zu runs failed; the first: %s\n",
            failed, m->count, m->results[first].error);
    return bt_status_class_of(m->results[first].status) == BT_CLASS_CONFIG
               ? BT_EXIT_CONFIG
               : BT_EXIT_FAILED;
}

static int run_matrix(const struct sim_options *o, struct sim_work *w)
{
    struct bt_report_matrix m = {.setup = &w->setup};
    enum bt_status status;
    int code;

    m.load_count = w->speed_count;
    memcpy(m.loads, w->speeds, sizeof(m.loads));
    for (uint32_t i = 0; i < w->setup.scenario_count; i++)
        memcpy(m.speeds[i], w->speeds, sizeof(m.speeds[i]));
    status = bt_report_matrix_run(&m);
    if (status == BT_LIMIT) {
        code = say(status, "too many cells in one matrix (65536)");
    } else if (status != BT_OK) {
        code = say(status, "");
    } else {
        status = json(o) ? bt_report_print_json(&m, stdout)
                         : bt_report_print_table(&m, stdout);
        code = status == BT_OK ? failures(&m) : say(status, "");
    }
    bt_report_matrix_fini(&m);
    return code;
}

static int run_capacity(const struct sim_options *o, struct sim_work *w)
{
    struct bt_report_setup *s = &w->setup;
    size_t count = (size_t)s->scenario_count * s->arm_count;
    struct bt_report_capacity *c = calloc(count, sizeof(*c));
    struct bt_report_search_options search;
    enum bt_status status;

    if (!c)
        return say(BT_NO_MEMORY, "");
    bt_report_search_options_init(&search);
    search.start = w->speeds[0];
    status = bt_report_capacity_run(s, &search, c);
    if (status == BT_OK)
        status = bt_report_print_capacity(s, c, json(o), stdout);
    for (size_t i = 0; status == BT_OK && i < count; i++) {
        if (c[i].error[0]) {
            free(c);
            return say(BT_BUG, "a capacity could not be found, see above");
        }
    }
    free(c);
    return status == BT_OK ? BT_EXIT_OK : say(status, "");
}

static int run_report(const struct sim_options *o, struct sim_work *w)
{
    char error[BT_REPORT_ERROR_MIN] = "";
    struct bt_report_options options;
    enum bt_status status;

    bt_report_options_init(&options);
    options.directory = o->report;
    options.subject = o->subject;
    options.command = w->command;
    options.verbose = o->verbose;
    options.tune_share = o->tune ? TUNE_SHARE : 0;
    if (w->load_count > 0) {
        options.load_count = w->load_count;
        memcpy(options.loads, w->loads, sizeof(options.loads));
    }
    status = bt_report_write(&w->setup, &options, error, sizeof(error));
    if (status != BT_OK)
        return say(status, error);
    printf("%s/index.html\n", o->report);
    return BT_EXIT_OK;
}

/* Studies that are a table of rows, each with a verdict. */
static bool has_rows(const struct sim_options *o)
{
    return strcmp(o->study, "ablation") != 0 &&
           strcmp(o->study, "staleness") != 0;
}

static int run_study(const struct sim_options *o, struct sim_work *w)
{
    struct bt_report_study_options options = {
        .json = json(o), .only = o->only, .verbose = o->verbose};
    char error[BT_REPORT_ERROR_MIN] = "";
    size_t failed = 0;
    enum bt_status status;

    if (o->speeds.count > 0)
        options.load = w->speeds[0];
    memcpy(options.lags, w->events.lags, sizeof(options.lags));
    memcpy(options.losses, w->events.losses, sizeof(options.losses));
    options.lag_count = w->events.lag_count;
    options.loss_count = w->events.loss_count;
    status = bt_report_study(o->study, &w->setup, &options, stdout, &failed,
                             error, sizeof(error));
    if (status != BT_OK)
        return say(status, error);
    if (failed > 0)
        fprintf(stderr, "baton sim: %zu %s\n", failed,
                has_rows(o) ? failed == 1 ? "verdict failed" : "verdicts failed"
                            : "runs failed");
    return failed > 0 ? BT_EXIT_DIFFERENT : BT_EXIT_OK;
}

static int usage(const char *what)
{
    fprintf(stderr, "baton sim: %s\n", what);
    return BT_EXIT_USAGE;
}

/* An option that would do nothing is a mistake, not a wish. */
static int check_together(const struct sim_options *o)
{
    if (o->trace && o->generate)
        return usage("either --trace or --generate");
    if (o->trace && o->rate >= 0)
        return usage("--rate is for a synthetic trace; --speed changes the "
                     "rate of a recorded one");
    if (o->only && !o->study)
        return usage("--only belongs to --study");
    if (o->only && !has_rows(o))
        return usage("--only does nothing for ablation and staleness");
    if (o->study && o->policies.count > 0)
        return usage("--policy does nothing with --study: its rows name the "
                     "policies");
    if ((o->subject || o->loads) && !o->report)
        return usage("--subject and --loads belong to --report");
    if (o->report && o->speeds.count > 0)
        return usage("--speed does nothing with --report; see --loads");
    if ((o->study || o->capacity) && o->speeds.count > 1)
        return usage("one --speed with --study and --capacity");
    if (o->median && !o->capacity && !o->report)
        return usage("--median belongs to --capacity or --report");
    if ((o->report || o->list) && json(o))
        return usage("--output json does nothing with --report and --list");
    return 0;
}

static int check(const struct sim_options *o)
{
    int modes = (o->report != NULL) + (o->study != NULL) + o->capacity;

    if (strcmp(o->output, "table") != 0 && strcmp(o->output, "json") != 0)
        return usage("--output is table or json");
    if (modes > 1)
        return usage("one of --capacity, --report and --study");
    if (o->warmup >= 0.9)
        return usage("--warmup is a share below 0.9");
    if (o->jobs > BT_REPORT_JOBS_MAX)
        return usage("--jobs is at most 256");
    if (o->rate == 0 || o->rate > 1e6)
        return usage("--rate is above 0 and at most 1000000");
    if (o->requests > 4u << 20)
        return usage("--requests is at most 4194304");
    if (o->regret > UINT32_MAX)
        return usage("--regret is at most 4294967295");
    if (o->report && !o->report[0])
        return usage("--report needs a directory");
    return check_together(o);
}

static int run_work(const struct sim_options *o, struct sim_work *w)
{
    char what[1024] = "";

    if (o->study)
        return run_study(o, w);
    if (o->report)
        return run_report(o, w);
    if (o->tune) {
        FILE *to = fmemopen(what, sizeof(what), "w");
        enum bt_status status = bt_report_tune(&w->setup, TUNE_SHARE, to);

        if (to)
            fclose(to);
        if (status != BT_OK)
            return say(status, "");
        fprintf(stderr, "tuned on the first 20 %%:\n%s", what);
    }
    return o->capacity ? run_capacity(o, w) : run_matrix(o, w);
}

/* The command as typed, for the report; cut when it is too long. */
static void keep_command(int argc, char **argv, struct sim_work *w)
{
    size_t used = (size_t)snprintf(w->command, sizeof(w->command), "baton");

    for (int i = 0; i < argc && used < sizeof(w->command); i++)
        used += (size_t)snprintf(w->command + used, sizeof(w->command) - used,
                                 " %s", argv[i]);
}

/* Ctrl-C: children end with this process; say what that means. They have the
 * handler too, but nothing to say. */
static pid_t first_process;

static void interrupted(int signal_number)
{
    static const char text[] = "\nbaton sim: interrupted; what was not printed "
                               "or written by now is lost\n";

    if (getpid() == first_process)
        (void)!write(STDERR_FILENO, text, sizeof(text) - 1);
    raise(signal_number); /* SA_RESETHAND: as if there were no handler */
}

static void watch_interrupts(void)
{
    struct sigaction action = {.sa_handler = interrupted,
                               .sa_flags = SA_RESETHAND | SA_NODEFER};
    struct sigaction before;

    first_process = getpid();
    if (sigaction(SIGINT, NULL, &before) == 0 && before.sa_handler != SIG_IGN)
        sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}

static int run(int argc, char **argv)
{
    struct sim_options o = {.cluster = "h100-70b-8p8d",
                            .seeds = "1",
                            .output = "table",
                            .rate = -1,
                            .warmup = -1,
                            .lead = -1,
                            .patience = -1,
                            .approximate_ttl = -1,
                            .telemetry = -1,
                            .telemetry_lag = -1,
                            .jitter = -1};
    struct sim_work *w;
    int first, code = bt_options_parse(&bt_command_sim, argc, argv, &o, &first);

    if (code >= 0)
        return code;
    if (first < argc)
        return usage("no arguments are expected, only options");
    code = check(&o);
    if (code != 0)
        return code;
    if (o.list)
        return sim_list();
    w = calloc(1, sizeof(*w));
    if (!w)
        return say(BT_NO_MEMORY, "");
    keep_command(argc, argv, w);
    watch_interrupts();
    code = sim_prepare(&o, w);
    if (code == 0)
        code = run_work(&o, w);
    sim_work_fini(w);
    free(w);
    return code;
}

const struct bt_command bt_command_sim = {
    .name = "sim",
    .summary = "compare policies in the simulator: matrix, capacity, report",
    .arguments = "",
    .options = table,
    .run = run,
};
