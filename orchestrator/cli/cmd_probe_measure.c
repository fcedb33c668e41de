/* The stages that learn: each path alone (connect and warm up, plan by a first
 * rate, pulls in random order, the line through them), then each end with up to
 * eight of its paths at once, which shows the rate of the end itself, then
 * pairs that share no end. A path that fails has a reason and the rest goes on.
 */
#include "cmd_probe.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define WARM_BYTES 262144u
#define WARM_TRIES 4
#define WARM_NS    10000000 /* a pull that says something of the rate */
#define FAN_ROUNDS 3u
#define FAIL_MAX   2u /* pulls of a path before it is given up */

struct probe_pair *probe_pair_of(struct probe *p, uint32_t from, uint32_t to)
{
    return &p->pairs[(size_t)from * p->count + to];
}

static bool in_time(struct probe *p)
{
    if (p->o.seconds_max_ns > 0 &&
        probe_now_ns() - p->began_ns > p->o.seconds_max_ns)
        p->out_of_time = true;
    return !p->out_of_time;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double median_of(double *v, size_t n)
{
    qsort(v, n, sizeof(*v), by_value);
    return n == 0 ? 0 : v[(n - 1) / 2];
}

/* ---- a path alone ---- */

static uint64_t smaller_region(const struct probe *p, uint32_t a, uint32_t b)
{
    uint64_t x = p->agents[a].blocks, y = p->agents[b].blocks;

    return x < y ? x : y;
}

static bool pull_one(struct probe *p, struct probe_pair *pair,
                     struct probe_pull *pull)
{
    if (probe_pulls(p, pull, 1) == 1) {
        pair->pulls++;
        pair->bytes += pull->bytes;
        for (uint32_t r = 0; r < PROBE_RAILS_MAX; r++)
            pair->rail_bytes[r] += pull->rail_bytes[r];
        return true;
    }
    snprintf(pair->reason, sizeof(pair->reason), "%s", pull->reason);
    return false;
}

/* Connects, and then grows the pull until its time says something. 0: failed */
static uint64_t first_rate(struct probe *p, uint32_t from, uint32_t to)
{
    struct probe_pair *pair = probe_pair_of(p, from, to);
    uint64_t most = smaller_region(p, from, to) * BT_PROBE_BLOCK_BYTES / 2;
    uint64_t bytes = BT_PROBE_BLOCK_BYTES;
    double rate = 0;

    for (int i = 0; i <= WARM_TRIES; i++) {
        struct probe_pull pull = {
            .from = from, .to = to, .bytes = bytes, .descriptors = 1};

        if (pair->bytes + bytes > p->o.bytes_max || !in_time(p))
            break;
        if (!pull_one(p, pair, &pull))
            return 0;
        rate = (double)bytes * 1e9 / (double)pull.duration_ns;
        if (i > 0 && (pull.duration_ns > WARM_NS || bytes * 4 > most))
            break;
        bytes = i == 0 ? WARM_BYTES : bytes * 4;
        if (bytes > most)
            bytes = most / BT_PROBE_BLOCK_BYTES * BT_PROBE_BLOCK_BYTES;
    }
    return rate >= 1 ? (uint64_t)rate : 0;
}

static size_t take_samples(struct probe *p, uint32_t from, uint32_t to,
                           const struct bt_probe_point *plan, size_t count,
                           struct bt_probe_sample *out)
{
    struct probe_pair *pair = probe_pair_of(p, from, to);
    double setups[BT_PROBE_PLAN_MAX];
    size_t used = 0;
    uint32_t failed = 0;

    for (size_t i = 0; i < count && failed < FAIL_MAX && in_time(p); i++) {
        struct probe_pull pull = {.from = from,
                                  .to = to,
                                  .bytes = plan[i].bytes,
                                  .descriptors = plan[i].descriptors};

        if (!pull_one(p, pair, &pull)) {
            failed++;
            continue;
        }
        if (pull.bytes > pair->largest)
            pair->largest = pull.bytes;
        setups[used] = (double)pull.setup_ns;
        out[used++] = (struct bt_probe_sample){pull.bytes, pull.descriptors,
                                               pull.duration_ns};
    }
    pair->setup_ns = (int64_t)median_of(setups, used);
    return failed < FAIL_MAX ? used : 0;
}

static void measure_path(struct probe *p, uint32_t from, uint32_t to)
{
    struct probe_pair *pair = probe_pair_of(p, from, to);
    struct bt_probe_point plan[BT_PROBE_PLAN_MAX];
    struct bt_probe_sample samples[BT_PROBE_PLAN_MAX];
    uint64_t rate = first_rate(p, from, to);

    if (rate == 0)
        return;
    const struct bt_probe_limits limits = {
        .bytes_max = p->o.bytes_max - pair->bytes,
        .longest_ns = p->o.longest_ns,
        .blocks = smaller_region(p, from, to),
        .rate_bytes_per_s = rate,
        .repeats = (uint32_t)p->o.repeats,
    };
    size_t count = bt_probe_plan(&limits, &p->rng, plan);
    if (count == 0) {
        snprintf(pair->reason, sizeof(pair->reason),
                 "--max-bytes does not allow the smallest plan");
        return;
    }
    size_t used = take_samples(p, from, to, plan, count, samples);
    if (used > 0 && bt_probe_fit(samples, used, &pair->fit) == BT_OK)
        pair->measured = true;
    else if (pair->reason[0] == '\0')
        snprintf(pair->reason, sizeof(pair->reason),
                 "too few pulls to see a rate");
}

void probe_measure_paths(struct probe *p)
{
    uint32_t order[PROBE_AGENTS_MAX * PROBE_AGENTS_MAX], n = 0;
    char what[160];

    for (uint32_t i = 0; i < p->count * p->count; i++) {
        if (p->pairs[i].wanted)
            order[n++] = i;
    }
    for (uint32_t i = n; i > 1; i--) {
        uint32_t j = (uint32_t)bt_rng_below(&p->rng, i);
        uint32_t other = order[i - 1];

        order[i - 1] = order[j];
        order[j] = other;
    }
    for (uint32_t i = 0; i < n; i++) {
        uint32_t from = order[i] / p->count, to = order[i] % p->count;

        snprintf(what, sizeof(what), "%s > %s", p->agents[from].name,
                 p->agents[to].name);
        probe_progress(p, what);
        if (in_time(p))
            measure_path(p, from, to);
        if (!p->pairs[order[i]].measured &&
            p->pairs[order[i]].reason[0] == '\0')
            snprintf(p->pairs[order[i]].reason, PROBE_REASON,
                     "--max-seconds were over");
    }
}

/* ---- an end with all its paths ---- */

static double rate_of(const struct probe_pair *pair)
{
    return 1e9 / pair->fit.byte_ns;
}

/* Up to eight flows out of (into) `end`; bytes in proportion to rates. */
static uint32_t fan_of(struct probe *p, uint32_t end, bool out,
                       struct probe_pull *pulls)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < p->count && count < PROBE_TOGETHER; i++) {
        uint32_t from = out ? end : i, to = out ? i : end;

        if (i == end || !probe_pair_of(p, from, to)->measured)
            continue;
        memset(&pulls[count], 0, sizeof(pulls[count]));
        pulls[count].from = from;
        pulls[count].to = to;
        pulls[count++].descriptors = 1;
    }
    for (uint32_t k = 0; k < count; k++) {
        const struct probe_pair *pair =
            probe_pair_of(p, pulls[k].from, pulls[k].to);
        double bytes =
            rate_of(pair) * (double)p->o.longest_ns / 1e9 * 2 / count;
        double most = (double)pair->largest;

        bytes = fmax(fmin(bytes, most), WARM_BYTES);
        pulls[k].bytes =
            (uint64_t)bytes / BT_PROBE_BLOCK_BYTES * BT_PROBE_BLOCK_BYTES;
    }
    return count;
}

static void flows_of(struct probe *p, const struct probe_pull *pulls,
                     uint32_t count, struct bt_probe_flow *flows,
                     double *span_out)
{
    int64_t first = INT64_MAX, last = INT64_MIN;

    for (uint32_t k = 0; k < count; k++) {
        flows[k] = (struct bt_probe_flow){
            .from = pulls[k].from,
            .to = pulls[k].to,
            .bytes = pulls[k].bytes,
            .descriptors = pulls[k].descriptors,
            .fit = &probe_pair_of(p, pulls[k].from, pulls[k].to)->fit};
        if (pulls[k].began_ns < first)
            first = pulls[k].began_ns;
        if (pulls[k].began_ns + pulls[k].duration_ns > last)
            last = pulls[k].began_ns + pulls[k].duration_ns;
    }
    *span_out = (double)(last - first);
}

/* Slowest flow of the round: of what each had per time, against the mean. */
static double least_share(const struct probe_pull *pulls, uint32_t count,
                          double rate)
{
    double least = HUGE_VAL;

    for (uint32_t k = 0; k < count; k++)
        least = fmin(least, (double)pulls[k].bytes * 1e9 /
                                (double)pulls[k].duration_ns);
    return fmin(least * count / rate, 1);
}

static void measure_fan(struct probe *p, uint32_t end, bool out,
                        struct probe_fan *fan)
{
    struct probe_pull pulls[PROBE_TOGETHER];
    struct bt_probe_flow flows[PROBE_TOGETHER];
    double rates[FAN_ROUNDS], shares[FAN_ROUNDS], span = 0;
    uint32_t done = 0;

    for (uint32_t round = 0; round < FAN_ROUNDS && in_time(p); round++) {
        uint32_t count = fan_of(p, end, out, pulls);

        fan->flows = count;
        if (count < 2)
            return;
        if (probe_pulls(p, pulls, count) < count)
            continue;
        flows_of(p, pulls, count, flows, &span);
        rates[done] = bt_probe_link_rate(flows, count, span);
        shares[done] = least_share(pulls, count, rates[done]);
        done++;
    }
    fan->rounds = done;
    fan->rate_bytes_per_s = median_of(rates, done);
    fan->share = median_of(shares, done);
}

/* An end is at least as fast as its fastest path. */
static void set_rates(struct probe *p)
{
    for (uint32_t a = 0; a < p->count; a++) {
        p->out_rate[a] = p->out[a].rate_bytes_per_s;
        p->in_rate[a] = p->in[a].rate_bytes_per_s;
    }
    for (uint32_t i = 0; i < p->count * p->count; i++) {
        uint32_t from = i / p->count, to = i % p->count;

        if (!p->pairs[i].measured)
            continue;
        p->out_rate[from] = fmax(p->out_rate[from], rate_of(&p->pairs[i]));
        p->in_rate[to] = fmax(p->in_rate[to], rate_of(&p->pairs[i]));
    }
}

void probe_measure_ends(struct probe *p)
{
    char what[160];

    for (uint32_t a = 0; p->o.incast && a < p->count; a++) {
        if (!p->agents[a].reached)
            continue;
        snprintf(what, sizeof(what), "%s > all, all > %s", p->agents[a].name,
                 p->agents[a].name);
        probe_progress(p, what);
        measure_fan(p, a, true, &p->out[a]);
        measure_fan(p, a, false, &p->in[a]);
    }
    set_rates(p);
}

/* ---- pairs without a common end ---- */

static uint32_t disjoint(struct probe *p, struct probe_pull *pulls)
{
    bool busy[PROBE_AGENTS_MAX] = {false};
    uint32_t count = 0;

    for (uint32_t i = 0; i < p->count * p->count; i++) {
        uint32_t from = i / p->count, to = i % p->count;

        if (!p->pairs[i].measured || busy[from] || busy[to] ||
            count == PROBE_TOGETHER)
            continue;
        busy[from] = busy[to] = true;
        memset(&pulls[count], 0, sizeof(pulls[count]));
        pulls[count].from = from;
        pulls[count].to = to;
        pulls[count].descriptors = 1;
        pulls[count++].bytes = p->pairs[i].largest;
    }
    return count;
}

void probe_measure_pairwise(struct probe *p)
{
    struct probe_pull pulls[PROBE_TOGETHER];
    double ratios[FAN_ROUNDS];
    uint32_t done = 0;

    probe_progress(p, "disjoint pairs");
    for (uint32_t round = 0; round < FAN_ROUNDS && in_time(p); round++) {
        uint32_t count = disjoint(p, pulls);
        double alone = 0, together = 0;

        p->pairwise_flows = count;
        if (count < 2 || probe_pulls(p, pulls, count) < count)
            continue;
        for (uint32_t k = 0; k < count; k++) {
            const struct probe_pair *pair =
                probe_pair_of(p, pulls[k].from, pulls[k].to);

            alone += (double)pulls[k].bytes /
                     bt_probe_alone_ns(&pair->fit, pulls[k].bytes, 1);
            together += (double)pulls[k].bytes / (double)pulls[k].duration_ns;
        }
        ratios[done++] = together / alone;
    }
    p->pairwise_ratio = median_of(ratios, done);
}
