/* SLO capacity of every scenario and arm: searches that advance together, one
 * probe of each per round, so that all processes have work; and the choice of
 * a family's best setting on a slice of its own. The rule itself is
 * bt_sim_meets. A cell that fails ends its search: a configuration that cannot
 * run has no capacity. */
#include "report_priv.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define ROUNDS_MAX 64u

struct round {
    struct report_cell *cells;
    struct bt_report_result *results;
    size_t *of; /* capacity index of each group of seeds */
    size_t groups;
};

static bool met_by(const struct bt_report_setup *setup,
                   const struct bt_report_result *results)
{
    uint32_t met = 0;

    for (uint32_t i = 0; i < setup->seed_count; i++)
        met += results[i].status == BT_OK && bt_sim_meets(&results[i].all);
    return setup->median_of_seeds ? 2 * met > setup->seed_count
                                  : met == setup->seed_count;
}

static void plan_round(const struct bt_report_setup *setup,
                       struct bt_report_capacity *out, struct round *round)
{
    size_t count = (size_t)setup->scenario_count * setup->arm_count;

    round->groups = 0;
    for (size_t i = 0; i < count; i++) {
        double speed;

        if (out[i].error[0] || !bt_report_search_next(&out[i].search, &speed))
            continue;
        for (uint32_t seed = 0; seed < setup->seed_count; seed++) {
            struct report_cell *c =
                &round->cells[round->groups * setup->seed_count + seed];

            c->keep_samples = false;
            bt_report_config(setup, (uint32_t)(i / setup->arm_count),
                             (uint32_t)(i % setup->arm_count), speed, seed,
                             &c->config);
            c->config.regret_every = 0;
        }
        round->of[round->groups++] = i;
    }
}

static void take_round(const struct bt_report_setup *setup,
                       struct bt_report_capacity *out,
                       const struct round *round)
{
    for (size_t g = 0; g < round->groups; g++) {
        const struct bt_report_result *results =
            &round->results[g * setup->seed_count];
        struct bt_report_capacity *c = &out[round->of[g]];
        double low = c->search.low;
        struct bt_report_row row;

        report_row_make(results, setup->seed_count, &row);
        c->runs += setup->seed_count;
        if (row.failed > 0) {
            snprintf(c->error, sizeof(c->error), "%s",
                     row.mean.error[0] ? row.mean.error : "a run failed");
            continue;
        }
        bt_report_search_tell(&c->search, met_by(setup, results));
        if (c->search.low != low)
            c->at = row.mean;
    }
}

enum bt_status
bt_report_capacity_run(const struct bt_report_setup *setup,
                       const struct bt_report_search_options *options,
                       struct bt_report_capacity *out)
{
    size_t count = (size_t)setup->scenario_count * setup->arm_count;
    size_t cells = count * setup->seed_count;
    struct round round = {0};
    enum bt_status status = BT_OK;

    if (cells > BT_REPORT_CELLS_MAX)
        return BT_LIMIT;
    round.cells = calloc(cells + 1, sizeof(*round.cells));
    round.results = calloc(cells + 1, sizeof(*round.results));
    round.of = calloc(count + 1, sizeof(*round.of));
    if (!round.cells || !round.results || !round.of)
        status = BT_NO_MEMORY;
    for (size_t i = 0; i < count; i++) {
        memset(&out[i], 0, sizeof(out[i]));
        bt_report_search_init(&out[i].search, options);
    }
    for (uint32_t i = 0; status == BT_OK && i < ROUNDS_MAX; i++) {
        plan_round(setup, out, &round);
        if (round.groups == 0)
            break;
        status = report_pool_run(round.cells, round.groups * setup->seed_count,
                                 &setup->jobs, round.results);
        if (status == BT_OK)
            take_round(setup, out, &round);
    }
    free(round.cells);
    free(round.results);
    free(round.of);
    return status;
}

/* ---- tuning ---- */

static uint32_t family_size(const struct bt_report_setup *s, uint32_t arm)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < s->arm_count; i++)
        n += strcmp(s->arms[i].family, s->arms[arm].family) == 0;
    return n;
}

/* Log of the geometric mean over scenarios; a setting that never meets the
 * rule somewhere loses to one that does. */
static double score(const struct bt_report_setup *s,
                    const struct bt_report_capacity *capacity, uint32_t arm)
{
    double sum = 0;

    for (uint32_t i = 0; i < s->scenario_count; i++) {
        const struct bt_report_capacity *c =
            &capacity[(size_t)i * s->arm_count + arm];

        sum += log(fmax(c->error[0] ? 0 : c->search.low, 1e-6));
    }
    return sum / s->scenario_count;
}

static void slice(struct bt_report_setup *s, double share, bool head)
{
    for (uint32_t i = 0; i < s->scenario_count; i++) {
        struct bt_report_scenario *x = &s->scenarios[i];
        size_t all =
            x->trace->count > x->first ? x->trace->count - x->first : 0;
        size_t n = x->count && x->count < all ? x->count : all;
        size_t cut = (size_t)((double)n * share);

        if (cut == 0 || cut >= n)
            continue;
        x->first += head ? 0 : cut;
        x->count = head ? cut : n - cut;
    }
}

/* Keep the best of each family; the arm's first place is kept. */
static void choose(struct bt_report_setup *setup,
                   const struct bt_report_setup *trial,
                   const struct bt_report_capacity *capacity, FILE *what)
{
    uint32_t kept = 0;

    for (uint32_t i = 0; i < setup->arm_count; i++) {
        struct bt_report_arm arm = setup->arms[i];
        uint32_t size = family_size(setup, i), best = BT_REPORT_ARMS_MAX;
        bool first = true;

        for (uint32_t k = 0; k < kept; k++)
            first = first && strcmp(setup->arms[k].family, arm.family) != 0;
        if (!first)
            continue;
        for (uint32_t k = 0; k < trial->arm_count; k++) {
            if (strcmp(trial->arms[k].family, arm.family) == 0 &&
                (best == BT_REPORT_ARMS_MAX ||
                 score(trial, capacity, k) > score(trial, capacity, best)))
                best = k;
        }
        if (best != BT_REPORT_ARMS_MAX)
            arm = trial->arms[best];
        if (best != BT_REPORT_ARMS_MAX && what)
            fprintf(what, "%s: %s of %u settings\n", arm.family, arm.policy,
                    size);
        /* `kept` never passes i, so nothing unread is overwritten */
        setup->arms[kept++] = arm;
    }
    setup->arm_count = kept;
}

enum bt_status bt_report_tune(struct bt_report_setup *setup, double share,
                              FILE *what_out)
{
    struct bt_report_search_options options;
    struct bt_report_capacity *capacity = NULL;
    struct bt_report_setup *trial = malloc(sizeof(*trial));
    enum bt_status status = BT_OK;

    if (!trial)
        return BT_NO_MEMORY;
    *trial = *setup;
    trial->arm_count = 0;
    trial->seed_count = 1;
    for (uint32_t i = 0; i < setup->arm_count; i++) {
        if (family_size(setup, i) > 1)
            trial->arms[trial->arm_count++] = setup->arms[i];
    }
    slice(trial, share, true);
    bt_report_search_options_init(&options);
    options.tolerance = 0.05;
    options.verify = false;
    capacity = calloc((size_t)trial->scenario_count * trial->arm_count + 1,
                      sizeof(*capacity));
    if (!capacity)
        status = BT_NO_MEMORY;
    else if (trial->arm_count > 0)
        status = bt_report_capacity_run(trial, &options, capacity);
    if (status == BT_OK) {
        choose(setup, trial, capacity, what_out);
        slice(setup, share, false);
    }
    free(capacity);
    free(trial);
    return status;
}
