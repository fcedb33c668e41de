/* The policy as the core sees it: the real one, watched. What it chose is kept
 * for the records, and one choice in so many is compared with the truth of all
 * candidates (regret.c). "oracle" takes the true best of them itself.
 *
 * A policy has no argument of its own: the simulation a thread is in is a
 * variable of that thread.
 */
#include "sim_priv.h"

#include <stdlib.h>
#include <string.h>

static _Thread_local struct sim *current;

#define ORACLE_WIDTH_MAX 4096u

void sim_policy_use(struct sim *s)
{
    current = s;
}

void sim_policy_begin(struct sim *s)
{
    s->seen_count = s->seen_used = 0;
}

static void keep(struct sim *s, const struct bt_placement *placement)
{
    if (s->seen_count == SIM_SEEN_MAX)
        return;
    s->seen[s->seen_count].placement = *placement;
    s->seen[s->seen_count++].regret_ns = s->regret_ns;
}

/* The placements of a core step in order; each effect takes the next one that
 * names its workers. NULL: the core placed it without the policy. */
const struct sim_seen *sim_policy_seen(struct sim *s, uint32_t p, uint32_t d)
{
    for (uint32_t i = s->seen_used; i < s->seen_count; i++) {
        const struct bt_place_candidate *c = &s->seen[i].placement.chosen;
        bool alone = c->p == BT_PLACE_NONE || c->p == c->d;

        if (p == SIM_NONE ? alone && c->d == d : !alone && c->p == p) {
            s->seen_used = i + 1;
            return &s->seen[i];
        }
    }
    return NULL;
}

static void force(const struct sim *s, struct bt_placement *out)
{
    out->chosen = s->child_pair;
    out->reason = BT_REASON_FORCED;
}

static enum bt_status watched_place(struct bt_policy_state *state,
                                    const struct bt_place_view *view,
                                    struct bt_placement *out)
{
    struct sim *s = current;
    enum bt_status status = s->real_policy->place(state, view, out);
    uint32_t every = s->config->regret_every;

    if (status != BT_OK)
        return status;
    s->regret_ns = -1;
    s->decisions++;
    if (s->child && s->child_pair_due) {
        s->child_pair_due = false;
        force(s, out);
    } else if (!s->child &&
               (s->oracle || (every != 0 && s->decisions % every == 0))) {
        if (sim_truth(s, view, out))
            force(s, out);
    }
    keep(s, out);
    return BT_OK;
}

static enum bt_status no_memory(char *error_out, size_t error_size)
{
    (void)snprintf(error_out, error_size, "no memory for the policy");
    return BT_NO_MEMORY;
}

static enum bt_status parse_oracle(struct sim *s, const char *spec,
                                   char *error_out, size_t error_size)
{
    char *end = NULL;
    unsigned long width = 0;

    if (strncmp(spec, "oracle:width=", 13) == 0)
        width = strtoul(spec + 13, &end, 10);
    else if (strcmp(spec, "oracle") != 0)
        end = NULL;
    if ((strcmp(spec, "oracle") != 0 && (end == NULL || *end != '\0')) ||
        width > ORACLE_WIDTH_MAX) {
        (void)snprintf(error_out, error_size,
                       "policy \"%s\": the oracle's only knob is width, 0..%u",
                       spec, ORACLE_WIDTH_MAX);
        return BT_INVALID;
    }
    s->oracle = true;
    s->oracle_width = (uint32_t)width;
    s->real_policy = bt_policy_find("joint");
    bt_policy_defaults(s->real_policy, s->knobs);
    return BT_OK;
}

enum bt_status sim_policy_init(struct sim *s, char *error_out,
                               size_t error_size)
{
    const char *spec = s->config->policy;
    enum bt_status status;

    if (strncmp(spec, "oracle", 6) == 0)
        status = parse_oracle(s, spec, error_out, error_size);
    else
        status = bt_policy_parse(spec, &s->real_policy, s->knobs, error_out,
                                 error_size);
    if (status != BT_OK)
        return status;
    s->seen = calloc(SIM_SEEN_MAX, sizeof(*s->seen));
    if (s->seen == NULL)
        return no_memory(error_out, error_size);
    s->policy = *s->real_policy;
    s->policy.place = watched_place;
    if (s->oracle) {
        s->policy.name = "oracle";
        s->policy.summary = "the pair that is truly best, tried out";
        s->policy.handoff = NULL;
    }
    return BT_OK;
}
