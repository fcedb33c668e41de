/* A fabric independent of its transports: owns the rails, the heartbeat timer,
 * the lists of doors and sinks, and the order of an orderly end. Leaves the
 * wire to kv_link.c, opening to fabric_open.c, pulls to kv_sink.c/kv_pull.c.
 * Invariant: nothing here waits, except settle(), which is bounded and used
 * only when something is being destroyed. */
#include "fabric.h"

#include <arpa/inet.h>
#include <assert.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#define HEARTBEAT_NS 200000000LL

int64_t bt_fabric_now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

void bt_fabric_timer(struct bt_fabric *fabric, ev_timer *timer, int64_t ns)
{
    ev_now_update(fabric->loop);
    ev_timer_stop(fabric->loop, timer);
    ev_timer_set(timer, (double)ns / 1e9, 0);
    ev_timer_start(fabric->loop, timer);
}

void bt_fabric_random(void *out, size_t bytes)
{
    ssize_t got = getrandom(out, bytes, 0); /* <= 256 bytes: all or nothing */

    assert(bytes <= 256 && got == (ssize_t)bytes);
    (void)got;
}

int64_t bt_fabric_backoff(struct bt_fabric *fabric, unsigned int tries,
                          int64_t first_ns, int64_t max_ns)
{
    int64_t ns = first_ns;

    for (; tries > 0 && ns < max_ns; tries--)
        ns *= 2;
    if (ns > max_ns)
        ns = max_ns;
    return ns - (int64_t)bt_rng_below(&fabric->rng, (uint64_t)ns / 4 + 1);
}

static void on_heartbeat(struct ev_loop *loop, ev_timer *w, int revents)
{
    struct bt_fabric *fabric = w->data;
    int64_t now_ns = bt_fabric_now(), since = now_ns - fabric->beaten_ns;

    (void)loop;
    (void)revents;
    fabric->beat_weight = since > fabric->heartbeat_ns * 3 / 2
                              ? BT_FABRIC_BEAT_LATE
                              : BT_FABRIC_BEAT;
    fabric->beaten_ns = now_ns;
    bt_doors_heartbeat(fabric);
    bt_kv_sink_heartbeat(fabric);
}

/* ---- life ---- */

static void destroy_rails(struct bt_fabric *f)
{
    while (f->rail_count > 0) {
        struct bt_transport *t = f->rails[--f->rail_count].transport;

        t->ops->destroy(t);
    }
}

static void rail_names(struct bt_fabric_rail *rail, uint32_t index,
                       const struct bt_rail_config *c)
{
    snprintf(rail->name, sizeof(rail->name), "rail%u", index);
    if (c->name != NULL)
        snprintf(rail->name, sizeof(rail->name), "%s", c->name);
    if (c->address != NULL)
        snprintf(rail->address, sizeof(rail->address), "%s", c->address);
}

static enum bt_status open_rails(struct bt_fabric *f,
                                 const struct bt_fabric_config *c,
                                 char *error_out, size_t error_size)
{
    static const struct bt_rail_config any = {0};
    uint32_t count = c->rails != NULL && c->rail_count > 0 ? c->rail_count : 1;

    for (uint32_t i = 0; i < count; i++) {
        const struct bt_rail_config *rc =
            c->rails != NULL ? &c->rails[i] : &any;
        struct bt_fabric_rail *rail = &f->rails[i];
        char error[160] = "";
        enum bt_status status = bt_fabric_open_rail(
            f->loop, c, i, &rail->transport, error, sizeof(error));

        rail_names(rail, i, rc);
        if (status != BT_OK) {
            snprintf(error_out, error_size, "%s: %s", rail->name, error);
            destroy_rails(f);
            return status;
        }
        f->rail_count++;
        rail->rate_bytes_per_s = rc->rate_bytes_per_s;
    }
    return BT_OK;
}

static bool config_ok(const struct bt_fabric_config *c)
{
    if (c->rail_count > BT_RAILS_MAX)
        return false;
    for (uint32_t i = 0; c->rails != NULL && i < c->rail_count; i++) {
        const char *address = c->rails[i].address;

        if (address != NULL && strlen(address) >= BT_WIRE_ADDRESS)
            return false;
    }
    return true;
}

static void fabric_init(struct bt_fabric *f, struct ev_loop *loop,
                        const struct bt_fabric_config *c)
{
    f->loop = loop;
    f->heartbeat_ns = c->heartbeat_ns > 0 ? c->heartbeat_ns : HEARTBEAT_NS;
    f->chunk_bytes = c->chunk_bytes > 0 ? c->chunk_bytes : BT_KV_CHUNK_BYTES;
    f->inflight_max = c->inflight_max > 0 ? c->inflight_max : BT_KV_INFLIGHT;
    f->window_target_ns = c->window_target_ns;
    f->has_key = c->key != NULL;
    if (f->has_key)
        memcpy(f->key, c->key, sizeof(f->key));
    bt_fabric_random(&f->instance, sizeof(f->instance));
    bt_rng_seed(&f->rng, f->instance);
    LIST_INIT(&f->doors);
    LIST_INIT(&f->sinks);
    ev_timer_init(&f->heartbeat, on_heartbeat, (double)f->heartbeat_ns / 1e9,
                  (double)f->heartbeat_ns / 1e9);
    f->heartbeat.data = f;
}

enum bt_status bt_fabric_create(struct ev_loop *loop,
                                const struct bt_fabric_config *config,
                                struct bt_fabric **out, char *error_out,
                                size_t error_size)
{
    static const struct bt_fabric_config none;
    struct bt_fabric *f;
    enum bt_status status;

    if (config == NULL)
        config = &none;
    if (!config_ok(config)) {
        snprintf(error_out, error_size, "fabric: 1 to %d rails, addresses < %d",
                 BT_RAILS_MAX, BT_WIRE_ADDRESS);
        return BT_INVALID;
    }
    f = calloc(1, sizeof(*f));
    if (f == NULL) {
        snprintf(error_out, error_size, "fabric: no memory");
        return BT_NO_MEMORY;
    }
    fabric_init(f, loop, config);
    status = open_rails(f, config, error_out, error_size);
    if (status != BT_OK) {
        free(f);
        return status;
    }
    ev_timer_start(loop, &f->heartbeat);
    *out = f;
    return BT_OK;
}

void bt_fabric_destroy(struct bt_fabric *fabric)
{
    if (fabric == NULL)
        return;
    bt_kv_sinks_stop(fabric);
    bt_kv_sources_stop(fabric);
    ev_timer_stop(fabric->loop, &fabric->heartbeat);
    for (size_t i = 0; i < fabric->rule_count; i++) {
        bt_lane_fini(fabric->rules[i]);
        free(fabric->rules[i]);
    }
    destroy_rails(fabric);
    explicit_bzero(fabric->key, sizeof(fabric->key));
    free(fabric);
}

uint32_t bt_fabric_rails(const struct bt_fabric *fabric)
{
    return fabric->rail_count;
}

void bt_fabric_stats(const struct bt_fabric *fabric,
                     struct bt_fabric_stats *out)
{
    *out = fabric->stats;
}

void bt_fabric_settle(struct bt_fabric *fabric, bool (*done)(void *arg),
                      void *arg, int64_t limit_ns)
{
    const struct timespec nap = {.tv_nsec = 50000};
    int64_t end = bt_fabric_now() + limit_ns;

    while (!done(arg) && bt_fabric_now() < end) {
        bool worked = false;

        for (uint32_t i = 0; i < fabric->rail_count; i++) {
            struct bt_transport *t = fabric->rails[i].transport;

            worked = t->ops->turn(t) || worked;
        }
        if (!worked)
            nanosleep(&nap, NULL);
    }
}

/* ---- memory ---- */

void bt_fabric_unmap(struct bt_fabric *fabric, struct bt_tmem **mems)
{
    for (uint32_t i = 0; i < fabric->rail_count; i++) {
        struct bt_transport *t = fabric->rails[i].transport;

        if (mems[i] != NULL)
            t->ops->unmap(t, mems[i]);
        mems[i] = NULL;
    }
}

static void map_failed(struct bt_fabric *fabric, uint32_t index, size_t bytes,
                       enum bt_status status)
{
    const struct bt_fabric_rail *rail = &fabric->rails[index];
    const struct bt_transport *t = rail->transport;
    char text[200] = "";

    if (t->ops->why != NULL)
        t->ops->why(t, text, sizeof(text));
    if (text[0] == '\0')
        snprintf(text, sizeof(text), "%zu bytes cannot be registered: %s",
                 bytes, bt_status_text(status));
    snprintf(fabric->map_error, sizeof(fabric->map_error), "%s: %s", rail->name,
             text);
}

const char *bt_fabric_map_error(const struct bt_fabric *fabric)
{
    return fabric->map_error;
}

enum bt_status bt_fabric_map(struct bt_fabric *fabric, void *region,
                             size_t bytes, struct bt_tmem **mems_out)
{
    for (uint32_t i = 0; i < fabric->rail_count; i++) {
        struct bt_transport *t = fabric->rails[i].transport;
        enum bt_status status = t->ops->map(t, region, bytes, &mems_out[i]);

        if (status != BT_OK) {
            mems_out[i] = NULL;
            map_failed(fabric, i, bytes, status);
            bt_fabric_unmap(fabric, mems_out);
            return status;
        }
    }
    return BT_OK;
}

enum bt_status bt_fabric_address(const char *host, uint16_t port,
                                 struct sockaddr_storage *out,
                                 socklen_t *size_out)
{
    struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = htons(port)};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6,
                              .sin6_port = htons(port)};

    if (strcmp(host, "localhost") == 0)
        host = "127.0.0.1";
    if (inet_pton(AF_INET, host, &v4.sin_addr) == 1) {
        memcpy(out, &v4, sizeof(v4));
        *size_out = sizeof(v4);
        return BT_OK;
    }
    if (inet_pton(AF_INET6, host, &v6.sin6_addr) == 1) {
        memcpy(out, &v6, sizeof(v6));
        *size_out = sizeof(v6);
        return BT_OK;
    }
    return BT_INVALID;
}
