/* Arithmetic of a paced link: a virtual clock that advances by bytes / rate.
 * A chunk may be fetched when the link would have carried its last byte, so a
 * backlog of b bytes that starts at t ends at t + b / rate, exactly: the
 * remainder of every division is carried. Fairness between flows is the
 * caller's round robin over chunks of one size. Pure; times come in. */
#ifndef BATON_TRANSFER_PACING_H
#define BATON_TRANSFER_PACING_H

#include <stdbool.h>
#include <stdint.h>

#define BT_PACE_CHUNK_NS  2000000LL /* a chunk is about 2 ms of the link */
#define BT_PACE_CHUNK_MIN 4096u
#define BT_PACE_LAG_NS    100000000LL /* credit kept while gets are slow */
#define BT_PACE_RATE_MAX  1000000000000000ull /* faster ones are cut to it */

struct bt_pace {
    uint64_t rate_bytes_per_s; /* 0: not paced */
    int64_t clock_ns;          /* the last booked byte has crossed by then */
    uint64_t carry;            /* (bytes * 10^9) mod rate, not yet in clock */
    bool backlog;              /* flows wait: the clock runs on */
};

void bt_pace_init(struct bt_pace *pace, uint64_t rate_bytes_per_s);
/* Chunk size for the rate: rate * 2 ms, at least 4 KiB, at most chunk_max
 * (which wins, also below 4 KiB). */
uint32_t bt_pace_chunk(uint64_t rate_bytes_per_s, uint32_t chunk_max);
/* A flow with data is there since since_ns: an idle link's clock jumps to it,
 * a busy one's runs on, lagging at most 100 ms behind now_ns. */
void bt_pace_begin(struct bt_pace *pace, int64_t since_ns, int64_t now_ns);
/* No flow has data any more: the next begin starts afresh. */
void bt_pace_idle(struct bt_pace *pace);
/* When may this chunk be fetched? Rounded up. */
int64_t bt_pace_due(const struct bt_pace *pace, uint32_t bytes);
/* Book it. */
void bt_pace_take(struct bt_pace *pace, uint32_t bytes);

#endif
