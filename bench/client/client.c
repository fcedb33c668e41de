/* Open-loop client: decides when each request leaves (its arrival time, never
 * a completion) and keeps the records. What happens to one request on the way
 * is flight.c's. Invariant: next = requests looked at; each of them has
 * exactly one end; in_flight = length of the list of flights. */
#include "client_priv.h"
#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define IN_FLIGHT_DEFAULT 4096

static const char *const result_names[] = {
#define X(code, name) name,
    BT_CLIENT_RESULT_LIST(X)
#undef X
};

const char *bt_client_result_name(enum bt_client_result result)
{
    return (unsigned int)result < BT_CLIENT_RESULT_COUNT ? result_names[result]
                                                         : "unknown";
}

int64_t client_now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

void client_ended(struct bt_client *client, size_t index)
{
    assert(client->records[index].result != BT_CLIENT_PENDING);
    client->ended++;
    if (client->spec.progress)
        client->spec.progress(client->spec.arg, client->ended,
                              client->spec.workload->count);
}

static void drop(struct bt_client *client, size_t index)
{
    struct bt_client_record *r = &client->records[index];

    r->result = BT_CLIENT_DROPPED;
    r->ttft_ns = r->ttst_ns = r->tpot_ns = -1;
    client_ended(client, index);
}

static void on_timer(struct ev_loop *loop, struct ev_timer *timer, int events)
{
    struct bt_client *client = timer->data;
    const struct bt_workload *w = client->spec.workload;
    int64_t now = client_now_ns() - client->start_ns;

    (void)events;
    while (client->next < w->count &&
           w->requests[client->next].arrival_ns <= now) {
        size_t index = client->next++;

        if (client->in_flight >= client->spec.in_flight_max)
            drop(client, index);
        else
            flight_start(client, index);
    }
    if (client->next == w->count)
        return;
    ev_now_update(loop);
    now = client_now_ns() - client->start_ns;
    ev_timer_set(
        timer, (double)(w->requests[client->next].arrival_ns - now) / 1e9, 0.);
    ev_timer_start(loop, timer);
}

static char *make_url(const char *base)
{
    static const char path[] = "/v1/completions";
    size_t size = strlen(base) + sizeof(path);
    char *url = malloc(size);

    if (url)
        snprintf(url, size, "%s%s", base, path);
    return url;
}

enum bt_status bt_client_create(struct ev_loop *loop,
                                const struct bt_client_spec *spec,
                                struct bt_client **out)
{
    struct bt_client *client;
    enum bt_status status = BT_NO_MEMORY;

    if (!spec->url || !spec->model || !spec->workload)
        return BT_INVALID;
    client = calloc(1, sizeof(*client));
    if (!client)
        return BT_NO_MEMORY;
    client->loop = loop;
    client->spec = *spec;
    if (!client->spec.in_flight_max)
        client->spec.in_flight_max = IN_FLIGHT_DEFAULT;
    if (!client->spec.request_timeout_ns)
        client->spec.request_timeout_ns = 60000000000;
    client->url = make_url(spec->url);
    client->records =
        calloc(spec->workload->count + 1, sizeof(*client->records));
    if (!client->url || !client->records)
        goto undo_client;
    status = bt_upstream_create(loop, client->spec.in_flight_max,
                                client->spec.in_flight_max, &client->upstream);
    if (status != BT_OK)
        goto undo_client;
    bt_histogram_reset(&client->gaps);
    ev_timer_init(&client->timer, on_timer, 0., 0.);
    client->timer.data = client;
    *out = client;
    return BT_OK;

undo_client:
    free(client->url);
    free(client->records);
    free(client);
    return status;
}

void bt_client_start(struct bt_client *client)
{
    assert(!client->started);
    client->started = true;
    client->start_ns = client_now_ns();
    ev_timer_set(&client->timer, 0., 0.);
    ev_timer_start(client->loop, &client->timer);
}

bool bt_client_is_done(const struct bt_client *client)
{
    return client->ended == client->spec.workload->count;
}

size_t bt_client_in_flight(const struct bt_client *client)
{
    return client->in_flight;
}

const struct bt_client_record *bt_client_record_at(const struct bt_client *c,
                                                   size_t i)
{
    assert(i < c->spec.workload->count);
    return &c->records[i];
}

const struct bt_histogram *bt_client_gaps(const struct bt_client *client)
{
    return &client->gaps;
}

const char *bt_client_first_failure(const struct bt_client *client)
{
    return client->first_failure;
}

void bt_client_destroy(struct bt_client *client)
{
    if (!client)
        return;
    ev_timer_stop(client->loop, &client->timer);
    while (client->flights)
        flight_free(client->flights);
    bt_upstream_destroy(client->upstream);
    free(client->url);
    free(client->records);
    free(client);
}

static double ms(int64_t ns)
{
    return ns < 0 ? -1 : (double)ns / 1e6;
}

enum bt_status bt_client_dump(const struct bt_client *client, FILE *to)
{
    const struct bt_workload *w = client->spec.workload;

    for (size_t i = 0; i < w->count; i++) {
        const struct bt_client_record *r = &client->records[i];

        fprintf(to,
                "{\"request\":%zu,\"conversation\":%u,\"turn\":%u,"
                "\"arrival_ms\":%.3f,\"late_ms\":%.3f,\"result\":\"%s\","
                "\"http\":%d,\"ttft_ms\":%.3f,\"ttst_ms\":%.3f,"
                "\"tpot_ms\":%.3f,\"gap_max_ms\":%.3f,\"e2e_ms\":%.3f,"
                "\"prompt_tokens\":%u,\"answer_tokens\":%u,"
                "\"cached_tokens\":%u}\n",
                i, w->requests[i].conversation, w->requests[i].turn,
                ms(w->requests[i].arrival_ns), ms(r->late_ns),
                bt_client_result_name(r->result), r->http, ms(r->ttft_ns),
                ms(r->ttst_ns), ms(r->tpot_ns), ms(r->gap_max_ns),
                ms(r->e2e_ns), r->prompt_tokens, r->answer_tokens,
                r->cached_tokens);
    }
    return ferror(to) ? BT_IO : BT_OK;
}
