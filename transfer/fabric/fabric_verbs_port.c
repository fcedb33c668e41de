/* What a verbs rail stands on: the device and port (by name, by address, or the
 * first that is up), the GID by index or by kind, partition and MTU, and the
 * events of that port. A configured thing that is not there is an error that
 * names the port; nothing else is taken in its place. Leaves connections to
 * fabric_verbs_conn.c. Invariant: everything goes through a device context of
 * our own, not rdma_cm's shared one, so that two transports of one process do
 * not take each other's events. */
#include "fabric_verbs.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GIDS_READ   256
#define EVENTS_MAX  64 /* per turn */
#define READS_MAX   16u
#define PORTS_MAX   16
#define DEVICES_MAX 64

struct problem {
    char *out;
    size_t size;
};

static enum bt_status __attribute__((format(printf, 3, 4)))
trouble(const struct problem *p, enum bt_status status, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    (void)vsnprintf(p->out, p->size, format, args);
    va_end(args);
    return status;
}

enum ibv_mtu bt_verbs_mtu_code(uint16_t bytes)
{
    enum ibv_mtu code = IBV_MTU_256;

    while (code < IBV_MTU_4096 && bt_verbs_mtu_bytes(code) < bytes)
        code++;
    return code;
}

uint16_t bt_verbs_mtu_bytes(enum ibv_mtu code)
{
    return (uint16_t)(128u << code);
}

/* ---- which device and port ---- */

static bool port_is_up(struct ibv_context *context, uint8_t number)
{
    struct ibv_port_attr attr;

    return ibv_query_port(context, number, &attr) == 0 &&
           attr.state == IBV_PORT_ACTIVE;
}

/* Opens the named device; port->number 0: its first port that is up, or 1. */
static enum bt_status open_device(struct bt_verbs_port *port,
                                  struct ibv_device *device,
                                  const struct problem *p)
{
    const char *name = ibv_get_device_name(device);

    if (device->transport_type != IBV_TRANSPORT_IB)
        return trouble(p, BT_UNSUPPORTED,
                       "verbs: %s is not InfiniBand or RoCE (iWARP)", name);
    port->context = ibv_open_device(device);
    if (port->context == NULL)
        return trouble(p, errno == EACCES ? BT_UNSUPPORTED : BT_IO,
                       "verbs: %s: open: %s", name, strerror(errno));
    snprintf(port->device, sizeof(port->device), "%s", name);
    if (ibv_query_device(port->context, &port->attr) != 0)
        return trouble(p, BT_IO, "verbs: %s: query failed", name);
    for (uint8_t i = 1;
         port->number == 0 && i <= port->attr.phys_port_cnt && i <= PORTS_MAX;
         i++) {
        if (port_is_up(port->context, i))
            port->number = i;
    }
    if (port->number == 0)
        port->number = 1;
    if (port->number > port->attr.phys_port_cnt)
        return trouble(p, BT_UNSUPPORTED, "verbs: %s has no port %u", name,
                       port->number);
    return BT_OK;
}

static struct ibv_device *find_device(struct ibv_device **list,
                                      const char *name)
{
    for (int i = 0; i < DEVICES_MAX && list[i] != NULL; i++) {
        if (strcmp(ibv_get_device_name(list[i]), name) == 0)
            return list[i];
    }
    return NULL;
}

static struct ibv_device *find_up(struct ibv_device **list)
{
    for (int i = 0; i < DEVICES_MAX && list[i] != NULL; i++) {
        struct ibv_context *context = ibv_open_device(list[i]);
        struct ibv_device_attr attr;
        bool is_up = false;

        if (context == NULL)
            continue;
        if (ibv_query_device(context, &attr) == 0) {
            for (uint8_t n = 1; n <= attr.phys_port_cnt && n <= PORTS_MAX; n++)
                is_up = is_up || port_is_up(context, n);
        }
        ibv_close_device(context);
        if (is_up)
            return list[i];
    }
    return list[0];
}

/* "mlx5_0" or "mlx5_0:1" -> name and port, 0: not given. */
static bool split_name(const char *text, char *name_out, size_t size,
                       uint8_t *number_out)
{
    const char *colon = strchr(text, ':');
    size_t bytes = colon != NULL ? (size_t)(colon - text) : strlen(text);
    unsigned long number = 0;
    char *end;

    if (bytes == 0 || bytes >= size)
        return false;
    memcpy(name_out, text, bytes);
    name_out[bytes] = '\0';
    if (colon != NULL) {
        number = strtoul(colon + 1, &end, 10);
        if (*end != '\0' || number == 0 || number > PORTS_MAX)
            return false;
    }
    *number_out = (uint8_t)number;
    return true;
}

/* Which device:port owns the rail's address? rdma_cm knows. */
static enum bt_status port_of_address(struct bt_verbs_port *port,
                                      const char *text, char *name_out,
                                      const struct problem *p)
{
    struct rdma_cm_id *id = NULL;
    enum bt_status status = BT_OK;
    socklen_t size;

    if (bt_fabric_address(text, 0, &port->address, &size) != BT_OK)
        return trouble(p, BT_INVALID, "verbs: %s is not an address", text);
    if (rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP) != 0)
        return trouble(p, BT_UNSUPPORTED, "verbs: rdma_cm: %s",
                       strerror(errno));
    if (rdma_bind_addr(id, (struct sockaddr *)&port->address) != 0 ||
        id->verbs == NULL) {
        status = trouble(p, BT_UNSUPPORTED,
                         "verbs: no RDMA port here has the address %s", text);
    } else {
        snprintf(name_out, sizeof(port->device), "%s",
                 ibv_get_device_name(id->verbs->device));
        port->number = id->port_num;
        port->has_address = true;
    }
    rdma_destroy_id(id);
    return status;
}

static enum bt_status choose(struct bt_verbs_port *port,
                             const struct bt_rail_config *rail,
                             struct ibv_device **list, const struct problem *p)
{
    char name[sizeof(port->device)] = "", owner[sizeof(port->device)];
    struct ibv_device *device;
    enum bt_status status;
    uint8_t number = 0;

    if (rail->device != NULL &&
        !split_name(rail->device, name, sizeof(name), &number))
        return trouble(p, BT_INVALID, "verbs: %s is not DEVICE or DEVICE:PORT",
                       rail->device);
    if (rail->device != NULL && find_device(list, name) == NULL)
        return trouble(p, BT_UNSUPPORTED, "verbs: no device %s here", name);
    if (rail->address != NULL) {
        status = port_of_address(port, rail->address, owner, p);
        if (status != BT_OK)
            return status;
        if (rail->device != NULL && (strcmp(owner, name) != 0 ||
                                     (number != 0 && number != port->number)))
            return trouble(p, BT_INVALID, "verbs: %s belongs to %s:%u, not %s",
                           rail->address, owner, port->number, rail->device);
        snprintf(name, sizeof(name), "%s", owner);
        number = port->number;
    }
    port->number = number;
    device = name[0] != '\0' ? find_device(list, name) : find_up(list);
    if (device == NULL)
        return trouble(p, BT_UNSUPPORTED, "verbs: no device %s here", name);
    return open_device(port, device, p);
}

/* ---- GID, partition, MTU ---- */

static bool is_mapped(const uint8_t *raw)
{
    static const uint8_t head[12] = {[10] = 0xFF, [11] = 0xFF};

    return memcmp(raw, head, sizeof(head)) == 0;
}

static enum bt_gid_kind kind_of(const struct ibv_gid_entry *gid)
{
    if (gid->gid_type == IBV_GID_TYPE_IB)
        return BT_GID_IB;
    if (gid->gid.raw[0] == 0xFE && (gid->gid.raw[1] & 0xC0) == 0x80)
        return BT_GID_LINK_LOCAL;
    if (gid->gid_type == IBV_GID_TYPE_ROCE_V1)
        return BT_GID_ROCE_V1;
    return is_mapped(gid->gid.raw) ? BT_GID_ROCE_V2_IPV4 : BT_GID_ROCE_V2_IPV6;
}

static void read_gids(struct bt_verbs_port *port)
{
    struct ibv_gid_entry *all = calloc(GIDS_READ, sizeof(*all));
    struct bt_nic *nic = &port->nic;
    ssize_t count =
        all != NULL ? ibv_query_gid_table(port->context, all, GIDS_READ, 0) : 0;

    for (ssize_t i = 0; i < count && nic->gid_count < BT_NODE_GIDS_MAX; i++) {
        struct bt_gid *gid = &nic->gids[nic->gid_count];

        if (all[i].port_num != port->number || all[i].gid_index > UINT8_MAX)
            continue;
        memcpy(gid->raw, all[i].gid.raw, sizeof(gid->raw));
        gid->kind = kind_of(&all[i]);
        gid->index = (uint8_t)all[i].gid_index;
        nic->gid_count++;
    }
    free(all);
}

static void raw_of_address(const struct sockaddr_storage *address,
                           uint8_t *raw_out)
{
    const struct sockaddr_in *v4 = (const struct sockaddr_in *)address;
    const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)address;

    memset(raw_out, 0, 16);
    if (address->ss_family == AF_INET6) {
        memcpy(raw_out, &v6->sin6_addr, 16);
        return;
    }
    raw_out[10] = raw_out[11] = 0xFF;
    memcpy(raw_out + 12, &v4->sin_addr, 4);
}

/* The GID that is the rail's address, version 2 before 1. */
static int gid_of_address(const struct bt_verbs_port *port)
{
    uint8_t raw[16];
    int best = -1;

    raw_of_address(&port->address, raw);
    for (uint32_t i = 0; i < port->nic.gid_count; i++) {
        const struct bt_gid *gid = &port->nic.gids[i];

        if (memcmp(gid->raw, raw, sizeof(raw)) == 0 &&
            (best < 0 || gid->kind != BT_GID_ROCE_V1))
            best = gid->index;
    }
    return best;
}

static const struct bt_gid *gid_at(const struct bt_nic *nic, int index)
{
    for (uint32_t i = 0; i < nic->gid_count; i++) {
        if (nic->gids[i].index == index)
            return &nic->gids[i];
    }
    return NULL;
}

/* A RoCE GID is an address: connections bind to it. */
static void address_of_gid(struct bt_verbs_port *port, const struct bt_gid *gid)
{
    struct sockaddr_in *v4 = (struct sockaddr_in *)&port->address;
    struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)&port->address;
    struct ibv_gid_entry entry = {0};

    if (port->has_address || gid->kind == BT_GID_IB)
        return;
    port->has_address = true;
    if (is_mapped(gid->raw)) {
        v4->sin_family = AF_INET;
        memcpy(&v4->sin_addr, gid->raw + 12, 4);
        return;
    }
    v6->sin6_family = AF_INET6;
    memcpy(&v6->sin6_addr, gid->raw, 16);
    if (gid->kind == BT_GID_LINK_LOCAL &&
        ibv_query_gid_ex(port->context, port->number, gid->index, &entry, 0) ==
            0)
        v6->sin6_scope_id = entry.ndev_ifindex;
}

/* "0".."255". */
static bool index_of_text(const char *text, int *out)
{
    int index = 0;
    size_t n = 0;

    for (; text[n] >= '0' && text[n] <= '9' && n < 3; n++)
        index = 10 * index + text[n] - '0';
    if (n == 0 || text[n] != '\0' || index > UINT8_MAX)
        return false;
    *out = index;
    return true;
}

static enum bt_status choose_gid(struct bt_verbs_port *port,
                                 const struct bt_rail_config *rail,
                                 const struct problem *p)
{
    const struct bt_gid *gid;
    int by_address;

    read_gids(port);
    by_address = port->has_address ? gid_of_address(port) : -1;
    port->is_gid_fixed = rail->gid != NULL;
    port->gid_index =
        port->has_address ? by_address : bt_gid_choose(&port->nic);
    if (rail->gid != NULL && !index_of_text(rail->gid, &port->gid_index))
        return trouble(p, BT_INVALID, "verbs: GID \"%s\" is not an index",
                       rail->gid);
    gid = gid_at(&port->nic, port->gid_index);
    if (gid == NULL && port->nic.link == BT_NIC_INFINIBAND &&
        rail->gid == NULL) {
        port->gid_index = -1; /* within a subnet LIDs do */
        return BT_OK;
    }
    if (gid == NULL)
        return trouble(p, BT_INVALID, "verbs: %s:%u has no GID %d",
                       port->device, port->number, port->gid_index);
    if (rail->gid != NULL && by_address >= 0 &&
        memcmp(gid->raw, gid_at(&port->nic, by_address)->raw, 16) != 0)
        return trouble(p, BT_INVALID, "verbs: GID %d of %s:%u is not %s",
                       port->gid_index, port->device, port->number,
                       rail->address);
    memcpy(port->gid.raw, gid->raw, sizeof(gid->raw));
    address_of_gid(port, gid);
    return BT_OK;
}

/* A key given without its top bit is met by either kind of member. */
static enum bt_status choose_partition(struct bt_verbs_port *port,
                                       uint16_t wanted, const struct problem *p)
{
    bool is_limited = false;

    for (uint32_t i = 0; i < port->nic.pkey_count; i++) {
        uint16_t have = port->nic.pkeys[i];

        if (wanted == 0 || have == wanted ||
            (wanted < 0x8000 && (have & 0x7FFF) == wanted)) {
            port->pkey = have;
            return BT_OK;
        }
        is_limited = is_limited || (have & 0x7FFF) == (wanted & 0x7FFF);
    }
    return trouble(p, BT_INVALID, "verbs: %s:%u %s partition 0x%04x",
                   port->device, port->number,
                   is_limited ? "is only a limited member of" : "has not the",
                   wanted);
}

static enum bt_status choose_mtu(struct bt_verbs_port *port, uint16_t wanted,
                                 const struct problem *p)
{
    uint16_t have = (uint16_t)port->nic.mtu;

    if (wanted != 0 && bt_verbs_mtu_bytes(bt_verbs_mtu_code(wanted)) != wanted)
        return trouble(p, BT_INVALID,
                       "verbs: MTU %u is not 256, 512, 1024, 2048 or 4096",
                       wanted);
    if (wanted > have)
        return trouble(p, BT_INVALID,
                       "verbs: MTU %u asked for, %s:%u carries %u", wanted,
                       port->device, port->number, have);
    port->mtu = wanted != 0 ? wanted : have;
    return BT_OK;
}

static enum bt_status read_port(struct bt_verbs_port *port,
                                const struct problem *p)
{
    struct bt_nic *nic = &port->nic;
    struct ibv_port_attr attr;

    if (ibv_query_port(port->context, port->number, &attr) != 0)
        return trouble(p, BT_IO, "verbs: %s:%u: query failed", port->device,
                       port->number);
    snprintf(nic->device, sizeof(nic->device), "%.31s", port->device);
    nic->port = port->number;
    nic->is_up = attr.state == IBV_PORT_ACTIVE;
    nic->link = attr.link_layer == IBV_LINK_LAYER_ETHERNET ? BT_NIC_ROCE
                                                           : BT_NIC_INFINIBAND;
    nic->mtu = bt_verbs_mtu_bytes(attr.active_mtu);
    for (int i = 0; i < attr.pkey_tbl_len && nic->pkey_count < 16; i++) {
        __be16 pkey;

        if (ibv_query_pkey(port->context, port->number, i, &pkey) == 0 &&
            pkey != 0)
            nic->pkeys[nic->pkey_count++] = ntohs(pkey);
    }
    return BT_OK;
}

static uint32_t least(int device, uint32_t ours)
{
    return device > 0 && (uint32_t)device < ours ? (uint32_t)device : ours;
}

static void set_limits(struct bt_verbs_port *port)
{
    const struct ibv_device_attr *attr = &port->attr;

    port->sge_max =
        least(attr->max_sge_rd, least(attr->max_sge, BT_VERBS_SGE_MAX));
    port->depth = least(attr->max_qp_wr, BT_VERBS_DEPTH);
    port->inline_max = BT_VERBS_INLINE;
    port->reads_max = least(attr->max_qp_init_rd_atom, READS_MAX);
    port->answers_max = least(attr->max_qp_rd_atom, READS_MAX);
}

enum bt_status bt_verbs_port_open(struct bt_verbs_port *port,
                                  const struct bt_rail_config *rail,
                                  char *error_out, size_t error_size)
{
    const struct problem p = {error_out, error_size};
    int count = 0;
    struct ibv_device **list = ibv_get_device_list(&count);
    enum bt_status status;
    int flags;

    if (list == NULL || count == 0) {
        if (list != NULL)
            ibv_free_device_list(list);
        return trouble(&p, BT_UNSUPPORTED,
                       "verbs: no RDMA device on this machine");
    }
    status = choose(port, rail, list, &p);
    ibv_free_device_list(list);
    if (status == BT_OK)
        status = read_port(port, &p);
    if (status == BT_OK)
        status = choose_gid(port, rail, &p);
    if (status == BT_OK)
        status = choose_partition(port, rail->partition, &p);
    if (status == BT_OK)
        status = choose_mtu(port, rail->mtu, &p);
    if (status != BT_OK) {
        bt_verbs_port_close(port);
        return status;
    }
    port->traffic_class = rail->traffic_class;
    set_limits(port);
    flags = fcntl(port->context->async_fd, F_GETFL);
    (void)fcntl(port->context->async_fd, F_SETFL, flags | O_NONBLOCK);
    return BT_OK;
}

void bt_verbs_port_close(struct bt_verbs_port *port)
{
    if (port->context != NULL)
        ibv_close_device(port->context);
    port->context = NULL;
}

bool bt_verbs_port_is(const struct bt_verbs_port *port,
                      const struct rdma_cm_id *id)
{
    return id->verbs != NULL && id->port_num == port->number &&
           strcmp(ibv_get_device_name(id->verbs->device), port->device) == 0;
}

/* ---- events ---- */

static void port_changed(struct bt_verbs *verbs,
                         const struct ibv_async_event *event)
{
    if (event->element.port_num != verbs->port.number)
        return; /* another rail's */
    verbs->is_down = event->event_type == IBV_EVENT_PORT_ERR;
    bt_verbs_say(verbs, "%s:%u is %s", verbs->port.device, verbs->port.number,
                 verbs->is_down ? "down" : "up");
    if (verbs->is_down)
        bt_verbs_fail_all(verbs, BT_RESET);
    else
        bt_verbs_unpark(verbs);
}

static void qp_broke(struct bt_verbs *verbs, const struct ibv_qp *qp,
                     enum bt_status why)
{
    struct bt_verbs_conn *conn = qp->qp_context;

    bt_verbs_say(verbs, "queue pair 0x%x broke: %s", qp->qp_num,
                 bt_status_name(why));
    bt_verbs_fail(conn, why);
}

/* Kinds that need nothing from us: moves of addresses and of subnet managers
 * come with PORT_ERR or an error of the queue pair when they matter. */
static void handle(struct bt_verbs *verbs, const struct ibv_async_event *event)
{
    switch (event->event_type) {
    case IBV_EVENT_PORT_ERR:
    case IBV_EVENT_PORT_ACTIVE:
        port_changed(verbs, event);
        break;
    case IBV_EVENT_DEVICE_FATAL:
        verbs->is_fatal = true;
        bt_verbs_say(verbs, "%s is gone", verbs->port.device);
        bt_verbs_unpark(verbs);
        bt_verbs_fail_all(verbs, BT_RESET);
        break;
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_PATH_MIG_ERR:
        qp_broke(verbs, event->element.qp, BT_IO);
        break;
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
        qp_broke(verbs, event->element.qp, BT_PEER_ERROR);
        break;
    case IBV_EVENT_CQ_ERR:
        bt_verbs_fail(event->element.cq->cq_context, BT_IO);
        break;
    case IBV_EVENT_COMM_EST:
    case IBV_EVENT_SQ_DRAINED:
    case IBV_EVENT_PATH_MIG:
    case IBV_EVENT_LID_CHANGE:
    case IBV_EVENT_PKEY_CHANGE:
    case IBV_EVENT_SM_CHANGE:
    case IBV_EVENT_SRQ_ERR:
    case IBV_EVENT_SRQ_LIMIT_REACHED:
    case IBV_EVENT_QP_LAST_WQE_REACHED:
    case IBV_EVENT_CLIENT_REREGISTER:
    case IBV_EVENT_GID_CHANGE:
    case IBV_EVENT_WQ_FATAL:
        break;
    }
}

bool bt_verbs_port_events(struct bt_verbs *verbs)
{
    struct ibv_async_event event;
    int count = 0;

    while (count < EVENTS_MAX &&
           ibv_get_async_event(verbs->port.context, &event) == 0) {
        /* Nothing below destroys the queue pair or the queue it names. */
        handle(verbs, &event);
        ibv_ack_async_event(&event);
        count++;
    }
    return count > 0;
}
