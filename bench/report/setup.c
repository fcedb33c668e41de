/* What is compared: arms from policy specifications, grids expanded, and the
 * configuration of each cell. Leaves the meaning of knobs to the policies.
 * A specification is NAME[:knob=a|b,knob=c][+switch...]; switches belong to
 * the arm, not to the policy: +hold +nohold +local +nolocal +fetch +nofetch
 * +prefetch +noprefetch +approximate +noapproximate +selfcheck +noselfcheck
 * +prices +noprices +aggregated. */
#include "report_priv.h"
#include <stdlib.h>
#include <string.h>

#define KNOBS_MAX  BT_POLICY_KNOBS_MAX
#define VALUES_MAX 16

/* "knob=a|b|c" taken apart; pieces point into one copy of the text. */
struct grid {
    char text[512];
    const char *policy;
    size_t knob_count;
    struct {
        const char *name;
        const char *values[VALUES_MAX];
        size_t value_count, at;
    } knobs[KNOBS_MAX];
};

static const struct {
    const char *word;
    size_t offset; /* of an enum bt_report_switch */
    enum bt_report_switch value;
} SWITCHES[] = {
    {"hold", offsetof(struct bt_report_arm, hold), BT_REPORT_ON},
    {"nohold", offsetof(struct bt_report_arm, hold), BT_REPORT_OFF},
    {"local", offsetof(struct bt_report_arm, local), BT_REPORT_ON},
    {"nolocal", offsetof(struct bt_report_arm, local), BT_REPORT_OFF},
    {"fetch", offsetof(struct bt_report_arm, fetch), BT_REPORT_ON},
    {"nofetch", offsetof(struct bt_report_arm, fetch), BT_REPORT_OFF},
    {"prefetch", offsetof(struct bt_report_arm, prefetch), BT_REPORT_ON},
    {"noprefetch", offsetof(struct bt_report_arm, prefetch), BT_REPORT_OFF},
    {"approximate", offsetof(struct bt_report_arm, approximate), BT_REPORT_ON},
    {"noapproximate", offsetof(struct bt_report_arm, approximate),
     BT_REPORT_OFF},
    {"selfcheck", offsetof(struct bt_report_arm, self_check), BT_REPORT_ON},
    {"noselfcheck", offsetof(struct bt_report_arm, self_check), BT_REPORT_OFF},
    {"prices", offsetof(struct bt_report_arm, prices), BT_REPORT_ON},
    {"noprices", offsetof(struct bt_report_arm, prices), BT_REPORT_OFF},
};

void bt_report_setup_init(struct bt_report_setup *setup)
{
    memset(setup, 0, sizeof(*setup));
    bt_sim_config_init(&setup->base);
    setup->seeds[0] = 1;
    setup->seed_count = 1;
}

static enum bt_status fault(char *error, size_t size, const char *spec,
                            const char *what)
{
    snprintf(error, size, "policy '%.80s': %.300s", spec, what);
    return BT_INVALID;
}

static enum bt_status take_switch(struct bt_report_arm *arm, const char *word)
{
    if (strcmp(word, "aggregated") == 0) {
        arm->aggregated = true;
        return BT_OK;
    }
    for (size_t i = 0; i < sizeof(SWITCHES) / sizeof(SWITCHES[0]); i++) {
        if (strcmp(word, SWITCHES[i].word) != 0)
            continue;
        memcpy((char *)arm + SWITCHES[i].offset, &SWITCHES[i].value,
               sizeof(SWITCHES[i].value));
        return BT_OK;
    }
    return BT_INVALID;
}

/* Cuts the text at the next of `ends`; *rest is what follows, NULL: nothing. */
static char *cut(char **rest, const char *ends)
{
    char *start = *rest;

    *rest += strcspn(*rest, ends);
    if (**rest != '\0')
        *(*rest)++ = '\0';
    else
        *rest = NULL;
    return start;
}

static const char *take_knob(struct grid *grid, char *text)
{
    char *values = text;
    size_t k = grid->knob_count;

    if (k == KNOBS_MAX)
        return "more knobs than any policy has";
    grid->knobs[k].name = cut(&values, "=");
    if (!values || !grid->knobs[k].name[0])
        return "a knob is NAME=VALUE or NAME=VALUE|VALUE|...";
    while (values) {
        char *value = cut(&values, "|");

        if (!value[0])
            return "a knob has an empty value";
        if (grid->knobs[k].value_count == VALUES_MAX)
            return "a knob has more than 16 values";
        grid->knobs[k].values[grid->knobs[k].value_count++] = value;
    }
    grid->knob_count++;
    return NULL;
}

static const char *take_apart(struct grid *grid, const char *spec,
                              struct bt_report_arm *arm)
{
    char *switches, *knobs;
    const char *what = NULL;

    memset(grid, 0, sizeof(*grid));
    if ((size_t)snprintf(grid->text, sizeof(grid->text), "%s", spec) >=
        sizeof(grid->text))
        return "too long";
    switches = grid->text;
    knobs = cut(&switches, "+");
    while (switches) {
        if (take_switch(arm, cut(&switches, "+")) != BT_OK)
            return "after + stands one of hold, nohold, local, nolocal, "
                   "fetch, nofetch, prefetch, noprefetch, approximate, "
                   "noapproximate, selfcheck, noselfcheck, prices, noprices, "
                   "aggregated";
    }
    grid->policy = cut(&knobs, ":");
    while (knobs && !what)
        what = take_knob(grid, cut(&knobs, ","));
    return what;
}

/* "name:knob=value,..." of the present combination. */
static bool spell(const struct grid *grid, char *out, size_t size)
{
    size_t used = (size_t)snprintf(out, size, "%s", grid->policy);

    for (size_t i = 0; i < grid->knob_count && used < size; i++)
        used += (size_t)snprintf(out + used, size - used, "%c%s=%s",
                                 i ? ',' : ':', grid->knobs[i].name,
                                 grid->knobs[i].values[grid->knobs[i].at]);
    return used < size;
}

static bool next_combination(struct grid *grid)
{
    for (size_t i = grid->knob_count; i-- > 0;) {
        if (++grid->knobs[i].at < grid->knobs[i].value_count)
            return true;
        grid->knobs[i].at = 0;
    }
    return false;
}

/* One combination becomes an arm. */
static enum bt_status add_one(struct bt_report_setup *setup,
                              const struct grid *grid,
                              const struct bt_report_arm *like,
                              const char *switches, char *error)
{
    struct bt_report_arm arm = *like;
    const struct bt_policy *policy;
    double knobs[BT_POLICY_KNOBS_MAX];
    char what[BT_REPORT_ERROR_MIN] = "";
    enum bt_status status;

    if (!spell(grid, arm.policy, sizeof(arm.policy)))
        return fault(error, BT_REPORT_ERROR_MIN, grid->policy, "too long");
    status = bt_policy_parse(arm.policy, &policy, knobs, what, sizeof(what));
    if (status != BT_OK) {
        fault(error, BT_REPORT_ERROR_MIN, arm.policy, what);
        return status;
    }
    if (setup->arm_count == BT_REPORT_ARMS_MAX) {
        fault(error, BT_REPORT_ERROR_MIN, arm.policy,
              "more than 64 settings of policies");
        return BT_LIMIT;
    }
    if ((size_t)snprintf(arm.name, sizeof(arm.name), "%s%s", arm.policy,
                         switches) >= sizeof(arm.name) ||
        (size_t)snprintf(arm.family, sizeof(arm.family), "%s%s", grid->policy,
                         switches) >= sizeof(arm.family))
        return fault(error, BT_REPORT_ERROR_MIN, arm.policy, "too long");
    setup->arms[setup->arm_count++] = arm;
    return BT_OK;
}

enum bt_status bt_report_arm_add(struct bt_report_setup *setup,
                                 const char *spec, char *error_out,
                                 size_t error_size)
{
    char error[BT_REPORT_ERROR_MIN] = "";
    const char *switches = strchr(spec, '+');
    struct bt_report_arm arm;
    struct grid grid;
    enum bt_status status = BT_OK;
    const char *what;

    memset(&arm, 0, sizeof(arm));
    what = take_apart(&grid, spec, &arm);
    if (what)
        return fault(error_out, error_size, spec, what);
    do {
        status = add_one(setup, &grid, &arm, switches ? switches : "", error);
    } while (status == BT_OK && next_combination(&grid));
    if (status != BT_OK)
        snprintf(error_out, error_size, "%s", error);
    return status;
}

/* Where the switch says nothing, *value stays. */
static void flip(enum bt_report_switch to, bool *value)
{
    if (to != BT_REPORT_BASE)
        *value = to == BT_REPORT_ON;
}

void bt_report_config(const struct bt_report_setup *setup, uint32_t scenario,
                      uint32_t arm, double speed, uint32_t seed,
                      struct bt_sim_config *out)
{
    const struct bt_report_scenario *s = &setup->scenarios[scenario];
    const struct bt_report_arm *a = &setup->arms[arm];

    *out = setup->base;
    out->cluster = s->cluster;
    out->fabric = s->fabric;
    out->trace = s->trace;
    out->first = s->first;
    out->count = s->count;
    out->knowledge = s->knowledge;
    out->faults = s->faults;
    out->fault_count = s->fault_count;
    out->speed = speed;
    out->seed = setup->seeds[seed];
    out->policy = a->policy;
    out->aggregated = out->aggregated || a->aggregated;
    flip(a->hold, &out->hold.enabled);
    flip(a->local, &out->local);
    flip(a->fetch, &out->fetch);
    flip(a->prefetch, &out->hold.prefetch);
    flip(a->approximate, &out->knowledge.approximate);
    flip(a->self_check, &out->knowledge.self_check);
    if (a->prices == BT_REPORT_OFF)
        memset(&out->prices, 0, sizeof(out->prices));
    if (seed == 0 && setup->regret_every > 0)
        out->regret_every = setup->regret_every;
}

/* FNV-1a over the canonical text of the configuration. */
uint64_t bt_report_config_hash(const struct bt_sim_config *config)
{
    uint64_t hash = 0xcbf29ce484222325ULL;
    char *text = NULL;
    size_t size = 0;
    FILE *to = open_memstream(&text, &size);

    if (!to)
        return 0;
    report_json_config(to, config);
    if (fclose(to) != 0)
        size = 0;
    for (size_t i = 0; i < size; i++)
        hash = (hash ^ (unsigned char)text[i]) * 0x100000001b3ULL;
    free(text);
    return hash;
}
