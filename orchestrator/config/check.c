/* Fourth pass: what holds between several keys, and names that must exist:
 * policy and compute presets, unique names and addresses, link ends, pairs
 * that contradict each other. Reports the first fault in the order of the
 * schema. May normalise (trailing slash of a URL, compute model). */
#include "schema.h"
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WORKER_NAME_MAX 63u
#define MODEL_NAME_MAX  128u
#define NAMES_MAX       64u

static const char NAME_BYTES[] = "abcdefghijklmnopqrstuvwxyz"
                                 "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                 "0123456789._-";
static const char MODEL_BYTES[] = "abcdefghijklmnopqrstuvwxyz"
                                  "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                  "0123456789._-/:@+";

const char *element_path(char path[CONFIG_PATH_MAX], const char *list,
                         uint32_t index, const char *key)
{
    snprintf(path, CONFIG_PATH_MAX, "%s[%u].%s", list, index, key);
    return path;
}

static bool name_ok(const char *name, const char *bytes, size_t max)
{
    size_t length = strlen(name);
    return length > 0 && length <= max && strspn(name, bytes) == length;
}

enum bt_status bt_config_policy_set(struct bt_config *config, const char *spec,
                                    char *error_out, size_t error_size)
{
    const struct bt_policy *rule = NULL;
    double knobs[BT_POLICY_KNOBS_MAX];
    enum bt_status status =
        bt_policy_parse(spec, &rule, knobs, error_out, error_size);
    char *copy = status ? NULL : strdup(spec);
    if (status)
        return status;
    if (!copy) {
        snprintf(error_out, error_size, "out of memory");
        return BT_NO_MEMORY;
    }
    free(config->policy);
    config->policy = copy;
    config->policy_rule = rule;
    memcpy(config->policy_knobs, knobs, sizeof(knobs));
    return BT_OK;
}

/* The spec's name is none: the nearest one, if any is near. */
static enum bt_status unknown_policy(const struct load *load)
{
    const char *names[NAMES_MAX], *spec = load->config->policy;
    char name[64];
    size_t count = 0;
    while (count < NAMES_MAX && bt_policy_at(count)) {
        names[count] = bt_policy_at(count)->name;
        count++;
    }
    snprintf(name, sizeof(name), "%.*s", (int)strcspn(spec, ":"), spec);
    const char *hint = bt_nearest(name, names, count);
    return load_fault(load, BT_INVALID, "policy",
                      hint ? "unknown policy '%s' (did you mean '%s'?)"
                           : "unknown policy '%s' (baton check --policies "
                             "lists them)%s",
                      name, hint ? hint : "");
}

static enum bt_status check_policy(const struct load *load)
{
    struct bt_config *c = load->config;
    char error[256];
    enum bt_status status = bt_policy_parse(
        c->policy, &c->policy_rule, c->policy_knobs, error, sizeof(error));
    if (status == BT_NOT_FOUND)
        return unknown_policy(load);
    return status ? load_fault(load, BT_INVALID, "policy", "%s", error) : BT_OK;
}

static enum bt_status check_listeners(const struct load *load)
{
    static const char *const names[] = {"listen", "metrics", "admin"};
    struct bt_config *c = load->config;
    const struct bt_listen_config *all[] = {&c->listen, &c->metrics, &c->admin};
    char path[CONFIG_PATH_MAX];
    unsigned char binary[sizeof(struct in6_addr)];
    for (size_t i = 0; i < 3; i++) {
        snprintf(path, sizeof(path), "%s.address", names[i]);
        if (inet_pton(AF_INET, all[i]->address, binary) != 1 &&
            inet_pton(AF_INET6, all[i]->address, binary) != 1)
            return load_fault(load, BT_INVALID, path,
                              "expected an IPv4 or IPv6 address, got '%.60s'",
                              all[i]->address);
        for (size_t j = 0; j < i; j++) {
            if (all[i]->port == 0 || all[i]->port != all[j]->port ||
                strcmp(all[i]->address, all[j]->address) != 0)
                continue;
            snprintf(path, sizeof(path), "%s.port", names[i]);
            return load_fault(load, BT_DUPLICATE, path,
                              "%s and %s both listen on %.45s port %u",
                              names[j], names[i], all[i]->address,
                              all[i]->port);
        }
    }
    return BT_OK;
}

static enum bt_status check_pairs(const struct load *load)
{
    const struct bt_config *c = load->config;
    if (c->lease.margin_ns >= c->lease.duration_ns)
        return load_fault(load, BT_INVALID,
                          position_find(load->positions, "lease.margin")
                              ? "lease.margin"
                              : "lease.duration",
                          "lease.margin must be shorter than lease.duration");
    if (c->limits.body > c->limits.body_total)
        return load_fault(
            load, BT_INVALID,
            position_find(load->positions, "limits.body_total")
                ? "limits.body_total"
                : "limits.body",
            "limits.body must not be larger than limits.body_total");
    return BT_OK;
}

static bool serves_name(const struct bt_model_config *model, const char *name,
                        uint32_t adapters)
{
    if (strcmp(model->name, name) == 0)
        return true;
    for (uint32_t i = 0; i < adapters; i++)
        if (strcmp(model->adapters[i], name) == 0)
            return true;
    return false;
}

/* `name` stands at `path`; it is the first thing of model `m` when a == 0,
 * else its adapter a - 1. */
static enum bt_status check_served(const struct load *load, const char *path,
                                   const char *name, uint32_t m, uint32_t a)
{
    const struct bt_config *c = load->config;
    if (!name_ok(name, MODEL_BYTES, MODEL_NAME_MAX))
        return load_fault(load, BT_INVALID, path,
                          "a name has 1 to 128 letters, digits or any of "
                          "._-/:@+, got '%.60s'",
                          name);
    for (uint32_t i = 0; i < m; i++)
        if (serves_name(&c->models[i], name, c->models[i].adapter_count))
            return load_fault(load, BT_DUPLICATE, path,
                              "repeated model name '%.128s'", name);
    if (a > 0 && serves_name(&c->models[m], name, a - 1))
        return load_fault(load, BT_DUPLICATE, path,
                          "repeated model name '%.128s'", name);
    return BT_OK;
}

/* An engine that pushes while it prefills knows its decode worker before. */
static enum bt_status check_engine(const struct load *load, uint32_t m)
{
    const struct bt_model_config *model = &load->config->models[m];
    bool early = model->engine.overlap != BT_OVERLAP_NONE ||
                 model->engine.allocate_first;
    char path[CONFIG_PATH_MAX];
    if ((model->engine.pieces > 1) !=
        (model->engine.overlap != BT_OVERLAP_NONE))
        return load_fault(
            load, BT_INVALID, element_path(path, "models", m, "engine.pieces"),
            model->engine.pieces > 1 ? "pieces need overlap: chunk or layer"
                                     : "overlap needs pieces: 2 or more");
    if (early && model->engine.late_decode)
        return load_fault(
            load, BT_INVALID,
            element_path(path, "models", m, "engine.late_decode"),
            "late_decode must be off with overlap or allocate_first");
    return BT_OK;
}

static enum bt_status check_models(const struct load *load)
{
    const struct bt_config *c = load->config;
    enum bt_status status = BT_OK;
    char path[CONFIG_PATH_MAX];
    for (uint32_t m = 0; m < c->model_count && !status; m++) {
        element_path(path, "models", m, "name");
        status = check_served(load, path, c->models[m].name, m, 0);
        if (!status)
            status = check_engine(load, m);
        if (!status)
            status = check_engine_hash(load, m);
        for (uint32_t a = 0; a < c->models[m].adapter_count && !status; a++) {
            snprintf(path, sizeof(path), "models[%u].adapters[%u]", m, a);
            status =
                check_served(load, path, c->models[m].adapters[a], m, a + 1);
        }
    }
    return status;
}

bool host_port_ok(const char *text)
{
    const char *colon = strrchr(text, ':');
    static const char host_bytes[] = "abcdefghijklmnopqrstuvwxyz"
                                     "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_";
    size_t host, digits;
    unsigned long port;
    if (!colon || colon == text)
        return false;
    host = (size_t)(colon - text);
    if (text[0] == '[') {
        if (host < 4 || text[host - 1] != ']' ||
            strspn(text + 1, "0123456789abcdefABCDEF:.") != host - 2)
            return false;
    } else if (strspn(text, host_bytes) != host) {
        return false;
    }
    digits = strspn(colon + 1, "0123456789");
    if (digits == 0 || digits > 5 || colon[1 + digits] != '\0')
        return false;
    port = strtoul(colon + 1, NULL, 10);
    return port >= 1 && port <= 65535;
}

static enum bt_status check_url(const struct load *load, uint32_t w)
{
    struct bt_config *c = load->config;
    char *url = c->workers[w].url, path[CONFIG_PATH_MAX];
    size_t length = strlen(url);
    element_path(path, "workers", w, "url");
    if (length > 0 && url[length - 1] == '/')
        url[length - 1] = '\0';
    if (strncmp(url, "https://", 8) == 0)
        return load_fault(load, BT_UNSUPPORTED, path,
                          "https is not supported: expected http://HOST:PORT, "
                          "got '%.60s'",
                          url);
    if (strncmp(url, "http://", 7) != 0 || !host_port_ok(url + 7))
        return load_fault(load, BT_INVALID, path,
                          "expected http://HOST:PORT, got '%.60s'", url);
    for (uint32_t i = 0; i < w; i++)
        if (strcmp(c->workers[i].url, url) == 0)
            return load_fault(load, BT_DUPLICATE, path,
                              "repeated url '%.200s': worker '%s' has it", url,
                              c->workers[i].name);
    return BT_OK;
}

static enum bt_status check_compute(const struct load *load, uint32_t w)
{
    struct bt_worker_config *worker = &load->config->workers[w];
    const char *names[NAMES_MAX];
    char path[CONFIG_PATH_MAX];
    size_t count = 0;
    if (bt_compute_preset(worker->compute, &worker->compute_model) == BT_OK) {
        worker->compute_model.speedup = worker->speedup;
        return BT_OK;
    }
    while (count < NAMES_MAX && bt_compute_preset_name(count)) {
        names[count] = bt_compute_preset_name(count);
        count++;
    }
    const char *hint = bt_nearest(worker->compute, names, count);
    return load_fault(
        load, BT_INVALID, element_path(path, "workers", w, "compute"),
        hint ? "unknown compute preset '%.60s' (did you mean '%s'?)"
             : "unknown compute preset '%.60s' (such as '%s')",
        worker->compute, hint ? hint : bt_compute_preset_name(0));
}

static enum bt_status check_worker_name(const struct load *load, uint32_t w)
{
    const struct bt_config *c = load->config;
    const char *name = c->workers[w].name;
    char path[CONFIG_PATH_MAX];
    element_path(path, "workers", w, "name");
    if (!name_ok(name, NAME_BYTES, WORKER_NAME_MAX))
        return load_fault(load, BT_INVALID, path,
                          "a worker name has 1 to 63 letters, digits or any "
                          "of ._-, got '%.60s'",
                          name);
    for (uint32_t i = 0; i < w; i++)
        if (strcmp(c->workers[i].name, name) == 0)
            return load_fault(load, BT_DUPLICATE, path,
                              "repeated worker name '%s'", name);
    return BT_OK;
}

static enum bt_status check_workers(const struct load *load)
{
    enum bt_status status = BT_OK;
    for (uint32_t w = 0; w < load->config->worker_count && !status; w++) {
        status = check_worker_name(load, w);
        if (!status)
            status = check_url(load, w);
        if (!status)
            status = check_compute(load, w);
        if (!status)
            status = check_worker_events(load, w);
    }
    return status;
}

static bool model_has_role(const struct bt_config *c, uint32_t model,
                           unsigned int role)
{
    for (uint32_t w = 0; w < c->worker_count; w++)
        if (c->workers[w].model == model && (c->workers[w].roles & role))
            return true;
    return false;
}

static enum bt_status check_pools(const struct load *load)
{
    const struct bt_config *c = load->config;
    char path[CONFIG_PATH_MAX];
    for (uint32_t m = 0; m < c->model_count; m++) {
        if (!model_has_role(c, m, BT_ROLE_DECODE))
            return load_fault(load, BT_INVALID,
                              element_path(path, "models", m, "name"),
                              "no worker with role decode or both serves "
                              "model '%.128s'",
                              c->models[m].name);
        if (c->pd_required && !model_has_role(c, m, BT_ROLE_PREFILL))
            return load_fault(load, BT_INVALID, "pd",
                              "pd is required, but no worker with role "
                              "prefill or both serves model '%.128s'",
                              c->models[m].name);
    }
    return BT_OK;
}

static bool worker_exists(const struct bt_config *c, const char *name)
{
    for (uint32_t w = 0; w < c->worker_count; w++)
        if (strcmp(c->workers[w].name, name) == 0)
            return true;
    return false;
}

static enum bt_status check_link_end(const struct load *load, uint32_t l,
                                     const char *key, const char *name)
{
    const struct bt_config *c = load->config;
    const char *names[CONFIG_WORKERS_MAX];
    char path[CONFIG_PATH_MAX];
    if (strcmp(name, "*") == 0 || worker_exists(c, name))
        return BT_OK;
    for (uint32_t w = 0; w < c->worker_count; w++)
        names[w] = c->workers[w].name;
    const char *hint = bt_nearest(name, names, c->worker_count);
    return load_fault(load, BT_INVALID, element_path(path, "links", l, key),
                      hint ? "unknown worker '%.60s' (did you mean '%s'?)"
                           : "unknown worker '%.60s'%s",
                      name, hint ? hint : "");
}

static enum bt_status check_link(const struct load *load, uint32_t l)
{
    const struct bt_config *c = load->config;
    const struct bt_link_rule *link = &c->links[l];
    char path[CONFIG_PATH_MAX];
    enum bt_status status = check_link_end(load, l, "from", link->from);
    if (!status)
        status = check_link_end(load, l, "to", link->to);
    if (status)
        return status;
    if (strcmp(link->from, "*") != 0 && strcmp(link->from, link->to) == 0)
        return load_fault(load, BT_INVALID,
                          element_path(path, "links", l, "to"),
                          "a link from '%s' to itself", link->from);
    if (!name_ok(link->link_class, NAME_BYTES, WORKER_NAME_MAX))
        return load_fault(load, BT_INVALID,
                          element_path(path, "links", l, "class"),
                          "a class has 1 to 63 letters, digits or any of "
                          "._-, got '%.60s'",
                          link->link_class);
    for (uint32_t i = 0; i < l; i++)
        if (strcmp(c->links[i].from, link->from) == 0 &&
            strcmp(c->links[i].to, link->to) == 0) {
            snprintf(path, sizeof(path), "links[%u]", l);
            return load_fault(load, BT_DUPLICATE, path,
                              "repeated link from '%s' to '%s'", link->from,
                              link->to);
        }
    return BT_OK;
}

static enum bt_status check_links(const struct load *load)
{
    const struct bt_config *c = load->config;
    enum bt_status status = BT_OK;
    for (uint32_t l = 0; l < c->link_count && !status; l++)
        status = check_link(load, l);
    if (!status &&
        !name_ok(c->link_default.link_class, NAME_BYTES, WORKER_NAME_MAX))
        status = load_fault(load, BT_INVALID, "link_default.class",
                            "a class has 1 to 63 letters, digits or any of "
                            "._-, got '%.60s'",
                            c->link_default.link_class);
    return status;
}

enum bt_status config_check(const struct load *load)
{
    static enum bt_status (*const checks[])(const struct load *) = {
        check_policy, check_listeners, check_pairs, check_events,
        check_models, check_workers,   check_pools, check_links,
    };
    enum bt_status status = BT_OK;
    for (size_t i = 0; i < sizeof(checks) / sizeof(checks[0]) && !status; i++)
        status = checks[i](load);
    return status;
}
