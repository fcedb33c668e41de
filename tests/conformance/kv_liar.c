/* See kv_liar.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include "kv_liar.h"

#include "fabric.h"

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

static void end_close(struct liar_end *end)
{
    if (end->conn != NULL)
        end->liar->transport->ops->close(end->conn);
}

static void on_frame(void *arg, const void *bytes, size_t size)
{
    struct liar_end *end = arg;

    if (bt_wire_decode(bytes, size, &end->last) != BT_OK)
        memset(&end->last, 0, sizeof(end->last)); /* sealed, perhaps */
    end->frames++;
    if (end->liar->answer != NULL)
        end->liar->answer(end, &end->last);
}

static void on_failed(void *arg, enum bt_status status)
{
    (void)status;
    end_close(arg);
}

static void on_closed(void *arg)
{
    struct liar_end *end = arg;

    end->conn = NULL;
    end->closed++;
    end->liar->closed++;
}

static struct liar_end *end_new(struct liar *liar, struct bt_tconn *conn)
{
    static const struct bt_tconn_events events = {on_frame, on_failed,
                                                  on_closed};
    struct liar_end *end = calloc(1, sizeof(*end));

    assert_non_null(end);
    end->liar = liar;
    end->conn = conn;
    end->next = liar->ends;
    liar->ends = end;
    conn->events = &events;
    conn->arg = end;
    return end;
}

void liar_open(struct liar *liar, struct bed *bed, const char *kind)
{
    const struct bt_rail_config rail = {.address = bed_address(0),
                                        .sim_latency_ns = 20000,
                                        .sim_rate_bytes_per_s = 1u << 28};
    bt_topen_fn open = bt_transport_ucx_open;
    char error[160] = "";

    *liar = (struct liar){.bed = bed};
    if (strcmp(kind, "sim") == 0)
        open = bt_transport_sim_open;
    else if (strcmp(kind, "verbs") == 0)
        open = bt_transport_verbs_open;
    if (open(bed->loop, &rail, &liar->transport, error, sizeof(error)) != BT_OK)
        fail_msg("liar: %s", error);
}

void liar_close(struct liar *liar)
{
    struct liar_end *end;

    for (end = liar->ends; end != NULL; end = end->next) {
        end_close(end);
        bed_until(liar->bed, &end->closed, 1);
    }
    if (liar->listener != NULL)
        liar->transport->ops->unlisten(liar->listener);
    while ((end = liar->ends) != NULL) {
        liar->ends = end->next;
        free(end);
    }
    if (liar->mem != NULL)
        liar->transport->ops->unmap(liar->transport, liar->mem);
    liar->transport->ops->destroy(liar->transport);
}

struct liar_end *liar_connect(struct liar *liar)
{
    const struct bt_transport_ops *ops = liar->transport->ops;
    struct sockaddr_storage at;
    struct bt_tconn *conn = NULL;
    socklen_t size = 0;

    assert_int_equal(
        bt_fabric_address(bed_address(0), liar->bed->port, &at, &size), BT_OK);
    assert_int_equal(
        ops->connect(liar->transport, (struct sockaddr *)&at, size, &conn),
        BT_OK);
    return end_new(liar, conn);
}

static void on_accept(void *arg, struct bt_tconn *conn)
{
    struct liar *liar = arg;

    liar->accepted++;
    (void)end_new(liar, conn);
}

void liar_listen(struct liar *liar)
{
    struct sockaddr_storage at;
    socklen_t size = 0;

    assert_int_equal(bt_fabric_address(bed_address(0), 0, &at, &size), BT_OK);
    assert_int_equal(liar->transport->ops->listen(
                         liar->transport, (struct sockaddr *)&at, size,
                         on_accept, liar, &liar->port, &liar->listener),
                     BT_OK);
}

void liar_send_raw(struct liar_end *end, const void *bytes, size_t size)
{
    if (end->conn != NULL)
        end->liar->transport->ops->send(end->conn, bytes, size);
}

void liar_send(struct liar_end *end, const struct bt_wire_frame *frame)
{
    static uint8_t bytes[BT_WIRE_FRAME_MAX];
    size_t used = 0;

    assert_int_equal(bt_wire_encode(frame, bytes, sizeof(bytes), &used), BT_OK);
    liar_send_raw(end, bytes, used);
}

struct bt_wire_frame liar_hello(const struct bed *bed, bool is_keyed)
{
    struct bt_wire_frame f = {.type = BT_WIRE_HELLO,
                              .name = "d0",
                              .region_name = "kv",
                              .layout = bed->layout,
                              .session = 4711,
                              .nonce = {1, 2, 3},
                              .flags = is_keyed ? BT_WIRE_KEYED : 0};

    return f;
}

struct bt_wire_frame liar_welcome(const struct bed *bed)
{
    struct bt_wire_frame f = {.type = BT_WIRE_WELCOME,
                              .name = BED_NAME_SOURCE,
                              .layout = bed->layout,
                              .session = 99,
                              .region = 4096,
                              .block_count = bed->blocks};

    return f;
}
