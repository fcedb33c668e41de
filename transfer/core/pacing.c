/* The virtual clock of a paced link. Decides when a chunk may be fetched;
 * which flow's chunk is next is the caller's. Invariant: while a backlog
 * lasts, clock + carry/rate equals its start plus bytes/rate exactly. */
#include "baton/transfer/pacing.h"

#define NS_PER_S 1000000000ull

void bt_pace_init(struct bt_pace *pace, uint64_t rate_bytes_per_s)
{
    if (rate_bytes_per_s > BT_PACE_RATE_MAX)
        rate_bytes_per_s = BT_PACE_RATE_MAX;
    *pace = (struct bt_pace){.rate_bytes_per_s = rate_bytes_per_s};
}

uint32_t bt_pace_chunk(uint64_t rate_bytes_per_s, uint32_t chunk_max)
{
    uint64_t bytes = rate_bytes_per_s / (NS_PER_S / BT_PACE_CHUNK_NS);

    if (rate_bytes_per_s == 0)
        return chunk_max;
    if (bytes < BT_PACE_CHUNK_MIN)
        bytes = BT_PACE_CHUNK_MIN;
    return bytes > chunk_max ? chunk_max : (uint32_t)bytes;
}

static void jump(struct bt_pace *pace, int64_t to_ns)
{
    if (pace->clock_ns >= to_ns)
        return;
    pace->clock_ns = to_ns;
    pace->carry = 0;
}

void bt_pace_begin(struct bt_pace *pace, int64_t since_ns, int64_t now_ns)
{
    if (!pace->backlog)
        jump(pace, since_ns);
    pace->backlog = true;
    jump(pace, now_ns - BT_PACE_LAG_NS);
}

void bt_pace_idle(struct bt_pace *pace)
{
    pace->backlog = false;
}

/* Whole nanoseconds that bytes take after the carry, and what is left over.
 * No overflow: 2^32 * 10^9 + 10^15 < 2^63. */
static int64_t advance(const struct bt_pace *pace, uint32_t bytes,
                       uint64_t *left_out)
{
    uint64_t total = bytes * NS_PER_S + pace->carry;

    *left_out = total % pace->rate_bytes_per_s;
    return (int64_t)(total / pace->rate_bytes_per_s);
}

int64_t bt_pace_due(const struct bt_pace *pace, uint32_t bytes)
{
    uint64_t left;
    int64_t ns;

    if (pace->rate_bytes_per_s == 0)
        return pace->clock_ns;
    ns = advance(pace, bytes, &left);
    return pace->clock_ns + ns + (left > 0);
}

void bt_pace_take(struct bt_pace *pace, uint32_t bytes)
{
    uint64_t left;

    if (pace->rate_bytes_per_s == 0)
        return;
    pace->clock_ns += advance(pace, bytes, &left);
    pace->carry = left;
}
