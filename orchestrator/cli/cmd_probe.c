/* `baton probe`: measures the paths between agents, fits what the planner
 * calculates with, and can prove it. Decides options, the order of the stages
 * and the exit code; the measuring is cmd_probe_measure.c's.
 *
 * Load is bounded: bytes per path, time in all, and the share of the time that
 * the links are busy with it. What could be measured is printed and written
 * even when something could not; then the exit code is 4.
 */
#include "cmd_probe.h"

#include "baton/base/units.h"
#include "command.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct options {
    struct bt_option_list agents, pairs, map;
    struct probe_options o;
    const char *output;
};

#define AT(member) offsetof(struct options, member)

static const struct bt_option options[] = {
    {"agent", 'a', BT_OPTION_LIST, "URL",
     "HTTP of an agent, e.g. http://10.0.0.1:9467; two or more", AT(agents)},
    {"pair", 'p', BT_OPTION_LIST, "FROM:TO",
     "only this path, by agents' names; repeatable (all)", AT(pairs)},
    {"map", 'm', BT_OPTION_LIST, "NAME=WORKER",
     "worker of an agent in the written file (the agent's name)", AT(map)},
    {"incast", 'i', BT_OPTION_FLAG, NULL,
     "also all ways into and out of each agent at once (needed for the rates "
     "of ends faster than any one path)",
     AT(o.incast)},
    {"pairwise", 0, BT_OPTION_FLAG, NULL,
     "also pairs that share no agent, at once", AT(o.pairwise)},
    {"verify", 0, BT_OPTION_FLAG, NULL,
     "predict new transfers, make them, compare; implies --incast",
     AT(o.verify)},
    {"verbose", 'v', BT_OPTION_FLAG, NULL, "--verify: each pull on stderr",
     AT(o.verbose)},
    {"write", 'w', BT_OPTION_STRING, "FILE",
     "topology file for baton topo and baton serve", AT(o.write)},
    {"output", 'o', BT_OPTION_STRING, "FORM",
     "table, or json, which baton agent --calibration reads (table)",
     AT(output)},
    {"max-bytes", 0, BT_OPTION_SIZE, "SIZE",
     "of all pulls of one path together (256MiB)", AT(o.bytes_max)},
    {"max-seconds", 0, BT_OPTION_DURATION, "TIME",
     "for measuring; paths that remain are left out, 0s: no limit (10m)",
     AT(o.seconds_max_ns)},
    {"longest", 0, BT_OPTION_DURATION, "TIME",
     "of one pull, about; the largest size follows (100ms)", AT(o.longest_ns)},
    {"share", 0, BT_OPTION_DOUBLE, "PART",
     "of the time that probing keeps a link busy, 0.01 to 1 (0.5)",
     AT(o.share)},
    {"repeats", 'r', BT_OPTION_U64, "N", "of each size, 1 to 16 (5)",
     AT(o.repeats)},
    {"seed", 's', BT_OPTION_U64, "N", "of orders and sizes (1)", AT(o.seed)},
    {"alone-median", 0, BT_OPTION_DOUBLE, "PART",
     "--verify: largest median error alone (0.05)", AT(o.alone_median)},
    {"alone-p95", 0, BT_OPTION_DOUBLE, "PART", "the same, of p95 (0.15)",
     AT(o.alone_p95)},
    {"beside-median", 0, BT_OPTION_DOUBLE, "PART",
     "--verify: largest median error beside other flows (0.1)",
     AT(o.beside_median)},
    {"beside-p95", 0, BT_OPTION_DOUBLE, "PART", "the same, of p95 (0.3)",
     AT(o.beside_p95)},
    {0},
};
#undef AT

static int run(int argc, char **argv);

const struct bt_command bt_command_probe = {
    .name = "probe",
    .summary = "measure the paths between agents, and prove it",
    .arguments = "",
    .options = options,
    .run = run,
};

static int usage(const char *what)
{
    fprintf(stderr, "baton probe: %s; see baton probe --help\n", what);
    return BT_EXIT_USAGE;
}

/* ---- progress ---- */

void probe_progress(struct probe *p, const char *what)
{
    char bar[21];
    uint32_t full;

    if (what != NULL)
        p->step++;
    if (!p->is_terminal)
        return;
    if (what == NULL) {
        fprintf(stderr, "\r\033[K");
        return;
    }
    full = p->steps > 0 ? p->step * 20 / p->steps : 0;
    full = full < 20 ? full : 20;
    memset(bar, '.', 20);
    memset(bar, '#', full);
    bar[20] = '\0';
    fprintf(stderr, "\r\033[K[%s] %3u/%u %.60s", bar, p->step, p->steps, what);
    fflush(stderr);
}

/* ---- options ---- */

static int check(const struct options *o)
{
    if (strcmp(o->output, "table") != 0 && strcmp(o->output, "json") != 0)
        return usage("--output is table or json");
    if (o->agents.count < 2 || o->agents.count > PROBE_AGENTS_MAX)
        return usage("--agent is given 2 to 32 times");
    if (o->o.share < 0.01 || o->o.share > 1)
        return usage("--share is 0.01 to 1");
    if (o->o.repeats < 1 || o->o.repeats > BT_PROBE_REPEATS)
        return usage("--repeats is 1 to 16");
    if (o->o.longest_ns < BT_NS_PER_MS || o->o.longest_ns > 10 * BT_NS_PER_S)
        return usage("--longest is 1ms to 10s");
    return 0;
}

static int read_agents(const struct options *o, struct probe *p)
{
    p->count = (uint32_t)o->agents.count;
    for (uint32_t i = 0; i < p->count; i++) {
        const char *url = o->agents.items[i];
        size_t n = strlen(url);

        while (n > 0 && url[n - 1] == '/')
            n--;
        if (n == 0 || n >= sizeof(p->agents[i].url) ||
            strncmp(url, "http://", 7) != 0)
            return usage("--agent is http://HOST:PORT");
        memcpy(p->agents[i].url, url, n);
        for (uint32_t k = 0; k < i; k++) {
            if (strcmp(p->agents[i].url, p->agents[k].url) == 0)
                return usage("--agent: the same one twice");
        }
    }
    return 0;
}

/* ---- names ---- */

static uint32_t find_agent(const struct probe *p, const char *name, size_t n)
{
    for (uint32_t i = 0; i < p->count; i++) {
        if (p->agents[i].reached && strlen(p->agents[i].name) == n &&
            memcmp(p->agents[i].name, name, n) == 0)
            return i;
    }
    return p->count;
}

/* Names go into files and tables: they must be one each, and plain. */
static int check_names(struct probe *p)
{
    for (uint32_t i = 0; i < p->count; i++) {
        struct probe_agent *agent = &p->agents[i];

        if (!agent->reached)
            continue;
        if (find_agent(p, agent->name, strlen(agent->name)) != i) {
            fprintf(stderr, "baton probe: two agents are called %s\n",
                    agent->name);
            return BT_EXIT_CONFIG;
        }
        for (const char *c = agent->name; *c != '\0'; c++) {
            if (*c <= ' ' || *c > '~' || *c == '"' || *c == '\\') {
                fprintf(stderr, "baton probe: %s: a name that is not plain\n",
                        agent->url);
                return BT_EXIT_CONFIG;
            }
        }
        memcpy(agent->worker, agent->name, sizeof(agent->worker));
    }
    return BT_EXIT_OK;
}

static int set_workers(struct probe *p, const struct bt_option_list *map)
{
    for (size_t i = 0; i < map->count; i++) {
        const char *equals = strchr(map->items[i], '=');
        size_t n = equals != NULL ? strlen(equals + 1) : 0;

        if (n == 0 || n >= sizeof(p->agents[0].worker) ||
            strpbrk(equals + 1, "\"\\") != NULL)
            return usage("--map is NAME=WORKER");
        uint32_t a =
            find_agent(p, map->items[i], (size_t)(equals - map->items[i]));
        if (a < p->count)
            memcpy(p->agents[a].worker, equals + 1, n + 1);
        else
            fprintf(stderr, "baton probe: --map %s: no such agent\n",
                    map->items[i]);
    }
    return BT_EXIT_OK;
}

static int want_all(struct probe *p)
{
    for (uint32_t i = 0; i < p->count * p->count; i++)
        p->pairs[i].wanted = i / p->count != i % p->count &&
                             p->agents[i / p->count].reached &&
                             p->agents[i % p->count].reached;
    return BT_EXIT_OK;
}

/* A name of somebody who did not answer is not a mistake: exit code 4 says
 * it. With all reached it is. */
static int set_pairs(struct probe *p, const struct bt_option_list *pairs,
                     bool all_reached)
{
    if (pairs->count == 0)
        return want_all(p);
    for (size_t i = 0; i < pairs->count; i++) {
        const char *text = pairs->items[i], *colon = strchr(text, ':');

        if (colon == NULL)
            return usage("--pair is FROM:TO");
        uint32_t from = find_agent(p, text, (size_t)(colon - text));
        uint32_t to = find_agent(p, colon + 1, strlen(colon + 1));
        if (from < p->count && to < p->count && from != to) {
            probe_pair_of(p, from, to)->wanted = true;
        } else if (all_reached) {
            fprintf(stderr, "baton probe: --pair %s: no such path\n", text);
            return BT_EXIT_USAGE;
        }
    }
    return BT_EXIT_OK;
}

/* ---- stages ---- */

static uint32_t tell_missing(const struct probe *p)
{
    uint32_t missing = 0;

    for (uint32_t i = 0; i < p->count; i++) {
        if (p->agents[i].reached)
            continue;
        missing++;
        fprintf(stderr, "baton probe: %s: %s\n", p->agents[i].url,
                p->agents[i].reason);
    }
    return missing;
}

static uint32_t tell_failed(const struct probe *p)
{
    uint32_t failed = 0;

    for (uint32_t i = 0; i < p->count * p->count; i++) {
        if (!p->pairs[i].wanted || p->pairs[i].measured)
            continue;
        failed++;
        fprintf(stderr, "baton probe: %s > %s: %s\n",
                p->agents[i / p->count].name, p->agents[i % p->count].name,
                p->pairs[i].reason);
    }
    return failed;
}

static void count_steps(struct probe *p)
{
    for (uint32_t i = 0; i < p->count * p->count; i++)
        p->steps += p->pairs[i].wanted;
    p->steps += p->o.incast ? p->count : 0;
    p->steps += p->o.pairwise ? 1 : 0;
    p->steps += p->o.verify ? 8 : 0;
}

static int measure(struct probe *p, uint32_t missing)
{
    bool proven = true, written = true;

    count_steps(p);
    probe_measure_paths(p);
    probe_measure_ends(p);
    if (p->o.pairwise)
        probe_measure_pairwise(p);
    if (p->o.verify)
        proven = probe_verify(p);
    probe_progress(p, NULL);
    probe_print(p);
    if (p->o.write != NULL)
        written = probe_write(p, p->o.write);
    if (tell_failed(p) + missing > 0)
        return BT_EXIT_PEER;
    if (!written)
        return BT_EXIT_FAILED;
    return proven ? BT_EXIT_OK : BT_EXIT_DIFFERENT;
}

static int meet_and_measure(struct probe *p, const struct options *o)
{
    probe_meet(p);
    uint32_t missing = tell_missing(p);
    int code = check_names(p);
    if (code == BT_EXIT_OK)
        code = set_workers(p, &o->map);
    if (code == BT_EXIT_OK)
        code = set_pairs(p, &o->pairs, missing == 0);
    if (code != BT_EXIT_OK)
        return code;
    if (p->count - missing < 2)
        return BT_EXIT_PEER;
    return measure(p, missing);
}

static int probe_all(struct probe *p, const struct options *o)
{
    int code = BT_EXIT_FAILED;

    p->pairs = calloc((size_t)p->count * p->count, sizeof(*p->pairs));
    p->scratch = aligned_alloc(
        16, (bt_probe_scratch(PROBE_TOGETHER, p->count) + 15) / 16 * 16);
    if (p->pairs != NULL && p->scratch != NULL && probe_http_open(p)) {
        memset(p->scratch, 0, bt_probe_scratch(PROBE_TOGETHER, p->count));
        code = meet_and_measure(p, o);
    } else {
        fprintf(stderr, "baton probe: out of memory\n");
    }
    probe_http_close(p);
    free(p->scratch);
    free(p->pairs);
    return code;
}

static int run(int argc, char **argv)
{
    static struct probe p;
    static struct options o;
    int first = 0;

    o.output = "table";
    o.o = (struct probe_options){.bytes_max = 256u << 20,
                                 .seconds_max_ns = 600 * BT_NS_PER_S,
                                 .longest_ns = 100 * BT_NS_PER_MS,
                                 .share = 0.5,
                                 .repeats = 5,
                                 .seed = 1,
                                 .alone_median = 0.05,
                                 .alone_p95 = 0.15,
                                 .beside_median = 0.10,
                                 .beside_p95 = 0.30};
    int code = bt_options_parse(&bt_command_probe, argc, argv, &o, &first);
    if (code >= 0)
        return code;
    if (first < argc)
        return usage("no arguments expected");
    code = check(&o);
    if (code == 0)
        code = read_agents(&o, &p);
    if (code != 0)
        return code;
    p.o = o.o;
    p.o.json = strcmp(o.output, "json") == 0;
    p.o.incast = p.o.incast || p.o.verify;
    p.is_terminal = isatty(STDERR_FILENO) == 1;
    p.began_ns = probe_now_ns();
    bt_rng_seed(&p.rng, p.o.seed);
    (void)signal(SIGPIPE, SIG_IGN);
    return probe_all(&p, &o);
}
