/* See verbs_bed.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include "verbs_bed.h"

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GUARD_NS 30000000000LL

const char *bed_server_address(void)
{
    const char *text = getenv("BATON_FABRIC_ADDRESS");

    return text != NULL ? text : "10.77.0.1";
}

const char *bed_client_address(void)
{
    const char *text = getenv("BATON_FABRIC_PEER");

    return text != NULL ? text : "10.77.0.2";
}

bool bed_absent(void)
{
    int count = 0;
    struct ibv_device **list = ibv_get_device_list(&count);

    if (list != NULL)
        ibv_free_device_list(list);
    if (count > 0)
        return false;
    print_message("no RDMA device here: run it in the soft-RoCE guest\n");
    return true;
}

void bed_fill(unsigned char *bytes, size_t size, uint64_t seed)
{
    uint64_t x = seed * 0x9E3779B97F4A7C15u + 1;

    for (size_t i = 0; i < size; i++) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        bytes[i] = (unsigned char)(x >> 32);
    }
}

uint64_t bed_mix(uint64_t sum, const unsigned char *bytes, size_t size)
{
    sum = sum * 31 + size;
    for (size_t i = 0; i < size; i++)
        sum = (sum ^ bytes[i]) * 0x100000001B3u;
    return sum;
}

static void on_frame(void *arg, const void *bytes, size_t size)
{
    struct end *end = arg;

    end->frames++;
    end->bytes += size;
    end->last_size = size;
    end->sum = bed_mix(end->sum, bytes, size);
    if (end->echo)
        end->conn == NULL ? (void)0
                          : ((struct bt_verbs_conn *)end->conn)
                                ->verbs->base.ops->send(end->conn, bytes, size);
}

static void on_failed(void *arg, enum bt_status status)
{
    struct end *end = arg;

    end->failed++;
    end->why = status;
    if (end->close_on_fail)
        bt_verbs_close(end->conn);
}

static void on_closed(void *arg)
{
    struct end *end = arg;

    end->closed++;
    end->conn = NULL;
}

const struct bt_tconn_events bed_events = {on_frame, on_failed, on_closed};

static void on_accept(void *arg, struct bt_tconn *conn)
{
    struct bed *bed = arg;

    assert_null(bed->at_server.conn);
    bed->at_server.conn = conn;
    conn->events = &bed_events;
    conn->arg = &bed->at_server;
    if (bed->do_allow)
        bed->server->ops->allow(conn);
}

struct bt_transport *bed_transport(struct ev_loop *loop, const char *address)
{
    const struct bt_rail_config rail = {.address = address};
    struct bt_transport *transport = NULL;
    char error[160] = "";
    enum bt_status status =
        bt_transport_verbs_open(loop, &rail, &transport, error, sizeof(error));

    if (status != BT_OK)
        print_message("open %s: %s\n", address, error);
    assert_int_equal(status, BT_OK);
    return transport;
}

void bed_open(struct bed *bed, bool do_allow)
{
    struct sockaddr_storage at;
    socklen_t size;

    memset(bed, 0, sizeof(*bed));
    bed->do_allow = do_allow;
    bed->loop = ev_loop_new(EVFLAG_AUTO);
    assert_non_null(bed->loop);
    bed->server = bed_transport(bed->loop, bed_server_address());
    bed->client = bed_transport(bed->loop, bed_client_address());
    size = bed_where(bed, &at);
    assert_int_equal(
        bed->server->ops->listen(bed->server, (struct sockaddr *)&at, size,
                                 on_accept, bed, &bed->port, &bed->listener),
        BT_OK);
    assert_true(bed->port > 0);
}

socklen_t bed_where(const struct bed *bed, struct sockaddr_storage *out)
{
    socklen_t size;

    assert_int_equal(
        bt_fabric_address(bed_server_address(), bed->port, out, &size), BT_OK);
    return size;
}

void bed_connect(struct bed *bed)
{
    struct sockaddr_storage at;
    socklen_t size = bed_where(bed, &at);
    int server = bed->at_server.frames + 1, client = bed->at_client.frames + 1;

    assert_int_equal(bed->client->ops->connect(bed->client,
                                               (struct sockaddr *)&at, size,
                                               &bed->at_client.conn),
                     BT_OK);
    bed->at_client.conn->events = &bed_events;
    bed->at_client.conn->arg = &bed->at_client;
    bed->client->ops->send(bed->at_client.conn, "hi", 2);
    bed_until(bed, &bed->at_server.frames, server);
    bed->server->ops->send(bed->at_server.conn, "ho", 2);
    bed_until(bed, &bed->at_client.frames, client);
}

void bed_join(struct bed *bed)
{
    bed_open(bed, true);
    bed_connect(bed);
}

void bed_close(struct bed *bed)
{
    int client = bed->at_client.closed + 1, server = bed->at_server.closed + 1;

    if (bed->at_client.conn != NULL) {
        bed->client->ops->close(bed->at_client.conn);
        bed_until(bed, &bed->at_client.closed, client);
    }
    if (bed->at_server.conn != NULL) {
        bed->server->ops->close(bed->at_server.conn);
        bed_until(bed, &bed->at_server.closed, server);
    }
    if (bed->listener != NULL)
        bed->server->ops->unlisten(bed->listener);
    bed->client->ops->destroy(bed->client);
    bed->server->ops->destroy(bed->server);
    ev_loop_destroy(bed->loop);
}

void bed_until(struct bed *bed, const int *counter, int value)
{
    int64_t end = bt_fabric_now() + GUARD_NS;

    while (*counter < value) {
        ev_run(bed->loop, EVRUN_ONCE);
        if (bt_fabric_now() > end)
            fail_msg("waited 30 s for %d of %d; client: failed %d (%s) %s; "
                     "server: failed %d (%s) %s",
                     *counter, value, bed->at_client.failed,
                     bt_status_name(bed->at_client.why),
                     bt_verbs_text(bed->client), bed->at_server.failed,
                     bt_status_name(bed->at_server.why),
                     bt_verbs_text(bed->server));
    }
}

static void on_done(struct bt_tget *get, enum bt_status status)
{
    struct move *move = (struct move *)get;

    move->done++;
    move->status = status;
}

void bed_move(struct bed *bed, struct move *move, bool is_put)
{
    move->done = 0;
    move->get.done = on_done;
    move->span.bytes = 0;
    for (uint32_t i = 0; i < move->span.count; i++)
        move->span.bytes += move->span.pieces[i].bytes;
    if (is_put)
        bed->client->ops->put(bed->at_client.conn, &move->span, &move->get);
    else
        bed->client->ops->get(bed->at_client.conn, &move->span, &move->get);
}

struct bt_tkey *bed_key(struct bed *bed, struct bt_tmem *mem)
{
    struct bt_tkey *key = NULL;
    uint8_t bytes[64];
    uint16_t used = 0;

    assert_int_equal(bed->server->ops->key_pack(bed->server, mem, bytes,
                                                sizeof(bytes), &used),
                     BT_OK);
    assert_int_equal(
        bed->client->ops->key_open(bed->at_client.conn, bytes, used, &key),
        BT_OK);
    return key;
}
