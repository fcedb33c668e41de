/* A small fleet for the tests of the rival rules: p0 p1 d2 d3, idle and empty,
 * 12.5 GB/s and no set-up everywhere. A test changes what it is about. Each
 * rule runs with its defaults unless a knob is set by name, and with memory of
 * its own where it asks for some.
 */
#ifndef BATON_TESTS_RIVALS_WORLD_H
#define BATON_TESTS_RIVALS_WORLD_H

#include "baton/planner/place.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define S(x)  ((int64_t)((x)*1e9 + 0.5))
#define MS(x) ((int64_t)((x)*1e6 + 0.5))

#define WORKERS 4u

struct world {
    struct bt_compute_model model;
    struct bt_link_model link_models[WORKERS * WORKERS];
    struct bt_place_link links[WORKERS * WORKERS];
    struct bt_place_worker workers[WORKERS];
    struct bt_place_view view;
};

static inline void world_init(struct world *w)
{
    memset(w, 0, sizeof(*w));
    bt_compute_preset("h100-70b-tp8", &w->model);
    for (uint32_t i = 0; i < WORKERS * WORKERS; i++) {
        w->link_models[i].rate_bytes_per_s = 12500000000;
        w->links[i].model = &w->link_models[i];
    }
    for (uint32_t i = 0; i < WORKERS; i++) {
        w->workers[i].id = bt_worker_id_make(i, 1);
        w->workers[i].roles = i < 2 ? BT_ROLE_PREFILL : BT_ROLE_DECODE;
        w->workers[i].prefill_ok = i < 2;
        w->workers[i].decode_ok = i >= 2;
        w->workers[i].model = &w->model;
    }
    w->view = (struct bt_place_view){.now_ns = S(100),
                                     .prompt_tokens = 8192,
                                     .block_tokens = 16,
                                     .output_tokens = 100,
                                     .kv_bytes_per_token = 327680,
                                     .workers = w->workers,
                                     .worker_count = WORKERS,
                                     .links = w->links,
                                     .overlap_known = true};
}

static inline struct bt_link_model *world_link(struct world *w, uint32_t p,
                                               uint32_t d)
{
    return &w->link_models[p * WORKERS + d];
}

/* Both pools alike: prefill fields of 0 and 1, decode fields of 2 and 3. */
static inline void world_requests(struct world *w, uint32_t a, uint32_t b)
{
    w->workers[0].prefill_requests = w->workers[2].decode_requests = a;
    w->workers[1].prefill_requests = w->workers[3].decode_requests = b;
}

static inline void world_overlap(struct world *w, uint32_t a, uint32_t b)
{
    w->workers[0].overlap_tokens = w->workers[2].overlap_tokens = a;
    w->workers[1].overlap_tokens = w->workers[3].overlap_tokens = b;
}

/* ---- a topology over the four: node and rack of each worker ---- */

struct fabric {
    struct bt_topology *topology;
    struct bt_network *network;
    void *memory[2];
};

static inline void *arena_of(struct bt_arena *arena, size_t bytes)
{
    void *memory = calloc(1, bytes);

    assert_non_null(memory);
    bt_arena_init(arena, memory, bytes);
    return memory;
}

/* nodes[i], racks[i], pods[i] of worker i; NICs of `rate`. */
static inline void fabric_init(struct fabric *f, struct world *w,
                               const uint32_t nodes[WORKERS],
                               const uint32_t racks[WORKERS],
                               const uint32_t pods[WORKERS], uint64_t rate)
{
    static const char *const names[WORKERS] = {"a", "b", "c", "d"};
    struct bt_topology_pod pod[WORKERS];
    struct bt_topology_rack rack[WORKERS];
    struct bt_topology_node node[WORKERS];
    struct bt_topology_worker worker[WORKERS];
    struct bt_topology_spec spec = {.racks = rack,
                                    .rack_count = WORKERS,
                                    .pods = pod,
                                    .pod_count = WORKERS,
                                    .nodes = node,
                                    .node_count = WORKERS,
                                    .workers = worker,
                                    .worker_count = WORKERS};
    struct bt_network_limits limits = {.flows_max = 8};
    struct bt_arena arena;

    memset(pod, 0, sizeof(pod));
    memset(rack, 0, sizeof(rack));
    memset(node, 0, sizeof(node));
    memset(worker, 0, sizeof(worker));
    for (uint32_t i = 0; i < WORKERS; i++) {
        pod[i].name = rack[i].name = node[i].name = names[i];
        rack[racks[i]].pod = pods[i];
        node[nodes[i]].rack = racks[i];
        node[i].rails = 1;
        node[i].rail_bytes_per_s = rate;
        worker[i] = (struct bt_topology_worker){
            .node = nodes[i], .rails = 1, .rail_bytes_per_s = rate};
    }
    f->memory[0] = arena_of(&arena, bt_topology_bytes(&spec));
    f->topology = bt_topology_init(&arena, &spec);
    assert_non_null(f->topology);
    limits.topology = f->topology;
    f->memory[1] = arena_of(&arena, bt_network_bytes(&limits));
    f->network = bt_network_init(&arena, &limits);
    assert_non_null(f->network);
    w->view.network = f->network;
}

static inline void fabric_fini(struct fabric *f)
{
    free(f->memory[0]);
    free(f->memory[1]);
}

/* ---- a rule under test ---- */

struct rule {
    const struct bt_policy *policy;
    struct bt_policy_state state;
};

/* spec as on a command line: "name:knob=value". */
static inline void rule_init(struct rule *r, const char *spec, uint64_t seed)
{
    const struct bt_policy_limits limits = {.workers_max = WORKERS,
                                            .requests_max = 16};
    double knobs[BT_POLICY_KNOBS_MAX];
    char error[200];

    if (bt_policy_parse(spec, &r->policy, knobs, error, sizeof(error)) != BT_OK)
        fail_msg("%s: %s", spec, error);
    bt_policy_state_init(&r->state, seed);
    memcpy(r->state.knobs, knobs, sizeof(knobs));
    if (r->policy->memory != NULL) {
        r->state.memory = calloc(1, r->policy->memory(&limits));
        assert_non_null(r->state.memory);
    }
}

static inline void rule_fini(struct rule *r)
{
    free(r->state.memory);
}

static inline struct bt_placement
place_seeded(const char *spec, const struct bt_place_view *view, uint64_t seed)
{
    struct bt_placement out;
    struct rule r;
    enum bt_status s;

    rule_init(&r, spec, seed);
    s = r.policy->place(&r.state, view, &out);
    if (s != BT_OK)
        fail_msg("%s: %s", spec, bt_status_name(s));
    rule_fini(&r);
    return out;
}

/* The pair comes out whatever the seed: no tie decided it. */
static inline struct bt_placement expect_pair(const char *spec,
                                              const struct bt_place_view *view,
                                              uint32_t p, uint32_t d)
{
    struct bt_placement out;

    for (uint64_t seed = 1; seed <= 8; seed++) {
        out = place_seeded(spec, view, seed);
        if (out.chosen.p != p || out.chosen.d != d)
            fail_msg("%s, seed %u: pair %d %d instead of %d %d", spec,
                     (unsigned int)seed, (int)out.chosen.p, (int)out.chosen.d,
                     (int)p, (int)d);
    }
    return out;
}

static inline struct bt_placement
expect_p(const char *spec, const struct bt_place_view *view, uint32_t p)
{
    struct bt_placement out;

    for (uint64_t seed = 1; seed <= 8; seed++) {
        out = place_seeded(spec, view, seed);
        if (out.chosen.p != p)
            fail_msg("%s, seed %u: p %d instead of %d", spec,
                     (unsigned int)seed, (int)out.chosen.p, (int)p);
    }
    return out;
}

static inline struct bt_placement
expect_d(const char *spec, const struct bt_place_view *view, uint32_t d)
{
    struct bt_placement out;

    for (uint64_t seed = 1; seed <= 8; seed++) {
        out = place_seeded(spec, view, seed);
        if (out.chosen.d != d)
            fail_msg("%s, seed %u: d %d instead of %d", spec,
                     (unsigned int)seed, (int)out.chosen.d, (int)d);
    }
    return out;
}

static inline void assert_near_s(int64_t ns, double s)
{
    double got = (double)ns / 1e9;

    if (fabs(got - s) > 5e-6 * s)
        fail_msg("%.9g s instead of %.9g", got, s);
}

#endif
