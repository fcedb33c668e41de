/* Which pulls measure a path: sizes in a geometric series, so that a relative
 * error counts the same at both ends, and as many descriptors as fit at two of
 * them. The largest takes about longest_ns by the rate a first pull showed.
 * Invariant: never more bytes than bytes_max, never more blocks and gaps than
 * a probe region has.
 */
#include "baton/transfer/probe.h"

#include <assert.h>
#include <string.h>

#define LARGEST_MIN     65536u
#define REPEATS_MIN     3u
#define DESCRIPTORS_MAX 512u

static uint32_t most_descriptors(uint64_t bytes)
{
    uint64_t blocks = bytes / BT_PROBE_BLOCK_BYTES;

    return blocks < DESCRIPTORS_MAX ? (uint32_t)blocks : DESCRIPTORS_MAX;
}

static uint64_t block_or_more(uint64_t bytes)
{
    return bytes < BT_PROBE_BLOCK_BYTES ? BT_PROBE_BLOCK_BYTES : bytes;
}

static void points_of(uint64_t largest, struct bt_probe_point *out)
{
    uint64_t quarter = largest / 4, small = largest / 16;
    uint32_t many = most_descriptors(quarter);
    const struct bt_probe_point points[BT_PROBE_POINTS] = {
        {largest, 1},
        {quarter, 1},
        {small, 1},
        {block_or_more(largest / 64), 1},
        {quarter, many},
        {quarter, many >= 4 ? many / 4 : 1},
        {small, most_descriptors(small)},
    };

    memcpy(out, points, sizeof(points));
}

uint64_t bt_probe_plan_bytes(const struct bt_probe_point *points, size_t count)
{
    uint64_t bytes = 0;

    for (size_t i = 0; i < count; i++)
        bytes += points[i].bytes;
    return bytes;
}

/* A power of two; half of a region leaves room for the gaps. */
static uint64_t largest_of(const struct bt_probe_limits *limits)
{
    double wanted =
        (double)limits->rate_bytes_per_s * (double)limits->longest_ns / 1e9;
    uint64_t room = limits->blocks * BT_PROBE_BLOCK_BYTES / 2;
    uint64_t largest = LARGEST_MIN;

    while (largest * 2 <= room && (double)largest * 1.5 <= wanted)
        largest *= 2;
    return largest;
}

static void shuffle(struct bt_rng *rng, struct bt_probe_point *p, size_t n)
{
    for (size_t i = n; i > 1; i--) {
        size_t j = (size_t)bt_rng_below(rng, i);
        struct bt_probe_point other = p[i - 1];

        p[i - 1] = p[j];
        p[j] = other;
    }
}

size_t bt_probe_plan(const struct bt_probe_limits *limits, struct bt_rng *rng,
                     struct bt_probe_point *out)
{
    struct bt_probe_point points[BT_PROBE_POINTS];
    uint64_t largest = largest_of(limits), once;
    uint32_t repeats = limits->repeats;

    assert(repeats >= 1 && repeats <= BT_PROBE_REPEATS);
    for (;;) {
        points_of(largest, points);
        once = bt_probe_plan_bytes(points, BT_PROBE_POINTS);
        if (once * repeats <= limits->bytes_max)
            break;
        if (repeats > REPEATS_MIN)
            repeats--;
        else if (largest > LARGEST_MIN)
            largest /= 2;
        else
            return 0;
    }
    if (largest * 2 > limits->blocks * BT_PROBE_BLOCK_BYTES)
        return 0;
    for (uint32_t i = 0; i < repeats; i++)
        memcpy(out + (size_t)i * BT_PROBE_POINTS, points, sizeof(points));
    shuffle(rng, out, (size_t)repeats * BT_PROBE_POINTS);
    return (size_t)repeats * BT_PROBE_POINTS;
}
