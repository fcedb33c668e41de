/* POST /v1/pool/pull and /v1/pool/drop. A fill takes a slot for each key that
 * the pool has not, pulls the blocks into them, and answers when that has
 * ended. Keys that are here already are skipped; the source hears DONE either
 * way, so that its lease ends.
 *
 * Invariant: the slots of a fill are landing until its pull has ended, whatever
 * becomes of its client.
 */
#include "service.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEADLINE_NS 30000000000LL

struct order {
    char host[64], region[BT_KV_NAME_MAX];
    char request_id[BT_KV_REQUEST_MAX + 1];
    uint64_t port, deadline_ms, estimate_ns;
};

/* ---- bodies ---- */

static bool text_member(const struct bt_json *root, const char *name, char *out,
                        size_t size)
{
    struct bt_json value;
    size_t bytes = 0;

    if (!bt_json_member(root, name, &value, NULL) ||
        bt_json_string(&value, out, size - 1, &bytes) != BT_OK)
        return false;
    out[bytes] = '\0';
    return bytes > 0 && strlen(out) == bytes;
}

static bool number_member(const struct bt_json *root, const char *name,
                          uint64_t *out)
{
    struct bt_json value;

    return bt_json_member(root, name, &value, NULL) &&
           bt_json_u64(&value, out) == BT_OK;
}

/* Whole numbers of an array; returns how many, 0 when it is anything else or
 * longer than max. *out is malloc'd. */
static uint32_t list_member(const struct bt_json *root, const char *name,
                            uint64_t **out)
{
    struct bt_json list, value;
    size_t cursor = 0;
    uint32_t count = 0;

    *out = NULL;
    if (!bt_json_member(root, name, &list, NULL) || list.type != BT_JSON_ARRAY)
        return 0;
    *out = malloc(SERVICE_BLOCKS_MAX * sizeof(**out));
    while (*out != NULL && bt_json_next(&list, &cursor, NULL, &value)) {
        if (count == SERVICE_BLOCKS_MAX ||
            bt_json_u64(&value, &(*out)[count]) != BT_OK)
            return 0;
        count++;
    }
    return count;
}

static bool body_root(struct bt_httpd_request *req, struct bt_json *root)
{
    size_t bytes = 0;
    const char *body = bt_httpd_body(req, &bytes);

    return bt_json_parse(body, bytes, root, NULL) == BT_OK &&
           root->type == BT_JSON_OBJECT;
}

static const char *read_order(const struct bt_json *root, struct order *order)
{
    struct bt_json ignored;

    memset(order, 0, sizeof(*order));
    snprintf(order->region, sizeof(order->region), "kv");
    order->deadline_ms = DEADLINE_NS / 1000000;
    if (!text_member(root, "host", order->host, sizeof(order->host)))
        return "host: a numeric address";
    if (!number_member(root, "port", &order->port) || order->port == 0 ||
        order->port > 65535)
        return "port: 1 to 65535";
    if (!text_member(root, "request_id", order->request_id,
                     sizeof(order->request_id)))
        return "request_id: 1 to 128 bytes";
    if (bt_json_member(root, "region", &ignored, NULL) &&
        !text_member(root, "region", order->region, sizeof(order->region)))
        return "region: 1 to 63 bytes";
    if (bt_json_member(root, "deadline_ms", &ignored, NULL) &&
        (!number_member(root, "deadline_ms", &order->deadline_ms) ||
         order->deadline_ms == 0 || order->deadline_ms > 3600000))
        return "deadline_ms: 1 to 3600000";
    if (bt_json_member(root, "estimate_ns", &ignored, NULL) &&
        !number_member(root, "estimate_ns", &order->estimate_ns))
        return "estimate_ns: a whole number";
    return NULL;
}

/* ---- life of a fill ---- */

static void fill_free(struct fill *fill)
{
    struct bt_agent_service *s = fill->service;

    TAILQ_REMOVE(&s->fills, fill, entry);
    s->fill_count--;
    free(fill->refs);
    free(fill->keys);
    free(fill->slots);
    free(fill);
}

static struct fill *fill_new(struct bt_agent_service *s)
{
    struct fill *fill =
        s->fill_count < SERVICE_FILLS_MAX ? calloc(1, sizeof(*fill)) : NULL;

    if (fill == NULL)
        return NULL;
    fill->service = s;
    TAILQ_INSERT_TAIL(&s->fills, fill, entry);
    s->fill_count++;
    return fill;
}

static void give_back(struct fill *fill)
{
    for (uint32_t i = 0; i < fill->count; i++)
        pool_landed(fill->service->pool, fill->slots[i], false);
    fill->count = 0;
}

/* Slots for the keys that are not here; refs and keys keep those only. */
static enum bt_status take_slots(struct fill *fill)
{
    enum bt_status status = BT_OK;

    fill->slots = malloc(fill->listed * sizeof(*fill->slots));
    if (fill->slots == NULL)
        return BT_NO_MEMORY;
    for (uint32_t i = 0; i < fill->listed && status == BT_OK; i++) {
        status = pool_land(fill->service->pool, fill->keys[i],
                           &fill->slots[fill->count]);
        if (status == BT_OK) {
            fill->refs[fill->count] = fill->refs[i];
            fill->keys[fill->count++] = fill->keys[i];
        }
        if (status == BT_EXISTS)
            status = BT_OK;
    }
    if (status != BT_OK)
        give_back(fill);
    return status;
}

static void on_gone(void *arg)
{
    struct fill *fill = arg;

    fill->http = NULL;
}

static void on_over(void *arg)
{
    (void)arg;
}

static enum bt_status begin(struct fill *fill, const struct order *order)
{
    struct bt_agent_service *s = fill->service;
    const struct bt_agent_pull pull = {
        .region = s->pool_region,
        .host = order->host,
        .port = (uint16_t)order->port,
        .remote_region = order->region,
        .request_id = order->request_id,
        .remote = fill->refs,
        .local = fill->slots,
        .count = fill->count,
        .deadline_ns = (int64_t)order->deadline_ms * 1000000,
        .estimate_ns = order->estimate_ns,
        .owner = fill,
    };
    uint64_t id = 0;
    snprintf(fill->peer, sizeof(fill->peer), "%.57s:%u", order->host,
             (unsigned int)pull.port);
    enum bt_status status = bt_agent_pull(s->agent, &pull, &id);

    if (status != BT_OK)
        give_back(fill);
    return status;
}

static const char *read_fill(struct bt_httpd_request *req, struct fill *fill,
                             struct order *order)
{
    struct bt_json root;

    if (!body_root(req, &root))
        return "the body is not a JSON object";
    const char *fault = read_order(&root, order);
    if (fault != NULL)
        return fault;
    fill->listed = list_member(&root, "blocks", &fill->refs);
    if (fill->listed == 0 ||
        list_member(&root, "keys", &fill->keys) != fill->listed)
        return "blocks and keys: flat lists, as many of each, 1 to 65536 "
               "whole numbers";
    return NULL;
}

void service_fill(struct bt_agent_service *s, struct bt_httpd_request *req)
{
    struct fill *fill = fill_new(s);
    struct order order;

    if (fill == NULL) {
        service_refuse(req, 503, "too many pulls at once");
        return;
    }
    const char *fault = read_fill(req, fill, &order);
    enum bt_status status = BT_INVALID;
    if (fault == NULL) {
        status = take_slots(fill);
        if (status == BT_OK)
            status = begin(fill, &order);
        fault = status == BT_OK ? NULL : bt_status_text(status);
    }
    if (fault != NULL) {
        service_refuse(req, bt_status_http(status), fault);
        fill_free(fill);
        return;
    }
    fill->http = req;
    bt_httpd_watch(req, on_gone, on_over, fill);
}

/* ---- its end ---- */

void service_note_last(struct bt_agent_service *s,
                       const struct bt_agent_event *e, const char *region)
{
    struct last *last = &s->last[s->last_count++ % SERVICE_LAST];

    memset(last, 0, sizeof(*last));
    last->status = e->status;
    memcpy(last->peer, e->peer, sizeof(last->peer));
    memcpy(last->request_id, e->request_id, sizeof(last->request_id));
    memcpy(last->detail, e->detail, sizeof(last->detail));
    memcpy(last->rail_bytes, e->rail_bytes, sizeof(last->rail_bytes));
    snprintf(last->region, sizeof(last->region), "%s", region);
    last->bytes = e->bytes;
    last->predicted_ns = e->predicted_ns;
    last->estimate_ns = e->estimate_ns;
    last->descriptors = e->descriptors;
    last->retries = e->retries;
    last->setup_ns = e->setup_ns;
    last->queued_ns = e->queued_ns;
    last->moved_ns = e->moved_ns;
    last->duration_ns = e->duration_ns;
    s->setup_ns += e->setup_ns;
    s->queued_ns += e->queued_ns;
    s->moved_ns += e->moved_ns;
    for (uint32_t i = 0; i < BT_RAILS_MAX; i++)
        s->rail_bytes[i] += e->rail_bytes[i];
}

static void answer(struct fill *fill, const struct last *last)
{
    char buf[2048];
    struct bt_text t;

    bt_text_init(&t, buf, sizeof(buf));
    bt_text_str(&t, "{\"listed\":");
    bt_text_u64(&t, fill->listed);
    bt_text_str(&t, ",\"pulled\":");
    bt_text_u64(&t, last->status == BT_OK ? fill->count : 0);
    bt_text_str(&t, ",\"transfer\":");
    service_last_json(&t, fill->service, last);
    bt_text_str(&t, "}");
    /* whatever becomes of it: the fill is gone by then */
    bt_httpd_watch(fill->http, on_over, on_over, NULL);
    bt_httpd_reply(fill->http, bt_status_http(last->status), "application/json",
                   buf, t.used);
}

void service_filled(struct bt_agent_service *s,
                    const struct bt_agent_event *event)
{
    struct fill *fill = event->owner;
    struct bt_agent_event e = *event;
    bool well = e.status == BT_OK;

    if (e.peer[0] == '\0')
        memcpy(e.peer, fill->peer, sizeof(fill->peer));
    if (e.status == BT_NOT_FOUND &&
        strcmp(e.detail, bt_status_text(BT_NOT_FOUND)) == 0)
        snprintf(e.detail, sizeof(e.detail),
                 "the peer has no such request, or lacks a block or key of it");

    for (uint32_t i = 0; i < fill->count; i++)
        pool_landed(s->pool, fill->slots[i], well);
    s->fills_done += well;
    s->fills_failed += !well;
    service_note_last(s, &e, SERVICE_REGION);
    if (!well)
        service_say(s, 1, "pull", "peer=%s request=%s status=%s detail=\"%s\"",
                    e.peer, e.request_id, bt_status_name(e.status), e.detail);
    if (fill->http != NULL)
        answer(fill, &s->last[(s->last_count - 1) % SERVICE_LAST]);
    fill_free(fill);
}

/* The agent is closed: nothing lands any more. Clients have gone before. */
void service_fills_end(struct bt_agent_service *s)
{
    struct fill *fill, *next;

    for (fill = TAILQ_FIRST(&s->fills); fill != NULL; fill = next) {
        next = TAILQ_NEXT(fill, entry);
        give_back(fill);
        fill_free(fill);
    }
}

/* ---- drop ---- */

void service_drop(struct bt_agent_service *s, struct bt_httpd_request *req)
{
    struct bt_json root;
    uint64_t *keys = NULL;
    uint32_t count = 0, dropped = 0;
    char text[64];

    if (body_root(req, &root))
        count = list_member(&root, "keys", &keys);
    for (uint32_t i = 0; i < count; i++)
        dropped += pool_drop(s->pool, keys[i]);
    free(keys);
    int n = snprintf(text, sizeof(text), "{\"listed\":%u,\"dropped\":%u}",
                     count, dropped);
    if (count == 0)
        service_refuse(req, 400, "keys: 1 to 65536 whole numbers");
    else
        bt_httpd_reply(req, 200, "application/json", text, (size_t)n);
}
