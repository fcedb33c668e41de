/* See agent_path.h. Decides what is predicted and what is learned; the
 * estimator is the planner's.
 *
 * A path's rate and the rate into this node bound a pull together, and flows
 * of ours beside it take a fair share of each:
 *
 *   T = setup + descriptors * per + max((X + own_path) / r,
 *                                       (X + own_all) / r_in)
 *
 * which is the additive model with own = max(own_path, (X + own_all) * r / r_in
 * - X). While a flow moves X bytes another moves at most X: round robin.
 * Whether a flow that ends is followed by another nobody says: the share that
 * was is learned, and taken for the future.
 * The first pull of a path connects and is not learned from; a rate that has
 * left the estimator's clamps starts it anew around what was measured.
 *
 * Invariant: a path with flows is never dropped for another.
 */
#include "agent_path.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DESCRIPTOR_NS   1000 /* to begin with */
#define REBASE_BYTES    262144u
#define NEAR_FLOOR      1.04 /* of nominal: at the estimator's clamp */
#define NEAR_CEILING    0.055
#define NS_PER_S_DOUBLE 1e9
#define FOLLOWED_ROOM   0.1
#define FOLLOWED_MAX    2.0
#define FOLLOWED_WEIGHT 0.1

void bt_paths_init(struct bt_paths *paths, uint64_t ingress_bytes_per_s)
{
    memset(paths, 0, sizeof(*paths));
    TAILQ_INIT(&paths->list);
    TAILQ_INIT(&paths->flows);
    paths->ingress_bytes_per_s = ingress_bytes_per_s;
}

void bt_paths_fini(struct bt_paths *paths)
{
    struct bt_path *path;

    free(paths->starts);
    while ((path = TAILQ_FIRST(&paths->list)) != NULL) {
        TAILQ_REMOVE(&paths->list, path, entry);
        free(path);
    }
}

/* ---- the table ---- */

static struct bt_path *idle_path(const struct bt_paths *paths)
{
    struct bt_path *path;

    TAILQ_FOREACH(path, &paths->list, entry)
    {
        if (path->flows == 0)
            return path;
    }
    return NULL;
}

static struct bt_path *path_new(struct bt_paths *paths)
{
    struct bt_path *path = NULL;

    if (paths->count == BT_PATHS_MAX) {
        path = idle_path(paths);
        if (path == NULL)
            return NULL;
        TAILQ_REMOVE(&paths->list, path, entry);
        memset(path, 0, sizeof(*path));
        return path;
    }
    path = calloc(1, sizeof(*path));
    paths->count += path != NULL;
    return path;
}

static void start_model(struct bt_path *path, int64_t setup_ns, int64_t per_ns,
                        double rate)
{
    uint64_t nominal = rate < 1      ? 1
                       : rate > 1e15 ? 1000000000000000u
                                     : (uint64_t)rate;

    bt_transfer_calibration_init(&path->calibration, setup_ns, per_ns, nominal);
    path->known = true;
}

/* What was measured of the way from there, if anything. */
static void start_known(const struct bt_paths *paths, struct bt_path *path)
{
    for (size_t i = 0; i < paths->start_count; i++) {
        const struct bt_agent_start *s = &paths->starts[i];

        if (s->port == path->port && strcmp(s->host, path->host) == 0)
            start_model(path, s->setup_ns, s->per_descriptor_ns,
                        (double)s->rate_bytes_per_s);
    }
}

enum bt_status bt_paths_calibrate(struct bt_paths *paths,
                                  const struct bt_agent_start *starts,
                                  size_t count)
{
    struct bt_agent_start *copy;

    if (count > BT_PATHS_MAX)
        return BT_LIMIT;
    for (size_t i = 0; i < count; i++) {
        if (starts[i].host[0] == '\0' || starts[i].rate_bytes_per_s == 0 ||
            starts[i].setup_ns < 0 || starts[i].per_descriptor_ns < 0)
            return BT_INVALID;
    }
    copy = calloc(count + 1, sizeof(*copy));
    if (copy == NULL)
        return BT_NO_MEMORY;
    if (count > 0)
        memcpy(copy, starts, count * sizeof(*copy));
    free(paths->starts);
    paths->starts = copy;
    paths->start_count = count;
    return BT_OK;
}

static struct bt_path *path_get(struct bt_paths *paths, const char *host,
                                uint16_t port, const char *region)
{
    struct bt_path *path;

    TAILQ_FOREACH(path, &paths->list, entry)
    {
        if (path->port == port && strcmp(path->host, host) == 0 &&
            strcmp(path->region, region) == 0) {
            TAILQ_REMOVE(&paths->list, path, entry);
            TAILQ_INSERT_TAIL(&paths->list, path, entry);
            return path;
        }
    }
    path = path_new(paths);
    if (path == NULL)
        return NULL;
    snprintf(path->host, sizeof(path->host), "%s", host);
    snprintf(path->region, sizeof(path->region), "%s", region);
    path->port = port;
    TAILQ_INSERT_TAIL(&paths->list, path, entry);
    start_known(paths, path);
    return path;
}

/* ---- own flows ---- */

static double rate_of(const struct bt_path *path)
{
    int64_t setup_ns = 0, per_ns = 0;
    double rate = 0;

    if (path->known)
        bt_transfer_model_get(&path->calibration, &setup_ns, &per_ns, &rate);
    return rate;
}

/* Into this node: as configured, else the best that was seen. */
static double ingress_rate(const struct bt_paths *paths)
{
    const struct bt_path *path;
    double best = (double)paths->ingress_bytes_per_s;

    if (best > 0)
        return best;
    TAILQ_FOREACH(path, &paths->list, entry)
    {
        best = fmax(best, rate_of(path));
    }
    return best;
}

/* Own bytes that count like bytes of the path itself. */
static double own_equal(const struct bt_paths *paths, const struct bt_path *p,
                        double bytes, double own_path, double own_all)
{
    double in = ingress_rate(paths), rate = rate_of(p);

    if (in <= 0 || rate <= 0)
        return own_path;
    return fmax(own_path, (bytes + own_all) * fmin(rate / in, 1.0) - bytes);
}

/* Bytes that a live flow has still to move, by its own prediction. */
static double bytes_left(const struct bt_path_flow *flow, int64_t now_ns)
{
    double done = 0;

    if (flow->predicted_ns > 0)
        done = (double)(now_ns - flow->start_ns) / (double)flow->predicted_ns;
    return (double)flow->bytes * fmax(1.0 - done, 0.0);
}

/* ---- begin ---- */

static uint32_t count_runs(const struct bt_agent_pull *pull)
{
    uint32_t runs = pull->count > 0;

    for (size_t i = 1; i < pull->count; i++)
        runs += pull->remote[i] != pull->remote[i - 1] + 1 ||
                pull->local[i] != pull->local[i - 1] + 1;
    return runs;
}

static void foresee_own(const struct bt_paths *paths, struct bt_path_flow *flow)
{
    double x = (double)flow->bytes;
    const struct bt_path_flow *other;

    TAILQ_FOREACH(other, &paths->flows, entry)
    {
        double share = fmin(bytes_left(other, flow->start_ns), x);
        bool same = other->path == flow->path;

        flow->least_all += share;
        flow->most_all += x;
        flow->least_path += same ? share : 0;
        flow->most_path += same ? x : 0;
    }
}

static int64_t predict(const struct bt_paths *paths,
                       const struct bt_path_flow *flow, uint32_t descriptors)
{
    double x = (double)flow->bytes;
    double own_path =
        flow->least_path +
        paths->followed_path * (flow->most_path - flow->least_path);
    double own_all = flow->least_all +
                     paths->followed_all * (flow->most_all - flow->least_all);

    if (!flow->path->known || flow->bytes == 0)
        return 0;
    double own = own_equal(paths, flow->path, x, own_path, own_all);
    const double regressors[3] = {1, descriptors / 1e3, (x + own) / 1e9};
    double ms = bt_rls_predict(&flow->path->calibration.rls, regressors);

    return ms > 0 && ms < 1e12 ? (int64_t)(ms * 1e6) : 0;
}

void bt_paths_begin(struct bt_paths *paths, struct bt_path_flow *flow,
                    const struct bt_agent_pull *pull, const char *region,
                    uint64_t block_bytes, int64_t now_ns)
{
    memset(flow, 0, sizeof(*flow));
    flow->bytes = pull->count * block_bytes;
    flow->start_ns = now_ns;
    flow->path = path_get(paths, pull->host, pull->port, region);
    if (flow->path == NULL)
        return;
    foresee_own(paths, flow);
    flow->predicted_ns = predict(paths, flow, count_runs(pull));
    flow->path->flows++;
    TAILQ_INSERT_TAIL(&paths->flows, flow, entry);
}

/* ---- end ---- */

/* How much of `b` passed while `a` ran, seen at now_ns: b moves evenly. */
static double bytes_beside(const struct bt_path_flow *a,
                           const struct bt_path_flow *b, int64_t now_ns,
                           bool b_ended)
{
    int64_t from = a->start_ns > b->start_ns ? a->start_ns : b->start_ns;
    double ran = (double)(now_ns - b->start_ns);
    double whole = b_ended ? ran : fmax(ran, (double)b->predicted_ns);

    if (whole <= 0)
        return 0;
    return fmin((double)b->bytes * (double)(now_ns - from) / whole,
                (double)a->bytes);
}

static void add_own(struct bt_path_flow *to, const struct bt_path_flow *from,
                    double bytes)
{
    to->own_all += bytes;
    to->own_path += to->path == from->path ? bytes : 0;
}

static void settle_own(struct bt_paths *paths, struct bt_path_flow *flow,
                       int64_t now_ns)
{
    struct bt_path_flow *other;

    TAILQ_FOREACH(other, &paths->flows, entry)
    {
        add_own(flow, other, bytes_beside(flow, other, now_ns, false));
        add_own(other, flow, bytes_beside(other, flow, now_ns, true));
    }
}

/* Of what could have followed, how much did? */
static void learn_followed(double *followed, double own, double least,
                           double most, double bytes)
{
    double room = most - least;

    if (room < FOLLOWED_ROOM * bytes)
        return; /* says little */
    double seen = fmin(fmax((own - least) / room, 0.0), FOLLOWED_MAX);
    *followed += FOLLOWED_WEIGHT * (seen - *followed);
}

/* The estimator keeps within bounds of its nominal rate; where nobody said
 * what that is, the first measurement did, and may have been a poor one. */
static void rebase(const struct bt_paths *paths, struct bt_path *path,
                   double bytes, int64_t ns)
{
    int64_t setup_ns = 0, per_ns = 0;
    double nominal = (double)path->calibration.nominal_bytes_per_s, rate = 0;

    bt_transfer_model_get(&path->calibration, &setup_ns, &per_ns, &rate);
    if (bytes < REBASE_BYTES || ns <= setup_ns ||
        (rate < NEAR_FLOOR * nominal && rate > NEAR_CEILING * nominal) ||
        (rate > nominal && paths->ingress_bytes_per_s > 0))
        return;
    start_model(path, setup_ns, per_ns,
                bytes * NS_PER_S_DOUBLE / (double)(ns - setup_ns));
}

static void learn(struct bt_paths *paths, const struct bt_path_flow *flow,
                  const struct bt_agent_event *end)
{
    struct bt_path *path = flow->path;
    int64_t ns = end->duration_ns; /* queueing is our own flows: `own` */
    double own, rate;

    if (path->pulls == 1 || ns <= 0 || end->bytes == 0)
        return; /* the first one has connected as well */
    if (!path->known) {
        int64_t moved_ns = end->moved_ns > 0 ? end->moved_ns : ns;

        rate = (double)paths->ingress_bytes_per_s;
        if (rate <= 0)
            rate = ((double)end->bytes + flow->own_path) * NS_PER_S_DOUBLE /
                   (double)moved_ns;
        start_model(path, end->setup_ns, DESCRIPTOR_NS, rate);
    }
    own = own_equal(paths, path, (double)end->bytes, flow->own_path,
                    flow->own_all);
    bt_transfer_observe(&path->calibration, end->descriptors, end->bytes,
                        (uint64_t)own, ns);
    rebase(paths, path, (double)end->bytes + own, ns);
}

static void note_error(struct bt_path *path, int64_t predicted_ns,
                       int64_t real_ns)
{
    double error = fabs((double)predicted_ns - (double)real_ns);

    path->errors[path->predicted++ % BT_PATH_ERRORS_MAX] =
        (float)(error / (double)(real_ns > 0 ? real_ns : 1));
}

void bt_paths_end(struct bt_paths *paths, struct bt_path_flow *flow,
                  struct bt_agent_event *event, int64_t now_ns)
{
    struct bt_path *path = flow->path;

    event->predicted_ns = 0;
    if (path == NULL)
        return;
    TAILQ_REMOVE(&paths->flows, flow, entry);
    path->flows--;
    path->pulls++;
    path->bytes += event->bytes;
    if (event->peer[0] != '\0')
        snprintf(path->name, sizeof(path->name), "%s", event->peer);
    settle_own(paths, flow, now_ns);
    learn_followed(&paths->followed_path, flow->own_path, flow->least_path,
                   flow->most_path, (double)flow->bytes);
    learn_followed(&paths->followed_all, flow->own_all, flow->least_all,
                   flow->most_all, (double)flow->bytes);
    if (event->status != BT_OK) {
        path->failed++;
    } else {
        event->predicted_ns = (uint64_t)flow->predicted_ns;
        if (flow->predicted_ns > 0)
            note_error(path, flow->predicted_ns, event->duration_ns);
        learn(paths, flow, event);
    }
    flow->path = NULL;
}

/* ---- report ---- */

void bt_paths_carrier(struct bt_paths *paths, const char *host, uint16_t port,
                      uint32_t rail, const char *carrier)
{
    struct bt_path *path;

    TAILQ_FOREACH(path, &paths->list, entry)
    {
        if (path->port == port && strcmp(path->host, host) == 0)
            snprintf(path->carriers[rail], sizeof(path->carriers[rail]), "%s",
                     carrier);
    }
}

/* Each once, in the order of the rails. */
static void report_carriers(const struct bt_path *path, char *out, size_t size)
{
    size_t used = 0;

    for (uint32_t i = 0; i < BT_RAILS_MAX; i++) {
        const char *carrier = path->carriers[i];

        if (carrier[0] == '\0' || strstr(out, carrier) != NULL ||
            used + strlen(carrier) + 2 > size)
            continue;
        used += (size_t)snprintf(out + used, size - used, "%s%s",
                                 used > 0 ? " " : "", carrier);
    }
}

static int by_value(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;

    return (x > y) - (x < y);
}

static void report_errors(const struct bt_path *path, struct bt_agent_path *out)
{
    float sorted[BT_PATH_ERRORS_MAX];
    uint32_t n = path->predicted < BT_PATH_ERRORS_MAX
                     ? (uint32_t)path->predicted
                     : BT_PATH_ERRORS_MAX;

    out->predicted = n;
    if (n == 0)
        return;
    memcpy(sorted, path->errors, n * sizeof(sorted[0]));
    qsort(sorted, n, sizeof(sorted[0]), by_value);
    out->error_median = (double)sorted[(n - 1) / 2];
    out->error_p95 = (double)sorted[(n * 95 + 99) / 100 - 1];
}

static void report_one(const struct bt_path *path, struct bt_agent_path *out)
{
    double rate = 0;

    memset(out, 0, sizeof(*out));
    memcpy(out->host, path->host, sizeof(out->host));
    memcpy(out->name, path->name, sizeof(out->name));
    memcpy(out->region, path->region, sizeof(out->region));
    out->port = path->port;
    out->pulls = path->pulls;
    out->failed = path->failed;
    out->bytes = path->bytes;
    report_errors(path, out);
    report_carriers(path, out->transport, sizeof(out->transport));
    if (!path->known)
        return;
    bt_transfer_model_get(&path->calibration, &out->setup_ns,
                          &out->per_descriptor_ns, &rate);
    out->rate_bytes_per_s = (uint64_t)rate;
    out->changed = path->calibration.changed;
    out->fallback_suspected = path->calibration.fallback_suspected;
}

size_t bt_paths_report(const struct bt_paths *paths, struct bt_agent_path *out,
                       size_t max)
{
    const struct bt_path *path;
    size_t n = 0;

    TAILQ_FOREACH(path, &paths->list, entry)
    {
        if (n == max)
            break;
        report_one(path, &out[n++]);
    }
    return n;
}
