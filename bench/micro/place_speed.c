/* Speed of whole decisions of the joint policy: index look-up, overlaps into
 * the view, choice. The fleet is as full as the model gets: a topology of
 * nodes, racks and a pod with about two own flows on every NIC, prefixes that a
 * few workers hold, fetches and local prefill allowed, all prices on. It moves
 * on after each decision, outside the measured time: the choice is booked, an
 * old one ends. The best of several rounds counts, since a busy machine only
 * ever makes them slower.
 */
#include "place_speed.h"

#include "baton/base/arena.h"
#include "baton/base/rng.h"
#include "baton/planner/network.h"
#include "baton/planner/place.h"
#include "baton/planner/prefix_index.h"
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define BLOCK       16u
#define KEYS        512u
#define TOKENS      (KEYS * BLOCK)
#define SHARED      64u /* blocks of a system prompt, on every worker */
#define PROMPTS     32u
#define HOLDERS     3u
#define NODE        8u /* workers */
#define RACK        4u /* nodes */
#define NIC_BYTES_S 50000000000u
#define ROUNDS      7u
#define LOOK_UPS    200u
#define LISTED      16u /* candidates a decision log keeps */

struct size {
    uint32_t side, decisions;
};
static const struct size sizes[] = {
    {8, 4000}, {64, 4000}, {256, 1500}, {1000, 400}};

/* What was booked, to be taken back later. */
struct booked {
    uint32_t d;
    bool held;
};

struct fleet {
    uint32_t side, count, turn;
    int64_t now_ns;
    struct bt_rng rng;
    struct bt_compute_model model;
    struct bt_prefix_index *index;
    struct bt_network *network;
    uint32_t flows_max, booked_max;
    struct booked *booked;
    uint64_t (*keys)[KEYS];
    uint32_t *depth;
    struct bt_place_worker *workers;
    struct bt_place_view view;
    struct bt_place_prices prices;
    const struct bt_policy *policy;
    struct bt_policy_state state;
    struct bt_placement placement;
    int64_t *samples;
    void *memory;
};

static int64_t clock_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* ---- the fleet ---- */

static void store(struct fleet *f, uint32_t worker, uint32_t prompt,
                  uint32_t from, uint32_t to)
{
    struct bt_kv_store event;
    uint64_t hashes[KEYS];

    memset(&event, 0, sizeof(event));
    for (uint32_t i = from; i < to; i++)
        hashes[i] = bt_mix64(f->keys[prompt][i] ^ 0x5bd1e995u);
    event.own_keys = f->keys[prompt] + from;
    event.hashes = hashes + from;
    event.hash_count = to - from;
    event.block_tokens = BLOCK;
    event.token_count = (size_t)(to - from) * BLOCK;
    event.full_attention = 1;
    (void)bt_prefix_index_store(f->index, worker, 0, &event);
}

static void fill_index(struct fleet *f)
{
    for (uint32_t p = 0; p < PROMPTS; p++)
        for (uint32_t i = 0; i < KEYS; i++)
            f->keys[p][i] =
                bt_mix64(i < SHARED ? i : (uint64_t)(p + 1) << 32 | i);
    for (uint32_t w = 0; w < f->count; w++)
        store(f, w, 0, 0, SHARED);
    for (uint32_t p = 0; p < PROMPTS; p++)
        for (uint32_t h = 0; h < HOLDERS; h++)
            store(f, (uint32_t)bt_rng_below(&f->rng, f->count), p, SHARED,
                  SHARED + 1 +
                      (uint32_t)bt_rng_below(&f->rng, KEYS - SHARED - 1));
}

static void fill_workers(struct fleet *f)
{
    for (uint32_t i = 0; i < f->count; i++) {
        struct bt_place_worker *w = &f->workers[i];
        bool prefill = i % 2 == 0; /* both kinds on every node */

        w->id = bt_worker_id_make(i, 1);
        w->roles = prefill ? BT_ROLE_PREFILL : BT_ROLE_DECODE;
        w->prefill_ok = w->fetch_ok = prefill;
        w->decode_ok = w->local_ok = !prefill;
        w->chunk_tokens = 512;
        w->decode_slots = 256;
        w->kv_capacity_tokens = 2000000;
        w->model = &f->model;
    }
}

static void fill_view(struct fleet *f)
{
    f->prices = (struct bt_place_prices){
        .queue = -1, .eviction = 0.3, .link = 1, .hbm = 1, .decode = 1};
    f->view = (struct bt_place_view){.prompt_tokens = TOKENS,
                                     .block_tokens = BLOCK,
                                     .output_tokens = 256,
                                     .kv_bytes_per_token = 131072,
                                     .workers = f->workers,
                                     .worker_count = f->count,
                                     .overlap_known = true,
                                     .network = f->network,
                                     .prices = &f->prices,
                                     .key_count = KEYS};
}

static void policy_start(struct fleet *f, uint64_t seed)
{
    f->policy = bt_policy_find("joint");
    bt_policy_state_init(&f->state, seed);
    for (size_t i = 0; f->policy->knobs && f->policy->knobs[i].name; i++)
        f->state.knobs[i] = f->policy->knobs[i].value;
}

/* ---- memory ---- */

struct spec {
    struct bt_topology_spec topology;
    struct bt_topology_node *nodes;
    struct bt_topology_rack *racks;
    struct bt_topology_worker *workers;
};

static void spec_free(struct spec *s)
{
    free(s->nodes);
    free(s->racks);
    free(s->workers);
}

static bool spec_make(struct spec *s, uint32_t count)
{
    uint32_t nodes = (count + NODE - 1) / NODE;
    uint32_t racks = (nodes + RACK - 1) / RACK;

    memset(s, 0, sizeof(*s));
    s->nodes = calloc(nodes, sizeof(*s->nodes));
    s->racks = calloc(racks, sizeof(*s->racks));
    s->workers = calloc(count, sizeof(*s->workers));
    if (!s->nodes || !s->racks || !s->workers)
        return false;
    for (uint32_t i = 0; i < racks; i++) /* 4:1 */
        s->racks[i] = (struct bt_topology_rack){
            .name = "rack",
            .pod = BT_LINK_NONE,
            .up_bytes_per_s = (uint64_t)NODE * RACK * NIC_BYTES_S / 4,
            .down_bytes_per_s = (uint64_t)NODE * RACK * NIC_BYTES_S / 4};
    for (uint32_t i = 0; i < nodes; i++)
        s->nodes[i] =
            (struct bt_topology_node){.name = "node", .rack = i / RACK};
    for (uint32_t i = 0; i < count; i++)
        s->workers[i] = (struct bt_topology_worker){
            .node = i / NODE, .rails = 1, .rail_bytes_per_s = NIC_BYTES_S};
    s->topology = (struct bt_topology_spec){.racks = s->racks,
                                            .rack_count = racks,
                                            .nodes = s->nodes,
                                            .node_count = nodes,
                                            .workers = s->workers,
                                            .worker_count = count};
    for (int i = 0; i < BT_PATH_CLASS_COUNT; i++)
        s->topology.classes[i] = (struct bt_topology_class){
            .setup_ns = 400000, .per_descriptor_ns = 1000};
    return true;
}

static struct bt_prefix_index_limits index_limits(uint32_t count)
{
    return (struct bt_prefix_index_limits){
        .workers_max = count,
        .blocks_max = PROMPTS * KEYS * 2,
        .holdings_max = (count * SHARED + PROMPTS * HOLDERS * KEYS) * 2};
}

static bool fleet_parts(struct fleet *f, const struct spec *spec)
{
    const struct bt_prefix_index_limits limits = index_limits(f->count);
    struct bt_network_limits network = {.flows_max = f->flows_max};
    size_t topology_bytes = bt_topology_bytes(&spec->topology);
    size_t index_bytes = bt_prefix_index_bytes(&limits), bytes;
    struct bt_arena arena;
    void *first = calloc(1, topology_bytes);

    if (!first)
        return false;
    f->memory = first;
    bt_arena_init(&arena, first, topology_bytes);
    network.topology = bt_topology_init(&arena, &spec->topology);
    if (!network.topology)
        return false;
    bytes = index_bytes + bt_network_bytes(&network);
    f->samples = calloc(1, bytes + sizeof(*f->samples) * 4096);
    if (!f->samples)
        return false;
    bt_arena_init(&arena, f->samples + 4096, bytes);
    f->index = bt_prefix_index_init(&arena, &limits);
    f->network = bt_network_init(&arena, &network);
    return f->index && f->network;
}

static bool fleet_init(struct fleet *f, uint32_t side, uint64_t seed)
{
    struct spec spec;
    bool made;

    memset(f, 0, sizeof(*f));
    f->side = side;
    f->count = side * 2;
    f->flows_max = f->count;      /* each on two NICs: two a NIC */
    f->booked_max = f->side * 24; /* running requests a decode worker */
    bt_rng_seed(&f->rng, seed);
    if (bt_compute_preset("h100-8b-tp1", &f->model) != BT_OK)
        return false;
    f->booked = calloc(f->booked_max, sizeof(*f->booked));
    f->keys = calloc(PROMPTS, sizeof(*f->keys));
    f->depth = calloc(f->count, sizeof(*f->depth));
    f->workers = calloc(f->count, sizeof(*f->workers));
    made = spec_make(&spec, f->count) && f->booked && f->keys && f->depth &&
           f->workers && fleet_parts(f, &spec);
    spec_free(&spec);
    if (!made)
        return false;
    fill_index(f);
    fill_workers(f);
    fill_view(f);
    policy_start(f, seed);
    return true;
}

static void fleet_fini(struct fleet *f)
{
    free(f->booked);
    free(f->keys);
    free(f->depth);
    free(f->workers);
    free(f->samples);
    free(f->memory);
}

/* ---- decisions ---- */

static void look_up(struct fleet *f)
{
    f->view.keys = f->keys[f->turn % PROMPTS];
    bt_prefix_index_match(f->index, f->view.keys, KEYS, f->depth);
    for (uint32_t w = 0; w < f->count; w++)
        f->workers[w].overlap_tokens = f->depth[w] * BLOCK;
}

static bool decide(struct fleet *f)
{
    look_up(f);
    f->view.now_ns = f->now_ns;
    return f->policy->place(&f->state, &f->view, &f->placement) == BT_OK;
}

static void book_decode(struct fleet *f, uint32_t d)
{
    struct booked *b = &f->booked[f->turn % f->booked_max];

    if (b->held) {
        f->workers[b->d].decode_requests--;
        f->workers[b->d].decode_tokens -= TOKENS + 256;
    }
    *b = (struct booked){.d = d, .held = true};
    f->workers[d].decode_requests++;
    f->workers[d].decode_tokens += TOKENS + 256;
}

/* Book the choice; go on to the next arrival: the pool is kept 80 % busy. */
static void move_on(struct fleet *f)
{
    const struct bt_place_candidate *c = &f->placement.chosen;
    const struct bt_place_terms *t = &c->terms;
    struct bt_place_worker *p = &f->workers[c->p];
    uint32_t handle = f->turn % f->flows_max;
    int64_t mean = bt_prefill_ns(&f->model, TOKENS / 2, TOKENS / 2);

    if (p->prefill_free_ns < f->now_ns)
        p->prefill_free_ns = f->now_ns;
    p->prefill_free_ns += t->prefill_ns;
    book_decode(f, c->d);
    bt_network_close(f->network, handle, f->now_ns);
    if (c->p != c->d)
        bt_network_open(f->network, handle, f->now_ns, c->p, c->d, t->kv_bytes,
                        f->now_ns + t->arrival_ns - t->transfer_ns);
    f->turn++;
    f->now_ns += (int64_t)bt_rng_below(
        &f->rng, (uint64_t)(mean * 5 / 2 / (int64_t)f->side));
}

static int by_time(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

    return (x > y) - (x < y);
}

/* One round; false when a decision failed. */
static bool run_round(struct fleet *f, uint32_t decisions, double *mean_out,
                      double *p99_out)
{
    size_t rank = decisions - 1 - decisions / 100;
    int64_t sum = 0;

    for (uint32_t i = 0; i < decisions; i++) {
        int64_t from = clock_ns();
        bool placed = decide(f);

        f->samples[i] = clock_ns() - from;
        sum += f->samples[i];
        if (!placed)
            return false;
        move_on(f);
    }
    qsort(f->samples, decisions, sizeof(*f->samples), by_time);
    *mean_out = (double)sum / decisions;
    *p99_out = (double)f->samples[rank];
    return true;
}

static double look_up_ns(struct fleet *f)
{
    double best = 1e18;

    for (uint32_t round = 0; round < ROUNDS; round++) {
        int64_t from = clock_ns();

        for (uint32_t i = 0; i < LOOK_UPS; i++, f->turn++)
            look_up(f);
        if ((double)(clock_ns() - from) / LOOK_UPS < best)
            best = (double)(clock_ns() - from) / LOOK_UPS;
    }
    return best;
}

/* What the core adds to each request for its decision log. */
static double list_ns(struct fleet *f)
{
    struct bt_place_candidate listed[LISTED];
    double best = 1e18;

    for (uint32_t round = 0; round < ROUNDS; round++) {
        int64_t sum = 0;

        for (uint32_t i = 0; i < LOOK_UPS; i++, f->turn++) {
            int64_t from;

            look_up(f);
            from = clock_ns();
            (void)bt_place_table(&f->view, listed, LISTED);
            sum += clock_ns() - from;
        }
        best = (double)sum / LOOK_UPS < best ? (double)sum / LOOK_UPS : best;
    }
    return best;
}

static enum bt_status measure(struct fleet *f, uint32_t decisions,
                              struct bt_micro_report *report)
{
    double mean = 1e18, p99 = 1e18;
    char look[BT_MICRO_NAME_MAX], name[BT_MICRO_NAME_MAX];
    char list[BT_MICRO_NAME_MAX];

    for (uint32_t round = 0; round < ROUNDS + 1; round++) {
        double a, b;

        if (!run_round(f, decisions, &a, &b))
            return BT_NO_WORKER;
        if (round == 0) /* fills the fleet */
            continue;
        mean = a < mean ? a : mean;
        p99 = b < p99 ? b : p99;
    }
    snprintf(look, sizeof(look), "look up, %ux%u", f->side, f->side);
    snprintf(name, sizeof(name), "look up and place joint, %ux%u", f->side,
             f->side);
    bt_micro_add(report, look, look_up_ns(f), "ns", NULL);
    snprintf(list, sizeof(list), "list %u candidates, %ux%u", LISTED, f->side,
             f->side);
    bt_micro_add(report, name, mean, "ns", look);
    bt_micro_add(report, list, list_ns(f), "ns", name);
    bt_micro_add_speed(report, &(struct bt_micro_speed){.prefill = f->side,
                                                        .decode = f->side,
                                                        .mean_ns = mean,
                                                        .p99_ns = p99});
    return BT_OK;
}

enum bt_status place_speed(uint64_t seed, uint32_t largest,
                           struct bt_micro_report *report)
{
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        enum bt_status status = BT_NO_MEMORY;
        struct fleet f;

        if (sizes[i].side > largest)
            continue;
        if (fleet_init(&f, sizes[i].side, seed))
            status = measure(&f, sizes[i].decisions, report);
        fleet_fini(&f);
        if (status != BT_OK)
            return status;
    }
    return BT_OK;
}
