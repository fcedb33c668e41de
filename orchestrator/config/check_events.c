/* Fourth pass, where KV events come from and how engines hash: endpoints and
 * the ports of all ranks, topics at the one socket that we bind, limits that
 * contradict each other; and whether index.snapshot has a folder. Splits
 * models[].engine_hash into kind and seed; leaves the rest to check.c.
 * Invariant: no two publishers of the file share an endpoint, and every topic
 * names one worker. */
#include "schema.h"
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define PORT_MAX 65535u

static bool endpoint_ok(const char *text)
{
    if (strncmp(text, "ipc://", 6) == 0)
        return text[6] != '\0';
    return strncmp(text, "tcp://", 6) == 0 && host_port_ok(text + 6);
}

/* As endpoint_ok, or every address: "tcp://" "*:5557". */
static bool bind_ok(const char *text)
{
    char any[32];
    if (strncmp(text, "tcp://*:", 8) != 0)
        return endpoint_ok(text);
    snprintf(any, sizeof(any), "0.0.0.0:%.16s", text + 8);
    return host_port_ok(any);
}

/* Of a good tcp endpoint; 0: ipc, which has no ports. */
static uint32_t port_of(const char *endpoint)
{
    return strncmp(endpoint, "tcp://", 6) == 0
               ? (uint32_t)strtoul(strrchr(endpoint, ':') + 1, NULL, 10)
               : 0;
}

/* Whether rank ports of both meet. */
static bool meet(const char *a, uint32_t a_ranks, const char *b,
                 uint32_t b_ranks)
{
    uint32_t pa = port_of(a), pb = port_of(b);
    if (pa == 0 || pb == 0)
        return strcmp(a, b) == 0;
    size_t host = (size_t)(strrchr(a, ':') - a);
    if (host != (size_t)(strrchr(b, ':') - b) || strncmp(a, b, host) != 0)
        return false;
    return pa < pb + b_ranks && pb < pa + a_ranks;
}

/* Its folder, not the file: that is made. */
static enum bt_status check_snapshot(const struct load *load)
{
    const char *path = load->config->index.snapshot;
    const char *slash = path ? strrchr(path, '/') : NULL;
    char folder[PATH_MAX];
    struct stat st;
    size_t n;

    if (!path)
        return BT_OK;
    n = slash ? (size_t)(slash - path) + 1 : 0;
    if (n >= sizeof(folder))
        return load_fault(load, BT_INVALID, "index.snapshot", "too long");
    memcpy(folder, path, n);
    folder[n] = '\0';
    if (n > 0 && stat(folder, &st) != 0)
        return load_fault(load, BT_INVALID, "index.snapshot",
                          "its folder '%.200s': %s", folder, strerror(errno));
    if (n > 0 && !S_ISDIR(st.st_mode))
        return load_fault(load, BT_INVALID, "index.snapshot",
                          "'%.200s' is no folder", folder);
    return BT_OK;
}

static bool has_topic(const struct bt_config *c)
{
    for (uint32_t w = 0; w < c->worker_count; w++)
        if (c->workers[w].events_topic)
            return true;
    return false;
}

enum bt_status check_events(const struct load *load)
{
    const struct bt_config *c = load->config;
    if (c->events.bind && !bind_ok(c->events.bind))
        return load_fault(load, BT_INVALID, "events.bind",
                          "expected tcp://ADDRESS:PORT (* = any address) or "
                          "ipc://PATH, got '%.60s'",
                          c->events.bind);
    if (c->events.bind && !has_topic(c))
        return load_fault(load, BT_INVALID, "events.bind",
                          "no worker has an events_topic: what arrives here "
                          "would be nobody's");
    if (c->events.held_bytes > c->events.held_total)
        return load_fault(
            load, BT_INVALID,
            position_find(load->positions, "events.held_total")
                ? "events.held_total"
                : "events.held_bytes",
            "events.held_bytes must not be larger than events.held_total");
    return check_snapshot(load);
}

/* One endpoint of the worker, with the ports of its ranks. */
static enum bt_status check_endpoint(const struct load *load, uint32_t w,
                                     const char *key, const char *endpoint)
{
    uint32_t ranks = load->config->workers[w].ranks;
    char path[CONFIG_PATH_MAX];
    if (!endpoint)
        return BT_OK;
    element_path(path, "workers", w, key);
    if (!endpoint_ok(endpoint))
        return load_fault(load, BT_INVALID, path,
                          "expected tcp://HOST:PORT or ipc://PATH, got '%.60s'",
                          endpoint);
    if (ranks > 1 && port_of(endpoint) == 0)
        return load_fault(load, BT_INVALID, path,
                          "%u ranks need tcp://HOST:PORT, got '%.60s'", ranks,
                          endpoint);
    if (port_of(endpoint) + ranks - 1 > PORT_MAX)
        return load_fault(load, BT_INVALID, path,
                          "port %u of rank %u is out of range: 1..65535",
                          port_of(endpoint) + ranks - 1, ranks - 1);
    return BT_OK;
}

static enum bt_status check_topic(const struct load *load, uint32_t w)
{
    const struct bt_config *c = load->config;
    const char *topic = c->workers[w].events_topic;
    char path[CONFIG_PATH_MAX];
    if (!topic)
        return BT_OK;
    element_path(path, "workers", w, "events_topic");
    if (c->workers[w].events)
        return load_fault(load, BT_INVALID, path,
                          "events and events_topic exclude each other: the "
                          "engine binds, or it connects to events.bind");
    if (!c->events.bind)
        return load_fault(load, BT_INVALID, path,
                          "events_topic without events.bind");
    for (uint32_t i = 0; i < w; i++) {
        const char *other = c->workers[i].events_topic;
        size_t least = other ? strlen(other) : 0;
        if (least > strlen(topic))
            least = strlen(topic);
        if (other && strncmp(other, topic, least) == 0)
            return load_fault(load, BT_DUPLICATE, path,
                              "topics of workers '%s' and '%s' cannot be told "
                              "apart: one begins with the other",
                              c->workers[i].name, c->workers[w].name);
    }
    return BT_OK;
}

/* Its publisher against those before it, and its own replay. */
static enum bt_status check_meeting(const struct load *load, uint32_t w)
{
    const struct bt_config *c = load->config;
    const struct bt_worker_config *worker = &c->workers[w], *other;
    char path[CONFIG_PATH_MAX];
    if (worker->replay && worker->events &&
        meet(worker->events, worker->ranks, worker->replay, worker->ranks))
        return load_fault(
            load, BT_INVALID, element_path(path, "workers", w, "replay"),
            "replay shares a port with events: %u ranks from %u "
            "and from %u",
            worker->ranks, port_of(worker->events), port_of(worker->replay));
    for (uint32_t i = 0; worker->events && i < w; i++) {
        other = &c->workers[i];
        if (other->events &&
            meet(other->events, other->ranks, worker->events, worker->ranks))
            return load_fault(load, BT_DUPLICATE,
                              element_path(path, "workers", w, "events"),
                              "repeated events '%.200s': worker '%s' has it",
                              worker->events, other->name);
    }
    return BT_OK;
}

enum bt_status check_worker_events(const struct load *load, uint32_t w)
{
    const struct bt_worker_config *worker = &load->config->workers[w];
    char path[CONFIG_PATH_MAX];
    enum bt_status status = check_endpoint(load, w, "events", worker->events);
    if (!status)
        status = check_endpoint(load, w, "replay", worker->replay);
    if (!status)
        status = check_topic(load, w);
    if (status)
        return status;
    if (worker->replay && !worker->events && !worker->events_topic)
        return load_fault(load, BT_INVALID,
                          element_path(path, "workers", w, "replay"),
                          "replay without events");
    return check_meeting(load, w);
}

enum bt_status check_engine_hash(const struct load *load, uint32_t m)
{
    struct bt_model_config *model = &load->config->models[m];
    char path[CONFIG_PATH_MAX], name[32], *text = model->engine_hash_seed;
    if (!text)
        return BT_OK;
    size_t length = strcspn(text, ":");
    const char *seed = text[length] ? text + length + 1 : "";
    element_path(path, "models", m, "engine_hash");
    snprintf(name, sizeof(name), "%.*s", (int)(length < 31 ? length : 31),
             text);
    if (bt_engine_hash_find(name, &model->engine_hash) != BT_OK ||
        model->engine_hash == BT_ENGINE_HASH_NONE)
        return load_fault(load, BT_INVALID, path,
                          "unknown hash '%s' (sha256_cbor or xxhash_cbor)",
                          name);
    size_t digits = strspn(seed, "0123456789");
    if (digits == 0 || digits > 10 || seed[digits] != '\0' ||
        strtoull(seed, NULL, 10) > UINT32_MAX)
        return load_fault(load, BT_INVALID, path,
                          "expected %s:SEED with the engines' PYTHONHASHSEED, "
                          "0..4294967295, got '%.60s'",
                          name, text);
    memmove(text, seed, strlen(seed) + 1);
    return BT_OK;
}
