/* When a decode worker has KV room and a batch slot (cost-models.md section
 * 12), and the expected output length by running quantiles. Pure.
 *
 * The core uses the quantiles; its slot time is still the average form of
 * orchestrator/core/view.c, which needs no list of releases.
 */
#ifndef BATON_PLANNER_SLOT_H
#define BATON_PLANNER_SLOT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A running request: when it ends by estimate, blocks it gives back. */
struct bt_slot_release {
    int64_t at_ns; /* absolute */
    uint64_t blocks;
};
struct bt_slot_query {
    int64_t now_ns;
    uint64_t free_blocks;
    uint64_t ahead_blocks; /* needed by requests before this one */
    uint64_t need_blocks;  /* bt_slot_need() */
    const struct bt_slot_release *releases; /* by at_ns, ascending */
    size_t count;
    double growth_blocks_per_s; /* of all the running ones together; what has
                                   ended grows no more. 0 if reserved */
    uint32_t running, ahead;    /* requests */
    uint32_t running_max;       /* batch limit, 0: none */
};
/* w = ceil((L + R) / blk) - floor(h_d / blk), >= 0. */
uint64_t bt_slot_need(uint64_t prompt_tokens, uint64_t reserve_tokens,
                      uint64_t held_tokens, uint32_t block_tokens);
/* Earliest instant with room (W8); BT_COST_INFINITE if it never fits. */
int64_t bt_slot_alloc_ns(const struct bt_slot_query *q);
/* The same, or later if the batch limit binds: the end of the (running + ahead
 * - running_max + 1)-th; past the list its pace goes on. */
int64_t bt_slot_run_ns(const struct bt_slot_query *q);

/* Running quantiles of a positive quantity (output tokens), by class; log
 * buckets with decay, error below 5 % up to 42,000, more counts as that. */
#define BT_LENGTH_BUCKETS 96
struct bt_length {
    double weight[BT_LENGTH_BUCKETS], total;
    double decay;                          /* 0.99..1 per observation */
    uint32_t start[BT_LENGTH_BUCKETS + 1]; /* first value of each bucket */
};
/* prior: a value that counts as 8 observations; 0 none. */
void bt_length_init(struct bt_length *l, double decay, uint32_t prior);
void bt_length_observe(struct bt_length *l, uint64_t value);
uint64_t bt_length_quantile(const struct bt_length *l, double q); /* 0: none */
/* Expected value of what is left when `seen` have come already; a twentieth of
 * `seen` when it is beyond all that is known, 0 when nothing is. */
uint64_t bt_length_left(const struct bt_length *l, uint64_t seen);

#endif
