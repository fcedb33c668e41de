/* First pass over a configuration file, on libyaml's events: what the file is
 * made of and where. Decides syntax, one document, known keys, repeated keys,
 * kinds (value, mapping, list); records the position of every key and value
 * for the passes after it. Leaves values to convert.c. Invariants: depth and
 * node count are bounded; frames[depth - 1] is the innermost open collection.
 *
 *   file -> [walk] -> positions -> [libcyaml] -> strings -> [convert] ->
 * [check]
 */
#include "schema.h"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

#define DEPTH_MAX 6u

enum node_kind { NODE_UNKNOWN, NODE_VALUE, NODE_MAPPING, NODE_LIST };

struct frame {
    enum node_kind kind;
    size_t path_length;    /* of the collection's own path */
    size_t pattern_length; /* the same with [] for [i] */
    uint32_t index;        /* of the next item of a list */
    bool value_due;        /* mapping: the key has been read */
    size_t first;          /* position of its first child */
};

struct walk {
    yaml_parser_t parser;
    const struct key_table *table;
    struct fault *fault;
    struct positions *positions;
    char path[CONFIG_PATH_MAX];
    char pattern[CONFIG_PATH_MAX];
    enum node_kind due; /* kind of the value that comes next */
    struct frame frames[DEPTH_MAX];
    unsigned int depth;
    bool seen_document, done;
};

enum bt_status fault_at(struct fault *fault, enum bt_status status,
                        unsigned int line, unsigned int column,
                        const char *format, ...)
{
    va_list args;
    int used = snprintf(fault->text, fault->size, "%s:%u:%u: ", fault->file,
                        line, column);
    if (used < 0 || (size_t)used >= fault->size)
        return status;
    va_start(args, format);
    vsnprintf(fault->text + used, fault->size - (size_t)used, format, args);
    va_end(args);
    for (char *c = fault->text; *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f)
            *c = '?';
    return status;
}

const struct position *position_find(const struct positions *positions,
                                     const char *path)
{
    for (size_t i = 0; i < positions->count; i++)
        if (strcmp(positions->items[i].path, path) == 0)
            return &positions->items[i];
    return NULL;
}

static enum bt_status fault_mark(struct walk *walk, enum bt_status status,
                                 const yaml_mark_t *mark, const char *text)
{
    return fault_at(walk->fault, status, (unsigned int)mark->line + 1,
                    (unsigned int)mark->column + 1, "%s", text);
}

void positions_free(struct positions *positions)
{
    for (size_t i = 0; i < positions->count; i++)
        free(positions->items[i].text);
    free(positions->items);
    *positions = (struct positions){0};
}

/* What the table says about a path with [] for indices. */
static enum node_kind kind_of(const struct key_table *table,
                              const char *pattern)
{
    size_t length = strlen(pattern);
    if (length == 0)
        return NODE_MAPPING;
    for (size_t row = 0; row < table->count; row++) {
        const char *path = table->rows[row].doc.path;
        if (strncmp(path, pattern, length) != 0)
            continue;
        if (path[length] == '\0')
            return NODE_VALUE;
        if (path[length] == '.')
            return NODE_MAPPING;
        if (path[length] == '[')
            return NODE_LIST;
    }
    return NODE_UNKNOWN;
}

/* Names that may stand under the prefix ("limits.", "workers[].", ""). */
static size_t names_under(const struct key_table *table, const char *prefix,
                          char names[][CONFIG_PATH_MAX], const char **list)
{
    size_t length = strlen(prefix), count = 0;
    for (size_t row = 0; row < table->count; row++) {
        const char *path = table->rows[row].doc.path;
        if (strncmp(path, prefix, length) != 0)
            continue;
        size_t size = strcspn(path + length, ".[");
        if (count > 0 && strlen(names[count - 1]) == size &&
            strncmp(names[count - 1], path + length, size) == 0)
            continue;
        snprintf(names[count], CONFIG_PATH_MAX, "%.*s", (int)size,
                 path + length);
        list[count] = names[count];
        count++;
    }
    return count;
}

static enum bt_status fault_unknown(struct walk *walk, const char *key,
                                    const yaml_mark_t *mark)
{
    char names[CONFIG_SCOPE_KEYS_MAX][CONFIG_PATH_MAX];
    const char *list[CONFIG_SCOPE_KEYS_MAX];
    size_t count = names_under(walk->table, walk->pattern, names, list);
    const char *hint = bt_nearest(key, list, count);
    unsigned int line = (unsigned int)mark->line + 1;
    unsigned int column = (unsigned int)mark->column + 1;
    if (hint)
        return fault_at(walk->fault, BT_INVALID, line, column,
                        "unknown key '%.60s' (did you mean '%s'?)", key, hint);
    return fault_at(walk->fault, BT_INVALID, line, column,
                    "unknown key '%.60s'", key);
}

static enum bt_status position_add(struct walk *walk, const yaml_mark_t *key)
{
    struct positions *all = walk->positions;
    if (all->count == CONFIG_NODES_MAX)
        return fault_mark(walk, BT_LIMIT, key, "too many values in one file");
    if (all->count == all->capacity) {
        size_t capacity = all->capacity ? all->capacity * 2 : 256;
        struct position *grown =
            realloc(all->items, capacity * sizeof(*all->items));
        if (!grown)
            return BT_NO_MEMORY;
        all->items = grown;
        all->capacity = capacity;
    }
    struct position *item = &all->items[all->count++];
    memcpy(item->path, walk->path, sizeof(item->path));
    item->key_line = (unsigned int)key->line + 1;
    item->key_column = (unsigned int)key->column + 1;
    item->line = item->key_line;
    item->column = item->key_column;
    item->text = NULL;
    return BT_OK;
}

/* Append to path and pattern; both stay within CONFIG_PATH_MAX because known
 * keys are short and depth is bounded. */
static void path_append(struct walk *walk, const char *path,
                        const char *pattern)
{
    size_t used = strlen(walk->path);
    size_t used_pattern = strlen(walk->pattern);
    snprintf(walk->path + used, sizeof(walk->path) - used, "%s", path);
    snprintf(walk->pattern + used_pattern, sizeof(walk->pattern) - used_pattern,
             "%s", pattern);
}

static void path_reset(struct walk *walk, const struct frame *frame)
{
    walk->path[frame->path_length] = '\0';
    walk->pattern[frame->pattern_length] = '\0';
}

/* Siblings of the innermost mapping: positions from `first`, its own depth. */
static bool key_repeated(const struct walk *walk, const struct frame *frame)
{
    for (size_t i = frame->first; i < walk->positions->count; i++)
        if (strcmp(walk->positions->items[i].path, walk->path) == 0)
            return true;
    return false;
}

static enum bt_status on_key(struct walk *walk, struct frame *frame,
                             const yaml_event_t *event)
{
    const yaml_mark_t *mark = &event->start_mark;
    if (event->type != YAML_SCALAR_EVENT)
        return fault_mark(walk, BT_TYPE, mark, "expected a key");
    const char *key = (const char *)event->data.scalar.value;
    size_t length = event->data.scalar.length;
    path_reset(walk, frame);
    if (walk->depth > 1)
        path_append(walk, ".", ".");
    if (length == 0 || length > 40 || strlen(key) != length ||
        strpbrk(key, ".[]"))
        return fault_unknown(walk, key, mark);
    char pattern[CONFIG_PATH_MAX + 64];
    snprintf(pattern, sizeof(pattern), "%s%s", walk->pattern, key);
    walk->due = kind_of(walk->table, pattern);
    if (walk->due == NODE_UNKNOWN)
        return fault_unknown(walk, key, mark);
    path_append(walk, key, key);
    if (key_repeated(walk, frame))
        return fault_at(walk->fault, BT_DUPLICATE, (unsigned int)mark->line + 1,
                        (unsigned int)mark->column + 1, "repeated key '%s'",
                        key);
    frame->value_due = true;
    return position_add(walk, mark);
}

static const char *kind_text(enum node_kind kind)
{
    switch (kind) {
    case NODE_VALUE:
        return "a value";
    case NODE_MAPPING:
        return "a mapping (key: value)";
    case NODE_LIST:
        return "a list";
    case NODE_UNKNOWN:
        break;
    }
    return "nothing";
}

static enum node_kind kind_of_event(const yaml_event_t *event)
{
    if (event->type == YAML_SCALAR_EVENT)
        return NODE_VALUE;
    return event->type == YAML_MAPPING_START_EVENT ? NODE_MAPPING : NODE_LIST;
}

static enum bt_status check_text(struct walk *walk, const yaml_event_t *event)
{
    size_t length = event->data.scalar.length;
    const unsigned char *text = event->data.scalar.value;
    if (length > CONFIG_VALUE_MAX)
        return fault_mark(walk, BT_LIMIT, &event->start_mark,
                          "value longer than 1024 bytes");
    for (size_t i = 0; i < length; i++)
        if (text[i] < 0x20 || text[i] == 0x7f)
            return fault_mark(walk, BT_INVALID, &event->start_mark,
                              "control character in a value");
    return BT_OK;
}

static enum bt_status keep_text(struct walk *walk, const yaml_event_t *event)
{
    struct position *last = &walk->positions->items[walk->positions->count - 1];
    if (!walk->table->keep_text)
        return BT_OK;
    last->text = strdup((const char *)event->data.scalar.value);
    return last->text ? BT_OK : BT_NO_MEMORY;
}

static enum bt_status on_value(struct walk *walk, const yaml_event_t *event)
{
    enum node_kind kind = kind_of_event(event);
    const yaml_mark_t *mark = &event->start_mark;
    if (walk->positions->count > 0 && walk->depth > 0) {
        struct position *last =
            &walk->positions->items[walk->positions->count - 1];
        last->line = (unsigned int)mark->line + 1;
        last->column = (unsigned int)mark->column + 1;
    }
    if (kind != walk->due)
        return fault_at(walk->fault, BT_TYPE, (unsigned int)mark->line + 1,
                        (unsigned int)mark->column + 1, "expected %s, got %s",
                        kind_text(walk->due), kind_text(kind));
    if (kind == NODE_VALUE) {
        enum bt_status status = check_text(walk, event);
        return status ? status : keep_text(walk, event);
    }
    if (walk->depth == DEPTH_MAX)
        return fault_mark(walk, BT_LIMIT, mark, "nested too deep");
    struct frame *frame = &walk->frames[walk->depth++];
    *frame = (struct frame){.kind = kind,
                            .path_length = strlen(walk->path),
                            .pattern_length = strlen(walk->pattern),
                            .first = walk->positions->count};
    return BT_OK;
}

/* The next node inside the innermost collection. */
static enum bt_status on_node(struct walk *walk, const yaml_event_t *event)
{
    if (walk->depth == 0) {
        walk->due = NODE_MAPPING;
        return on_value(walk, event);
    }
    struct frame *frame = &walk->frames[walk->depth - 1];
    if (frame->kind == NODE_MAPPING) {
        if (!frame->value_due)
            return on_key(walk, frame, event);
        frame->value_due = false;
        return on_value(walk, event);
    }
    char item[16];
    snprintf(item, sizeof(item), "[%u]", frame->index++);
    path_reset(walk, frame);
    path_append(walk, item, "[]");
    walk->due = kind_of(walk->table, walk->pattern);
    enum bt_status status = position_add(walk, &event->start_mark);
    return status ? status : on_value(walk, event);
}

static bool has_anchor(const yaml_event_t *event)
{
    switch ((int)event->type) {
    case YAML_SCALAR_EVENT:
        return event->data.scalar.anchor != NULL;
    case YAML_MAPPING_START_EVENT:
        return event->data.mapping_start.anchor != NULL;
    case YAML_SEQUENCE_START_EVENT:
        return event->data.sequence_start.anchor != NULL;
    default:
        return event->type == YAML_ALIAS_EVENT;
    }
}

static enum bt_status on_event(struct walk *walk, const yaml_event_t *event)
{
    if (has_anchor(event))
        return fault_mark(walk, BT_UNSUPPORTED, &event->start_mark,
                          "anchors and aliases are not supported");
    switch ((int)event->type) {
    case YAML_DOCUMENT_START_EVENT:
        if (walk->seen_document)
            return fault_mark(walk, BT_INVALID, &event->start_mark,
                              "a second document in the file");
        walk->seen_document = true;
        return BT_OK;
    case YAML_SCALAR_EVENT:
    case YAML_MAPPING_START_EVENT:
    case YAML_SEQUENCE_START_EVENT:
        return on_node(walk, event);
    case YAML_MAPPING_END_EVENT:
    case YAML_SEQUENCE_END_EVENT:
        walk->depth--;
        path_reset(walk, &walk->frames[walk->depth]);
        return BT_OK;
    case YAML_STREAM_END_EVENT:
        walk->done = true;
        return BT_OK;
    default:
        return BT_OK;
    }
}

static enum bt_status fault_syntax(struct walk *walk, const char *data)
{
    const yaml_parser_t *parser = &walk->parser;
    size_t line = parser->problem_mark.line;
    size_t column = parser->problem_mark.column;
    if (parser->error == YAML_MEMORY_ERROR)
        return BT_NO_MEMORY;
    if (parser->error == YAML_READER_ERROR) {
        line = column = 0;
        for (size_t i = 0; i < parser->problem_offset; i++) {
            column = data[i] == '\n' ? 0 : column + 1;
            line += data[i] == '\n';
        }
    }
    return fault_at(walk->fault, BT_INVALID, (unsigned int)line + 1,
                    (unsigned int)column + 1, "not YAML: %s%s%s",
                    parser->problem ? parser->problem : "syntax error",
                    parser->context ? " " : "",
                    parser->context ? parser->context : "");
}

enum bt_status config_walk(const struct key_table *table, const char *data,
                           size_t size, struct fault *fault,
                           struct positions *positions)
{
    struct walk walk = {.table = table, .fault = fault, .positions = positions};
    enum bt_status status = BT_OK;
    if (!yaml_parser_initialize(&walk.parser))
        return BT_NO_MEMORY;
    yaml_parser_set_input_string(&walk.parser, (const unsigned char *)data,
                                 size);
    while (status == BT_OK && !walk.done) {
        yaml_event_t event;
        if (!yaml_parser_parse(&walk.parser, &event)) {
            status = fault_syntax(&walk, data);
            break;
        }
        status = on_event(&walk, &event);
        yaml_event_delete(&event);
    }
    yaml_parser_delete(&walk.parser);
    if (status == BT_OK && !walk.seen_document)
        status = fault_at(fault, BT_INVALID, 1, 1, "the file is empty");
    return status;
}
