/* What `baton bench tier` measures: rows over block sizes and depths, pool and
 * fio by turns, the median of each. Leaves one run to tier_disk.c and
 * tier_fio.c, printing to tier_print.c. Deletes its files on every way out. */
#include "tier.h"

#include "baton/base/rng.h"
#include "baton/transfer/tier.h"
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define BYTES_MIN  (UINT64_C(16) << 20)
#define HOST_BYTES (UINT64_C(128) << 20)
#define HOST_BLOCK (UINT64_C(2) << 20)

static const uint64_t BLOCKS[] = {128u << 10, 1u << 20, 2u << 20};
static const uint32_t DEPTHS[] = {1, 8, 32};

struct bench {
    const struct bt_micro_tier_options *options;
    struct bt_micro_tier_report *report;
    char pool_path[300], fio_path[300];
    bool fio; /* is there */
};

static void note(struct bt_micro_tier_report *report, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
static void note(struct bt_micro_tier_report *report, const char *format, ...)
{
    char line[256];
    size_t used = strlen(report->notes);
    va_list args;

    va_start(args, format);
    vsnprintf(line, sizeof(line), format, args);
    va_end(args);
    if (!strstr(report->notes, line))
        snprintf(report->notes + used, sizeof(report->notes) - used, "%s\n",
                 line);
}

static double median(double *values)
{
    for (int i = 1; i < BT_MICRO_TIER_ROUNDS; i++)
        for (int k = i; k > 0 && values[k] < values[k - 1]; k--) {
            double swap = values[k];

            values[k] = values[k - 1];
            values[k - 1] = swap;
        }
    return values[BT_MICRO_TIER_ROUNDS / 2];
}

static void add_row(struct bench *b, const struct bt_micro_tier_row *row)
{
    if (b->report->count == BT_MICRO_TIER_ROWS_MAX)
        return;
    b->report->rows[b->report->count++] = *row;
    if (b->options->progress)
        fprintf(stderr, "%s %llu KiB depth %u: %.0f MB/s, base %.0f\n",
                row->what, (unsigned long long)row->block_bytes / 1024,
                row->depth, row->bytes_per_s / 1e6,
                row->base_bytes_per_s / 1e6);
}

/* ---- disk ---- */

/* One turn of each: the pool, fio, and fio with a flush at its end. */
struct turns {
    double pool[BT_MICRO_TIER_ROUNDS], fio[BT_MICRO_TIER_ROUNDS],
        flushed[BT_MICRO_TIER_ROUNDS];
};

static void fio_turn(struct bench *b, struct tier_run run, double *out)
{
    char why[256] = "";

    run.path = b->fio_path;
    if (b->fio && tier_fio(&run, false, out, why, sizeof(why)) != BT_OK) {
        note(b->report, "without fio from here: %s", why);
        b->fio = false;
    }
}

static enum bt_status round_of(struct bench *b, const struct tier_run *run,
                               struct tier_disk *disk, struct turns *t, int i)
{
    struct bt_micro_tier_report *r = b->report;
    struct tier_run flushed = *run;
    enum bt_status status = tier_disk_run(disk, run->write, &t->pool[i]);

    if (status != BT_OK) {
        snprintf(r->error, sizeof(r->error), "%s: %s", run->path,
                 bt_status_text(status));
        return status;
    }
    fio_turn(b, *run, &t->fio[i]);
    flushed.flush = true;
    if (run->write)
        fio_turn(b, flushed, &t->flushed[i]);
    return BT_OK;
}

static enum bt_status compare(struct bench *b, const char *what,
                              const struct tier_run *run,
                              struct tier_disk *disk)
{
    struct turns t = {0};
    struct bt_micro_tier_row row = {
        .what = what, .block_bytes = run->block_bytes, .depth = run->depth};
    enum bt_status status = BT_OK;

    for (int i = 0; i < BT_MICRO_TIER_ROUNDS && status == BT_OK; i++)
        status = round_of(b, run, disk, &t, i);
    if (status != BT_OK)
        return status;
    row.bytes_per_s = median(t.pool);
    row.base_bytes_per_s = b->fio ? median(t.fio) : 0;
    add_row(b, &row);
    if (!run->write)
        return BT_OK;
    row.what = "nvme_write_durable";
    row.base_bytes_per_s = b->fio ? median(t.flushed) : 0;
    add_row(b, &row);
    return BT_OK;
}

static enum bt_status with_pool(struct bench *b, struct tier_run run,
                                bool verify)
{
    struct bt_micro_tier_report *r = b->report;
    struct tier_disk *disk = NULL;
    enum bt_status status = tier_disk_open(&run, verify, b->options->seed,
                                           &disk, r->error, sizeof(r->error));

    if (status != BT_OK)
        return status;
    if (tier_disk_note(disk)[0])
        note(r, "%s", tier_disk_note(disk));
    status = compare(b, verify ? "nvme_read_checked" : "nvme_read", &run, disk);
    run.write = true;
    if (status == BT_OK && !verify)
        status = compare(b, "nvme_write", &run, disk);
    tier_disk_close(disk);
    return status;
}

static enum bt_status fill_fio(struct bench *b)
{
    const struct tier_run run = {.path = b->fio_path,
                                 .file_bytes = b->options->bytes};
    char why[256] = "";
    double unused;

    b->fio = tier_fio(&run, true, &unused, why, sizeof(why)) == BT_OK;
    if (!b->fio)
        note(b->report, "no comparison with fio: %s", why);
    return BT_OK;
}

static enum bt_status disks(struct bench *b)
{
    enum bt_status status = fill_fio(b);

    for (size_t i = 0; i < sizeof(BLOCKS) / sizeof(*BLOCKS); i++)
        for (size_t k = 0; k < sizeof(DEPTHS) / sizeof(*DEPTHS); k++)
            for (int verify = 0; verify < 2 && status == BT_OK; verify++) {
                const struct tier_run run = {.path = b->pool_path,
                                             .file_bytes = b->options->bytes,
                                             .block_bytes = BLOCKS[i],
                                             .depth = DEPTHS[k]};

                status = with_pool(b, run, verify == 1);
            }
    return status;
}

/* ---- host ---- */

static double now_s(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void copy_all(struct bt_host_pool *to, struct bt_host_pool *from,
                     uint32_t count, struct bt_rng *rng)
{
    uint64_t bytes = bt_host_pool_block_bytes(to);

    for (uint32_t i = 0; i < count; i++)
        memcpy(bt_host_pool_at(to, (uint32_t)bt_rng_below(rng, count)),
               bt_host_pool_at(from, i), bytes);
}

enum bt_status tier_host(bool huge, uint64_t block_bytes,
                         double *bytes_per_s_out, uint64_t *page_out)
{
    const struct bt_host_pool_config config = {
        .block_bytes = block_bytes,
        .block_count = (uint32_t)(HOST_BYTES / block_bytes),
        .numa_node = -1,
        .huge_pages = huge};
    struct bt_host_pool *from = NULL, *to = NULL;
    enum bt_status status;
    struct bt_rng rng;
    char error[256];
    double begun;

    bt_rng_seed(&rng, 1);
    status = bt_host_pool_create(&config, &from, error, sizeof(error));
    if (status == BT_OK)
        status = bt_host_pool_create(&config, &to, error, sizeof(error));
    if (status == BT_OK) {
        memset(bt_host_pool_base(from), 1, bt_host_pool_bytes(from));
        memset(bt_host_pool_base(to), 2, bt_host_pool_bytes(to));
        begun = now_s();
        for (int i = 0; i < 4; i++)
            copy_all(to, from, config.block_count, &rng);
        *bytes_per_s_out = 4.0 * (double)HOST_BYTES / (now_s() - begun);
        *page_out = bt_host_pool_page(to);
    }
    bt_host_pool_destroy(from);
    bt_host_pool_destroy(to);
    return status;
}

static enum bt_status hosts(struct bench *b)
{
    double small[BT_MICRO_TIER_ROUNDS], huge[BT_MICRO_TIER_ROUNDS];
    struct bt_micro_tier_row row = {.what = "host_copy",
                                    .block_bytes = HOST_BLOCK};
    enum bt_status status = BT_OK;
    uint64_t page = 0;

    for (int i = 0; i < BT_MICRO_TIER_ROUNDS && status == BT_OK; i++) {
        status = tier_host(false, HOST_BLOCK, &small[i], &page);
        if (status == BT_OK)
            status = tier_host(true, HOST_BLOCK, &huge[i], &page);
    }
    if (status != BT_OK) {
        snprintf(b->report->error, sizeof(b->report->error), "host pools: %s",
                 bt_status_text(status));
        return status;
    }
    if (page != HOST_BLOCK)
        note(b->report, "host_copy_huge: no 2 MiB pages were to be had");
    row.bytes_per_s = median(small);
    add_row(b, &row);
    row.what = "host_copy_huge";
    row.base_bytes_per_s = row.bytes_per_s;
    row.bytes_per_s = median(huge);
    add_row(b, &row);
    return BT_OK;
}

/* ---- all ---- */

static enum bt_status name_file(struct bench *b, const char *what, char *path,
                                size_t size)
{
    int n = snprintf(path, size, "%s/baton-bench-%s-XXXXXX",
                     b->options->directory, what);
    int fd = n > 0 && (size_t)n < size ? mkstemp(path) : -1;

    if (fd < 0) {
        snprintf(b->report->error, sizeof(b->report->error),
                 "%s: no file can be made there", b->options->directory);
        path[0] = '\0';
        return BT_IO;
    }
    close(fd);
    return BT_OK;
}

enum bt_status bt_micro_tier(const struct bt_micro_tier_options *options,
                             struct bt_micro_tier_report *report)
{
    struct bench b = {.options = options, .report = report};
    enum bt_status status;

    memset(report, 0, sizeof(*report));
    if (options->bytes < BYTES_MIN || options->bytes % BLOCKS[2] != 0) {
        snprintf(report->error, sizeof(report->error),
                 "the size is a multiple of 2 MiB, at least 16 MiB");
        return BT_INVALID;
    }
    status = name_file(&b, "pool", b.pool_path, sizeof(b.pool_path));
    if (status == BT_OK)
        status = name_file(&b, "fio", b.fio_path, sizeof(b.fio_path));
    if (status == BT_OK)
        status = hosts(&b);
    if (status == BT_OK)
        status = disks(&b);
    if (b.pool_path[0])
        unlink(b.pool_path);
    if (b.fio_path[0])
        unlink(b.fio_path);
    return status;
}
