/* Links of the view. The table of all pairs is filled once; a build touches
 * only the pairs that have flows, and takes back what the build before it
 * showed. Also the bounds over all links that let a policy leave most pairs
 * unread, and the closing of suspect pairs.
 *
 * Invariant: a link that is not in view_marks.busy has no flows, and its model
 * is the configured one unless view_marks.closed. */
#include "core_internal.h"

/* Cells of a table of pairs; never 0. */
size_t core_view_pairs(const struct bt_core_config *config)
{
    size_t rows = 0, columns = 0;

    for (uint32_t i = 0; i < config->worker_count; i++) {
        rows += (config->workers[i].roles & BT_ROLE_PREFILL) != 0;
        columns += (config->workers[i].roles & BT_ROLE_DECODE) != 0;
    }
    return (rows > 0 ? rows : 1) * (columns > 0 ? columns : 1);
}

static void number_pairs(struct bt_core *core)
{
    uint32_t n = core->config.worker_count, columns = 0;
    size_t row = 0;

    for (uint32_t i = 0; i < n; i++)
        if ((core->worker_configs[i].roles & BT_ROLE_DECODE) != 0)
            core->link_column[i] = columns++;
    for (uint32_t i = 0; i < n; i++)
        if ((core->worker_configs[i].roles & BT_ROLE_PREFILL) != 0) {
            core->link_row[i] = row;
            row += columns;
        }
}

static const struct bt_core_link_config *configured(const struct bt_core *core,
                                                    uint32_t p, uint32_t d)
{
    return &core->config.links[(size_t)p * core->config.worker_count + d];
}

static bool is_usable(const struct bt_link_model *m)
{
    return m->rate_bytes_per_s > 0 && m->setup_ns >= 0 &&
           m->setup_ns < BT_COST_INFINITE && m->per_descriptor_ns >= 0;
}

static void widen(struct bt_place_bounds *b, const struct bt_link_model *m)
{
    if (m->rate_bytes_per_s < b->rate_min)
        b->rate_min = m->rate_bytes_per_s;
    if (m->rate_bytes_per_s > b->rate_max)
        b->rate_max = m->rate_bytes_per_s;
    if (m->setup_ns < b->setup_min_ns)
        b->setup_min_ns = m->setup_ns;
    if (m->setup_ns > b->setup_max_ns)
        b->setup_max_ns = m->setup_ns;
    if (m->per_descriptor_ns < b->descriptor_min_ns)
        b->descriptor_min_ns = m->per_descriptor_ns;
    if (m->per_descriptor_ns > b->descriptor_max_ns)
        b->descriptor_max_ns = m->per_descriptor_ns;
}

static void start_link(struct bt_core *core, uint32_t p, uint32_t d)
{
    const struct bt_core_link_config *link = configured(core, p, d);
    struct bt_place_link *shown = &core->view_links[core_pair_at(core, p, d)];

    shown->model = &link->model;
    shown->class_index = link->class_index;
    if (p == d ||
        core->worker_configs[p].model != core->worker_configs[d].model)
        return;
    widen(&core->view_marks->bounds, &link->model);
    if (!is_usable(&link->model))
        core->view_marks->bounded = false;
}

void core_view_start(struct bt_core *core)
{
    struct view_marks *marks = core->view_marks;
    uint32_t n = core->config.worker_count;

    marks->bounds = (struct bt_place_bounds){.rate_min = UINT64_MAX,
                                             .setup_min_ns = INT64_MAX,
                                             .descriptor_min_ns = INT64_MAX};
    marks->bounded = true;
    number_pairs(core);
    for (uint32_t p = 0; p < n; p++)
        for (uint32_t d = 0; d < n; d++)
            if (core_roles_allow(core, p, d))
                start_link(core, p, d);
}

static void open_all(const struct bt_core *core)
{
    uint32_t n = core->config.worker_count;

    for (uint32_t p = 0; p < n; p++)
        for (uint32_t d = 0; d < n; d++)
            if (core_roles_allow(core, p, d))
                core->view_links[core_pair_at(core, p, d)].model =
                    &configured(core, p, d)->model;
}

static void reset(const struct bt_core *core)
{
    struct view_marks *marks = core->view_marks;

    for (size_t i = 0; i < marks->busy_count; i++)
        core->view_links[marks->busy[i]].flows = 0;
    marks->busy_count = 0;
    marks->bounds.flows_max = 0;
    if (marks->closed)
        open_all(core);
    marks->closed = false;
}

/* Flows of the pairs that may be chosen. A request has one transfer at most,
 * so requests_max entries are enough for all pairs together. */
void core_view_links_fill(const struct bt_core *core)
{
    struct view_marks *marks = core->view_marks;
    size_t used = 0, max = core->config.requests_max;
    uint32_t p, d, pair = 0;

    reset(core);
    while ((pair = bt_ledger_busy(core->ledger, pair, &p, &d)) != 0) {
        struct bt_place_link *link;
        size_t at;

        if ((core->marks[p] & BT_ROLE_PREFILL) == 0 ||
            (core->marks[d] & BT_ROLE_DECODE) == 0)
            continue;
        at = core_pair_at(core, p, d);
        link = &core->view_links[at];
        link->left = core->flows + used;
        link->flows = bt_ledger_busy_flows(core->ledger, pair, core->now_ns,
                                           core->flows + used, max - used);
        if (link->flows == 0)
            continue;
        used += link->flows;
        marks->busy[marks->busy_count++] = at;
        if (link->flows > marks->bounds.flows_max)
            marks->bounds.flows_max = link->flows;
    }
}

/* None while a pair may be closed, or where a link is of no use. */
const struct bt_place_bounds *core_view_links_bounds(const struct bt_core *core)
{
    if (!core->view_marks->bounded ||
        core->any_pair_suspect_until_ns > core->now_ns)
        return NULL;
    return &core->view_marks->bounds;
}

static bool pair_is_open(const struct bt_place_view *view, uint32_t p,
                         uint32_t d)
{
    return view->workers[p].prefill_ok && view->workers[d].decode_ok &&
           (p == d ||
            bt_place_link_of(view, p, d)->model->rate_bytes_per_s > 0);
}

/* Is there both a suspect pair and another one that could be taken? */
static bool may_avoid(const struct bt_core *core,
                      const struct bt_place_view *view)
{
    bool suspects = false, others = false;

    for (uint32_t p = 0; p < view->worker_count; p++) {
        for (uint32_t d = 0; d < view->worker_count; d++) {
            if (!pair_is_open(view, p, d))
                continue;
            if (core_pair_is_suspect(core, p, d))
                suspects = true;
            else
                others = true;
        }
    }
    return suspects && others;
}

/* Suspect pairs get a link without a rate, which makes them infeasible, unless
 * there is nothing else to take. */
void core_view_avoid_suspect_pairs(const struct bt_core *core,
                                   const struct bt_place_view *view)
{
    static const struct bt_link_model closed = {0, 0, 0};

    if (core->any_pair_suspect_until_ns <= core->now_ns ||
        !may_avoid(core, view))
        return;
    core->view_marks->closed = true;
    for (uint32_t p = 0; p < view->worker_count; p++)
        for (uint32_t d = 0; d < view->worker_count; d++)
            if (core_pair_is_suspect(core, p, d))
                core->view_links[core_pair_at(core, p, d)].model = &closed;
}
