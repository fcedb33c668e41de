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

#define FIELDS_MAX       160u
#define SECTIONS_MAX     24u
#define SECTION_NAME_MAX 24u

/* Storage of one derived schema. */
struct schema {
    cyaml_schema_field_t fields[FIELDS_MAX];
    size_t field_count;
    char names[SECTIONS_MAX][SECTION_NAME_MAX];
    size_t name_count;
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

/* Fields of one kind of list element. */
static void element_schema(struct schema *schema, enum scope_id id, size_t size)
{
    const struct scope *scope = scope_at(id);
    size_t start = schema->field_count;
    for (size_t i = 0; i < scope->count; i++) {
        const struct key *key = key_at(scope->first + i);
        const char *name = key->doc.path + strlen(scope->prefix);
        if (key->kind == KEY_LIST)
            field_list(field_add(schema), "adapters",
                       offsetof(struct raw_model, adapters),
                       offsetof(struct raw_model, adapter_count), &schema->text,
                       CONFIG_ADAPTERS_MAX);
        else
            field_text(field_add(schema), name, i);
    }
    field_add(schema)->key = NULL;
    schema->elements[id] =
        (cyaml_schema_value_t){.type = CYAML_MAPPING,
                               .flags = CYAML_FLAG_DEFAULT,
                               .data_size = (uint32_t)size,
                               .mapping = {&schema->fields[start]}};
}

/* Fields of the section whose rows start at `row`; returns the row after. */
static size_t section_schema(struct schema *schema, size_t row)
{
    const char *path = key_at(row)->doc.path;
    size_t prefix = strcspn(path, ".") + 1;
    while (row < scope_at(SCOPE_TOP)->count &&
           strncmp(key_at(row)->doc.path, path, prefix) == 0) {
        field_text(field_add(schema), key_at(row)->doc.path + prefix, row);
        row++;
    }
    field_add(schema)->key = NULL;
    return row;
}

/* Top-level fields; sections are built first, so that the top's own fields
 * are neighbours. */
static const cyaml_schema_field_t *top_schema(struct schema *schema)
{
    size_t rows = scope_at(SCOPE_TOP)->count, starts[SECTIONS_MAX] = {0};
    for (size_t row = 0; row < rows;) {
        if (!strchr(key_at(row)->doc.path, '.')) {
            row++;
            continue;
        }
        if (schema->name_count == SECTIONS_MAX)
            abort();
        const char *path = key_at(row)->doc.path;
        snprintf(schema->names[schema->name_count], SECTION_NAME_MAX, "%.*s",
                 (int)strcspn(path, "."), path);
        starts[schema->name_count++] = schema->field_count;
        row = section_schema(schema, row);
    }
    size_t top = schema->field_count;
    for (size_t i = 0; i < schema->name_count; i++)
        *field_add(schema) = (cyaml_schema_field_t){
            .key = schema->names[i],
            .value = {.type = CYAML_MAPPING,
                      .flags = CYAML_FLAG_OPTIONAL,
                      .data_size = sizeof(struct raw_config),
                      .mapping = {&schema->fields[starts[i]]}}};
    for (size_t row = 0; row < rows; row++)
        if (!strchr(key_at(row)->doc.path, '.'))
            field_text(field_add(schema), key_at(row)->doc.path, row);
    return &schema->fields[top];
}

static cyaml_schema_value_t schema_build(struct schema *schema)
{
    schema->text = text_value();
    element_schema(schema, SCOPE_MODEL, sizeof(struct raw_model));
    element_schema(schema, SCOPE_WORKER, sizeof(struct raw_worker));
    element_schema(schema, SCOPE_LINK, sizeof(struct raw_link));
    const cyaml_schema_field_t *top = top_schema(schema);
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
