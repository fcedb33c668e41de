/* Do the lines come true? New transfers of random sizes and descriptor counts,
 * alone and beside each other, foreseen from what was learned and then made.
 * Decides which flows a case has; sizes from a sixteenth of the largest
 * measured pull (alone) or a quarter (beside others) to all of it: a flow that
 * fits the queues of its neighbours has no rate of its own.
 *
 * A flow is foreseen for the moment at which it really began: when a transfer
 * begins is the planner's own decision, not the network's.
 */
#include "cmd_probe.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define ERRORS_MAX      512u
#define PICKS_MAX       64
#define DESCRIPTORS_MAX 256u
#define ALONE_PART      (1.0 / 16)
#define BESIDE_PART     (1.0 / 4)
#define CASE_FLOWS      24u /* at least as many in each case */

enum shape { ALONE, SOURCE, SINK, DISJOINT, CROSS, INCAST };

static const struct kind {
    const char *name;
    enum shape shape;
    uint32_t flows; /* 0: as many as there are, up to 8 */
} kinds[] = {
    {"alone", ALONE, 1},
    {"same source, 2", SOURCE, 2},
    {"same source, 3", SOURCE, 3},
    {"same sink, 2", SINK, 2},
    {"same sink, 3", SINK, 3},
    {"disjoint, 2", DISJOINT, 2},
    {"2 sources x 2 sinks", CROSS, 4},
    {"incast, all", INCAST, 0},
};
#define KINDS (sizeof(kinds) / sizeof(kinds[0]))

/* ---- which flows ---- */

static uint32_t any_agent(struct probe *p)
{
    return (uint32_t)bt_rng_below(&p->rng, p->count);
}

static bool usable(struct probe *p, uint32_t from, uint32_t to)
{
    return from != to && probe_pair_of(p, from, to)->measured;
}

/* Log-uniform between least and most. */
static double any_between(struct probe *p, double least, double most)
{
    return least * exp(bt_rng_unit(&p->rng) * log(fmax(most / least, 1)));
}

static void add_flow(struct probe *p, struct probe_pull *pulls, uint32_t *count,
                     uint32_t from, uint32_t to, double part)
{
    double largest = (double)probe_pair_of(p, from, to)->largest;
    double bytes = any_between(p, largest * part, largest);
    uint64_t blocks = (uint64_t)bytes / BT_PROBE_BLOCK_BYTES;
    double most = blocks < DESCRIPTORS_MAX ? (double)blocks : DESCRIPTORS_MAX;

    blocks = blocks > 0 ? blocks : 1;
    memset(&pulls[*count], 0, sizeof(*pulls));
    pulls[*count].from = from;
    pulls[*count].to = to;
    pulls[*count].bytes = blocks * BT_PROBE_BLOCK_BYTES;
    pulls[(*count)++].descriptors = (uint32_t)any_between(p, 1, fmax(most, 1));
}

static bool has(const struct probe_pull *pulls, uint32_t count, uint32_t agent)
{
    for (uint32_t i = 0; i < count; i++) {
        if (pulls[i].from == agent || pulls[i].to == agent)
            return true;
    }
    return false;
}

/* Flows that all share the end `hub`; others in random order. */
static uint32_t pick_hub(struct probe *p, struct probe_pull *pulls, bool source,
                         uint32_t wanted)
{
    uint32_t hub = any_agent(p), first = any_agent(p), count = 0;

    for (uint32_t k = 0; k < p->count && count < wanted; k++) {
        uint32_t other = (first + k) % p->count;
        uint32_t from = source ? hub : other, to = source ? other : hub;

        if (usable(p, from, to))
            add_flow(p, pulls, &count, from, to, BESIDE_PART);
    }
    return count;
}

static uint32_t pick_disjoint(struct probe *p, struct probe_pull *pulls,
                              uint32_t wanted)
{
    uint32_t count = 0;

    for (int i = 0; i < PICKS_MAX && count < wanted; i++) {
        uint32_t from = any_agent(p), to = any_agent(p);

        if (usable(p, from, to) && !has(pulls, count, from) &&
            !has(pulls, count, to))
            add_flow(p, pulls, &count, from, to, BESIDE_PART);
    }
    return count;
}

static uint32_t pick_cross(struct probe *p, struct probe_pull *pulls)
{
    uint32_t count = 0, a = any_agent(p), b = any_agent(p), c = any_agent(p),
             d = any_agent(p);

    if (a == b || c == d || !usable(p, a, c) || !usable(p, a, d) ||
        !usable(p, b, c) || !usable(p, b, d))
        return 0;
    add_flow(p, pulls, &count, a, c, BESIDE_PART);
    add_flow(p, pulls, &count, a, d, BESIDE_PART);
    add_flow(p, pulls, &count, b, c, BESIDE_PART);
    add_flow(p, pulls, &count, b, d, BESIDE_PART);
    return count;
}

/* Equal sizes: how incast comes. */
static uint32_t pick_incast(struct probe *p, struct probe_pull *pulls)
{
    uint32_t count = pick_hub(p, pulls, false, PROBE_TOGETHER);

    for (uint32_t i = 1; i < count; i++) {
        pulls[i].bytes = pulls[0].bytes;
        pulls[i].descriptors = pulls[0].descriptors;
    }
    return count > 2 ? count : 0;
}

static uint32_t pick_alone(struct probe *p, struct probe_pull *pulls)
{
    uint32_t from = any_agent(p), to = any_agent(p), count = 0;

    if (usable(p, from, to))
        add_flow(p, pulls, &count, from, to, ALONE_PART);
    return count;
}

static uint32_t pick_once(struct probe *p, const struct kind *kind,
                          struct probe_pull *pulls)
{
    switch (kind->shape) {
    case ALONE:
        return pick_alone(p, pulls);
    case SOURCE:
        return pick_hub(p, pulls, true, kind->flows);
    case SINK:
        return pick_hub(p, pulls, false, kind->flows);
    case DISJOINT:
        return pick_disjoint(p, pulls, kind->flows);
    case CROSS:
        return pick_cross(p, pulls);
    case INCAST:
        return pick_incast(p, pulls);
    }
    return 0;
}

/* 0: these agents and paths have no such case. */
static uint32_t pick(struct probe *p, const struct kind *kind,
                     struct probe_pull *pulls)
{
    for (int i = 0; i < PICKS_MAX; i++) {
        uint32_t count = pick_once(p, kind, pulls);

        if (count > 0 && (kind->flows == 0 || count == kind->flows))
            return count;
    }
    return 0;
}

/* ---- foreseen and made ---- */

static void tell(const struct probe *p, const struct probe_pull *pull,
                 const struct bt_probe_flow *flow)
{
    fprintf(stderr,
            "%s > %s bytes=%llu descriptors=%u start_ms=%.2f setup_ms=%.2f "
            "predicted_ms=%.2f measured_ms=%.2f\n",
            p->agents[pull->from].name, p->agents[pull->to].name,
            (unsigned long long)pull->bytes, pull->descriptors,
            (double)flow->start_ns / 1e6, (double)pull->setup_ns / 1e6,
            flow->ns / 1e6, (double)pull->duration_ns / 1e6);
}

static uint32_t compare(struct probe *p, const struct probe_pull *pulls,
                        uint32_t count, double *errors)
{
    const struct bt_probe_ends ends = {p->out_rate, p->in_rate, p->count};
    struct bt_probe_flow flows[PROBE_TOGETHER];
    uint32_t used = 0;

    for (uint32_t i = 0; i < count; i++) {
        flows[i] = (struct bt_probe_flow){
            .from = pulls[i].from,
            .to = pulls[i].to,
            .bytes = pulls[i].bytes,
            .descriptors = pulls[i].descriptors,
            .window_bytes = p->agents[pulls[i].to].window_bytes,
            .window_target_ns =
                (int64_t)p->agents[pulls[i].to].window_target_ns,
            .window_share = p->agents[pulls[i].to].window_share,
            .start_ns = pulls[i].began_ns - pulls[0].began_ns,
            .fit = &probe_pair_of(p, pulls[i].from, pulls[i].to)->fit};
    }
    bt_probe_predict(&ends, flows, count, p->scratch);
    for (uint32_t i = 0; i < count; i++) {
        errors[used++] = flows[i].ns / (double)pulls[i].duration_ns - 1;
        if (p->o.verbose)
            tell(p, &pulls[i], &flows[i]);
    }
    return used;
}

static void run_case(struct probe *p, const struct kind *kind,
                     struct probe_case *c)
{
    struct probe_pull pulls[PROBE_TOGETHER];
    double errors[ERRORS_MAX];
    size_t used = 0;

    c->name = kind->name;
    c->median_max =
        kind->shape == ALONE ? p->o.alone_median : p->o.beside_median;
    c->p95_max = kind->shape == ALONE ? p->o.alone_p95 : p->o.beside_p95;
    while (used < CASE_FLOWS && c->failed < 3) {
        uint32_t count = pick(p, kind, pulls);

        if (p->o.verbose)
            fprintf(stderr, "%s\n", kind->name);

        if (count == 0)
            break;
        c->flows = count;
        if (probe_pulls(p, pulls, count) < count) {
            c->failed++;
            continue;
        }
        used += compare(p, pulls, count, errors + used);
        c->rounds++;
    }
    bt_probe_errors(errors, used, &c->error);
    c->met = used > 0 && c->failed == 0 && c->error.median <= c->median_max &&
             c->error.p95 <= c->p95_max;
}

bool probe_verify(struct probe *p)
{
    bool met = true;

    for (size_t i = 0; i < KINDS; i++) {
        struct probe_case *c = &p->cases[p->case_count];

        probe_progress(p, kinds[i].name);
        run_case(p, &kinds[i], c);
        if (c->rounds == 0 && c->failed == 0)
            continue; /* not with these agents */
        met = met && c->met;
        p->case_count++;
    }
    return met && p->case_count > 0;
}
