/* The true network: fluid flows over directed links, max-min fair at every
 * instant, rates anew at each start, end and change. Bytes roll forward
 * exactly between changes; a flow ends at the first whole nanosecond at which
 * nothing is left. Who sends what is the callers' matter.
 *
 * Invariant after settle: no link carries more than its capacity.
 */
#include "sim_priv.h"

#include <math.h>
#include <stdlib.h>

#define FLOWS_MAX (1u << 22)

bool sim_net_init(struct sim_net *net, uint32_t link_count,
                  const double *capacity)
{
    *net = (struct sim_net){.link_count = link_count};
    net->capacity = calloc((size_t)link_count + 1, sizeof(double));
    net->bytes = calloc((size_t)link_count + 1, sizeof(double));
    net->loaded = calloc((size_t)link_count + 1, sizeof(double));
    if (net->capacity == NULL || net->bytes == NULL || net->loaded == NULL) {
        sim_net_fini(net);
        return false;
    }
    for (uint32_t i = 0; i < link_count; i++)
        net->capacity[i] = capacity[i];
    return true;
}

void sim_net_fini(struct sim_net *net)
{
    free(net->capacity);
    free(net->bytes);
    free(net->loaded);
    free(net->flows);
    free(net->solver);
    free(net->solver_of);
    free(net->scratch);
    *net = (struct sim_net){0};
}

static void roll(struct sim_net *net, int64_t now_ns)
{
    double seconds = (double)(now_ns - net->now_ns) * 1e-9;

    if (now_ns <= net->now_ns)
        return;
    net->now_ns = now_ns;
    for (uint32_t i = 0; net->live > 0 && i < net->flow_count; i++) {
        struct sim_flow *f = &net->flows[i];
        double bytes;

        if (!f->used || f->rate <= 0)
            continue;
        bytes = isinf(f->rate) ? f->left : f->rate * seconds;
        if (bytes > f->left)
            bytes = f->left;
        f->left -= bytes;
        for (uint32_t k = 0; k < f->count; k++)
            net->bytes[f->links[k]] += bytes;
    }
}

static bool grow(struct sim_net *net)
{
    uint32_t capacity = net->flow_capacity == 0 ? 64 : net->flow_capacity * 2;
    size_t scratch = bt_maxmin_scratch(capacity, net->link_count);
    void *memory;

    if (capacity > FLOWS_MAX)
        return false;
    memory = realloc(net->flows, capacity * sizeof(*net->flows));
    if (memory == NULL)
        return false;
    net->flows = memory;
    memory = realloc(net->solver, capacity * sizeof(*net->solver));
    if (memory == NULL)
        return false;
    net->solver = memory;
    memory = realloc(net->solver_of, capacity * sizeof(*net->solver_of));
    if (memory == NULL)
        return false;
    net->solver_of = memory;
    memory = calloc(1, scratch);
    if (memory == NULL)
        return false;
    free(net->scratch);
    net->scratch = memory;
    net->flow_capacity = capacity;
    return true;
}

static uint32_t free_flow(struct sim_net *net)
{
    for (uint32_t i = net->free_hint; i < net->flow_count; i++)
        if (!net->flows[i].used)
            return i;
    if (net->flow_count == net->flow_capacity && !grow(net))
        return SIM_NONE;
    return net->flow_count++;
}

uint32_t sim_net_start(struct sim_net *net, int64_t now_ns,
                       const struct sim_flow *flow)
{
    uint32_t at;

    roll(net, now_ns);
    at = free_flow(net);
    if (at == SIM_NONE)
        return SIM_NONE;
    net->free_hint = at + 1;
    net->flows[at] = *flow;
    net->flows[at].used = true;
    net->flows[at].rate = 0;
    net->live++;
    net->dirty = true;
    return at;
}

void sim_net_stop(struct sim_net *net, int64_t now_ns, uint32_t flow)
{
    roll(net, now_ns);
    net->flows[flow].used = false;
    if (flow < net->free_hint)
        net->free_hint = flow;
    while (net->flow_count > 0 && !net->flows[net->flow_count - 1].used)
        net->flow_count--;
    net->live--;
    net->dirty = true;
}

void sim_net_add(struct sim_net *net, int64_t now_ns, uint32_t flow,
                 double bytes, bool more)
{
    roll(net, now_ns);
    net->flows[flow].left += bytes;
    net->flows[flow].more = more;
    net->dirty = true;
}

void sim_net_capacity_set(struct sim_net *net, int64_t now_ns, uint32_t link,
                          double bytes_per_s)
{
    roll(net, now_ns);
    net->capacity[link] = bytes_per_s;
    net->dirty = true;
}

static bool is_over(const struct sim_flow *f)
{
    return f->left < 0.5;
}

static void solve(struct sim_net *net)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < net->flow_count; i++) {
        struct sim_flow *f = &net->flows[i];

        f->rate = 0;
        if (!f->used || is_over(f))
            continue;
        net->solver[n] = (struct bt_maxmin_flow){.count = f->count};
        for (uint32_t k = 0; k < f->count; k++)
            net->solver[n].links[k] = f->links[k];
        net->solver_of[n++] = i;
    }
    if (n == 0)
        return;
    bt_maxmin_rates(net->solver, n, net->capacity, net->link_count,
                    net->scratch);
    for (uint32_t i = 0; i < n; i++)
        net->flows[net->solver_of[i]].rate = net->solver[i].rate;
}

static void check(struct sim_net *net)
{
    for (uint32_t i = 0; i < net->flow_count; i++) {
        const struct sim_flow *f = &net->flows[i];

        for (uint32_t k = 0; f->used && k < f->count; k++) {
            double *sum = &net->loaded[f->links[k]];

            *sum += f->rate;
            if (*sum > net->capacity[f->links[k]] * (1 + 1e-9))
                net->over_capacity = true;
        }
    }
    for (uint32_t i = 0; i < net->flow_count; i++)
        for (uint32_t k = 0; k < net->flows[i].count; k++)
            net->loaded[net->flows[i].links[k]] = 0;
}

static int64_t ends_ns(const struct sim_net *net, const struct sim_flow *f)
{
    double ns;

    if (is_over(f))
        return f->more ? SIM_NEVER : net->now_ns;
    if (isinf(f->rate))
        return net->now_ns + 1;
    if (f->rate <= 0)
        return SIM_NEVER;
    ns = ceil(f->left / f->rate * 1e9);
    return ns > 9e17 ? SIM_NEVER : net->now_ns + (int64_t)ns;
}

int64_t sim_net_settle(struct sim_net *net, int64_t now_ns)
{
    int64_t next = SIM_NEVER;

    roll(net, now_ns);
    if (net->dirty) {
        solve(net);
        check(net);
    }
    net->dirty = false;
    for (uint32_t i = 0; i < net->flow_count; i++) {
        int64_t at;

        if (!net->flows[i].used)
            continue;
        at = ends_ns(net, &net->flows[i]);
        if (at < next)
            next = at;
    }
    return next;
}

uint32_t sim_net_finished(struct sim_net *net, int64_t now_ns)
{
    roll(net, now_ns);
    for (uint32_t i = 0; i < net->flow_count; i++)
        if (net->flows[i].used && is_over(&net->flows[i]) &&
            !net->flows[i].more)
            return i;
    return SIM_NONE;
}
