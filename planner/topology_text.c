/* Topology in words: names of classes, kinds and links, and the remarks of a
 * lint: oversubscription, rails that differ from their peers, workers nobody
 * placed. Decides nothing that a path depends on.
 *
 * Invariant: remarks come in a fixed order (racks, pods, nodes, workers), so
 * counting to the i-th gives the same one each time.
 */
#include "topology_impl.h"

#include <assert.h>
#include <stdio.h>

static const char *const class_names[] = {
#define X(code, name) name,
    BT_PATH_CLASS_LIST(X)
#undef X
};

static const char *const kind_names[] = {
#define X(code, name) name,
    BT_LINK_KIND_LIST(X)
#undef X
};

const char *bt_path_class_name(enum bt_path_class path_class)
{
    assert((unsigned int)path_class < BT_PATH_CLASS_COUNT);
    return class_names[path_class];
}

const char *bt_link_kind_name(enum bt_link_kind kind)
{
    assert((unsigned int)kind < BT_LINK_KIND_COUNT);
    return kind_names[kind];
}

/* ---- names ---- */

struct owner_name {
    char text[72];
};

static struct owner_name name_of(const char *given, const char *what,
                                 uint32_t index)
{
    struct owner_name name;

    if (given != NULL)
        (void)snprintf(name.text, sizeof(name.text), "%s", given);
    else
        (void)snprintf(name.text, sizeof(name.text), "%s%u", what, index);
    return name;
}

static struct owner_name name_of_rack(const struct bt_topology *t, uint32_t i)
{
    return name_of(t->racks[i].name, "rack", i);
}

static struct owner_name name_of_pod(const struct bt_topology *t, uint32_t i)
{
    return name_of(t->pods[i].name, "pod", i);
}

static struct owner_name name_of_node(const struct bt_topology *t, uint32_t i)
{
    return name_of(t->nodes[i].name, "node", i);
}

static struct owner_name name_of_worker(const struct bt_topology *t, uint32_t i)
{
    return name_of(t->workers[i].name, "w", i);
}

static struct owner_name owner_of(const struct bt_topology *t,
                                  const struct bt_topology_link *link)
{
    if (link->owner_is_worker)
        return name_of_worker(t, link->owner);
    switch (link->kind) {
    case BT_LINK_RACK_UP:
    case BT_LINK_RACK_DOWN:
        return name_of_rack(t, link->owner);
    case BT_LINK_POD_UP:
    case BT_LINK_POD_DOWN:
        return name_of_pod(t, link->owner);
    case BT_LINK_NIC_OUT:
    case BT_LINK_NIC_IN:
    case BT_LINK_NVLINK_OUT:
    case BT_LINK_NVLINK_IN:
    case BT_LINK_KIND_COUNT:
        break;
    }
    return name_of_node(t, link->owner);
}

/* "rack_up" of rack1 is "rack1.up". */
static const char *port_of(enum bt_link_kind kind)
{
    switch (kind) {
    case BT_LINK_RACK_UP:
    case BT_LINK_POD_UP:
        return "up";
    case BT_LINK_RACK_DOWN:
    case BT_LINK_POD_DOWN:
        return "down";
    case BT_LINK_NIC_OUT:
    case BT_LINK_NIC_IN:
    case BT_LINK_NVLINK_OUT:
    case BT_LINK_NVLINK_IN:
    case BT_LINK_KIND_COUNT:
        break;
    }
    return bt_link_kind_name(kind);
}

void bt_topology_link_name(const struct bt_topology *t, uint32_t link,
                           char *out, size_t size)
{
    const struct bt_topology_link *l = bt_topology_link_at(t, link);

    (void)snprintf(out, size, "%s.%s", owner_of(t, l).text, port_of(l->kind));
}

/* ---- remarks ---- */

struct remarks {
    const struct bt_topology *t;
    size_t skip; /* remarks before the one that is wanted */
    char *out;
    size_t size;
};

static bool wanted(struct remarks *r)
{
    return r->skip-- == 0;
}

/* True when this is the wanted one, which is then written. */
#define REMARK(r, ...)                                                         \
    (wanted(r) && ((void)snprintf((r)->out, (r)->size, __VA_ARGS__), true))

static double rate_of(const struct bt_topology *t, uint32_t link)
{
    return link == BT_LINK_NONE ? 0 : (double)t->links[link].rate_bytes_per_s;
}

/* A ratio that prints as 1.0 is none. */
static bool oversubscribed(double below, double uplink)
{
    return uplink > 0 && below >= 1.05 * uplink;
}

static bool group_remarks(struct remarks *r, const struct topology_group *g,
                          const char *name, const char *child)
{
    double up = rate_of(r->t, g->up), down = rate_of(r->t, g->down);

    if (g->children == 0)
        return REMARK(r, "%s has no %s", name, child);
    if (oversubscribed(g->out_sum, up) &&
        REMARK(r, "%s is oversubscribed %.1f:1 upwards", name, g->out_sum / up))
        return true;
    if (oversubscribed(g->in_sum, down) &&
        REMARK(r, "%s is oversubscribed %.1f:1 downwards", name,
               g->in_sum / down))
        return true;
    return up > 0 && g->out_min > up &&
           REMARK(r, "uplink of %s is slower than each of its NICs", name);
}

static bool all_group_remarks(struct remarks *r)
{
    for (uint32_t i = 0; i < r->t->rack_count; i++) {
        if (group_remarks(r, &r->t->racks[i], name_of_rack(r->t, i).text,
                          "node"))
            return true;
    }
    for (uint32_t i = 0; i < r->t->pod_count; i++) {
        if (group_remarks(r, &r->t->pods[i], name_of_pod(r->t, i).text, "rack"))
            return true;
    }
    return false;
}

/* What most nodes have; the larger of two as common. Linear in the nodes for
 * each distinct number, of which at most 16 are looked at. */
static uint32_t usual_rails(const struct bt_topology *t)
{
    uint32_t best = 0, best_count = 0, below = UINT32_MAX;

    for (int turn = 0; turn < 16; turn++) {
        uint32_t rails = 0, count = 0;

        for (uint32_t i = 0; i < t->node_count; i++) {
            if (t->nodes[i].rails < below && t->nodes[i].rails > rails)
                rails = t->nodes[i].rails;
        }
        for (uint32_t i = 0; i < t->node_count; i++)
            count += t->nodes[i].rails == rails;
        if (rails == 0)
            break;
        if (count > best_count) {
            best = rails;
            best_count = count;
        }
        below = rails;
    }
    return best;
}

static bool node_remarks(struct remarks *r, uint32_t i, uint32_t usual,
                         uint64_t fastest)
{
    const struct topology_node *n = &r->t->nodes[i];
    struct owner_name name = name_of_node(r->t, i);

    if (n->workers == 0 && REMARK(r, "node %s has no worker", name.text))
        return true;
    if (n->rails != 0 && n->rails < usual &&
        REMARK(r, "node %s has %u rail%s, its peers have %u", name.text,
               n->rails, n->rails == 1 ? "" : "s", usual))
        return true;
    return n->rail_bytes_per_s != 0 && n->rail_bytes_per_s < fastest &&
           REMARK(r, "rails of node %s are %.1f times slower than the fastest",
                  name.text, (double)fastest / (double)n->rail_bytes_per_s);
}

static bool all_node_remarks(struct remarks *r)
{
    uint32_t usual = usual_rails(r->t);
    uint64_t fastest = 0;

    for (uint32_t i = 0; i < r->t->node_count; i++) {
        if (r->t->nodes[i].rail_bytes_per_s > fastest)
            fastest = r->t->nodes[i].rail_bytes_per_s;
    }
    for (uint32_t i = 0; i < r->t->node_count; i++) {
        if (node_remarks(r, i, usual, fastest))
            return true;
    }
    return false;
}

static bool all_worker_remarks(struct remarks *r)
{
    for (uint32_t i = 0; i < r->t->worker_count; i++) {
        const struct topology_worker *w = &r->t->workers[i];
        struct owner_name name = name_of_worker(r->t, i);
        double out, in;

        if (w->node == BT_LINK_NONE) {
            if (REMARK(r, "%s is on no node: pair links are used", name.text))
                return true;
            continue;
        }
        out = rate_of(r->t, w->nic_out);
        in = rate_of(r->t, w->nic_in);
        if (in > 0 && out > 0 && (oversubscribed(in, out) || in < out / 1.05) &&
            REMARK(r, "%s sends at %.1f and receives at %.1f GB/s", name.text,
                   out / 1e9, in / 1e9))
            return true;
        if (w->nic_out == BT_LINK_NONE && w->nic_in == BT_LINK_NONE &&
            REMARK(r, "%s has no NIC rate: its NIC limits nothing", name.text))
            return true;
    }
    return false;
}

bool bt_topology_warning(const struct bt_topology *t, size_t i, char *out,
                         size_t size)
{
    struct remarks r = {.t = t, .skip = i, .out = out, .size = size};

    return all_group_remarks(&r) || all_node_remarks(&r) ||
           all_worker_remarks(&r);
}
