/* A topology file, from the path to the compiled topology: runs the passes,
 * resolves names to indices, orders the workers by their slots. Invariants: the
 * first fault ends the load; *out is written on success only; every name that
 * the topology points to is owned here. */
#include "topology_schema.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NAME_MAX_BYTES 63u

static const char NAME_BYTES[] = "abcdefghijklmnopqrstuvwxyz"
                                 "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                 "0123456789._-";

/* ---- names ---- */

static const char *name_at(const struct bt_topology_file *file,
                           enum list_id list, uint32_t i)
{
    const unsigned char *element = file->items[list];
    return *(char *const *)(const void *)(element +
                                          i * topology_list(list)->bytes);
}

static enum bt_status check_name(const struct load *load,
                                 const struct bt_topology_file *file,
                                 enum list_id list, uint32_t i)
{
    const char *name = name_at(file, list, i);
    size_t length = strlen(name);
    char path[CONFIG_PATH_MAX];
    snprintf(path, sizeof(path), "%s[%u].name", topology_list(list)->name, i);
    if (length > NAME_MAX_BYTES || strspn(name, NAME_BYTES) != length)
        return load_fault(load, BT_INVALID, path,
                          "a name has 1 to 63 letters, digits or any of ._-, "
                          "got '%.60s'",
                          name);
    for (uint32_t k = 0; k < i; k++) {
        if (strcmp(name_at(file, list, k), name) == 0)
            return load_fault(load, BT_DUPLICATE, path, "repeated name '%s'",
                              name);
    }
    return BT_OK;
}

static enum bt_status check_names(const struct load *load,
                                  const struct bt_topology_file *file)
{
    enum bt_status status = BT_OK;
    for (int list = 0; list < LIST_COUNT; list++) {
        for (uint32_t i = 0; i < file->counts[list] && !status; i++)
            status = check_name(load, file, (enum list_id)list, i);
    }
    return status;
}

/* "unknown rack 'r7' (did you mean 'r1'?)" at path. */
static enum bt_status unknown_name(const struct load *load, const char *path,
                                   const char *kind, const char *name,
                                   const char *hint)
{
    return load_fault(load, BT_INVALID, path,
                      hint ? "unknown %s '%.60s' (did you mean '%s'?)"
                           : "unknown %s '%.60s'%s",
                      kind, name, hint ? hint : "");
}

static const char *hint_of(const struct bt_topology_file *file,
                           enum list_id list, const char *name)
{
    const char *nearest = NULL, **names;
    uint32_t count = file->counts[list];
    names = calloc((size_t)count + 1, sizeof(*names));
    if (!names)
        return NULL;
    for (uint32_t i = 0; i < count; i++)
        names[i] = name_at(file, list, i);
    nearest = bt_nearest(name, names, count);
    free(names);
    return nearest;
}

/* A reference to an element of another list; NULL is none. */
struct reference {
    enum list_id from, to;
    uint32_t index;
    const char *key, *name;
};

static enum bt_status resolve(const struct load *load,
                              const struct bt_topology_file *file,
                              const struct reference *r, uint32_t *index_out)
{
    char path[CONFIG_PATH_MAX];
    *index_out = BT_LINK_NONE;
    if (!r->name)
        return BT_OK;
    for (uint32_t i = 0; i < file->counts[r->to]; i++) {
        if (strcmp(name_at(file, r->to, i), r->name) == 0) {
            *index_out = i;
            return BT_OK;
        }
    }
    snprintf(path, sizeof(path), "%s[%u].%s", topology_list(r->from)->name,
             r->index, r->key);
    return unknown_name(load, path, r->key, r->name,
                        hint_of(file, r->to, r->name));
}

/* ---- spec ---- */

static enum bt_status fill_groups(const struct load *load,
                                  struct bt_topology_file *file)
{
    const struct file_pod *pods = file->items[LIST_PODS];
    const struct file_rack *racks = file->items[LIST_RACKS];
    enum bt_status status = BT_OK;
    for (uint32_t i = 0; i < file->counts[LIST_PODS]; i++)
        file->pods[i] = (struct bt_topology_pod){
            pods[i].name, pods[i].up, pods[i].down ? pods[i].down : pods[i].up};
    for (uint32_t i = 0; i < file->counts[LIST_RACKS] && !status; i++) {
        struct reference pod = {LIST_RACKS, LIST_PODS, i, "pod", racks[i].pod};
        file->racks[i] = (struct bt_topology_rack){
            .name = racks[i].name,
            .up_bytes_per_s = racks[i].up,
            .down_bytes_per_s = racks[i].down ? racks[i].down : racks[i].up};
        status = resolve(load, file, &pod, &file->racks[i].pod);
    }
    return status;
}

static enum bt_status fill_nodes(const struct load *load,
                                 struct bt_topology_file *file)
{
    const struct file_node *nodes = file->items[LIST_NODES];
    enum bt_status status = BT_OK;
    for (uint32_t i = 0; i < file->counts[LIST_NODES] && !status; i++) {
        struct reference rack = {LIST_NODES, LIST_RACKS, i, "rack",
                                 nodes[i].rack};
        file->nodes[i] =
            (struct bt_topology_node){.name = nodes[i].name,
                                      .rails = nodes[i].rails,
                                      .rail_bytes_per_s = nodes[i].rail_rate,
                                      .nvlink_domain = nodes[i].nvlink != 0,
                                      .nvlink_bytes_per_s = nodes[i].nvlink};
        status = resolve(load, file, &rack, &file->nodes[i].rack);
    }
    return status;
}

/* The slot of a worker of the file, by its name. */
static enum bt_status slot_of(const struct load *load,
                              const struct bt_topology_file *file, uint32_t i,
                              uint32_t *slot_out)
{
    const struct file_worker *w = file->items[LIST_WORKERS];
    uint32_t count = file->spec.worker_count;
    char path[CONFIG_PATH_MAX];
    for (uint32_t slot = 0; slot < count; slot++) {
        if (strcmp(file->worker_names[slot], w[i].name) == 0) {
            *slot_out = slot;
            return BT_OK;
        }
    }
    snprintf(path, sizeof(path), "workers[%u].name", i);
    return unknown_name(
        load, path, "worker", w[i].name,
        bt_nearest(w[i].name, (const char *const *)file->worker_names, count));
}

static enum bt_status fill_workers(const struct load *load,
                                   struct bt_topology_file *file)
{
    const struct file_worker *w = file->items[LIST_WORKERS];
    enum bt_status status = BT_OK;
    for (uint32_t slot = 0; slot < file->spec.worker_count; slot++)
        file->workers[slot] = (struct bt_topology_worker){
            .node = BT_LINK_NONE, .name = file->worker_names[slot]};
    for (uint32_t i = 0; i < file->counts[LIST_WORKERS] && !status; i++) {
        struct reference node = {LIST_WORKERS, LIST_NODES, i, "node",
                                 w[i].node};
        uint32_t slot = 0;
        status = slot_of(load, file, i, &slot);
        if (status)
            break;
        file->workers[slot].rails = w[i].rails;
        file->workers[slot].rail_bytes_per_s = w[i].rail_rate;
        file->workers[slot].nic_out_bytes_per_s = w[i].out;
        file->workers[slot].nic_in_bytes_per_s = w[i].in;
        status = resolve(load, file, &node, &file->workers[slot].node);
    }
    return status;
}

/* Names of the slots: the caller's, or the file's. */
static enum bt_status take_slots(struct bt_topology_file *file,
                                 const char *const *names, uint32_t count)
{
    if (!names)
        count = file->counts[LIST_WORKERS];
    file->worker_names = calloc((size_t)count + 1, sizeof(char *));
    if (!file->worker_names)
        return BT_NO_MEMORY;
    for (uint32_t i = 0; i < count; i++) {
        file->worker_names[i] =
            strdup(names ? names[i] : name_at(file, LIST_WORKERS, i));
        if (!file->worker_names[i])
            return BT_NO_MEMORY;
        file->spec.worker_count = i + 1;
    }
    return BT_OK;
}

static enum bt_status take_spec(struct bt_topology_file *file)
{
    struct bt_topology_spec *s = &file->spec;
    s->pod_count = file->counts[LIST_PODS];
    s->rack_count = file->counts[LIST_RACKS];
    s->node_count = file->counts[LIST_NODES];
    file->pods = calloc((size_t)s->pod_count + 1, sizeof(*file->pods));
    file->racks = calloc((size_t)s->rack_count + 1, sizeof(*file->racks));
    file->nodes = calloc((size_t)s->node_count + 1, sizeof(*file->nodes));
    file->workers = calloc((size_t)s->worker_count + 1, sizeof(*file->workers));
    if (!file->pods || !file->racks || !file->nodes || !file->workers)
        return BT_NO_MEMORY;
    s->pods = file->pods;
    s->racks = file->racks;
    s->nodes = file->nodes;
    s->workers = file->workers;
    memcpy(s->classes, file->classes, sizeof(s->classes));
    return BT_OK;
}

static enum bt_status compile(const struct load *load,
                              struct bt_topology_file *file)
{
    size_t bytes = bt_topology_bytes(&file->spec);
    struct bt_arena arena;
    char text[200] = "";
    if (bt_topology_check(&file->spec, text, sizeof(text)) != BT_OK)
        return load_fault(load, BT_INVALID, "", "%s", text);
    file->memory = calloc(1, bytes);
    if (!file->memory)
        return BT_NO_MEMORY;
    bt_arena_init(&arena, file->memory, bytes);
    file->topology = bt_topology_init(&arena, &file->spec);
    return file->topology ? BT_OK : BT_BUG;
}

/* ---- public ---- */

/* All passes over the bytes. */
static enum bt_status load_data(const struct load *load,
                                struct bt_topology_file *file,
                                const char *const *names, uint32_t count)
{
    enum bt_status status = topology_convert(load, file);
    if (!status)
        status = check_names(load, file);
    if (!status)
        status = take_slots(file, names, count);
    if (!status)
        status = take_spec(file);
    if (!status)
        status = fill_groups(load, file);
    if (!status)
        status = fill_nodes(load, file);
    if (!status)
        status = fill_workers(load, file);
    return status ? status : compile(load, file);
}

enum bt_status bt_topology_file_load(const char *path, const char *const *names,
                                     uint32_t count,
                                     struct bt_topology_file **out,
                                     char *error_out, size_t error_size)
{
    struct fault fault = {path, error_out, error_size};
    struct positions positions = {0};
    struct load load = {&fault, &positions, NULL, NULL};
    struct bt_topology_file *file = calloc(1, sizeof(*file));
    char *data = NULL;
    size_t size = 0;
    error_out[0] = '\0';
    enum bt_status status =
        file ? config_file_read(&fault, &data, &size) : BT_NO_MEMORY;
    if (!status)
        status = config_walk(topology_table(), data, size, &fault, &positions);
    if (!status)
        status = load_data(&load, file, names, count);
    free(data);
    positions_free(&positions);
    if (!status) {
        *out = file;
        return BT_OK;
    }
    bt_topology_file_destroy(file);
    if (error_out[0] == '\0')
        snprintf(error_out, error_size, "%s: %s", path, bt_status_text(status));
    return status;
}

static void free_elements(struct bt_topology_file *file)
{
    struct file_pod *pods = file->items[LIST_PODS];
    struct file_rack *racks = file->items[LIST_RACKS];
    struct file_node *nodes = file->items[LIST_NODES];
    struct file_worker *workers = file->items[LIST_WORKERS];
    for (uint32_t i = 0; pods && i < file->counts[LIST_PODS]; i++)
        free(pods[i].name);
    for (uint32_t i = 0; racks && i < file->counts[LIST_RACKS]; i++) {
        free(racks[i].name);
        free(racks[i].pod);
    }
    for (uint32_t i = 0; nodes && i < file->counts[LIST_NODES]; i++) {
        free(nodes[i].name);
        free(nodes[i].rack);
    }
    for (uint32_t i = 0; workers && i < file->counts[LIST_WORKERS]; i++) {
        free(workers[i].name);
        free(workers[i].node);
    }
    for (int list = 0; list < LIST_COUNT; list++)
        free(file->items[list]);
}

void bt_topology_file_destroy(struct bt_topology_file *file)
{
    if (!file)
        return;
    free_elements(file);
    for (uint32_t i = 0; i < file->spec.worker_count; i++)
        free(file->worker_names[i]);
    free(file->worker_names);
    free(file->pods);
    free(file->racks);
    free(file->nodes);
    free(file->workers);
    free(file->memory);
    free(file);
}

const struct bt_topology_spec *
bt_topology_file_spec(const struct bt_topology_file *file)
{
    return &file->spec;
}

const struct bt_topology *
bt_topology_file_topology(const struct bt_topology_file *file)
{
    return file->topology;
}
