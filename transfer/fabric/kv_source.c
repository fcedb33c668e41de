/* A source: one region, registered on every rail, behind a door that it may
 * share with others. Decides only its life; who comes in is kv_door.c's, what
 * they ask for kv_job.c's. Leases are the caller's. A sink that leaves changes
 * nothing here but its connections. Invariant: a source that has started is at
 * one door, and its region stays registered until it has left. */
#include "kv_source.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool name_ok(const char *name)
{
    return name == NULL || (strlen(name) > 0 && strlen(name) < BT_KV_NAME_MAX);
}

static bool config_ok(const struct bt_kv_source_config *c)
{
    return c->name != NULL && strlen(c->name) < BT_KV_NAME_MAX &&
           name_ok(c->region_name) && c->address != NULL && c->region != NULL &&
           c->block_count > 0 && c->layout.block_bytes > 0 &&
           c->layout.block_bytes <= UINT32_MAX;
}

static enum bt_status pack_keys(struct bt_kv_source *source)
{
    struct bt_fabric *fabric = source->fabric;

    for (uint32_t i = 0; i < fabric->rail_count; i++) {
        struct bt_transport *t = fabric->rails[i].transport;
        enum bt_status status =
            t->ops->key_pack(t, source->mems[i], source->keys[i],
                             sizeof(source->keys[i]), &source->key_sizes[i]);

        if (status != BT_OK)
            return status;
    }
    return BT_OK;
}

static bool name_taken(const struct bt_kv_source *source)
{
    struct bt_kv_source *other;

    LIST_FOREACH(other, &source->door->sources, entry)
    {
        if (strcmp(other->region_name, source->region_name) == 0)
            return true;
    }
    return false;
}

static enum bt_status source_open(struct bt_kv_source *source,
                                  const char **step_out)
{
    struct bt_fabric *fabric = source->fabric;
    const struct bt_kv_source_config *c = &source->config;
    size_t bytes = c->block_count * (size_t)c->layout.block_bytes;
    enum bt_status status;

    status = bt_fabric_map(fabric, c->region, bytes, source->mems);
    if (status != BT_OK) {
        *step_out = bt_fabric_map_error(fabric);
        return status;
    }
    *step_out = "pack key";
    status = pack_keys(source);
    if (status != BT_OK)
        goto undo_map;
    status = bt_door_get(fabric, c->address, c->port, &source->door, step_out);
    if (status != BT_OK)
        goto undo_map;
    *step_out = "region name";
    status = BT_EXISTS;
    if (name_taken(source))
        goto undo_map; /* somebody's door: nothing to undo there */
    LIST_INSERT_HEAD(&source->door->sources, source, entry);
    return BT_OK;

undo_map:
    bt_fabric_unmap(fabric, source->mems);
    return status;
}

enum bt_status bt_kv_source_start(struct bt_fabric *fabric,
                                  const struct bt_kv_source_config *config,
                                  struct bt_kv_source **out, char *error_out,
                                  size_t error_size)
{
    const char *region =
        config->region_name != NULL ? config->region_name : "kv";
    struct bt_kv_source *source;
    const char *step = "configuration";
    enum bt_status status = BT_INVALID;

    source = config_ok(config) ? calloc(1, sizeof(*source)) : NULL;
    if (source == NULL)
        goto failed;
    source->fabric = fabric;
    source->config = *config;
    memcpy(source->name, config->name, strlen(config->name) + 1);
    memcpy(source->region_name, region, strlen(region) + 1);
    LIST_INIT(&source->guests);
    bt_source_work_init(source);
    status = source_open(source, &step);
    if (status != BT_OK)
        goto undo_alloc;
    *out = source;
    return BT_OK;

undo_alloc:
    free(source);
failed:
    snprintf(error_out, error_size, "kv source %s port %u: %s (%s)",
             config->address != NULL ? config->address : "?",
             (unsigned int)config->port, step, bt_status_name(status));
    return status;
}

uint16_t bt_kv_source_port(const struct bt_kv_source *source)
{
    return source->door->rails[0].port;
}

void bt_kv_source_stop(struct bt_kv_source *source)
{
    struct bt_fabric *fabric;

    if (source == NULL)
        return;
    fabric = source->fabric;
    bt_door_leave(source);
    ev_timer_stop(fabric->loop, &source->work);
    bt_fabric_unmap(fabric, source->mems);
    free(source);
}

void bt_kv_sources_stop(struct bt_fabric *fabric)
{
    struct bt_kv_source *source, *after;
    struct bt_door *door, *next;

    for (door = LIST_FIRST(&fabric->doors); door != NULL; door = next) {
        next = LIST_NEXT(door, entry);
        /* the last one takes the door along */
        for (source = LIST_FIRST(&door->sources); source != NULL;
             source = after) {
            after = LIST_NEXT(source, entry);
            bt_kv_source_stop(source);
        }
    }
}
