/* Which kinds of fabric there are and how a rail of each is opened: the table,
 * the thread decorator, and the hook by which tests wrap a transport. Leaves
 * everything else to the openers (transport_open.h). */
#include "fabric.h"
#include "transport_open.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

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
    struct bt_rail_config one = {.gid_index = -1};
    struct bt_transport *transport = NULL, *outer;
    enum bt_status status;

    if (config->rails != NULL)
        one = config->rails[rail];
    if (one.transports == NULL)
        one.transports = config->transports;
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
