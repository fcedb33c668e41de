/* Which kinds of fabric there are and how a rail of each is opened: the table,
 * the thread decorator, and the hook by which tests wrap a transport. Leaves
 * everything else to the openers (transport_open.h). */
#include "fabric.h"
#include "transport_open.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const struct {
    const char *kind;
    bt_topen_fn open;
} kinds[] = {
    {"ucx", bt_transport_ucx_open},
    {"verbs", bt_transport_verbs_open},
    {"sim", bt_transport_sim_open},
};

static bt_fabric_wrap_fn wrap_fn;
static void *wrap_arg;

void bt_fabric_wrap(bt_fabric_wrap_fn fn, void *arg)
{
    wrap_fn = fn;
    wrap_arg = arg;
}

static bt_topen_fn opener(const char *kind)
{
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        if (strcmp(kinds[i].kind, kind) == 0)
            return kinds[i].open;
    }
    return NULL;
}

int bt_fabric_bind_error(const struct sockaddr_storage *address, socklen_t size)
{
    int fd = socket(address->ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int error = 0;

    if (fd < 0)
        return 0;
    if (bind(fd, (const struct sockaddr *)address, size) != 0)
        error = errno;
    close(fd);
    return error;
}

/* Connections of a rail are bound to its address: one that is not here would
 * fail at the first pull only. Addresses of sim are names. */
static bool is_here(const char *kind, const struct bt_rail_config *rail)
{
    struct sockaddr_storage where;
    socklen_t size;

    if (rail->address == NULL || (kind != NULL && strcmp(kind, "sim") == 0) ||
        bt_fabric_address(rail->address, 0, &where, &size) != BT_OK)
        return true;
    return bt_fabric_bind_error(&where, size) != EADDRNOTAVAIL;
}

/* The sim fabric has no ports: settings of one would do nothing, unsaid. */
static bool has_port_words(const struct bt_rail_config *rail)
{
    return rail->gid != NULL || rail->partition != 0 || rail->mtu != 0 ||
           rail->traffic_class != 0;
}

static enum bt_status open_one(struct ev_loop *loop,
                               const struct bt_fabric_config *config,
                               const struct bt_rail_config *rail,
                               struct bt_transport **out, char *error_out,
                               size_t error_size)
{
    const char *kind = config->kind != NULL ? config->kind : "ucx";
    bt_topen_fn open = opener(kind);

    if (open == NULL) {
        snprintf(error_out, error_size, "fabric: no kind \"%.32s\"", kind);
        return BT_INVALID;
    }
    if (strcmp(kind, "sim") == 0 && has_port_words(rail)) {
        snprintf(error_out, error_size,
                 "sim: gid, partition, mtu and class need an RDMA port");
        return BT_INVALID;
    }
    if (config->rail_threads)
        return bt_transport_thread_open(loop, open, rail, out, error_out,
                                        error_size);
    return open(loop, rail, out, error_out, error_size);
}

enum bt_status bt_fabric_open_rail(struct ev_loop *loop,
                                   const struct bt_fabric_config *config,
                                   uint32_t rail, struct bt_transport **out,
                                   char *error_out, size_t error_size)
{
    struct bt_rail_config one = {0};
    struct bt_transport *transport = NULL, *outer;
    enum bt_status status;

    if (config->rails != NULL)
        one = config->rails[rail];
    if (one.transports == NULL)
        one.transports = config->transports;
    if (!is_here(config->kind, &one)) {
        snprintf(error_out, error_size,
                 "%.48s is not an address of this machine", one.address);
        return BT_INVALID;
    }
    status = open_one(loop, config, &one, &transport, error_out, error_size);
    if (status != BT_OK)
        return status;
    assert(transport != NULL);
    outer =
        wrap_fn != NULL ? wrap_fn(wrap_arg, loop, rail, transport) : transport;
    if (outer == NULL) {
        transport->ops->destroy(transport);
        snprintf(error_out, error_size, "fabric: decorator: no memory");
        return BT_NO_MEMORY;
    }
    *out = outer;
    return BT_OK;
}
