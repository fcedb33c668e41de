/* Third pass: strings to values, row by row of the key table: defaults, units,
 * ranges, words. Leaves what holds between keys to check.c. Invariant: every
 * pointer it stores is owned by the configuration, so that a half-built one
 * can be destroyed. */
#include "baton/base/units.h"
#include "schema.h"
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One value on its way: where it goes and how to name it in a fault. */
struct item {
    const struct load *load;
    const struct key *key;
    uint64_t index;   /* of the element, 0 at the top */
    const char *text; /* as written, or the default */
    void *target;
};

void path_make(char path[CONFIG_PATH_MAX], const struct key *key,
               uint64_t index)
{
    const char *pattern = key->doc.path;
    const char *hole = strstr(pattern, "[]");
    if (!hole)
        snprintf(path, CONFIG_PATH_MAX, "%s", pattern);
    else
        snprintf(path, CONFIG_PATH_MAX, "%.*s[%llu]%s", (int)(hole - pattern),
                 pattern, (unsigned long long)index, hole + 2);
}

static const char *key_name(const struct key *key)
{
    const char *dot = strrchr(key->doc.path, '.');
    return dot ? dot + 1 : key->doc.path;
}

static enum bt_status wrong_type(const struct item *item, const char *what)
{
    char path[CONFIG_PATH_MAX];
    path_make(path, item->key, item->index);
    return load_fault(item->load, BT_TYPE, path, "expected %s, got '%.60s'",
                      what, item->text);
}

static enum bt_status wrong_range(const struct item *item)
{
    char path[CONFIG_PATH_MAX];
    path_make(path, item->key, item->index);
    return load_fault(item->load, BT_INVALID, path,
                      "%s is out of range: '%.60s' (allowed: %s)",
                      key_name(item->key), item->text, item->key->doc.values);
}

static bool in_range(const struct key *key, double value)
{
    return value >= key->min && value <= key->max;
}

static enum bt_status parse_whole(const struct item *item, uint64_t *out)
{
    const char *text = item->text;
    size_t length = strlen(text);
    uint64_t value = 0;
    if (length == 0 || strspn(text, "0123456789") != length)
        return wrong_type(item, "a whole number");
    for (size_t i = 0; i < length; i++) {
        unsigned int digit = (unsigned int)(text[i] - '0');
        if (value > (UINT64_MAX - digit) / 10)
            return wrong_range(item);
        value = value * 10 + digit;
    }
    if (!in_range(item->key, (double)value))
        return wrong_range(item);
    *out = value;
    return BT_OK;
}

static enum bt_status parse_size(const struct item *item, uint64_t *out)
{
    uint64_t value = 0;
    if (bt_size_parse(item->text, &value) != BT_OK)
        return wrong_type(item, "a size with a unit (such as 64MiB)");
    if (!in_range(item->key, (double)value))
        return wrong_range(item);
    *out = value;
    return BT_OK;
}

static enum bt_status set_number(const struct item *item)
{
    uint64_t value = 0;
    bool sized = item->key->kind == KEY_SIZE32 || item->key->kind == KEY_SIZE64;
    enum bt_status status =
        sized ? parse_size(item, &value) : parse_whole(item, &value);
    if (status)
        return status;
    if (item->key->kind == KEY_U16)
        *(uint16_t *)item->target = (uint16_t)value;
    else if (item->key->kind == KEY_U32 || item->key->kind == KEY_SIZE32)
        *(uint32_t *)item->target = (uint32_t)value;
    else
        *(uint64_t *)item->target = value;
    return BT_OK;
}

static enum bt_status set_duration(const struct item *item)
{
    int64_t value = 0;
    if (bt_duration_parse(item->text, &value) != BT_OK)
        return wrong_type(item, "a duration with a unit (such as 30s)");
    if (!in_range(item->key, (double)value))
        return wrong_range(item);
    *(int64_t *)item->target = value;
    return BT_OK;
}

static enum bt_status set_rate(const struct item *item)
{
    uint64_t value = 0;
    if (bt_rate_parse(item->text, &value) != BT_OK)
        return wrong_type(item, "a rate with a unit (such as 12GB/s)");
    if (!in_range(item->key, (double)value))
        return wrong_range(item);
    *(uint64_t *)item->target = value;
    return BT_OK;
}

static enum bt_status set_double(const struct item *item)
{
    size_t length = strlen(item->text);
    char *end = NULL;
    if (length == 0 || strspn(item->text, "0123456789.") != length)
        return wrong_type(item, "a number");
    double value = strtod(item->text, &end);
    if (*end != '\0')
        return wrong_type(item, "a number");
    if (!in_range(item->key, value))
        return wrong_range(item);
    *(double *)item->target = value;
    return BT_OK;
}

static enum bt_status set_price(const struct item *item)
{
    if (strcmp(item->text, "adaptive") != 0)
        return set_double(item);
    *(double *)item->target = -1;
    return BT_OK;
}

static enum bt_status set_text(const struct item *item)
{
    char *copy;
    if (item->text[0] == '\0') {
        if (item->key->kind == KEY_OPTIONAL)
            return BT_OK;
        return wrong_type(item, item->key->doc.values);
    }
    copy = strdup(item->text);
    if (!copy)
        return BT_NO_MEMORY;
    *(char **)item->target = copy;
    return BT_OK;
}

static enum bt_status set_word(const struct item *item)
{
    const char *const *words = item->key->words;
    unsigned int count = 0;
    char path[CONFIG_PATH_MAX];
    while (words[count]) {
        if (strcmp(words[count], item->text) == 0)
            break;
        count++;
    }
    if (!words[count]) {
        const char *hint = bt_nearest(item->text, words, count);
        path_make(path, item->key, item->index);
        return load_fault(item->load, BT_INVALID, path,
                          hint ? "unknown %s '%.60s' (did you mean '%s'?)"
                               : "unknown %s '%.60s' (one of: %s)",
                          key_name(item->key), item->text,
                          hint ? hint : item->key->doc.values);
    }
    if (item->key->kind == KEY_FLAG)
        *(bool *)item->target = count % 2 == 1;
    else
        *(unsigned int *)item->target =
            count + (item->key->kind == KEY_ROLES ? 1 : 0);
    return BT_OK;
}

static enum bt_status unknown_model(const struct item *item)
{
    const struct bt_config *config = item->load->config;
    const char *names[CONFIG_MODELS_MAX];
    char path[CONFIG_PATH_MAX];
    for (uint32_t i = 0; i < config->model_count; i++)
        names[i] = config->models[i].name;
    const char *hint = bt_nearest(item->text, names, config->model_count);
    path_make(path, item->key, item->index);
    return load_fault(item->load, BT_INVALID, path,
                      hint ? "unknown model '%.60s' (did you mean '%s'?)"
                           : "unknown model '%.60s'",
                      item->text, hint ? hint : "");
}

static enum bt_status set_model(const struct item *item)
{
    const struct bt_config *config = item->load->config;
    char path[CONFIG_PATH_MAX];
    if (item->text[0] == '\0') {
        if (config->model_count == 1)
            return BT_OK;
        path_make(path, item->key, item->index);
        return load_fault(item->load, BT_INVALID, path,
                          "missing key 'model': there are %u models",
                          config->model_count);
    }
    for (uint32_t i = 0; i < config->model_count; i++) {
        assert(config->models[i].name); /* models are converted first */
        if (strcmp(config->models[i].name, item->text) == 0) {
            *(uint32_t *)item->target = i;
            return BT_OK;
        }
    }
    return unknown_model(item);
}

static enum bt_status set_value(const struct item *item)
{
    uint64_t ignored;
    switch (item->key->kind) {
    case KEY_SCHEMA:
        return parse_whole(item, &ignored);
    case KEY_U16:
    case KEY_U32:
    case KEY_U64:
    case KEY_SIZE32:
    case KEY_SIZE64:
        return set_number(item);
    case KEY_DURATION:
        return set_duration(item);
    case KEY_RATE:
        return set_rate(item);
    case KEY_DOUBLE:
        return set_double(item);
    case KEY_PRICE:
        return set_price(item);
    case KEY_TEXT:
    case KEY_OPTIONAL:
        return set_text(item);
    case KEY_CHOICE:
    case KEY_FLAG:
    case KEY_ROLES:
        return set_word(item);
    case KEY_MODEL:
        return set_model(item);
    case KEY_LIST:
        return BT_OK;
    }
    return BT_BUG;
}

enum bt_status config_value(const struct load *load, const struct key *key,
                            uint64_t index, const char *text, void *base)
{
    struct item item = {load, key, index, text,
                        (unsigned char *)base + key->offset};
    return set_value(&item);
}

/* All rows of one element. */
static enum bt_status convert_scope(const struct load *load, enum scope_id id,
                                    uint64_t index, char **values, void *base)
{
    const struct scope *scope = scope_at(id);
    for (size_t i = 0; i < scope->count; i++) {
        const struct key *key = key_at(scope->first + i);
        const char *text = values[i] ? values[i] : key->doc.fallback;
        char path[CONFIG_PATH_MAX];
        if (!text) {
            path_make(path, key, index);
            return load_fault(load, BT_INVALID, path, "missing key '%s'",
                              key_name(key));
        }
        enum bt_status status = config_value(load, key, index, text, base);
        if (status)
            return status;
    }
    return BT_OK;
}

static enum bt_status convert_adapters(const struct raw_model *raw,
                                       struct bt_model_config *model)
{
    if (raw->adapter_count == 0)
        return BT_OK;
    model->adapters = calloc(raw->adapter_count, sizeof(char *));
    if (!model->adapters)
        return BT_NO_MEMORY;
    for (uint64_t i = 0; i < raw->adapter_count; i++) {
        model->adapters[i] = strdup(raw->adapters[i]);
        if (!model->adapters[i])
            return BT_NO_MEMORY;
        model->adapter_count++;
    }
    return BT_OK;
}

static enum bt_status convert_models(const struct load *load)
{
    struct bt_config *config = load->config;
    const struct raw_config *raw = load->raw;
    enum bt_status status = BT_OK;
    if (raw->model_count == 0)
        return load_fault(load, BT_INVALID, "models",
                          "at least one model is required under 'models'");
    config->models = calloc(raw->model_count, sizeof(*config->models));
    if (!config->models)
        return BT_NO_MEMORY;
    for (uint32_t i = 0; i < raw->model_count && !status; i++) {
        config->model_count = i + 1;
        status = convert_scope(load, SCOPE_MODEL, i, raw->models[i].value,
                               &config->models[i]);
        if (!status)
            status = convert_adapters(&raw->models[i], &config->models[i]);
    }
    return status;
}

static enum bt_status convert_workers(const struct load *load)
{
    struct bt_config *config = load->config;
    const struct raw_config *raw = load->raw;
    enum bt_status status = BT_OK;
    if (raw->worker_count == 0)
        return load_fault(load, BT_INVALID, "workers",
                          "at least one worker is required under 'workers'");
    config->workers = calloc(raw->worker_count, sizeof(*config->workers));
    if (!config->workers)
        return BT_NO_MEMORY;
    for (uint32_t i = 0; i < raw->worker_count && !status; i++) {
        config->worker_count = i + 1;
        status = convert_scope(load, SCOPE_WORKER, i, raw->workers[i].value,
                               &config->workers[i]);
    }
    return status;
}

static enum bt_status convert_links(const struct load *load)
{
    struct bt_config *config = load->config;
    const struct raw_config *raw = load->raw;
    enum bt_status status = BT_OK;
    if (raw->link_count == 0)
        return BT_OK;
    config->links = calloc(raw->link_count, sizeof(*config->links));
    if (!config->links)
        return BT_NO_MEMORY;
    for (uint32_t i = 0; i < raw->link_count && !status; i++) {
        config->link_count = i + 1;
        status = convert_scope(load, SCOPE_LINK, i, raw->links[i].value,
                               &config->links[i]);
    }
    return status;
}

enum bt_status config_convert(const struct load *load)
{
    enum bt_status status =
        convert_scope(load, SCOPE_TOP, 0, load->raw->value, load->config);
    if (!status)
        status = convert_models(load);
    if (!status)
        status = convert_workers(load);
    if (!status)
        status = convert_links(load);
    return status;
}
