/* Strict YAML by tables, on libyaml's document tree. Decides syntax, one
 * document, known and repeated keys, kinds, units and ranges; leaves what the
 * values mean to cluster_file.c.
 *
 * Invariants: a file is at most FILE_BYTES_MAX; nothing here recurses, the
 * caller walks to the depth of its own tables, so that a tree that contains
 * itself through an alias ends with the tables.
 */
#include "cluster_yaml.h"
#include "baton/base/units.h"
#include "baton/orchestrator/config.h"
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

#define FILE_BYTES_MAX (256u << 10)
#define BRACKETS_MAX   4096u

struct yaml_file {
    const char *path;
    char *error;
    size_t error_size;
    yaml_document_t document;
};

/* A value on its way to its place. */
struct item {
    struct yaml_file *file;
    const struct yaml_key *key;
    int node;
    const char *text;
    void *target;
};

/* ---- faults ---- */

__attribute__((format(printf, 3, 0))) static void
fault_text(struct yaml_file *file, const yaml_mark_t *mark, const char *format,
           va_list args)
{
    int used = 0;

    if (mark)
        used =
            snprintf(file->error, file->error_size, "%s:%zu:%zu: ", file->path,
                     mark->line + 1, mark->column + 1);
    else
        used = snprintf(file->error, file->error_size, "%s: ", file->path);
    if (used >= 0 && (size_t)used < file->error_size)
        vsnprintf(file->error + used, file->error_size - (size_t)used, format,
                  args);
    for (char *c = file->error; *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f)
            *c = '?';
}

static yaml_node_t *node_of(const struct yaml_file *file, int node)
{
    /* libyaml does not change the document, it only forgot to say so. */
    return yaml_document_get_node((yaml_document_t *)(uintptr_t)&file->document,
                                  node);
}

enum bt_status yaml_fault(struct yaml_file *file, int node,
                          enum bt_status status, const char *format, ...)
{
    const yaml_node_t *at = node > 0 ? node_of(file, node) : NULL;
    va_list args;

    va_start(args, format);
    fault_text(file, at ? &at->start_mark : NULL, format, args);
    va_end(args);
    return status;
}

__attribute__((format(printf, 4, 5))) static enum bt_status
fault_mark(struct yaml_file *file, const yaml_mark_t *mark,
           enum bt_status status, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    fault_text(file, mark, format, args);
    va_end(args);
    return status;
}

/* ---- the file ---- */

static enum bt_status read_text(struct yaml_file *file, char *text,
                                size_t *bytes_out)
{
    FILE *stream = fopen(file->path, "re");
    size_t bytes;
    int failed;

    if (!stream)
        return fault_mark(file, NULL, BT_NOT_FOUND, "%s", strerror(errno));
    bytes = fread(text, 1, FILE_BYTES_MAX + 1, stream);
    failed = ferror(stream);
    fclose(stream);
    if (failed)
        return fault_mark(file, NULL, BT_IO, "cannot be read");
    if (bytes > FILE_BYTES_MAX)
        return fault_mark(file, NULL, BT_TOO_LARGE, "larger than %u bytes",
                          FILE_BYTES_MAX);
    *bytes_out = bytes;
    return BT_OK;
}

static enum bt_status fault_syntax(struct yaml_file *file,
                                   const yaml_parser_t *parser)
{
    if (parser->error == YAML_MEMORY_ERROR)
        return fault_mark(file, NULL, BT_NO_MEMORY, "out of memory");
    return fault_mark(
        file, &parser->problem_mark, BT_INVALID, "not YAML: %s%s%s",
        parser->problem ? parser->problem : "syntax error",
        parser->context ? " " : "", parser->context ? parser->context : "");
}

/* Nothing may follow the first document. */
static enum bt_status check_end(struct yaml_file *file, yaml_parser_t *parser)
{
    yaml_document_t next;
    const yaml_node_t *root;
    enum bt_status status = BT_OK;

    if (!yaml_parser_load(parser, &next))
        return fault_syntax(file, parser);
    root = yaml_document_get_root_node(&next);
    if (root)
        status = fault_mark(file, &root->start_mark, BT_INVALID,
                            "a second document in the file");
    yaml_document_delete(&next);
    return status;
}

/* libyaml's time grows with the square of the nesting of brackets. */
static enum bt_status check_brackets(struct yaml_file *file, const char *text,
                                     size_t bytes)
{
    yaml_mark_t mark = {0};
    size_t brackets = 0;

    for (size_t i = 0; i < bytes; i++) {
        brackets += text[i] == '[' || text[i] == '{';
        if (brackets > BRACKETS_MAX)
            return fault_mark(file, &mark, BT_TOO_LARGE,
                              "more than %u brackets", BRACKETS_MAX);
        mark.column = text[i] == '\n' ? 0 : mark.column + 1;
        mark.line += text[i] == '\n';
    }
    return BT_OK;
}

static enum bt_status parse(struct yaml_file *file, const char *text,
                            size_t bytes)
{
    yaml_parser_t parser;
    enum bt_status status = BT_OK;

    if (!yaml_parser_initialize(&parser))
        return fault_mark(file, NULL, BT_NO_MEMORY, "out of memory");
    yaml_parser_set_input_string(&parser, (const unsigned char *)text, bytes);
    if (!yaml_parser_load(&parser, &file->document)) {
        status = fault_syntax(file, &parser);
    } else {
        if (!yaml_document_get_root_node(&file->document))
            status = fault_mark(file, &(yaml_mark_t){0}, BT_INVALID,
                                "the file is empty");
        else
            status = check_end(file, &parser);
        if (status != BT_OK)
            yaml_document_delete(&file->document);
    }
    yaml_parser_delete(&parser);
    return status;
}

enum bt_status yaml_file_open(const char *path, char *error, size_t error_size,
                              struct yaml_file **file_out)
{
    struct yaml_file *file = calloc(1, sizeof(*file));
    char *text = malloc(FILE_BYTES_MAX + 1);
    enum bt_status status = BT_NO_MEMORY;
    size_t bytes = 0;

    if (file && text) {
        file->path = path;
        file->error = error;
        file->error_size = error_size;
        status = read_text(file, text, &bytes);
        if (status == BT_OK)
            status = check_brackets(file, text, bytes);
        if (status == BT_OK)
            status = parse(file, text, bytes);
    } else {
        snprintf(error, error_size, "%s: out of memory", path);
    }
    free(text);
    if (status != BT_OK) {
        free(file);
        return status;
    }
    *file_out = file;
    return BT_OK;
}

void yaml_file_close(struct yaml_file *file)
{
    if (!file)
        return;
    yaml_document_delete(&file->document);
    free(file);
}

int yaml_root(const struct yaml_file *file)
{
    (void)file;
    return 1; /* libyaml numbers nodes from 1, the root first */
}

/* ---- values ---- */

static enum bt_status expected(const struct item *item, const char *what)
{
    return yaml_fault(item->file, item->node, BT_TYPE,
                      "%s: expected %s, got '%.40s'", item->key->name, what,
                      item->text);
}

static enum bt_status check_range(const struct item *item, double value)
{
    const struct yaml_key *key = item->key;

    if (key->min == 0 && key->max == 0)
        return BT_OK;
    if (value >= key->min && value <= key->max)
        return BT_OK;
    return yaml_fault(item->file, item->node, BT_INVALID,
                      "%s: '%.40s' is out of range (%.15g to %.15g)", key->name,
                      item->text, key->min, key->max);
}

static enum bt_status put_whole(const struct item *item, uint64_t max)
{
    uint64_t value = 0;
    size_t length = strlen(item->text);
    enum bt_status status;

    if (length == 0 || strspn(item->text, "0123456789") != length)
        return expected(item, "a whole number");
    for (size_t i = 0; i < length; i++) {
        unsigned int digit = (unsigned int)(item->text[i] - '0');

        if (value > (max - digit) / 10)
            return expected(item, "a smaller number");
        value = value * 10 + digit;
    }
    status = check_range(item, (double)value);
    if (status == BT_OK && max == UINT32_MAX)
        *(uint32_t *)item->target = (uint32_t)value;
    else if (status == BT_OK)
        *(uint64_t *)item->target = value;
    return status;
}

static enum bt_status parse_double(const struct item *item, double *out)
{
    char *end = NULL;
    double value = strtod(item->text, &end);

    if (end == item->text || *end || !isfinite(value) ||
        strspn(item->text, "0123456789.eE+-") != strlen(item->text))
        return expected(item, "a number");
    *out = value;
    return check_range(item, value);
}

static enum bt_status put_unit(const struct item *item)
{
    uint64_t value = 0;
    int64_t ns = 0;
    bool good = false;
    const char *what = "a duration with a unit (1.8ms)";

    switch ((int)item->key->kind) {
    case YAML_SIZE:
        good = bt_size_parse(item->text, &value) == BT_OK;
        what = "a size with a unit (436GB)";
        break;
    case YAML_RATE:
        good = bt_rate_parse(item->text, &value) == BT_OK;
        what = "a rate with a unit (50GB/s, 400Gbps)";
        break;
    default:
        good = bt_duration_parse(item->text, &ns) == BT_OK;
        value = (uint64_t)ns;
        break;
    }
    if (!good)
        return expected(item, what);
    if (item->key->kind == YAML_DURATION)
        *(int64_t *)item->target = ns;
    else
        *(uint64_t *)item->target = value;
    return check_range(item, (double)value);
}

static enum bt_status put_flag(const struct item *item)
{
    if (strcmp(item->text, "true") != 0 && strcmp(item->text, "false") != 0)
        return expected(item, "true or false");
    *(bool *)item->target = item->text[0] == 't';
    return BT_OK;
}

static enum bt_status put_word(const struct item *item)
{
    char list[160] = "";
    size_t used = 0;

    for (uint32_t i = 0; item->key->words[i]; i++) {
        if (strcmp(item->key->words[i], item->text) == 0) {
            *(uint32_t *)item->target = i;
            return BT_OK;
        }
        used += (size_t)snprintf(list + used, sizeof(list) - used, "%s%s",
                                 i ? ", " : "one of ", item->key->words[i]);
    }
    return expected(item, list);
}

static enum bt_status put_text(const struct item *item)
{
    if (item->text[0] == '\0' || strlen(item->text) >= YAML_TEXT_MAX)
        return expected(item, "a text of 1 to 47 bytes");
    for (const char *c = item->text; *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f)
            return expected(item, "a text without control characters");
    snprintf(item->target, YAML_TEXT_MAX, "%s", item->text);
    return BT_OK;
}

static enum bt_status put_scalar(const struct item *item)
{
    switch (item->key->kind) {
    case YAML_TEXT:
        return put_text(item);
    case YAML_U32:
        return put_whole(item, UINT32_MAX);
    case YAML_U64:
        return put_whole(item, UINT64_MAX);
    case YAML_DOUBLE:
        return parse_double(item, item->target);
    case YAML_SIZE:
    case YAML_RATE:
    case YAML_DURATION:
        return put_unit(item);
    case YAML_FLAG:
        return put_flag(item);
    case YAML_WORD:
        return put_word(item);
    case YAML_NUMBERS3:
    case YAML_MAP:
    case YAML_LIST:
        break;
    }
    return expected(item, "something else");
}

static enum bt_status put_numbers(struct item *item)
{
    int list = item->node;
    double *target = item->target;
    enum bt_status status = BT_OK;

    if (yaml_count(item->file, list) != 3)
        return yaml_fault(item->file, list, BT_TYPE,
                          "%s: expected three numbers", item->key->name);
    for (uint32_t i = 0; i < 3 && status == BT_OK; i++) {
        const yaml_node_t *n;

        item->node = yaml_item(item->file, list, i);
        n = node_of(item->file, item->node);
        if (n->type != YAML_SCALAR_NODE)
            return yaml_fault(item->file, item->node, BT_TYPE,
                              "%s: expected a number", item->key->name);
        item->text = (const char *)n->data.scalar.value;
        status = parse_double(item, &target[i]);
    }
    return status;
}

static const char *type_text(yaml_node_type_t type)
{
    if (type == YAML_MAPPING_NODE)
        return "a mapping (key: value)";
    return type == YAML_SEQUENCE_NODE ? "a list" : "a value";
}

static enum bt_status put(struct item *item)
{
    const yaml_node_t *n = node_of(item->file, item->node);
    yaml_node_type_t due = YAML_SCALAR_NODE;

    if (item->key->kind == YAML_MAP)
        due = YAML_MAPPING_NODE;
    else if (item->key->kind == YAML_LIST || item->key->kind == YAML_NUMBERS3)
        due = YAML_SEQUENCE_NODE;
    if (n->type != due)
        return yaml_fault(item->file, item->node, BT_TYPE,
                          "%s: expected %s, got %s", item->key->name,
                          type_text(due), type_text(n->type));
    if (item->key->kind == YAML_MAP || item->key->kind == YAML_LIST)
        return BT_OK;
    if (item->key->kind == YAML_NUMBERS3)
        return put_numbers(item);
    item->text = (const char *)n->data.scalar.value;
    if (strlen(item->text) != n->data.scalar.length)
        return yaml_fault(item->file, item->node, BT_INVALID,
                          "%s: control character in a value", item->key->name);
    return put_scalar(item);
}

/* ---- mappings ---- */

static enum bt_status fault_unknown(struct yaml_file *file, int node,
                                    const struct yaml_key *keys,
                                    const char *name)
{
    const char *names[YAML_KEYS_MAX], *hint;
    size_t count = 0;

    for (const struct yaml_key *k = keys; k->name; k++)
        names[count++] = k->name;
    hint = bt_nearest(name, names, count);
    if (hint)
        return yaml_fault(file, node, BT_INVALID,
                          "unknown key '%.40s' (did you mean '%s'?)", name,
                          hint);
    return yaml_fault(file, node, BT_INVALID, "unknown key '%.40s'", name);
}

static enum bt_status read_pair(struct yaml_file *file,
                                const yaml_node_pair_t *pair,
                                const struct yaml_key *keys, void *out)
{
    const yaml_node_t *name = node_of(file, pair->key);
    struct yaml_given *given = out;
    const char *text = (const char *)name->data.scalar.value;
    struct item item = {.file = file, .node = pair->value};
    size_t i = 0;

    if (name->type != YAML_SCALAR_NODE)
        return yaml_fault(file, pair->key, BT_TYPE, "expected a key");
    while (keys[i].name && strcmp(keys[i].name, text) != 0)
        i++;
    if (!keys[i].name)
        return fault_unknown(file, pair->key, keys, text);
    if (given->at[i])
        return yaml_fault(file, pair->key, BT_DUPLICATE, "repeated key '%s'",
                          text);
    given->at[i] = pair->value;
    item.key = &keys[i];
    item.target = (unsigned char *)out + keys[i].offset;
    return put(&item);
}

enum bt_status yaml_read(struct yaml_file *file, int node,
                         const struct yaml_key *keys, void *out)
{
    const yaml_node_t *map = node_of(file, node);
    struct yaml_given *given = out;
    enum bt_status status = BT_OK;

    memset(given, 0, sizeof(*given));
    given->node = node;
    if (map->type != YAML_MAPPING_NODE)
        return yaml_fault(file, node, BT_TYPE, "expected %s, got %s",
                          type_text(YAML_MAPPING_NODE), type_text(map->type));
    for (const yaml_node_pair_t *pair = map->data.mapping.pairs.start;
         pair < map->data.mapping.pairs.top && status == BT_OK; pair++)
        status = read_pair(file, pair, keys, out);
    for (size_t i = 0; keys[i].name && status == BT_OK; i++)
        if (keys[i].required && !given->at[i])
            status = yaml_fault(file, node, BT_INVALID, "key '%s' is missing",
                                keys[i].name);
    return status;
}

uint32_t yaml_count(const struct yaml_file *file, int node)
{
    const yaml_node_t *n = node_of(file, node);

    if (!n || n->type != YAML_SEQUENCE_NODE)
        return 0;
    return (uint32_t)(n->data.sequence.items.top -
                      n->data.sequence.items.start);
}

int yaml_item(const struct yaml_file *file, int node, uint32_t i)
{
    return node_of(file, node)->data.sequence.items.start[i];
}
