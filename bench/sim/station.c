/* A storage station: up to N loads at once, each at W(q) / q of the work in
 * service, rates anew at every start and end, the rest wait in order. A load
 * holds its server during its base and gets bytes after it. Worked example
 * W13 of the cost model with recomputed rates.
 */
#include "sim_priv.h"

#include <math.h>
#include <stdlib.h>

#define WAITING_MAX (1u << 20)

void sim_station_init(struct sim_station *s, const struct bt_station *model)
{
    *s = (struct sim_station){.model = *model};
    if (s->model.servers == 0)
        s->model.servers = 1;
    if (s->model.servers > SIM_STATION_SERVERS_MAX)
        s->model.servers = SIM_STATION_SERVERS_MAX;
}

void sim_station_fini(struct sim_station *s)
{
    free(s->waiting);
    s->waiting = NULL;
}

/* Of each load in service, bytes per ns. */
static double rate(const struct sim_station *s)
{
    if (s->served_count == 0)
        return 0;
    return bt_station_rate(&s->model, s->served_count) * 1e-9 / s->served_count;
}

/* To now, which is no later than the next end or base. */
static void roll(struct sim_station *s, int64_t now_ns)
{
    double each = rate(s);

    for (uint32_t i = 0; i < s->served_count; i++) {
        struct sim_load *l = &s->served[i];
        int64_t from =
            s->now_ns > l->bytes_from_ns ? s->now_ns : l->bytes_from_ns;

        if (now_ns > from)
            l->left -= (double)(now_ns - from) * each;
    }
    if (now_ns > s->now_ns)
        s->now_ns = now_ns;
}

static void serve(struct sim_station *s, int64_t now_ns)
{
    while (s->count > 0 && s->served_count < s->model.servers) {
        struct sim_load *l = &s->served[s->served_count++];

        *l = s->waiting[s->head];
        l->bytes_from_ns = now_ns + s->model.base_ns;
        s->head = (s->head + 1) % s->capacity;
        s->count--;
    }
    s->version++;
}

static bool grow(struct sim_station *s)
{
    uint32_t capacity = s->capacity == 0 ? 16 : s->capacity * 2;
    struct sim_load *ring;

    if (capacity > WAITING_MAX)
        return false;
    ring = malloc(capacity * sizeof(*ring));
    if (ring == NULL)
        return false;
    for (uint32_t i = 0; i < s->count; i++)
        ring[i] = s->waiting[(s->head + i) % s->capacity];
    free(s->waiting);
    s->waiting = ring;
    s->head = 0;
    s->capacity = capacity;
    return true;
}

bool sim_station_put(struct sim_station *s, int64_t now_ns, uint32_t tag,
                     double bytes)
{
    if (s->count == s->capacity && !grow(s))
        return false;
    roll(s, now_ns);
    s->waiting[(s->head + s->count++) % s->capacity] =
        (struct sim_load){.tag = tag, .left = bytes};
    serve(s, now_ns);
    return true;
}

static void drop_served(struct sim_station *s, uint32_t at)
{
    for (uint32_t i = at + 1; i < s->served_count; i++)
        s->served[i - 1] = s->served[i];
    s->served_count--;
}

void sim_station_drop(struct sim_station *s, int64_t now_ns, uint32_t tag)
{
    uint32_t kept = 0;

    roll(s, now_ns);
    for (uint32_t i = s->served_count; i-- > 0;)
        if (s->served[i].tag == tag)
            drop_served(s, i);
    for (uint32_t i = 0; i < s->count; i++) {
        struct sim_load l = s->waiting[(s->head + i) % s->capacity];

        if (l.tag != tag)
            s->waiting[(s->head + kept++) % s->capacity] = l;
    }
    s->count = kept;
    serve(s, now_ns);
}

int64_t sim_station_next(const struct sim_station *s)
{
    double each = rate(s);
    int64_t next = SIM_NEVER;

    for (uint32_t i = 0; i < s->served_count; i++) {
        const struct sim_load *l = &s->served[i];
        int64_t from =
            s->now_ns > l->bytes_from_ns ? s->now_ns : l->bytes_from_ns;
        double ns = l->left <= 0 ? 0 : ceil(l->left / each);

        if (each > 0 && ns < 9e17 && from + (int64_t)ns < next)
            next = from + (int64_t)ns;
    }
    return next;
}

uint32_t sim_station_take(struct sim_station *s, int64_t now_ns)
{
    roll(s, now_ns);
    for (uint32_t i = 0; i < s->served_count; i++) {
        uint32_t tag = s->served[i].tag;

        if (s->served[i].left >= 0.5 || now_ns < s->served[i].bytes_from_ns)
            continue;
        drop_served(s, i);
        serve(s, now_ns);
        return tag;
    }
    return SIM_NONE;
}
