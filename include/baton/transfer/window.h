/* How many bytes may be under way over one lane (a rail of a peer), by the time
 * that operations take. Pure: events in, sizes out; the state is the caller's.
 *
 * A lane that keeps more under way than its link needs only fills a queue: what
 * is asked for later waits behind it, and flows beside it get less than their
 * share. A lane that keeps too little leaves the link idle. So, once per round,
 *
 *   bytes <- bytes * full / time + share    at most twice, at least half of it
 *
 *   round   from the operation that fills the window to the end of that one
 *   time    from issue to end, queues of both ends included. To make it less:
 *           the least of what ended in the round, since a pause of a process
 *           shows in some, a queue in all; to make it more: that of the one
 *           that filled the window, since it had all of it before it
 *   full    the target, or 5/4 of base if that is longer
 *   base    least round trip of something small, told by the caller
 *   share   64 KiB (4 smallest operations) of queue for each lane
 *
 * It stands still at rate * full + share bytes. This is the rule of FAST TCP
 * (Jin, Wei, Low: "FAST TCP: motivation, architecture, algorithms,
 * performance", 2004, equation 3) with gain 1: lanes with the same times come
 * to the same bytes, in a round or two where the queue is long. The base comes
 * from round trips of quiet moments, not from operations: who begins beside
 * others would take their queue for the way and all of the link (the late
 * comer's advantage of LEDBAT, RFC 6817).
 *
 * A window that is not filled is not judged. A process that did not run for a
 * while must not starve a fast link: never below half of target * the best
 * rate of the last 5 to 10 seconds.
 */
#ifndef BATON_TRANSFER_WINDOW_H
#define BATON_TRANSFER_WINDOW_H

#include <stdbool.h>
#include <stdint.h>

#define BT_WINDOW_TARGET_NS 4000000ll     /* 4 ms */
#define BT_WINDOW_IDLE_NS   10000000000ll /* then what was learned is old */
#define BT_WINDOW_BEST_NS   5000000000ll
#define BT_WINDOW_OP_MIN    16384u /* bytes, unless op_max is less */
#define BT_WINDOW_SHARE     4u     /* of these: a lane's part, and its start */

struct bt_window_limits {
    uint32_t ops_max;  /* > 0; out at once */
    uint32_t op_max;   /* > 0; bytes. The window is at most ops_max of these */
    int64_t target_ns; /* 0: BT_WINDOW_TARGET_NS; < 0: fixed at the most */
};

struct bt_window {
    uint64_t bytes;    /* may be out */
    uint32_t op_bytes; /* largest operation */
    /* the rest is window.c's */
    struct bt_window_limits limits;
    uint64_t out, serial, filled;
    bool in_round;
    int64_t low_ns, base_ns, idle_ns;
    int64_t mark_ns, span_ns, best_ns;
    uint64_t span_bytes;
    double best[2]; /* bytes per ns, lately and before */
};
/* What an operation carries from its issue to its end. */
struct bt_window_op {
    uint64_t serial, bytes;
    int64_t issued_ns;
};

/* Starts at the share, or what the limits allow. */
void bt_window_init(struct bt_window *window,
                    const struct bt_window_limits *limits);
/* Start with what another lane to the same peer has learned, if that is more.
 */
void bt_window_follow(struct bt_window *window, const struct bt_window *other);
/* A round trip of something small (a heartbeat) took this long. */
void bt_window_round_trip(struct bt_window *window, int64_t took_ns);
/* Nothing was out for BT_WINDOW_IDLE_NS: back to what init gives, or less if
 * less was learned. Call before asking how much may be out; true: the sizes
 * have changed. */
bool bt_window_wake(struct bt_window *window, int64_t now_ns);
/* bytes > 0 left at now_ns. May be more than the window allows. */
void bt_window_issued(struct bt_window *window, int64_t now_ns, uint64_t bytes,
                      struct bt_window_op *op_out);
/* It ended; one that failed says nothing about the link. True: the sizes have
 * changed. */
bool bt_window_ended(struct bt_window *window, const struct bt_window_op *op,
                     int64_t now_ns, bool ok);
/* The queue that each lane is meant to have. */
uint64_t bt_window_share(const struct bt_window_limits *limits);

#endif
