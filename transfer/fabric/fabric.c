/* A fabric independent of its transport: owns the heartbeat timer, the list of
 * sources and sinks, and the order of an orderly end. Leaves the wire to
 * core/wire.c, the transport to its ops table, pulls to kv_sink.c/kv_pull.c.
 * Invariant: nothing here waits, except settle(), which is bounded and used
 * only when something is being destroyed. */
#include "fabric.h"

#include <arpa/inet.h>
#include <assert.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define HEARTBEAT_NS 200000000LL
#define CHUNK_BYTES  (1u << 20)
#define INFLIGHT_MAX 16u

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

static void on_heartbeat(struct ev_loop *loop, ev_timer *w, int revents)
{
    struct bt_fabric *fabric = w->data;

    (void)loop;
    (void)revents;
    bt_kv_source_heartbeat(fabric);
    bt_kv_sink_heartbeat(fabric);
}

struct bt_fabric *bt_fabric_new(struct ev_loop *loop,
                                struct bt_transport *transport,
                                const struct bt_fabric_config *config)
{
    static const struct bt_fabric_config none;
    struct bt_fabric *f = calloc(1, sizeof(*f));

    if (f == NULL)
        return NULL;
    if (config == NULL)
        config = &none;
    f->loop = loop;
    f->transport = transport;
    f->heartbeat_ns =
        config->heartbeat_ns > 0 ? config->heartbeat_ns : HEARTBEAT_NS;
    f->chunk_bytes =
        config->chunk_bytes > 0 ? config->chunk_bytes : CHUNK_BYTES;
    f->inflight_max =
        config->inflight_max > 0 ? config->inflight_max : INFLIGHT_MAX;
    LIST_INIT(&f->sources);
    LIST_INIT(&f->sinks);
    ev_timer_init(&f->heartbeat, on_heartbeat, (double)f->heartbeat_ns / 1e9,
                  (double)f->heartbeat_ns / 1e9);
    f->heartbeat.data = f;
    ev_timer_start(loop, &f->heartbeat);
    return f;
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
    fabric->transport->ops->destroy(fabric->transport);
    free(fabric);
}

void bt_fabric_send(struct bt_fabric *fabric, struct bt_tconn *conn,
                    const struct bt_wire_frame *frame)
{
    size_t used = 0;
    enum bt_status status =
        bt_wire_encode(frame, fabric->scratch, sizeof(fabric->scratch), &used);

    assert(status == BT_OK);
    fabric->transport->ops->send(conn, fabric->scratch, used);
}

void bt_fabric_settle(struct bt_fabric *fabric, bool (*done)(void *arg),
                      void *arg, int64_t limit_ns)
{
    const struct timespec nap = {.tv_nsec = 50000};
    int64_t end = bt_fabric_now() + limit_ns;

    while (!done(arg) && bt_fabric_now() < end) {
        if (!fabric->transport->ops->turn(fabric->transport))
            nanosleep(&nap, NULL);
    }
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
