/* What moving the KV of a pair costs. Decides which description of links holds
 * (shared links of the network, else the pair's own), what is left of the
 * transfer after the prefill, what it costs others; leaves the estimate of one
 * transfer to network_estimate.c and cost.c.
 *
 * Overlap (cost-models.md section 7): of X bytes X_h lie at p when it starts,
 * X_n come into being during the prefill T_c in K pieces. With T(x, t) the time
 * of x bytes sent at t, the last byte is there at the latest of
 *
 *   T(X, start)   T_c/K + T(X_n, start + T_c/K)   T_c + T(X_n/K, start + T_c)
 *
 * which on an idle link are the three lines of the reference. Each transfer is
 * estimated for the instant at which it would be sent, not for now.
 */
#include "network_impl.h"
#include "place_parts.h"
#include "topology_impl.h"

#include "baton/base/units.h"
#include <math.h>

/* A transfer this much longer than idle is no crowd yet. */
#define CROWD_SLACK_NS (250 * BT_NS_PER_MS)

static uint32_t slot_of(const struct bt_place_view *view, uint32_t w)
{
    return bt_worker_slot(view->workers[w].id);
}

bool place_path_known(const struct bt_place_view *view, uint32_t p, uint32_t d)
{
    const struct bt_topology *t;

    if (view->network == NULL)
        return false;
    t = bt_network_topology(view->network);
    return topology_placed(t, slot_of(view, p)) &&
           topology_placed(t, slot_of(view, d));
}

uint32_t place_node_of(const struct bt_place_view *view, uint32_t w)
{
    const struct bt_topology *t;

    if (view->network == NULL)
        return BT_LINK_NONE;
    t = bt_network_topology(view->network);
    return topology_placed(t, slot_of(view, w))
               ? t->workers[slot_of(view, w)].node
               : BT_LINK_NONE;
}

uint32_t place_rack_of(const struct bt_place_view *view, uint32_t w)
{
    const struct bt_topology *t;

    if (view->network == NULL)
        return BT_LINK_NONE;
    t = bt_network_topology(view->network);
    return topology_placed(t, slot_of(view, w))
               ? t->workers[slot_of(view, w)].rack
               : BT_LINK_NONE;
}

/* The pair's own link, NULL where the table of the view has none. */
static const struct bt_place_link *link_of(const struct bt_place_view *view,
                                           uint32_t p, uint32_t d)
{
    if (view->links == NULL)
        return NULL;
    if (view->link_row != NULL &&
        ((view->workers[p].roles & BT_ROLE_PREFILL) == 0 ||
         (view->workers[d].roles & BT_ROLE_DECODE) == 0))
        return NULL;
    return bt_place_link_of(view, p, d);
}

static bool is_usable(const struct bt_link_model *m)
{
    return m != NULL && m->rate_bytes_per_s > 0 && m->setup_ns >= 0 &&
           m->setup_ns < BT_COST_INFINITE && m->per_descriptor_ns >= 0;
}

static bool is_up(const struct bt_place_view *view, uint32_t p, uint32_t d)
{
    struct topology_route route;

    topology_route(bt_network_topology(view->network), slot_of(view, p),
                   slot_of(view, d), &route);
    for (uint32_t i = 0; i < route.count; i++)
        if (bt_network_rate(view->network, route.links[i]) == 0)
            return false;
    return true;
}

/* Closed: the pair's own link is there and dead. With bounds, none is. */
bool place_is_closed(const struct bt_place_view *view, uint32_t p, uint32_t d)
{
    const struct bt_place_link *link;

    if (view->bounds != NULL)
        return false;
    link = link_of(view, p, d);
    return link != NULL && link->model != NULL &&
           link->model->rate_bytes_per_s == 0;
}

bool place_link_ok(const struct bt_place_view *view, uint32_t p, uint32_t d)
{
    const struct bt_place_link *link;

    if (p == BT_PLACE_NONE || p == d)
        return true;
    if (place_path_known(view, p, d))
        return !place_is_closed(view, p, d) && is_up(view, p, d);
    link = link_of(view, p, d);
    if (link == NULL)
        return false;
    return view->bounds != NULL || is_usable(link->model);
}

int64_t bt_place_transfer_ns(const struct bt_place_view *view, uint32_t p,
                             uint32_t d, int64_t at_ns, uint64_t bytes,
                             uint64_t descriptors)
{
    const struct bt_place_link *link;

    if (p == d || bytes == 0)
        return 0;
    if (at_ns < view->now_ns)
        at_ns = view->now_ns;
    if (place_path_known(view, p, d))
        return place_is_closed(view, p, d)
                   ? BT_COST_INFINITE
                   : bt_network_transfer_ns(view->network, view->now_ns, at_ns,
                                            slot_of(view, p), slot_of(view, d),
                                            bytes, descriptors);
    link = link_of(view, p, d);
    if (link == NULL || !is_usable(link->model))
        return BT_COST_INFINITE;
    return bt_transfer_ns(link->model, bytes, descriptors, link->left,
                          link->flows);
}

/* ---- overlap with the prefill ---- */

/* Bytes of X that p computes: what neither p held before nor d holds. */
static uint64_t new_bytes(const struct bt_place_view *view,
                          const struct place_p *pt, const struct place_d *dt)
{
    uint32_t blk = view->block_tokens > 0 ? view->block_tokens : 1;
    uint32_t held = view->mode->whole_prompt ? 0 : dt->overlap / blk * blk;
    uint64_t rho = view->mode->replication > 1 ? view->mode->replication : 1;
    uint64_t per_token, old;

    if (pt->overlap <= held)
        return dt->kv_bytes;
    if (__builtin_mul_overflow(view->kv_bytes_per_token, rho, &per_token) ||
        __builtin_mul_overflow(pt->overlap - held, per_token, &old))
        return 0;
    return dt->kv_bytes > old ? dt->kv_bytes - old : 0;
}

/* descriptors * part / bytes, rounded up; part <= bytes, bytes > 0. */
static uint64_t share(uint64_t descriptors, uint64_t part, uint64_t bytes)
{
    return (uint64_t)ceil((double)descriptors * ((double)part / (double)bytes));
}

static int64_t send_ns(const struct bt_place_view *view, uint32_t p, uint32_t d,
                       const struct place_d *dt, int64_t from_now_ns,
                       uint64_t bytes)
{
    if (from_now_ns >= BT_COST_INFINITE)
        return BT_COST_INFINITE;
    if (bytes == dt->kv_bytes)
        return bt_place_transfer_ns(view, p, d, view->now_ns + from_now_ns,
                                    bytes, dt->descriptors);
    return bt_place_transfer_ns(view, p, d, view->now_ns + from_now_ns, bytes,
                                share(dt->descriptors, bytes, dt->kv_bytes));
}

static int64_t overlapped(const struct bt_place_view *view, uint32_t p,
                          uint32_t d, const struct place_p *pt,
                          const struct place_d *dt)
{
    uint32_t pieces = view->mode->pieces > 0 ? view->mode->pieces : 1;
    uint64_t fresh = new_bytes(view, pt, dt);
    int64_t start = place_start(pt, dt), prefill = pt->prefill_ns;
    int64_t first = prefill / pieces, end;

    end = send_ns(view, p, d, dt, start, dt->kv_bytes);
    end = place_max(end,
                    place_add(first, send_ns(view, p, d, dt,
                                             place_add(start, first), fresh)));
    end = place_max(
        end,
        place_add(prefill, send_ns(view, p, d, dt, place_add(start, prefill),
                                   fresh / pieces + (fresh % pieces != 0))));
    if (end >= BT_COST_INFINITE)
        return BT_COST_INFINITE;
    return end > prefill ? end - prefill : 0;
}

int64_t place_exposed(const struct bt_place_view *view, uint32_t p, uint32_t d,
                      const struct place_p *pt, const struct place_d *dt)
{
    int64_t end = place_add(place_start(pt, dt), pt->prefill_ns);

    if (end >= BT_COST_INFINITE)
        return BT_COST_INFINITE;
    if (dt->kv_bytes == 0)
        return place_link_ok(view, p, d) ? 0 : BT_COST_INFINITE;
    if (view->mode == NULL || view->mode->overlap == BT_OVERLAP_NONE)
        return send_ns(view, p, d, dt, end, dt->kv_bytes);
    return overlapped(view, p, d, pt, dt);
}

/* ---- prices of the pair (section 14) ---- */

/* Seconds that own flows lose to the new one: sum min(r_i, s) / C. */
static int64_t externality(const struct bt_place_view *view, uint32_t p,
                           uint32_t d, int64_t at_ns, uint64_t bytes)
{
    const struct bt_place_link *link;
    struct bt_link_model bare;

    if (place_path_known(view, p, d))
        return bt_network_externality_ns(view->network, at_ns, slot_of(view, p),
                                         slot_of(view, d), bytes);
    link = link_of(view, p, d);
    if (link == NULL || link->flows == 0)
        return 0;
    bare = (struct bt_link_model){.rate_bytes_per_s =
                                      link->model->rate_bytes_per_s};
    return bt_transfer_ns(&bare, bytes, 0, link->left, link->flows) -
           bt_transfer_ns(&bare, bytes, 0, NULL, 0);
}

/* Requests that wait for memory at d: as it says, or as the batch limit. */
static uint32_t waiting_at(const struct bt_place_worker *w)
{
    uint32_t over = 0;

    if (w->decode_slots > 0 && w->decode_requests > w->decode_slots)
        over = w->decode_requests - w->decode_slots;
    return over > w->seen_waiting ? over : w->seen_waiting;
}

static double hold_ns(const struct bt_place_view *view, uint32_t d,
                      const struct bt_place_terms *t)
{
    const struct bt_place_worker *w = &view->workers[d];
    double pool =
        (double)w->kv_capacity_tokens * (double)view->kv_bytes_per_token;

    if (t->slot_ns <= t->arrival_ns || !(pool > 0))
        return 0;
    return (double)waiting_at(w) * (double)t->kv_bytes / pool *
           (double)(t->slot_ns - t->arrival_ns);
}

/* The flows that will be there at the planned send lose, not those of now. */
static int64_t send_at(const struct bt_place_view *view,
                       const struct bt_place_terms *t)
{
    int64_t after = t->arrival_ns - t->transfer_ns;

    return view->now_ns + (after > 0 ? after : 0);
}

int64_t place_pair_price(const struct bt_place_view *view, uint32_t p,
                         uint32_t d, const struct bt_place_terms *t)
{
    const struct bt_place_prices *prices = view->prices;
    double ns = 0;

    if (prices->link > 0 && p != d && t->kv_bytes > 0)
        ns += prices->link *
              (double)externality(view, p, d, send_at(view, t), t->kv_bytes);
    if (prices->hbm > 0)
        ns += prices->hbm * hold_ns(view, d, t);
    if (!(ns < (double)BT_COST_INFINITE))
        return BT_COST_INFINITE;
    return (int64_t)(ns + 0.5);
}

/* ---- lower bounds for the search ---- */

/* Of an idle link with its background; 0: unlimited or down. */
static double ns_per_byte(const struct bt_network *network, uint32_t link)
{
    double ns = link == BT_LINK_NONE ? 0 : network->links[link].ns_per_byte;

    return isfinite(ns) ? ns : 0;
}

static void take_class(struct place_fabric *f, bool nvlink,
                       enum bt_path_class path_class)
{
    const struct bt_topology_class *c = &f->topology->classes[path_class];
    int64_t setup_ns = f->network->setup_ns[path_class];

    if (setup_ns < f->setup_ns[nvlink])
        f->setup_ns[nvlink] = setup_ns;
    if (c->per_descriptor_ns < f->descriptor_ns[nvlink])
        f->descriptor_ns[nvlink] = c->per_descriptor_ns;
}

void place_fabric_look(const struct bt_place_view *view,
                       struct place_fabric *out)
{
    static const enum bt_path_class over_nic[] = {
        BT_PATH_NODE, BT_PATH_RACK, BT_PATH_POD, BT_PATH_CROSS_POD};

    *out = (struct place_fabric){.network = view->network};
    if (view->network == NULL)
        return;
    out->topology = bt_network_topology(view->network);
    out->up = view->network->down == 0;
    for (int nvlink = 0; nvlink < 2; nvlink++) {
        out->setup_ns[nvlink] = out->descriptor_ns[nvlink] = BT_COST_INFINITE;
        for (size_t i = 0; i < sizeof(over_nic) / sizeof(over_nic[0]); i++)
            take_class(out, nvlink, over_nic[i]);
    }
    take_class(out, true, BT_PATH_NVLINK);
}

struct place_port place_port_of(const struct place_fabric *fabric,
                                const struct bt_place_view *view, uint32_t w,
                                bool in)
{
    struct place_port port = {.placed = false};
    const struct topology_worker *x;
    double nvlink;

    if (!topology_placed(fabric->topology, slot_of(view, w)))
        return port;
    x = &fabric->topology->workers[slot_of(view, w)];
    port.placed = true;
    port.nvlink = x->nvlink_peers;
    port.ns_per_byte =
        ns_per_byte(fabric->network, in ? x->nic_in : x->nic_out);
    if (!port.nvlink)
        return port;
    nvlink = ns_per_byte(fabric->network, in ? x->nvlink_in : x->nvlink_out);
    if (nvlink < port.ns_per_byte)
        port.ns_per_byte = nvlink;
    return port;
}

int64_t place_port_fixed(const struct place_fabric *fabric,
                         const struct place_port *port, uint64_t descriptors)
{
    uint64_t posting;

    if (__builtin_mul_overflow(descriptors,
                               (uint64_t)fabric->descriptor_ns[port->nvlink],
                               &posting) ||
        posting >= (uint64_t)BT_COST_INFINITE)
        return BT_COST_INFINITE;
    return place_add(fabric->setup_ns[port->nvlink], (int64_t)posting);
}

/* A product of doubles, rounded down far enough. */
int64_t place_port_least(const struct place_fabric *fabric,
                         const struct place_port *port, uint64_t bytes,
                         uint64_t descriptors)
{
    double ns;

    if (!port->placed || bytes == 0)
        return 0;
    ns = (double)bytes * port->ns_per_byte * (1 - 1e-12) - 2;
    if (!(ns < (double)BT_COST_INFINITE))
        return BT_COST_INFINITE;
    return place_add(ns > 0 ? (int64_t)ns : 0,
                     place_port_fixed(fabric, port, descriptors));
}

/* ---- the idle path, and whether it is crowded ---- */

/* No link in the way: memory. */
#define RATE_FREE 1000000000000000ULL

static bool link_from_topology(const struct bt_place_view *view, uint32_t a,
                               uint32_t b, struct bt_link_model *out)
{
    const struct bt_topology *t =
        view->network == NULL ? NULL : bt_network_topology(view->network);
    struct bt_path path;

    if (t == NULL)
        return false;
    bt_topology_path(t, slot_of(view, a), slot_of(view, b), &path);
    if (path.path_class == BT_PATH_UNKNOWN)
        return false;
    *out = (struct bt_link_model){
        .rate_bytes_per_s =
            path.rate_bytes_per_s > 0 ? path.rate_bytes_per_s : RATE_FREE,
        .setup_ns = path.setup_ns,
        .per_descriptor_ns = path.per_descriptor_ns};
    return true;
}

bool place_idle_link(const struct bt_place_view *view, uint32_t a, uint32_t b,
                     struct bt_link_model *out)
{
    const struct bt_link_model *m;

    if (link_from_topology(view, a, b, out))
        return true;
    /* The table of links may leave out what no role allows. */
    if (view->links == NULL ||
        (view->link_row != NULL &&
         ((view->workers[a].roles & BT_ROLE_PREFILL) == 0 ||
          (view->workers[b].roles & BT_ROLE_DECODE) == 0)))
        return false;
    m = bt_place_link_of(view, a, b)->model;
    if (m == NULL || m->rate_bytes_per_s == 0)
        return false;
    *out = *m;
    return true;
}

int64_t place_idle_ns(const struct bt_place_view *view, uint32_t a, uint32_t b,
                      uint64_t bytes, uint64_t descriptors)
{
    struct bt_link_model m;

    if (a == b || bytes == 0)
        return 0;
    if (!place_idle_link(view, a, b, &m))
        return BT_COST_INFINITE;
    return bt_transfer_ns(&m, bytes, descriptors, NULL, 0);
}

bool place_is_crowded(const struct bt_place_view *view,
                      const struct bt_place_candidate *c, double times)
{
    int64_t idle;

    if (times <= 0 || c->p == BT_PLACE_NONE || c->p == c->d ||
        c->terms.kv_bytes == 0)
        return false;
    idle = place_idle_ns(view, c->p, c->d, c->terms.kv_bytes, 0);
    return (double)c->terms.transfer_ns >
           times * (double)idle + (double)CROWD_SLACK_NS;
}
