/* Figures of the verbs transport: large gets, and 10,000 blocks of 4 KiB with
 * and without gather lists, in one run, as ratios. For comparison run
 * `ib_read_bw` in the same guest just before (see README.md). Prints; fails
 * only when bytes are wrong. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include "verbs_bed.h"

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MIB      (1u << 20)
#define BLOCK    4096u
#define BLOCKS   10000u
#define REGION   ((size_t)BLOCK * BLOCKS)
#define BIG      64u /* gets of 1 MiB */
#define BIG_OUT  16u
#define BIG_SPAN (REGION / MIB)

struct field {
    struct bed bed;
    unsigned char *from, *to;
    struct bt_tmem *from_mem, *to_mem;
    struct bt_tkey *key;
};
static struct field f;
static struct bt_tpiece pieces[BLOCKS];
static struct move moves[BLOCKS];

static struct bt_tpiece piece_of(size_t to, size_t from, size_t bytes)
{
    return (struct bt_tpiece){.local = f.to + to,
                              .remote = (uintptr_t)f.from + from,
                              .bytes = (uint32_t)bytes};
}

static void start(struct move *move, const struct bt_tpiece *first,
                  uint32_t count)
{
    move->span = (struct bt_tspan){.pieces = first,
                                   .count = count,
                                   .local_mem = f.to_mem,
                                   .remote_key = f.key};
    bed_move(&f.bed, move, false);
}

static double mb_per_s(uint64_t bytes, int64_t ns)
{
    return (double)bytes * 1000.0 / (double)ns;
}

static double big(void)
{
    int64_t begin = bt_fabric_now();

    for (uint32_t i = 0; i < BIG; i++) {
        size_t at = (size_t)(i % BIG_SPAN) * MIB;

        if (i >= BIG_OUT)
            bed_until(&f.bed, &moves[i - BIG_OUT].done, 1);
        pieces[i] = piece_of(at, at, MIB);
        start(&moves[i], &pieces[i], 1);
    }
    for (uint32_t i = 0; i < BIG; i++) {
        bed_until(&f.bed, &moves[i].done, 1);
        assert_int_equal(moves[i].status, BT_OK);
    }
    return mb_per_s((uint64_t)BIG * MIB, bt_fabric_now() - begin);
}

/* Block i of the source to a place of its own here. 7,919 and 10,000 have no
 * common divisor. `run` neighbours of the source stay neighbours. */
static void scatter(uint32_t run, bool is_random)
{
    for (uint32_t i = 0; i < BLOCKS; i++) {
        uint32_t group = i / run, groups = BLOCKS / run;
        uint32_t from =
            is_random ? (group * 7919u % groups) * run + i % run : i;

        pieces[i] = piece_of((size_t)(i * 3331u % BLOCKS) * BLOCK,
                             (size_t)from * BLOCK, BLOCK);
    }
    memset(f.to, 0, REGION);
}

static void check(void)
{
    for (uint32_t i = 0; i < BLOCKS; i++)
        assert_memory_equal(pieces[i].local,
                            (void *)(uintptr_t)pieces[i].remote, BLOCK);
}

/* One get of so many pieces at a time. */
static double small(uint32_t per_get, const char *what)
{
    struct bt_verbs_counts before, after;
    int64_t begin = bt_fabric_now();
    double rate;

    bt_verbs_counts(f.bed.client, &before);
    for (uint32_t i = 0; i < BLOCKS; i += per_get) {
        if (per_get == 1 && i >= 512)
            bed_until(&f.bed, &moves[i - 512].done, 1);
        start(&moves[i], &pieces[i], per_get);
    }
    for (uint32_t i = 0; i < BLOCKS; i += per_get)
        bed_until(&f.bed, &moves[i].done, 1);
    rate = mb_per_s(REGION, bt_fabric_now() - begin);
    bt_verbs_counts(f.bed.client, &after);
    check();
    printf("%-44s %7.1f MB/s %6llu requests %5llu doorbells\n", what, rate,
           (unsigned long long)(after.requests - before.requests),
           (unsigned long long)(after.doorbells - before.doorbells));
    return rate;
}

int main(void)
{
    double large, one, all, runs;

    setvbuf(stdout, NULL, _IOLBF, 0);
    if (bed_absent())
        return 77;
    bed_join(&f.bed);
    f.from = malloc(REGION);
    f.to = calloc(1, REGION);
    bed_fill(f.from, REGION, 1);
    assert_int_equal(
        f.bed.server->ops->map(f.bed.server, f.from, REGION, &f.from_mem),
        BT_OK);
    assert_int_equal(
        f.bed.client->ops->map(f.bed.client, f.to, REGION, &f.to_mem), BT_OK);
    f.key = bed_key(&f.bed, f.from_mem);
    (void)big();
    large = big();
    printf("%-44s %7.1f MB/s\n", "gets of 1 MiB, 16 out", large);
    scatter(1, true);
    one = small(1, "4 KiB x 10,000 random, a get each");
    scatter(1, true);
    all = small(BLOCKS, "4 KiB x 10,000 random, one get");
    scatter(50, true);
    runs = small(BLOCKS, "4 KiB x 10,000 in runs of 50, gather lists");
    printf("of 1 MiB gets: each %.2f, one get %.2f, runs %.2f\n", one / large,
           all / large, runs / large);
    f.bed.client->ops->key_close(f.key);
    f.bed.client->ops->unmap(f.bed.client, f.to_mem);
    f.bed.server->ops->unmap(f.bed.server, f.from_mem);
    bed_close(&f.bed);
    free(f.from);
    free(f.to);
    return 0;
}
