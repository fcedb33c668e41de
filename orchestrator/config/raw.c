/* Second pass: libcyaml loads the file into strings, by a schema that is
 * derived from the key table, so that no key is written twice. Leaves the
 * meaning of the strings to convert.c. The walk has checked keys and kinds;
 * what libcyaml still refuses (a list over its limit) is reported from its
 * log, whose backtrace carries line and column.
 *
 * Every field lands in a pointer-sized cell of a raw struct: cell i of a scope
 * is row first + i of the table. */
#include "schema.h"
#include <cyaml/cyaml.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FIELDS_MAX     256u
#define GROUPS_MAX     32u
#define GROUP_NAME_MAX 24u
#define GROUP_DEPTH    2u /* "planner.prices." */

/* A section of a scope. */
struct group {
    const char *path; /* of its first row, relative to the scope */
    size_t length;    /* of the section's own path in it, with the dot */
    size_t parent;    /* of the path it stands under */
    unsigned int depth;
    char name[GROUP_NAME_MAX];
    size_t start; /* of its fields */
};

/* Storage of one derived schema. */
struct schema {
    cyaml_schema_field_t fields[FIELDS_MAX];
    size_t field_count;
    struct group groups[GROUPS_MAX];
    size_t group_count;
    size_t scope_groups; /* first group of the scope being built */
    uint32_t scope_size; /* bytes of its struct */
    cyaml_schema_value_t text, elements[SCOPE_COUNT];
};

struct capture {
    char text[200];
    unsigned int line, column;
};

__attribute__((format(printf, 3, 0))) static void
on_log(cyaml_log_t level, void *ctx, const char *format, va_list args)
{
    struct capture *capture = ctx;
    char line[256];
    const char *where;
    if (level < CYAML_LOG_ERROR)
        return;
    vsnprintf(line, sizeof(line), format, args);
    line[strcspn(line, "\n")] = '\0';
    if (capture->text[0] == '\0')
        snprintf(capture->text, sizeof(capture->text), "%.190s", line);
    where = strstr(line, "(line: ");
    if (where && capture->line == 0) {
        char *end = NULL;
        capture->line = (unsigned int)strtoul(where + 7, &end, 10);
        where = strstr(end, "column: ");
        capture->column =
            where ? (unsigned int)strtoul(where + 8, NULL, 10) : 1;
    }
}

static cyaml_schema_value_t text_value(void)
{
    return (cyaml_schema_value_t){.type = CYAML_STRING,
                                  .flags =
                                      CYAML_FLAG_POINTER | CYAML_FLAG_OPTIONAL,
                                  .data_size = sizeof(char *),
                                  .string = {0, CYAML_UNLIMITED}};
}

static cyaml_schema_field_t *field_add(struct schema *schema)
{
    /* The table is ours: running out is a programmer's fault. */
    if (schema->field_count == FIELDS_MAX)
        abort();
    return &schema->fields[schema->field_count++];
}

static void field_text(cyaml_schema_field_t *field, const char *name,
                       size_t cell)
{
    *field =
        (cyaml_schema_field_t){.key = name,
                               .data_offset = (uint32_t)(cell * sizeof(char *)),
                               .value = text_value()};
}

static void field_list(cyaml_schema_field_t *field, const char *name,
                       size_t offset, size_t count_offset,
                       const cyaml_schema_value_t *entry, uint32_t max)
{
    *field = (cyaml_schema_field_t){
        .key = name,
        .data_offset = (uint32_t)offset,
        .count_offset = (uint32_t)count_offset,
        .count_size = sizeof(uint64_t),
        .value = {.type = CYAML_SEQUENCE,
                  .flags = CYAML_FLAG_POINTER | CYAML_FLAG_OPTIONAL,
                  .data_size = entry->data_size,
                  .sequence = {entry, 0, max}}};
}

/* Bytes of a relative path up to its n-th dot, 0 when it has not so many. */
static size_t group_length(const char *path, unsigned int depth)
{
    size_t length = 0;
    for (unsigned int i = 0; i < depth; i++) {
        const char *dot = strchr(path + length, '.');
        if (!dot)
            return 0;
        length = (size_t)(dot - path) + 1;
    }
    return length;
}

static const char *row_name(const struct scope *scope, size_t row)
{
    return key_at(scope->first + row)->doc.path + strlen(scope->prefix);
}

/* Sections "a." (depth 1) or "a.b." (depth 2) of a scope; a section's fields
 * are neighbours, so the inner ones are built first. Section offsets are all
 * 0: its fields lie in the scope's own struct. */
static void find_groups(struct schema *schema, const struct scope *scope,
                        unsigned int depth)
{
    for (size_t row = 0; row < scope->count; row++) {
        const char *name = row_name(scope, row);
        size_t length = group_length(name, depth);
        const struct group *last =
            schema->group_count > schema->scope_groups
                ? &schema->groups[schema->group_count - 1]
                : NULL;
        if (length == 0 || (last && last->length == length &&
                            strncmp(last->path, name, length) == 0))
            continue;
        if (schema->group_count == GROUPS_MAX)
            abort();
        struct group *group = &schema->groups[schema->group_count++];
        size_t parent = depth > 1 ? group_length(name, depth - 1) : 0;
        *group = (struct group){
            .path = name, .length = length, .parent = parent, .depth = depth};
        snprintf(group->name, sizeof(group->name), "%.*s",
                 (int)(length - parent - 1), name + parent);
    }
}

static void field_row(struct schema *schema, const struct scope *scope,
                      size_t row, size_t skip)
{
    if (key_at(scope->first + row)->kind == KEY_LIST)
        field_list(field_add(schema), "adapters",
                   offsetof(struct raw_model, adapters),
                   offsetof(struct raw_model, adapter_count), &schema->text,
                   CONFIG_ADAPTERS_MAX);
    else
        field_text(field_add(schema), row_name(scope, row) + skip, row);
}

/* Rows and sections right under the path's first `length` bytes. */
static void fields_under(struct schema *schema, const struct scope *scope,
                         const char *path, size_t length, unsigned int depth)
{
    for (size_t i = schema->scope_groups; i < schema->group_count; i++) {
        const struct group *group = &schema->groups[i];
        if (group->depth == depth + 1 && group->parent == length &&
            strncmp(group->path, path, length) == 0)
            *field_add(schema) = (cyaml_schema_field_t){
                .key = group->name,
                .value = {.type = CYAML_MAPPING,
                          .flags = CYAML_FLAG_OPTIONAL,
                          .data_size = schema->scope_size,
                          .mapping = {&schema->fields[group->start]}}};
    }
    for (size_t row = 0; row < scope->count; row++) {
        const char *name = row_name(scope, row);
        if (strncmp(name, path, length) == 0 && !strchr(name + length, '.'))
            field_row(schema, scope, row, length);
    }
}

/* All fields of a scope; returns where its own begin. The caller ends them. */
static size_t scope_schema(struct schema *schema, enum scope_id id, size_t size)
{
    const struct scope *scope = scope_at(id);
    schema->scope_groups = schema->group_count;
    schema->scope_size = (uint32_t)size;
    for (unsigned int depth = GROUP_DEPTH; depth > 0; depth--) {
        size_t first = schema->group_count;
        find_groups(schema, scope, depth);
        for (size_t i = first; i < schema->group_count; i++) {
            struct group *group = &schema->groups[i];
            group->start = schema->field_count;
            fields_under(schema, scope, group->path, group->length, depth);
            field_add(schema)->key = NULL;
        }
    }
    size_t start = schema->field_count;
    fields_under(schema, scope, "", 0, 0);
    return start;
}

/* Fields of one kind of list element. */
static void element_schema(struct schema *schema, enum scope_id id, size_t size)
{
    size_t start = scope_schema(schema, id, size);
    field_add(schema)->key = NULL;
    schema->elements[id] =
        (cyaml_schema_value_t){.type = CYAML_MAPPING,
                               .flags = CYAML_FLAG_DEFAULT,
                               .data_size = (uint32_t)size,
                               .mapping = {&schema->fields[start]}};
}

static cyaml_schema_value_t schema_build(struct schema *schema)
{
    schema->text = text_value();
    element_schema(schema, SCOPE_MODEL, sizeof(struct raw_model));
    element_schema(schema, SCOPE_WORKER, sizeof(struct raw_worker));
    element_schema(schema, SCOPE_LINK, sizeof(struct raw_link));
    size_t start = scope_schema(schema, SCOPE_TOP, sizeof(struct raw_config));
    const cyaml_schema_field_t *top = &schema->fields[start];
    field_list(field_add(schema), "models", offsetof(struct raw_config, models),
               offsetof(struct raw_config, model_count),
               &schema->elements[SCOPE_MODEL], CONFIG_MODELS_MAX);
    field_list(field_add(schema), "workers",
               offsetof(struct raw_config, workers),
               offsetof(struct raw_config, worker_count),
               &schema->elements[SCOPE_WORKER], CONFIG_WORKERS_MAX);
    field_list(field_add(schema), "links", offsetof(struct raw_config, links),
               offsetof(struct raw_config, link_count),
               &schema->elements[SCOPE_LINK], CONFIG_LINKS_MAX);
    field_add(schema)->key = NULL;
    return (cyaml_schema_value_t){.type = CYAML_MAPPING,
                                  .flags = CYAML_FLAG_POINTER,
                                  .data_size = sizeof(struct raw_config),
                                  .mapping = {top}};
}

static cyaml_config_t config_make(struct capture *capture)
{
    return (cyaml_config_t){.log_fn = on_log,
                            .log_ctx = capture,
                            .mem_fn = cyaml_mem,
                            .log_level = CYAML_LOG_ERROR,
                            .flags = CYAML_CFG_NO_ALIAS};
}

enum bt_status config_raw_load(const char *data, size_t size,
                               struct fault *fault, struct raw_config **raw_out)
{
    struct capture capture = {0};
    struct schema *schema = calloc(1, sizeof(*schema));
    struct raw_config *raw = NULL;
    if (!schema)
        return BT_NO_MEMORY;
    cyaml_schema_value_t top = schema_build(schema);
    cyaml_config_t config = config_make(&capture);
    cyaml_err_t err = cyaml_load_data((const uint8_t *)data, size, &config,
                                      &top, (cyaml_data_t **)&raw, NULL);
    free(schema);
    if (err == CYAML_ERR_OOM)
        return BT_NO_MEMORY;
    if (err != CYAML_OK)
        return fault_at(fault, BT_TYPE, capture.line ? capture.line : 1,
                        capture.column ? capture.column : 1, "%s",
                        capture.text[0] ? capture.text : cyaml_strerror(err));
    *raw_out = raw;
    return BT_OK;
}

static void values_free(char **values, size_t count)
{
    for (size_t i = 0; i < count; i++)
        free(values[i]);
}

/* The memory is cyaml_mem's, that is realloc's. */
void config_raw_free(struct raw_config *raw)
{
    if (!raw)
        return;
    for (uint64_t i = 0; i < raw->model_count; i++) {
        struct raw_model *model = &raw->models[i];
        values_free(model->value, sizeof(model->value) / sizeof(char *));
        values_free(model->adapters, model->adapter_count);
        free(model->adapters);
    }
    for (uint64_t i = 0; i < raw->worker_count; i++)
        values_free(raw->workers[i].value,
                    sizeof(raw->workers[i].value) / sizeof(char *));
    for (uint64_t i = 0; i < raw->link_count; i++)
        values_free(raw->links[i].value,
                    sizeof(raw->links[i].value) / sizeof(char *));
    values_free(raw->value, CONFIG_SCOPE_KEYS_MAX);
    free(raw->models);
    free(raw->workers);
    free(raw->links);
    free(raw);
}
