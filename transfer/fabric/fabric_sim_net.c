/* Simulated networks: who shares one, addresses, ports and links. A network
 * lives from its first user to its last; its latency and rate are those of the
 * first, and all others must give the same. A link takes what it is given in
 * the order in which it is given and never gives time back: what a closed
 * connection had asked for is carried all the same. Leaves what the bytes mean
 * to fabric_sim.c. */
#include "fabric_sim.h"

#include <assert.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LINKS_MAX  4096u
#define PORT_FIRST 20000u
#define PORT_LAST  31999u

static pthread_mutex_t nets_lock = PTHREAD_MUTEX_INITIALIZER;
static LIST_HEAD(, sim_net) nets = LIST_HEAD_INITIALIZER(nets);

static struct sim_net *net_new(const char *name,
                               const struct bt_rail_config *rail)
{
    struct sim_net *net = calloc(1, sizeof(*net));

    if (net == NULL)
        return NULL;
    snprintf(net->name, sizeof(net->name), "%s", name);
    pthread_mutex_init(&net->lock, NULL);
    net->latency_ns = rail->sim_latency_ns;
    net->rate_bytes_per_s = rail->sim_rate_bytes_per_s;
    net->port_last = PORT_LAST;
    LIST_INIT(&net->listeners);
    LIST_INIT(&net->links);
    LIST_INSERT_HEAD(&nets, net, entry);
    return net;
}

static struct sim_net *net_find(const char *name)
{
    struct sim_net *net;

    LIST_FOREACH(net, &nets, entry)
    {
        if (strcmp(net->name, name) == 0)
            return net;
    }
    return NULL;
}

enum bt_status bt_sim_net_join(const struct bt_rail_config *rail,
                               struct sim_net **out)
{
    const char *name = rail->device != NULL ? rail->device : "";
    enum bt_status status = BT_OK;
    struct sim_net *net;

    if (strlen(name) >= BT_SIM_NAME_MAX || rail->sim_latency_ns < 0)
        return BT_INVALID;
    pthread_mutex_lock(&nets_lock);
    net = net_find(name);
    if (net == NULL)
        net = net_new(name, rail);
    if (net == NULL) {
        status = BT_NO_MEMORY;
    } else if (net->latency_ns != rail->sim_latency_ns ||
               net->rate_bytes_per_s != rail->sim_rate_bytes_per_s) {
        status = BT_INVALID;
    } else {
        net->users++;
        *out = net;
    }
    pthread_mutex_unlock(&nets_lock);
    return status;
}

void bt_sim_net_leave(struct sim_net *net)
{
    struct sim_link *link, *next;

    pthread_mutex_lock(&nets_lock);
    assert(net->users > 0);
    if (--net->users > 0) {
        pthread_mutex_unlock(&nets_lock);
        return;
    }
    LIST_REMOVE(net, entry);
    pthread_mutex_unlock(&nets_lock);
    for (link = LIST_FIRST(&net->links); link != NULL; link = next) {
        next = LIST_NEXT(link, entry);
        free(link);
    }
    pthread_mutex_destroy(&net->lock);
    free(net);
}

enum bt_status bt_sim_address(const struct sockaddr *address, socklen_t size,
                              struct sim_address *out, uint16_t *port_out)
{
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;

    if (size >= sizeof(v4) && address->sa_family == AF_INET) {
        memcpy(&v4, address, sizeof(v4));
        *out = (struct sim_address){.family = AF_INET};
        memcpy(out->bytes, &v4.sin_addr, sizeof(v4.sin_addr));
        *port_out = ntohs(v4.sin_port);
        return BT_OK;
    }
    if (size >= sizeof(v6) && address->sa_family == AF_INET6) {
        memcpy(&v6, address, sizeof(v6));
        *out = (struct sim_address){.family = AF_INET6};
        memcpy(out->bytes, &v6.sin6_addr, sizeof(v6.sin6_addr));
        *port_out = ntohs(v6.sin6_port);
        return BT_OK;
    }
    return BT_INVALID;
}

static bool is_any(const struct sim_address *a)
{
    static const unsigned char zero[sizeof(a->bytes)];

    return memcmp(a->bytes, zero, sizeof(zero)) == 0;
}

bool bt_sim_same(const struct sim_address *a, const struct sim_address *b)
{
    return a->family == b->family &&
           memcmp(a->bytes, b->bytes, sizeof(a->bytes)) == 0;
}

struct bt_tlisten *bt_sim_find(struct sim_net *net,
                               const struct sim_address *address, uint16_t port)
{
    struct bt_tlisten *l;

    LIST_FOREACH(l, &net->listeners, entry)
    {
        if (l->port == port && (is_any(address) || is_any(&l->address) ||
                                bt_sim_same(&l->address, address)))
            return l;
    }
    return NULL;
}

uint16_t bt_sim_port(struct sim_net *net, const struct sim_address *address)
{
    for (uint32_t tries = PORT_FIRST; tries <= PORT_LAST; tries++) {
        net->port_last = net->port_last == PORT_LAST
                             ? (uint16_t)PORT_FIRST
                             : (uint16_t)(net->port_last + 1);
        if (bt_sim_find(net, address, net->port_last) == NULL)
            return net->port_last;
    }
    return 0;
}

struct sim_link *bt_sim_link(struct sim_net *net,
                             const struct sim_address *from,
                             const struct sim_address *to)
{
    struct sim_link *link;

    LIST_FOREACH(link, &net->links, entry)
    {
        if (bt_sim_same(&link->from, from) && bt_sim_same(&link->to, to))
            return link;
    }
    link = net->link_count < LINKS_MAX ? calloc(1, sizeof(*link)) : NULL;
    if (link == NULL)
        return NULL;
    link->from = *from;
    link->to = *to;
    net->link_count++;
    LIST_INSERT_HEAD(&net->links, link, entry);
    return link;
}

int64_t bt_sim_carry(const struct sim_net *net, struct sim_link *link,
                     uint64_t bytes, int64_t ready_ns)
{
    uint64_t cost_ns;

    if (net->rate_bytes_per_s == 0)
        return ready_ns;
    assert(bytes <= BT_SIM_BYTES_MAX); /* so that the product fits */
    cost_ns = (bytes * 1000000000u + net->rate_bytes_per_s - 1) /
              net->rate_bytes_per_s;
    if (link->free_ns < ready_ns)
        link->free_ns = ready_ns;
    link->free_ns += (int64_t)cost_ns;
    return link->free_ns;
}
