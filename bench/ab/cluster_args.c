/* What the children of a cluster are told and what they tell: argument lists,
 * serve's YAML, ready lines. The only place that knows the options of
 * `baton engine` and the keys of the configuration. */
#include "baton/base/units.h"
#include "baton/orchestrator/json.h"
#include "cluster_priv.h"
#include <errno.h>
#include <stdarg.h>
#include <string.h>

void arguments_add(struct arguments *a, const char *format, ...)
{
    size_t room = sizeof(a->bytes) - a->used;
    va_list args;
    int bytes;

    if (a->count + 1 >= BT_PROCESS_ARGS_MAX) {
        a->overflow = true;
        return;
    }
    va_start(args, format);
    bytes = vsnprintf(a->bytes + a->used, room, format, args);
    va_end(args);
    if (bytes < 0 || (size_t)bytes >= room) {
        a->overflow = true;
        return;
    }
    a->argv[a->count++] = a->bytes + a->used;
    a->argv[a->count] = NULL;
    a->used += (size_t)bytes + 1;
}

static void add_links(struct arguments *a, const struct bt_cluster_spec *s,
                      uint32_t engine)
{
    for (uint32_t i = 0; i < s->link_count; i++) {
        const struct bt_cluster_link *l = &s->links[i];

        if (l->to != engine)
            continue;
        arguments_add(a, "--pace");
        arguments_add(a, "%s=%lluB/s:%s:%lldus", s->engines[l->from].name,
                      (unsigned long long)l->rate_bytes_per_s, l->link_class,
                      (long long)(l->setup_ns / 1000));
    }
}

void arguments_engine(struct arguments *a, const struct bt_cluster *cluster,
                      uint32_t engine)
{
    const struct bt_cluster_spec *s = &cluster->spec;
    const struct engine *e = &cluster->engines[engine];

    memset(a, 0, sizeof(*a));
    if (s->netbed)
        netbed_before(a, cluster, engine);
    arguments_add(a, "%s", cluster->program);
    arguments_add(a, "engine");
    arguments_add(a, "--name=%s", s->engines[engine].name);
    arguments_add(a, "--role=%s",
                  s->engines[engine].prefill ? "prefill" : "decode");
    arguments_add(a, "--port=%u", e->http);
    arguments_add(a, "--model=%s", s->model);
    arguments_add(a, "--preset=%s", s->compute);
    arguments_add(a, "--speedup=%g", s->speedup);
    arguments_add(a, "--seed=%llu", (unsigned long long)s->seed);
    arguments_add(a, "--kv-bytes-per-token=%u", s->kv_bytes_per_token);
    arguments_add(a, "--block-size=%u", s->block_tokens);
    arguments_add(a, "--num-gpu-blocks=%u", s->block_count);
    arguments_add(a, "--max-num-seqs=%u", s->seqs_max);
    if (s->netbed)
        netbed_after(a, cluster, engine);
    else
        add_links(a, s, engine);
    if (e->events[0])
        arguments_add(a, "--events=%s", e->events);
    if (e->replay[0])
        arguments_add(a, "--replay=%s", e->replay);
    for (size_t i = 0; s->engine_extra && s->engine_extra[i]; i++)
        arguments_add(a, "%s", s->engine_extra[i]);
}

void arguments_serve(struct arguments *a, const struct bt_cluster *cluster)
{
    memset(a, 0, sizeof(*a));
    arguments_add(a, "%s", cluster->program);
    arguments_add(a, "serve");
    arguments_add(a, "--config=%s", cluster->config_path);
}

static void write_workers(FILE *to, const struct bt_cluster *cluster)
{
    const struct bt_cluster_spec *s = &cluster->spec;

    fprintf(to, "workers:\n");
    for (uint32_t i = 0; i < s->engine_count; i++) {
        const struct engine *e = &cluster->engines[i];

        fprintf(to,
                "  - {name: %s, role: %s, url: \"%s\", model: %s,\n"
                "     compute: %s, speedup: %g, decode_slots: %u",
                s->engines[i].name,
                s->engines[i].prefill ? "prefill" : "decode", e->url, s->model,
                s->compute, s->speedup, s->seqs_max);
        if (e->events[0])
            fprintf(to, ",\n     events: \"%s\", replay: \"%s\"", e->events,
                    e->replay);
        fprintf(to, "}\n");
    }
}

static void write_links(FILE *to, const struct bt_cluster_spec *s)
{
    if (s->link_count)
        fprintf(to, "links:\n");
    for (uint32_t i = 0; i < s->link_count; i++) {
        const struct bt_cluster_link *l = &s->links[i];

        fprintf(to,
                "  - {from: %s, to: %s, class: %s, rate: %lluB/s, "
                "setup: %lldus, descriptor: 1us}\n",
                s->engines[l->from].name, s->engines[l->to].name, l->link_class,
                (unsigned long long)l->rate_bytes_per_s,
                (long long)(l->setup_ns / 1000));
    }
}

enum bt_status cluster_config_write(const struct bt_cluster *cluster,
                                    const char *path)
{
    const struct bt_cluster_spec *s = &cluster->spec;
    FILE *to = fopen(path, "we");
    int failed;

    if (!to)
        return BT_IO;
    fprintf(to,
            "# written by baton's benchmark cluster\n"
            "config_schema: 1\n"
            "policy: %s\n"
            "tokenizer: bytes\n"
            "seed: %llu\n"
            "listen: {address: 127.0.0.1, port: %u}\n"
            "metrics: {address: 127.0.0.1, port: %u}\n"
            "admin: {address: 127.0.0.1, port: %u}\n"
            "log: {level: info, format: text}\n",
            s->policy, (unsigned long long)s->seed, s->port, s->metrics_port,
            s->admin_port);
    if (s->netbed)
        fprintf(to, "topology: \"%s/topology.yaml\"\n", s->directory);
    if (s->serve_extra)
        fprintf(to, "%s", s->serve_extra);
    fprintf(to,
            "models:\n"
            "  - {name: %s, kv_bytes_per_token: %u, block_size: %u}\n",
            s->model, s->kv_bytes_per_token, s->block_tokens);
    write_workers(to, cluster);
    write_links(to, s);
    failed = ferror(to);
    return fclose(to) != 0 || failed ? BT_IO : BT_OK;
}

static enum bt_status get_port(const struct bt_json *object, const char *name,
                               uint16_t *out)
{
    struct bt_json value;
    uint64_t port;

    if (!bt_json_member(object, name, &value, NULL) ||
        bt_json_u64(&value, &port) != BT_OK || port < 1 || port > 65535)
        return BT_INVALID;
    *out = (uint16_t)port;
    return BT_OK;
}

/* An endpoint as text ("tcp://...") or as a port. */
static void get_endpoint(const struct bt_json *object, const char *name,
                         const char *address, char *out, size_t size)
{
    struct bt_json value;
    size_t bytes = 0;
    uint16_t port;

    out[0] = '\0';
    if (get_port(object, name, &port) == BT_OK)
        snprintf(out, size, "tcp://%s:%u", address, port);
    else if (bt_json_member(object, name, &value, NULL) &&
             bt_json_string(&value, out, size - 1, &bytes) == BT_OK)
        out[bytes] = '\0';
}

static enum bt_status parse_line(const char *line, struct bt_json *object)
{
    if (bt_json_parse(line, strlen(line), object, NULL) != BT_OK ||
        object->type != BT_JSON_OBJECT)
        return BT_INVALID;
    return BT_OK;
}

enum bt_status cluster_engine_ready(struct engine *engine, const char *address,
                                    const char *line)
{
    struct bt_json object;

    if (parse_line(line, &object) != BT_OK ||
        get_port(&object, "http", &engine->http) != BT_OK ||
        get_port(&object, "kv", &engine->kv) != BT_OK)
        return BT_INVALID;
    snprintf(engine->url, sizeof(engine->url), "http://%s:%u", address,
             engine->http);
    get_endpoint(&object, "events", address, engine->events,
                 sizeof(engine->events));
    get_endpoint(&object, "replay", address, engine->replay,
                 sizeof(engine->replay));
    return BT_OK;
}

enum bt_status cluster_serve_ready(struct bt_cluster *cluster, const char *line)
{
    uint16_t listen = 0, metrics = 0, admin = 0;
    struct bt_json object;

    if (parse_line(line, &object) != BT_OK ||
        get_port(&object, "listen", &listen) != BT_OK ||
        get_port(&object, "metrics", &metrics) != BT_OK ||
        get_port(&object, "admin", &admin) != BT_OK)
        return BT_INVALID;
    snprintf(cluster->url, sizeof(cluster->url), "http://127.0.0.1:%u", listen);
    snprintf(cluster->metrics_url, sizeof(cluster->metrics_url),
             "http://127.0.0.1:%u", metrics);
    snprintf(cluster->admin_url, sizeof(cluster->admin_url),
             "http://127.0.0.1:%u", admin);
    return BT_OK;
}
