/* bt_config_load and bt_config_destroy: reads the file once, runs the four
 * passes over it (walk.c, raw.c, convert.c, check.c) and owns the cleanup.
 * Decides nothing about keys. Invariant: *out is written on success only. */
#include "baton/orchestrator/topology_file.h"
#include "schema.h"
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Cut the last part of "workers[2].role" -> "workers[2]" -> "workers". */
static bool path_shorten(char *path)
{
    size_t length = strlen(path);
    while (length > 0 && path[length - 1] != '.' && path[length - 1] != '[')
        length--;
    if (length == 0)
        return false;
    path[length - 1] = '\0';
    return true;
}

enum bt_status load_fault(const struct load *load, enum bt_status status,
                          const char *path, const char *format, ...)
{
    char at[CONFIG_PATH_MAX], text[512];
    va_list args;
    const struct position *position;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    snprintf(at, sizeof(at), "%s", path);
    do
        position = position_find(load->positions, at);
    while (!position && path_shorten(at));
    return fault_at(load->fault, status, position ? position->line : 1,
                    position ? position->column : 1, "%s", text);
}

static enum bt_status fault_file(struct fault *fault, const char *what)
{
    snprintf(fault->text, fault->size, "%s: %s", fault->file, what);
    return errno == ENOENT || errno == ENOTDIR ? BT_NOT_FOUND : BT_IO;
}

enum bt_status config_file_read(struct fault *fault, char **data_out,
                                size_t *size_out)
{
    enum bt_status status = BT_OK;
    FILE *file = fopen(fault->file, "re");
    if (!file)
        return fault_file(fault, strerror(errno));
    char *data = malloc(CONFIG_FILE_BYTES_MAX + 1);
    if (!data) {
        status = BT_NO_MEMORY;
        goto undo_file;
    }
    errno = 0;
    size_t size = fread(data, 1, CONFIG_FILE_BYTES_MAX + 1, file);
    if (ferror(file)) {
        status = fault_file(fault, strerror(errno));
        goto undo_data;
    }
    if (size > CONFIG_FILE_BYTES_MAX) {
        snprintf(fault->text, fault->size, "%s: larger than 4 MiB",
                 fault->file);
        status = BT_TOO_LARGE;
        goto undo_data;
    }
    *data_out = data;
    *size_out = size;
    goto undo_file;
undo_data:
    free(data);
undo_file:
    fclose(file);
    return status;
}

/* A relative path counts from the folder of the configuration. */
static enum bt_status topology_path(const struct load *load, char **path_out)
{
    const char *given = load->config->topology_path;
    const char *slash = strrchr(load->fault->file, '/');
    size_t folder = 0;
    if (given[0] != '/' && slash)
        folder = (size_t)(slash - load->fault->file) + 1;
    char *path = malloc(folder + strlen(given) + 1);
    if (!path)
        return BT_NO_MEMORY;
    memcpy(path, load->fault->file, folder);
    memcpy(path + folder, given, strlen(given) + 1);
    *path_out = path;
    return BT_OK;
}

/* The file that the key 'topology' names; its faults carry its own name. */
static enum bt_status config_topology(const struct load *load)
{
    struct bt_config *c = load->config;
    const char **names;
    char *path = NULL;
    enum bt_status status = BT_OK;
    if (!c->topology_path)
        return BT_OK;
    names = calloc(c->worker_count, sizeof(*names));
    if (!names)
        return BT_NO_MEMORY;
    for (uint32_t i = 0; i < c->worker_count; i++)
        names[i] = c->workers[i].name;
    status = topology_path(load, &path);
    if (!status)
        status =
            bt_topology_file_load(path, names, c->worker_count, &c->topology,
                                  load->fault->text, load->fault->size);
    free(path);
    free(names);
    return status;
}

/* All passes over the bytes. */
static enum bt_status load_data(const char *data, size_t size,
                                struct fault *fault, struct bt_config *config)
{
    struct positions positions = {0};
    struct load load = {fault, &positions, NULL, config};
    enum bt_status status =
        config_walk(config_table(), data, size, fault, &positions);
    if (!status)
        status = config_raw_load(data, size, fault, &load.raw);
    if (!status)
        status = config_convert(&load);
    if (!status)
        status = config_check(&load);
    if (!status)
        status = config_topology(&load);
    config_raw_free(load.raw);
    positions_free(&positions);
    return status;
}

enum bt_status bt_config_load(const char *path, struct bt_config **out,
                              char *error_out, size_t error_size)
{
    struct fault fault = {path, error_out, error_size};
    char *data = NULL;
    size_t size = 0;
    error_out[0] = '\0';
    enum bt_status status = config_file_read(&fault, &data, &size);
    struct bt_config *config = NULL;
    if (!status) {
        config = calloc(1, sizeof(*config));
        status = config ? load_data(data, size, &fault, config) : BT_NO_MEMORY;
    }
    free(data);
    if (status) {
        bt_config_destroy(config);
        if (error_out[0] == '\0')
            snprintf(error_out, error_size, "%s: %s", path,
                     bt_status_text(status));
        return status;
    }
    *out = config;
    return BT_OK;
}

static void model_free(struct bt_model_config *model)
{
    free(model->name);
    for (uint32_t i = 0; i < model->adapter_count; i++)
        free(model->adapters[i]);
    free(model->adapters);
    free(model->engine_hash_seed);
}

static void worker_free(struct bt_worker_config *worker)
{
    free(worker->name);
    free(worker->url);
    free(worker->compute);
    free(worker->events);
    free(worker->replay);
    free(worker->events_topic);
}

static void link_free(struct bt_link_rule *link)
{
    free(link->from);
    free(link->to);
    free(link->link_class);
}

void bt_config_destroy(struct bt_config *config)
{
    if (!config)
        return;
    for (uint32_t i = 0; i < config->model_count; i++)
        model_free(&config->models[i]);
    for (uint32_t i = 0; i < config->worker_count; i++)
        worker_free(&config->workers[i]);
    for (uint32_t i = 0; i < config->link_count; i++)
        link_free(&config->links[i]);
    link_free(&config->link_default);
    bt_topology_file_destroy(config->topology);
    free(config->topology_path);
    free(config->models);
    free(config->workers);
    free(config->links);
    free(config->policy);
    free(config->listen.address);
    free(config->metrics.address);
    free(config->admin.address);
    free(config->decision_file);
    free(config->journal.file);
    free(config->events.bind);
    free(config->index.snapshot);
    free(config);
}
