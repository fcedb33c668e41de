/* Values of a topology file, from the texts that the walk kept: one pass in
 * the order of the file. Decides kinds, ranges, list limits, defaults and
 * required keys; leaves names that must exist to topology_file.c. */
#include "topology_schema.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* "nodes[12].rails": the list, its element and the row's pattern. */
struct place {
    enum list_id list; /* LIST_COUNT: not in a list */
    uint32_t index;
    char pattern[CONFIG_PATH_MAX];
};

static struct place place_of(const char *path)
{
    struct place place = {.list = LIST_COUNT};
    const char *bracket = strchr(path, '[');
    size_t length = bracket ? (size_t)(bracket - path) : strlen(path);
    const char *close = bracket ? strchr(bracket, ']') : NULL;
    snprintf(place.pattern, sizeof(place.pattern), "%s", path);
    for (int i = 0; close && i < LIST_COUNT; i++) {
        const char *name = topology_list((enum list_id)i)->name;
        if (strlen(name) != length || strncmp(name, path, length) != 0)
            continue;
        place.list = (enum list_id)i;
        place.index = (uint32_t)strtoul(bracket + 1, NULL, 10);
        snprintf(place.pattern, sizeof(place.pattern), "%s[]%s", name,
                 close + 1);
    }
    return place;
}

/* As many elements as the file has of each list. */
static enum bt_status take_lists(const struct load *load,
                                 struct bt_topology_file *file)
{
    for (size_t i = 0; i < load->positions->count; i++) {
        const char *path = load->positions->items[i].path;
        struct place place = place_of(path);
        if (place.list == LIST_COUNT || strchr(path, '.'))
            continue;
        if (place.index >= topology_list(place.list)->max)
            return load_fault(load, BT_LIMIT, path, "more than %u %s",
                              topology_list(place.list)->max,
                              topology_list(place.list)->name);
        file->counts[place.list] = place.index + 1;
    }
    for (int i = 0; i < LIST_COUNT; i++) {
        file->items[i] =
            calloc((size_t)file->counts[i] + 1, topology_list(i)->bytes);
        if (!file->items[i])
            return BT_NO_MEMORY;
    }
    return BT_OK;
}

static void *element_of(struct bt_topology_file *file,
                        const struct place *place)
{
    if (place->list == LIST_COUNT)
        return file;
    return (unsigned char *)file->items[place->list] +
           (size_t)place->index * topology_list(place->list)->bytes;
}

static enum bt_status convert_one(const struct load *load,
                                  struct bt_topology_file *file,
                                  const struct position *position)
{
    const struct key_table *table = topology_table();
    struct place place = place_of(position->path);
    for (size_t row = 0; row < table->count; row++) {
        if (strcmp(table->rows[row].doc.path, place.pattern) == 0)
            return config_value(load, &table->rows[row], place.index,
                                position->text, element_of(file, &place));
    }
    return BT_BUG; /* the walk lets no other key pass */
}

static enum bt_status require_names(const struct load *load,
                                    struct bt_topology_file *file)
{
    char path[CONFIG_PATH_MAX];
    for (int list = 0; list < LIST_COUNT; list++) {
        for (uint32_t i = 0; i < file->counts[list]; i++) {
            struct place place = {.list = (enum list_id)list, .index = i};
            if (*(char **)element_of(file, &place))
                continue;
            snprintf(path, sizeof(path), "%s[%u]", topology_list(list)->name,
                     i);
            return load_fault(load, BT_INVALID, path, "missing key 'name'");
        }
    }
    return BT_OK;
}

/* Defaults of the classes; those of the lists are all zero. */
static enum bt_status set_defaults(const struct load *load,
                                   struct bt_topology_file *file)
{
    const struct key_table *table = topology_table();
    enum bt_status status = BT_OK;
    for (size_t row = 0; row < table->count && !status; row++) {
        const struct key *key = &table->rows[row];
        if (strncmp(key->doc.path, "classes.", 8) == 0 && key->doc.fallback[0])
            status = config_value(load, key, 0, key->doc.fallback, file);
    }
    return status;
}

enum bt_status topology_convert(const struct load *load,
                                struct bt_topology_file *file)
{
    enum bt_status status = take_lists(load, file);
    if (!status)
        status = set_defaults(load, file);
    for (size_t i = 0; i < load->positions->count && !status; i++) {
        if (load->positions->items[i].text)
            status = convert_one(load, file, &load->positions->items[i]);
    }
    return status ? status : require_names(load, file);
}
