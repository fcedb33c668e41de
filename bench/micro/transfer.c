/* `baton bench transfer`: what is run, and in which order. Rounds take turns,
 * ours then ucx_perftest's; figures are medians, ratios are taken round by
 * round, so that what else runs on the machine hits both. The bytes that landed
 * are compared after each kind of run. */
#include "baton/base/rng.h"
#include "transfer_parts.h"
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#define ROUNDS    BT_MICRO_TRANSFER_ROUNDS
#define PER_GET   256u
#define FLIGHT    16u
#define LIMIT_NS  60000000000LL
#define BYTES_MIN (64u << 20)

static const struct kind {
    const char *name, *transports;
    const char *tests[4]; /* of ucx_perftest, the fastest counts */
} KINDS[] = {
    {"tcp", "tcp,self", {"ucp_am_bw"}},
    {"shm", "posix,sysv,cma,self", {"ucp_get", "ucp_put_bw", "ucp_am_bw"}},
};
static const uint64_t SIZES[] = {65536, 1u << 20, 16u << 20};
static const char *const SHAPES[] = {"contiguous", "strided", "random"};

struct bench {
    const struct bt_micro_transfer_options *o;
    struct bt_micro_transfer_report *report;
    struct transfer_cpus cpus;
    bool no_perftest;
    struct bt_pair_piece blocks[TRANSFER_BLOCKS];
};

static void note(struct bt_micro_transfer_report *report, const char *format,
                 ...) __attribute__((format(printf, 2, 3)));
static void note(struct bt_micro_transfer_report *report, const char *format,
                 ...)
{
    size_t used = strlen(report->notes);
    va_list args;

    va_start(args, format);
    vsnprintf(report->notes + used, sizeof(report->notes) - used, format, args);
    va_end(args);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return x < y ? -1 : x > y;
}

static double median(double *values)
{
    qsort(values, ROUNDS, sizeof(*values), by_value);
    return values[ROUNDS / 2];
}

static enum bt_status get(struct bench *b, struct bt_pair *pair,
                          const struct bt_pair_load *load,
                          struct bt_pair_result *out)
{
    enum bt_status status = bt_pair_get(pair, load, out);

    if (status == BT_OK && !bt_pair_verify(pair, load->pieces, load->count))
        status = BT_CHECKSUM;
    if (status != BT_OK)
        snprintf(b->report->error, sizeof(b->report->error), "a run: %s",
                 bt_status_text(status));
    return status;
}

static void progress(const struct bench *b, const char *what, int round)
{
    if (b->o->progress)
        fprintf(stderr, "bench transfer: %s, round %d of %d\n", what, round + 1,
                ROUNDS);
}

/* ---- bandwidth ---- */

/* The fastest of the kind's tests this round; 0: none. */
static double perftest(struct bench *b, const struct kind *kind, uint64_t size,
                       const char **test_out)
{
    double best = 0;

    for (int i = 0; kind->tests[i] != NULL && !b->no_perftest; i++) {
        double got = 0;
        enum bt_status status =
            transfer_perftest(kind->tests[i], kind->transports, &b->cpus, size,
                              b->o->bytes, &got);

        b->no_perftest = status == BT_NOT_FOUND;
        if (status == BT_OK && got > best) {
            best = got;
            *test_out = kind->tests[i];
        }
    }
    return best;
}

static enum bt_status row(struct bench *b, const struct kind *kind,
                          struct bt_pair *pair, uint64_t size)
{
    struct bt_micro_transfer_row *out = &b->report->rows[b->report->row_count];
    const struct bt_pair_piece piece = {.bytes = (uint32_t)size};
    struct bt_pair_load load = {.pieces = &piece,
                                .count = 1,
                                .per_get = 1,
                                .in_flight = FLIGHT,
                                .rounds = (uint32_t)(b->o->bytes / size),
                                .limit_ns = LIMIT_NS};
    double ours[ROUNDS], theirs[ROUNDS], ratios[ROUNDS], cpu[ROUNDS];

    *out = (struct bt_micro_transfer_row){
        .transport = kind->name, .size = size, .in_flight = FLIGHT};
    for (int i = 0; i < ROUNDS; i++) {
        struct bt_pair_result r;
        enum bt_status status;

        progress(b, kind->name, i);
        status = get(b, pair, &load, &r);
        if (status != BT_OK)
            return status;
        ours[i] = (double)r.bytes * 1e9 / (double)r.duration_ns;
        cpu[i] = r.cpu_s * 1e9 / (double)r.duration_ns;
        theirs[i] = perftest(b, kind, size, &out->perftest);
        ratios[i] = theirs[i] > 0 ? ours[i] / theirs[i] : 0;
    }
    out->bytes_per_s = median(ours);
    out->cpu_load = median(cpu);
    out->perftest_bytes_per_s = median(theirs);
    out->ratio = median(ratios);
    b->report->row_count++;
    return BT_OK;
}

/* ---- blocks ---- */

static void shape(struct bench *b, size_t which)
{
    struct bt_rng rng;

    for (uint64_t i = 0; i < TRANSFER_BLOCKS; i++) {
        uint64_t at = i * TRANSFER_BLOCK * (which == 0 ? 1 : 2);

        b->blocks[i] = (struct bt_pair_piece){
            .local = at, .remote = at, .bytes = TRANSFER_BLOCK};
    }
    if (which != 2)
        return;
    bt_rng_seed(&rng, b->o->seed);
    for (uint64_t i = TRANSFER_BLOCKS - 1; i > 0; i--) {
        uint64_t k = bt_rng_below(&rng, i + 1);
        uint64_t remote = b->blocks[i].remote;

        b->blocks[i].remote = b->blocks[k].remote;
        b->blocks[k].remote = remote;
    }
}

static enum bt_status seconds(struct bench *b, struct bt_pair *pair,
                              const struct bt_pair_load *load, double *out)
{
    struct bt_pair_result r;
    enum bt_status status = get(b, pair, load, &r);

    if (status == BT_OK)
        *out = (double)r.duration_ns / 1e9;
    return status;
}

/* The three that are compared, one after the other, in each round. */
static enum bt_status blocks(struct bench *b, const struct kind *kind,
                             struct bt_pair *pair, size_t which, bool sums)
{
    const struct bt_pair_piece all = {.bytes =
                                          TRANSFER_BLOCK * TRANSFER_BLOCKS};
    struct bt_pair_load large = {.pieces = &all,
                                 .count = 1,
                                 .per_get = 1,
                                 .in_flight = 1,
                                 .rounds = 1,
                                 .limit_ns = LIMIT_NS};
    struct bt_pair_load ours = {.pieces = b->blocks,
                                .count = TRANSFER_BLOCKS,
                                .per_get = PER_GET,
                                .in_flight = FLIGHT,
                                .rounds = 1,
                                .checksums = sums,
                                .limit_ns = LIMIT_NS};
    struct bt_pair_load naive = ours;
    double s[ROUNDS], naive_s[ROUNDS], ratio[ROUNDS], large_s;

    naive.per_get = 1;
    shape(b, which);
    for (int i = 0; i < ROUNDS; i++) {
        enum bt_status status = seconds(b, pair, &large, &large_s);

        progress(b, SHAPES[which], i);
        if (status == BT_OK)
            status = seconds(b, pair, &ours, &s[i]);
        if (status == BT_OK)
            status = seconds(b, pair, &naive, &naive_s[i]);
        if (status != BT_OK)
            return status;
        ratio[i] = large_s / s[i];
    }
    b->report->blocks[b->report->block_count++] =
        (struct bt_micro_transfer_blocks){.transport = kind->name,
                                          .shape = SHAPES[which],
                                          .checksums = sums,
                                          .seconds = median(s),
                                          .naive_seconds = median(naive_s),
                                          .large_ratio = median(ratio)};
    return BT_OK;
}

/* ---- all of it ---- */

static enum bt_status run_kind(struct bench *b, const struct kind *kind)
{
    struct bt_micro_transfer_report *report = b->report;
    struct transfer_ends ends;
    enum bt_status status =
        transfer_ends_open(kind->transports, &b->cpus, &ends, report->error,
                           sizeof(report->error));

    if (status != BT_OK)
        return status;
    for (size_t i = 0; i < sizeof(SIZES) / sizeof(SIZES[0]); i++) {
        if (status == BT_OK)
            status = row(b, kind, ends.pair, SIZES[i]);
    }
    for (size_t i = 0; i < sizeof(SHAPES) / sizeof(SHAPES[0]); i++) {
        if (status == BT_OK)
            status = blocks(b, kind, ends.pair, i, false);
        if (status == BT_OK)
            status = blocks(b, kind, ends.pair, i, true);
    }
    note(report, "%s: UCX_TLS=%s, carried by %s.\n", kind->name,
         kind->transports, bt_pair_carrier(ends.pair));
    transfer_ends_close(&ends);
    return status;
}

static void judge(struct bench *b)
{
    const struct bt_micro_transfer_report *report = b->report;
    bool missed = false;

    if (b->no_perftest) {
        note(b->report, "ucx_perftest is not installed (package ucx-utils): "
                        "nothing to compare with.\n");
        return;
    }
    for (size_t i = 0; i < report->row_count; i++) {
        const struct bt_micro_transfer_row *r = &report->rows[i];

        if (r->size < (1u << 20) || r->perftest == NULL ||
            r->ratio >= BT_MICRO_TRANSFER_AIM)
            continue;
        missed = true;
        note(b->report,
             "MISSED: %s, gets of %lu MiB: %.0f %% of %s, aim %.0f "
             "%%.\n",
             r->transport, (unsigned long)(r->size >> 20), r->ratio * 100,
             r->perftest, BT_MICRO_TRANSFER_AIM * 100);
    }
    if (missed)
        note(b->report,
             "What differs: over tcp, ours are messages that are copied out of "
             "a receive buffer, theirs a\nrendezvous into place, which ends "
             "the process of a peer that goes away. Over shared memory,\nours "
             "is the engine's own memory (here in 2 MiB pages), read through "
             "the kernel; theirs is\nallocated by UCX and mapped in both "
             "processes.\n");
}

enum bt_status
bt_micro_transfer(const struct bt_micro_transfer_options *options,
                  struct bt_micro_transfer_report *report)
{
    struct bench *b;
    enum bt_status status = BT_OK;

    *report = (struct bt_micro_transfer_report){.block_bytes = TRANSFER_BLOCK,
                                                .block_n = TRANSFER_BLOCKS};
    if (options->bytes < BYTES_MIN) {
        snprintf(report->error, sizeof(report->error),
                 "a run is of 64 MiB or more");
        return BT_INVALID;
    }
    b = calloc(1, sizeof(*b));
    if (b == NULL)
        return BT_NO_MEMORY;
    b->o = options;
    b->report = report;
    transfer_cpus_find(&b->cpus);
    if (b->cpus.cpu[0] == b->cpus.cpu[1])
        note(report, "One CPU only: both ends share it.\n");
    for (size_t i = 0; i < sizeof(KINDS) / sizeof(KINDS[0]); i++) {
        if (status == BT_OK)
            status = run_kind(b, &KINDS[i]);
    }
    if (status == BT_OK)
        judge(b);
    free(b);
    return status;
}
