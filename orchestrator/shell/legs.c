/* What the two legs share: starting a call with the right headers, keeping a
 * bounded reply, and naming how a call ended.
 */
#include "exchange.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define URL_MAX 512
/* A link without a rate has no time that is worth saying. */
#define TRANSFER_MAX_NS (3600 * BT_NS_PER_S)

const char *leg_path(const struct exchange *x)
{
    return x->request.route == BT_ROUTE_CHAT ? "/v1/chat/completions"
                                             : "/v1/completions";
}

enum bt_status leg_start(struct exchange *x, struct leg *leg, const char *path,
                         const struct bt_call_spec *call_backs)
{
    const struct bt_config *config = x->serve->config;
    char url[URL_MAX], id[UPSTREAM_ID_MAX + 32], rank[48], transfer[64];
    const char *headers[5] = {"Content-Type: application/json", id};
    size_t count = 2;
    struct bt_call_spec spec = *call_backs;

    snprintf(url, sizeof(url), "%s%s", config->workers[leg->worker].url, path);
    snprintf(id, sizeof(id), "X-Request-Id: %s", x->upstream_id);
    snprintf(rank, sizeof(rank), "X-data-parallel-rank: %u", leg->rank);
    if (leg->has_rank)
        headers[count++] = rank;
    /* A header, not a key of the hand-off: those bytes are the prefill
     * engine's, and who does not know a header ignores it (RFC 9110, 5.1). */
    snprintf(transfer, sizeof(transfer), "X-Baton-Transfer-Ns: %lld",
             (long long)leg->transfer_ns);
    if (leg->transfer_ns > 0 && leg->transfer_ns < TRANSFER_MAX_NS)
        headers[count++] = transfer;
    spec.method = "POST";
    spec.url = url;
    spec.headers = headers;
    spec.body = leg->body;
    spec.connect_timeout_ms = config->timeouts.connect / BT_NS_PER_MS;
    return bt_call_start(x->serve->upstream, &spec, &leg->call);
}

/* Close the call if it is out and forget the reply. */
void leg_reset(struct leg *leg)
{
    if (leg->call != NULL)
        bt_call_cancel(leg->call);
    free(leg->body);
    free(leg->reply);
    *leg = (struct leg){0};
}

enum bt_status leg_keep(struct leg *leg, const char *bytes, size_t count,
                        size_t limit)
{
    if (leg->overflow || count > limit - leg->reply_used) {
        leg->overflow = true;
        return BT_TOO_LARGE;
    }
    if (leg->reply_used + count > leg->reply_size) {
        size_t size = leg->reply_size == 0 ? 4096 : leg->reply_size * 2;
        char *grown;

        while (size < leg->reply_used + count)
            size *= 2;
        grown = realloc(leg->reply, size);
        if (grown == NULL) {
            leg->overflow = true;
            return BT_NO_MEMORY;
        }
        leg->reply = grown;
        leg->reply_size = size;
    }
    memcpy(leg->reply + leg->reply_used, bytes, count);
    leg->reply_used += count;
    return BT_OK;
}

void leg_head(struct leg *leg, const struct bt_call_head *head)
{
    const char *type = head->content_type == NULL ? "" : head->content_type;

    leg->status = head->status;
    leg->sse = strncasecmp(type, "text/event-stream", 17) == 0;
    leg->json = strncasecmp(type, "application/json", 16) == 0;
}

void leg_count(struct bt_serve *serve, const struct bt_call_end *end)
{
    int class = end->http / 100;

    serve->counters.upstream_answers[class >= 1 && class <= 5 ? class : 0]++;
}

/* False: the call ended with a whole 2xx answer. */
bool leg_map_end(const struct bt_call_end *end, enum bt_leg_failure *how_out)
{
    switch (end->status) {
    case BT_OK:
        if (end->http >= 200 && end->http < 300)
            return false;
        *how_out = BT_FAIL_HTTP;
        return true;
    case BT_REFUSED:
        *how_out = BT_FAIL_REFUSED;
        return true;
    case BT_TIMEOUT:
        /* A connect timer: the request was never delivered. */
        *how_out = end->connected ? BT_FAIL_TIMEOUT : BT_FAIL_REFUSED;
        return true;
    case BT_TRUNCATED:
        *how_out = BT_FAIL_TRUNCATED;
        return true;
    case BT_AGAIN:
    case BT_LIMIT:
    case BT_NO_MEMORY:
    case BT_NOT_FOUND:
    case BT_EXISTS:
    case BT_STALE:
    case BT_INVALID:
    case BT_TYPE:
    case BT_DUPLICATE:
    case BT_UNSUPPORTED:
    case BT_TOO_LARGE:
    case BT_CANCELLED:
    case BT_RESET:
    case BT_PEER_DEAD:
    case BT_PEER_ERROR:
    case BT_INCOMPATIBLE:
    case BT_LEASE_EXPIRED:
    case BT_CHECKSUM:
    case BT_OVERLOADED:
    case BT_NO_WORKER:
    case BT_IO:
    case BT_BUG:
        break;
    }
    *how_out = end->connected ? BT_FAIL_RESET : BT_FAIL_REFUSED;
    return true;
}
