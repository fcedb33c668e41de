/* Opening a UCX transport: its configuration, context and worker. One transport
 * is one rail: a context of its own, bound to rail->device and
 * rail->transports. Decides which UCX options we set and why; the environment
 * (UCX_*) wins over our defaults, a rail's own settings over both. */
#include "fabric_ucx.h"
#include "memlock.h"
#include "transport_open.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucs/config/global_opts.h>

#define LISTING_MAX 16384u /* of ucp_context_print_info */
#define TLS_MAX     256u
#define PKEYS_MAX   1024u
#define SEG_TCP     "256K"
#define EAGER_TCP   (262144u - 256u) /* a segment less UCX's headers */
/* A segment of shared memory, whose length has 16 bits. */
#define SEG_SHM  65280u
#define HEAD_SHM 256u
/* What fits one buffer of a queue pair. */
#define EAGER_OTHER 8000u

/* The environment wins over our defaults, the caller over both. UCX 1.13 takes
 * an option of a transport from a program only without the transport's name
 * (PUT_ENABLE, where the environment says UCX_TCP_PUT_ENABLE); one that it does
 * not know is dropped with a warning, so test_ucx_traps looks for that. */
static void set(ucp_config_t *config, const char *env_name, const char *name,
                const char *value)
{
    char env[64];

    snprintf(env, sizeof(env), "UCX_%s", env_name);
    if (getenv(env) == NULL)
        (void)ucp_config_modify(config, name, value);
}

/* ---- what UCX_TLS means ---- */

static const struct {
    const char *name;
    bool tcp, shm, rdma, ud, near;
} names[] = {
    {"tcp", .tcp = true},
    {"cma", .near = true},
    {"posix", .shm = true},
    {"sysv", .shm = true},
    {"xpmem", .shm = true},
    {"mm", .shm = true},
    {"shm", .shm = true, .near = true},
    {"sm", .shm = true, .near = true},
    {"rc", .rdma = true, .ud = true},
    {"rc_v", .rdma = true},
    {"rc_verbs", .rdma = true},
    {"rc_x", .rdma = true},
    {"rc_mlx5", .rdma = true},
    {"dc", .rdma = true, .ud = true},
    {"dc_x", .rdma = true},
    {"dc_mlx5", .rdma = true},
    {"ud", .rdma = true, .ud = true},
    {"ud_v", .rdma = true, .ud = true},
    {"ud_verbs", .rdma = true, .ud = true},
    {"ud_x", .rdma = true},
    {"ud_mlx5", .rdma = true},
    {"ib", .rdma = true, .ud = true},
};

/* Messages, unless RDMA is named and nothing but RDMA can carry the bytes:
 * with tcp in the list, or a list we do not understand ("all", "^sysv"), UCX
 * might take tcp. */
struct bt_ucx_kind bt_ucx_classify(const char *transports)
{
    struct bt_ucx_kind kind = {0};
    bool other = false;

    for (const char *at = transports; *at != '\0';) {
        size_t size = strcspn(at, ","), i;

        for (i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
            if (strlen(names[i].name) != size ||
                strncmp(at, names[i].name, size) != 0)
                continue;
            kind.tcp |= names[i].tcp;
            kind.shm |= names[i].shm;
            kind.rdma |= names[i].rdma;
            kind.ud |= names[i].ud;
            kind.near |= names[i].near;
            break;
        }
        other |= i == sizeof(names) / sizeof(names[0]) &&
                 !(size == 4 && strncmp(at, "self", size) == 0);
        at += size + (at[size] == ',');
    }
    kind.rma = kind.rdma && !kind.tcp && !kind.shm && !other;
    kind.near &= !kind.rma;
    if (kind.shm && !kind.rdma)
        kind.eager_bytes = SEG_SHM - HEAD_SHM;
    else
        kind.eager_bytes = kind.tcp && !kind.rdma ? EAGER_TCP : EAGER_OTHER;
    return kind;
}

/* ---- options ---- */

/* As UCX will see them. A listener is refused on an address whose device no
 * transport uses, so shared memory needs tcp beside it to connect; UCX prefers
 * shared memory for everything else. */
static bool transports_of(const struct bt_rail_config *rail, char *out,
                          size_t size)
{
    const char *from = rail->transports;
    struct bt_ucx_kind kind;
    int n;

    if (from == NULL)
        from = getenv("UCX_TLS");
    if (from == NULL)
        from = "tcp,self";
    kind = bt_ucx_classify(from);
    n = snprintf(out, size, "%s%s", from,
                 kind.shm && !kind.tcp && !kind.rdma ? ",tcp" : "");
    return n > 0 && (size_t)n < size;
}

static void set_tcp(ucp_config_t *config, const struct bt_ucx_kind *kind)
{
    set(config, "TCP_CM_REUSEADDR", "CM_REUSEADDR",
        "y"); /* restart on the same port */
    /* A connect that waits holds up the loop while a host is cut off. Worse, a
     * peer that dies between it and the first bytes leaves an endpoint that is
     * put down for destruction and then marked as in use, which aborts
     * (`tcp_ep.c:478`). SYN_CNT, which would bound the wait, breaks the opening
     * of a worker in 1.13.1. */
    set(config, "TCP_CONN_NB", "CONN_NB", "y");
    /* A put that is acknowledged after its endpoint has failed aborts this
     * process (`tcp_ep.c:939`, PUT_TX_WAITING_ACK), and so does a put or get
     * of ours at its target; rendezvous puts too. */
    set(config, "TCP_PUT_ENABLE", "PUT_ENABLE", "n");
    if (kind->eager_bytes != EAGER_TCP)
        return;
    set(config, "TCP_TX_SEG_SIZE", "TX_SEG_SIZE", SEG_TCP);
    set(config, "TCP_RX_SEG_SIZE", "RX_SEG_SIZE", SEG_TCP);
}

/* Shared memory counts as unable to tell of a dead peer, and is refused then,
 * unless told otherwise; the socket that set the connection up tells. */
static void set_shm(ucp_config_t *config)
{
    char seg[16];

    snprintf(seg, sizeof(seg), "%u", SEG_SHM);
    set(config, "POSIX_ERROR_HANDLING", "MM_ERROR_HANDLING", "y");
    set(config, "POSIX_SEG_SIZE", "MM_SEG_SIZE", seg);
    set(config, "POSIX_RX_BUFS_GROW", "MM_RX_BUFS_GROW",
        "128"); /* of 512: 8 MiB */
}

/* Connecting by rdmacm needs no UD, which soft-RoCE drops unless it is told not
 * to look at GIDs, and a listener over it sees a dead peer at once. */
static void set_rdma(ucp_config_t *config, const struct bt_ucx_kind *kind)
{
    if (kind->ud)
        set(config, "UD_VERBS_ETH_DGID_CHECK", "UD_ETH_DGID_CHECK", "n");
    set(config, "SOCKADDR_TLS_PRIORITY", "SOCKADDR_TLS_PRIORITY", "rdmacm");
}

/* What the rail says about its port. UCX knows only the 15 bits of a partition
 * key and takes a full member before a limited one; it has no MTU of 256. Three
 * of them are of a table within the transport's, hence IB_ (guest_agents.sh
 * looks whether one was dropped). */
static ucs_status_t set_port(ucp_config_t *config,
                             const struct bt_rail_config *rail)
{
    ucs_status_t status = UCS_OK;
    char text[16];

    if (rail->gid != NULL)
        status = ucp_config_modify(config, "GID_INDEX", rail->gid);
    if (status == UCS_OK && rail->partition != 0) {
        snprintf(text, sizeof(text), "0x%x", rail->partition & 0x7FFFu);
        status = ucp_config_modify(config, "IB_PKEY", text);
    }
    if (status == UCS_OK && rail->mtu != 0) {
        snprintf(text, sizeof(text), "%u", rail->mtu);
        status = ucp_config_modify(config, "IB_PATH_MTU", text);
    }
    if (status == UCS_OK && rail->traffic_class != 0) {
        snprintf(text, sizeof(text), "%u", rail->traffic_class);
        status = ucp_config_modify(config, "IB_TRAFFIC_CLASS", text);
    }
    return status;
}

/* UCX itself starts without a partition that is not there, and says nothing.
 * Where the port's table is, the kernel knows: DEVICE:PORT. */
static bool has_partition(const char *device, uint16_t partition)
{
    const char *colon = device != NULL ? strchr(device, ':') : NULL;
    bool found = false, more = colon != NULL;
    char path[160], text[16];

    for (uint32_t i = 0; i < PKEYS_MAX && more && !found; i++) {
        FILE *from;

        snprintf(path, sizeof(path),
                 "/sys/class/infiniband/%.*s/ports/%.8s/pkeys/%u",
                 (int)(colon - device), device, colon + 1, i);
        from = fopen(path, "re");
        more = from != NULL && fgets(text, sizeof(text), from) != NULL;
        found =
            more && (strtoul(text, NULL, 16) & 0x7FFF) == (partition & 0x7FFFu);
        if (from != NULL)
            fclose(from);
    }
    return found;
}

/* Settings of an RDMA port that this rail cannot have; NULL: none. */
static const char *port_fault(const struct bt_rail_config *rail,
                              const struct bt_ucx_kind *kind)
{
    if (!kind->rma && (rail->gid != NULL || rail->partition != 0 ||
                       rail->mtu != 0 || rail->traffic_class != 0))
        return "gid, partition, mtu and class need a rail of RDMA alone";
    if (rail->mtu == 256)
        return "UCX knows no MTU of 256";
    if (rail->partition != 0 && !has_partition(rail->device, rail->partition))
        return "the partition is not in the port's table (the device is "
               "DEVICE:PORT?)";
    return NULL;
}

static ucs_status_t configure(const struct bt_rail_config *rail,
                              const char *transports,
                              const struct bt_ucx_kind *kind,
                              ucp_config_t **out)
{
    const char *level = getenv("BATON_UCX_LOG");
    ucp_config_t *config;
    ucs_status_t status;

    (void)ucs_global_opts_set_value("LOG_LEVEL", level ? level : "fatal");
    status = ucp_config_read(NULL, NULL, &config);
    if (status != UCS_OK)
        return status;
    set(config, "KEEPALIVE_INTERVAL", "KEEPALIVE_INTERVAL", "1s");
    if (kind->tcp)
        set_tcp(config, kind);
    if (kind->shm)
        set_shm(config);
    if (kind->rma)
        set_rdma(config, kind);
    else
        set(config, "SOCKADDR_TLS_PRIORITY", "SOCKADDR_TLS_PRIORITY", "tcp");
    status = ucp_config_modify(config, "TLS", transports);
    if (status == UCS_OK && rail->device != NULL)
        status = ucp_config_modify(config, "NET_DEVICES", rail->device);
    if (status == UCS_OK)
        status = set_port(config, rail);
    if (status != UCS_OK) {
        ucp_config_release(config);
        return status;
    }
    *out = config;
    return UCS_OK;
}

static ucs_status_t open_context(struct ucx *ucx,
                                 const struct bt_rail_config *rail,
                                 const char *transports)
{
    ucp_params_t params = {
        .field_mask = UCP_PARAM_FIELD_FEATURES,
        .features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP |
                    (ucx->kind.rma ? UCP_FEATURE_RMA : 0),
    };
    ucp_config_t *config;
    ucs_status_t status = configure(rail, transports, &ucx->kind, &config);

    if (status != UCS_OK)
        return status;
    status = ucp_init(&params, config, &ucx->context);
    ucp_config_release(config);
    return status;
}

/* UCX opens with whatever part of the list there is, `self` alone if need be,
 * and says so in its log only. Is there something to reach a peer by, RDMA
 * where nothing else was asked for, on that device? Its listing has a line
 * "... -- tcp/eth0" for each. */
static bool is_usable(const struct ucx *ucx, const struct bt_rail_config *rail)
{
    char text[LISTING_MAX] = "";
    FILE *to = fmemopen(text, sizeof(text) - 1, "w");
    bool usable = false;

    if (to == NULL)
        return false;
    ucp_context_print_info(ucx->context, to);
    fclose(to);
    for (char *at = strstr(text, "-- "); at != NULL; at = strstr(at, "-- ")) {
        struct bt_ucx_kind kind;
        char *device;
        bool here;

        at += 3;
        device = at + strcspn(at, "/\n");
        if (*device != '/')
            continue;
        *device++ = '\0';
        kind = bt_ucx_classify(at);
        here = rail->device == NULL ||
               strncmp(device, rail->device, strlen(rail->device)) == 0;
        usable |= here && (kind.rdma || (!ucx->kind.rma && kind.tcp));
        at = device;
    }
    return usable;
}

static ucs_status_t set_handler(struct ucx *ucx, unsigned int id,
                                ucp_am_recv_callback_t fn)
{
    ucp_am_handler_param_t handler = {
        .field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID |
                      UCP_AM_HANDLER_PARAM_FIELD_CB |
                      UCP_AM_HANDLER_PARAM_FIELD_ARG,
        .id = id,
        .cb = fn,
        .arg = ucx,
    };

    return ucp_worker_set_am_recv_handler(ucx->worker, &handler);
}

static const struct {
    unsigned int id;
    ucp_am_recv_callback_t fn;
} handlers[] = {
    {AM_FRAME, bt_ucx_on_message},     {AM_READ, bt_ucx_on_read},
    {AM_DATA, bt_ucx_on_data},         {AM_WRITE, bt_ucx_on_write},
    {AM_FILL, bt_ucx_on_fill},         {AM_DONE, bt_ucx_on_done},
    {AM_NEAR_ASK, bt_ucx_on_near_ask}, {AM_NEAR, bt_ucx_on_near},
};

static ucs_status_t open_worker(struct ucx *ucx, int *fd_out)
{
    ucp_worker_params_t params = {
        .field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
        .thread_mode = UCS_THREAD_MODE_SINGLE,
    };
    ucs_status_t status =
        ucp_worker_create(ucx->context, &params, &ucx->worker);

    if (status != UCS_OK)
        return status;
    for (size_t i = 0; i < sizeof(handlers) / sizeof(handlers[0]); i++) {
        if (status == UCS_OK)
            status = set_handler(ucx, handlers[i].id, handlers[i].fn);
    }
    if (status == UCS_OK)
        status = ucp_worker_get_efd(ucx->worker, fd_out);
    if (status != UCS_OK)
        ucp_worker_destroy(ucx->worker);
    return status;
}

/* With RDMA a worker registers buffers: where that failed, the limit counts. */
static enum bt_status opened_not(const char *device, const char *transports,
                                 const char *step, ucs_status_t status,
                                 char *error_out, size_t error_size)
{
    char limit[80] = "";

    if (bt_ucx_classify(transports).rdma &&
        (status == UCS_ERR_IO_ERROR || status == UCS_ERR_NO_MEMORY))
        bt_memlock_text(limit, sizeof(limit));
    snprintf(error_out, error_size, "ucx: %.32s, device %.32s: %s: %.32s%s",
             transports, device != NULL ? device : "any", step,
             ucs_status_string(status), limit);
    if (limit[0] != '\0')
        return BT_LIMIT;
    if (status == UCS_ERR_NO_MEMORY)
        return BT_NO_MEMORY;
    if (status == UCS_ERR_INVALID_PARAM)
        return BT_INVALID;
    return status == UCS_ERR_NO_DEVICE || status == UCS_ERR_UNSUPPORTED
               ? BT_UNSUPPORTED
               : BT_IO;
}

enum bt_status bt_transport_ucx_open(struct ev_loop *loop,
                                     const struct bt_rail_config *rail,
                                     struct bt_transport **out, char *error_out,
                                     size_t error_size)
{
    struct ucx *ucx = calloc(1, sizeof(*ucx));
    ucs_status_t status = UCS_ERR_NO_MEMORY;
    const char *step = "memory";
    char transports[TLS_MAX] = "";
    int fd;

    if (ucx == NULL)
        goto failed;
    step = "list of transports";
    status = UCS_ERR_INVALID_PARAM;
    if (!transports_of(rail, transports, sizeof(transports)))
        goto undo_alloc;
    step = "the rail's address";
    if (rail->address != NULL && bt_fabric_address(rail->address, 0, &ucx->from,
                                                   &ucx->from_size) != BT_OK)
        goto undo_alloc;
    ucx->kind = bt_ucx_classify(transports);
    if (port_fault(rail, &ucx->kind) != NULL) {
        step = port_fault(rail, &ucx->kind);
        goto undo_alloc;
    }
    ucx->base.ops = ucx->kind.rma ? &bt_ucx_rma_ops : &bt_ucx_ops;
    ucx->loop = loop;
    ucx->last = &ucx->first;
    LIST_INIT(&ucx->conns);
    LIST_INIT(&ucx->listeners);
    bt_ucx_mem_init(ucx);
    if (ucx->kind.rdma)
        (void)bt_memlock_raise();
    step = "ucp_init";
    status = open_context(ucx, rail, transports);
    if (status != UCS_OK)
        goto undo_mem;
    step = "cannot reach a peer";
    status = UCS_ERR_NO_DEVICE;
    if (!is_usable(ucx, rail))
        goto undo_context;
    step = "ucp_worker_create";
    status = open_worker(ucx, &fd);
    if (status != UCS_OK)
        goto undo_context;
    bt_ucx_watch(ucx, fd);
    *out = &ucx->base;
    return BT_OK;

undo_context: /* nothing is registered yet */
    ucp_cleanup(ucx->context);
undo_mem:
    bt_ucx_mem_fini(ucx);
undo_alloc:
    free(ucx);
failed:
    return opened_not(rail->device, transports, step, status, error_out,
                      error_size);
}
