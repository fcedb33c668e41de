/* A trace in the making: growing arrays, dense names for blocks and sessions,
 * and the last step that turns stamps into arrivals. Decides limits, the chain
 * rule (a block's name includes its parent) and the jitter; leaves formats to
 * the readers.
 *
 * Invariant: after trace_settle arrivals count from the first stamp, never
 * decrease, and requests of one stamp keep the order of the file unless jitter
 * moves them.
 */
#include "baton/base/rng.h"
#include "trace_priv.h"
#include <stdlib.h>
#include <string.h>

#define STAMP_SLACK_NS 5000000

struct pair_slot {
    uint64_t a, b, value;
    bool used;
};

/* ---- map ---- */

static size_t slot_of(const struct pair_map *map, uint64_t a, uint64_t b)
{
    size_t i = (size_t)bt_mix64(b ^ bt_mix64(a + 0x9e3779b97f4a7c15u));

    i &= map->mask;
    while (map->slots[i].used && (map->slots[i].a != a || map->slots[i].b != b))
        i = (i + 1) & map->mask;
    return i;
}

static enum bt_status map_grow(struct pair_map *map)
{
    size_t size = map->slots ? 2 * (map->mask + 1) : 1024;
    struct pair_map grown = {calloc(size, sizeof(*map->slots)), map->count,
                             size - 1};

    if (!grown.slots)
        return BT_NO_MEMORY;
    for (size_t i = 0; map->slots && i <= map->mask; i++)
        if (map->slots[i].used)
            grown.slots[slot_of(&grown, map->slots[i].a, map->slots[i].b)] =
                map->slots[i];
    free(map->slots);
    *map = grown;
    return BT_OK;
}

enum bt_status pair_map_get(struct pair_map *map, uint64_t a, uint64_t b,
                            uint64_t fresh, uint64_t *value_out,
                            bool *found_out)
{
    struct pair_slot *slot;

    if (!map->slots || 2 * map->count > map->mask) {
        enum bt_status status = map_grow(map);

        if (status != BT_OK)
            return status;
    }
    slot = &map->slots[slot_of(map, a, b)];
    *found_out = slot->used;
    if (!slot->used) {
        *slot = (struct pair_slot){a, b, fresh, true};
        map->count++;
    }
    *value_out = slot->value;
    return BT_OK;
}

void pair_map_fini(struct pair_map *map)
{
    free(map->slots);
    memset(map, 0, sizeof(*map));
}

/* ---- arrays ---- */

static enum bt_status grow(void **array, size_t *capacity, size_t need,
                           size_t size)
{
    size_t more = *capacity ? *capacity : 1024;
    void *grown;

    if (need <= *capacity)
        return BT_OK;
    while (more < need)
        more *= 2;
    grown = realloc(*array, more * size);
    if (!grown)
        return BT_NO_MEMORY;
    *array = grown;
    *capacity = more;
    return BT_OK;
}

enum bt_status trace_append(struct bt_trace *trace,
                            const struct bt_trace_request *request,
                            uint64_t **blocks_out)
{
    size_t blocks = trace->block_count + request->block_count;
    enum bt_status status;
    void *array;

    if (trace->count >= TRACE_REQUESTS_MAX || blocks > TRACE_BLOCKS_MAX)
        return BT_TOO_LARGE;
    array = trace->requests;
    status = grow(&array, &trace->capacity, trace->count + 1,
                  sizeof(*trace->requests));
    trace->requests = array;
    if (status != BT_OK)
        return status;
    array = trace->blocks;
    status =
        grow(&array, &trace->block_capacity, blocks, sizeof(*trace->blocks));
    trace->blocks = array;
    if (status != BT_OK)
        return status;
    trace->requests[trace->count] = *request;
    trace->requests[trace->count].block_at = trace->block_count;
    *blocks_out = trace->blocks ? trace->blocks + trace->block_count : NULL;
    trace->count++;
    trace->block_count = blocks;
    return BT_OK;
}

enum bt_status trace_block(struct trace_build *build, uint64_t parent,
                           uint64_t id, uint64_t *dense_out)
{
    bool found = false;
    enum bt_status status =
        pair_map_get(&build->blocks, parent + 1, id, build->trace->block_ids,
                     dense_out, &found);

    if (status == BT_OK && !found)
        build->trace->block_ids++;
    return status;
}

enum bt_status trace_session(struct trace_build *build, uint64_t a, uint64_t b,
                             uint32_t *session_out)
{
    uint64_t dense = 0;
    bool found = false;
    void *array = build->session_last_ns;
    enum bt_status status;

    status = pair_map_get(&build->sessions, a, b, build->session_count + 1,
                          &dense, &found);
    if (status == BT_OK)
        status = grow(&array, &build->session_capacity, (size_t)dense + 1,
                      sizeof(*build->session_last_ns));
    build->session_last_ns = array;
    if (status != BT_OK)
        return status;
    if (!found) {
        build->session_last_ns[dense] = 0;
        build->session_count++;
    }
    *session_out = (uint32_t)dense;
    return BT_OK;
}

enum bt_status trace_chat(struct trace_build *build, uint64_t chat,
                          uint64_t parent, uint32_t *session_out)
{
    uint64_t session = build->session_count + 1, dense = 0;
    bool found = false;
    enum bt_status status = BT_OK;

    if (parent != UINT64_MAX)
        status = pair_map_get(&build->sessions, 0, parent, session, &session,
                              &found);
    if (status == BT_OK && !found)
        build->session_count++;
    if (status == BT_OK)
        status =
            pair_map_get(&build->sessions, 0, chat, session, &dense, &found);
    if (status == BT_OK)
        *session_out = (uint32_t)session;
    return status;
}

void trace_build_fini(struct trace_build *build)
{
    pair_map_fini(&build->blocks);
    pair_map_fini(&build->sessions);
    free(build->session_last_ns);
}

void bt_trace_fini(struct bt_trace *trace)
{
    free(trace->requests);
    free(trace->blocks);
    memset(trace, 0, sizeof(*trace));
}

/* ---- arrivals ---- */

/* Rounded stamps are often a few ms off: 2999, 6001. */
bool trace_is_quantised(const struct bt_trace *trace, int64_t quantum_ns)
{
    int64_t first = trace->count ? trace->requests[0].arrival_ns : 0;
    bool differ = false;

    for (size_t i = 0; i < trace->count; i++) {
        int64_t at = trace->requests[i].arrival_ns;
        int64_t rest = at % quantum_ns;

        if (rest > STAMP_SLACK_NS && rest < quantum_ns - STAMP_SLACK_NS)
            return false;
        differ = differ || at - first >= quantum_ns / 2 ||
                 first - at >= quantum_ns / 2;
    }
    return differ;
}

struct place {
    int64_t arrival_ns;
    size_t request;
};

static int by_arrival(const void *a, const void *b)
{
    const struct place *x = a, *y = b;

    if (x->arrival_ns != y->arrival_ns)
        return x->arrival_ns < y->arrival_ns ? -1 : 1;
    return x->request < y->request ? -1 : x->request > y->request;
}

static bool is_sorted(const struct bt_trace *trace)
{
    for (size_t i = 1; i < trace->count; i++)
        if (trace->requests[i].arrival_ns < trace->requests[i - 1].arrival_ns)
            return false;
    return true;
}

static enum bt_status sort(struct bt_trace *trace)
{
    struct place *places = malloc(trace->count * sizeof(*places));
    struct bt_trace_request *sorted = malloc(trace->count * sizeof(*sorted));

    if (!places || !sorted) {
        free(places);
        free(sorted);
        return BT_NO_MEMORY;
    }
    for (size_t i = 0; i < trace->count; i++)
        places[i] = (struct place){trace->requests[i].arrival_ns, i};
    qsort(places, trace->count, sizeof(*places), by_arrival);
    for (size_t i = 0; i < trace->count; i++)
        sorted[i] = trace->requests[places[i].request];
    free(places);
    free(trace->requests);
    trace->requests = sorted;
    trace->capacity = trace->count;
    return BT_OK;
}

enum bt_status trace_settle(struct bt_trace *trace, int64_t jitter_ns,
                            uint64_t seed)
{
    int64_t first = INT64_MAX;
    struct bt_rng rng;

    for (size_t i = 0; i < trace->count; i++)
        if (trace->requests[i].arrival_ns < first)
            first = trace->requests[i].arrival_ns;
    bt_rng_seed(&rng, seed);
    for (size_t i = 0; i < trace->count; i++) {
        trace->requests[i].arrival_ns -= first;
        if (jitter_ns > 0)
            trace->requests[i].arrival_ns +=
                (int64_t)bt_rng_below(&rng, (uint64_t)jitter_ns);
    }
    return is_sorted(trace) ? BT_OK : sort(trace);
}
