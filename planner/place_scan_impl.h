/* Insides of the search over all candidates, shared by place_bounds.c (keys,
 * bounds, pairs) and place_scan.c (which rows and sides, entry points). Private
 * to this folder.
 */
#ifndef BATON_PLANNER_PLACE_SCAN_IMPL_H
#define BATON_PLANNER_PLACE_SCAN_IMPL_H

#include "place_parts.h"

/* Rows and decode sides held at once; more workers are gone through in
 * batches, which are built again where they are needed again. */
#define BATCH 256

/* With more workers than this a scan for a few candidates looks at the most
 * promising only: the rows with the least floors, the sides that would start
 * first with the first of them. What that may cost is measured in
 * tests/property/place2_brute_prop.c. */
#define SHORT_FROM  256u
#define SHORT_KEPT  16u
#define SHORT_ROWS  24u
#define SHORT_OWN   24u
#define SHORT_SIDES 48u
#define SHORT_NODES 512u
#define SHORT_RACKS 64u

/* What candidates are ordered by, first to last. */
struct key {
    int64_t score_ns;
    uint64_t bytes, load; /* 0 in the order of a table */
    uint32_t p_id, d_id;
};

struct side {
    struct place_d t;
    uint32_t d;
    int64_t least_ns; /* transfer, lower bound */
    bool small;       /* see is_surely_feasible() */
    bool placed;      /* in the network, if there is one */
    int64_t live_ns;  /* transfer with the flows there at live_at_ns */
    int64_t live_at_ns;
    int64_t lost_ns; /* of others through its port then, lower bound */
    struct place_port in;
    struct key key; /* bytes, load and d_id when another worker prefills */
};

/* Of several decode sides: in each field the least (most) of them. */
struct bounds {
    uint32_t count;
    bool small, placed; /* all of them */
    int64_t sent_ns;    /* least transfer + step */
    int64_t room_ns;    /* slot + step */
    int64_t step_ns, start_ns;
    int64_t most_ns, slot_most_ns, step_most_ns;
    struct key key;
};

/* For going through sides or rows in some order. */
struct rank {
    int64_t ns;
    uint32_t at;
};
struct batch {
    struct side sides[BATCH];
    struct bounds of;
    /* Of each side again, close together for the first look. */
    int64_t least_ns[BATCH], slot_ns[BATCH], step_ns[BATCH];
    uint32_t lightest;        /* the side that lacks the fewest bytes */
    struct rank order[BATCH]; /* of the shortlist */
};

/* Rows that end their prefill at the same instant at the same price, as idle
 * workers without the prefix do, have the same lower bounds through the ports
 * of d. Of the last such row that went through the batch: its least key. */
struct alike {
    int64_t at_ns, price_ns; /* at_ns 0: none */
    uint64_t fetch_bytes;
    struct key least;
};

/* All pairs of one prefilling worker. */
struct row {
    uint32_t p; /* none: each d serves alone */
    uint32_t p_id;
    bool resolved; /* t is no floor any more */
    struct place_port out;
    int64_t at_ns; /* planned send, resolved rows without overlap */
    /* Least transfer of out_bytes through its port, with the flows there. */
    int64_t out_ns;
    uint64_t out_bytes;
    int64_t lost_ns; /* of others through its port then, lower bound */
    struct place_p t;
};

/* Of each node and of each rack the row and the side that look best for
 * themselves: their pair needs no uplink. Those beyond the number share. */
struct near_best {
    struct rank p, d; /* at BT_PLACE_NONE: none */
};

struct scan {
    const struct bt_place_view *view;
    struct place_world *world;
    bool overlaps; /* the prefill hides part of the transfer */
    bool gated;    /* the prefill waits for d's slot */
    enum place_order order;
    struct bt_place_candidate *out;
    size_t max, kept, feasible;
    struct key last; /* of out[max - 1], once max are kept */
    struct row rows[BATCH];
    struct rank order_of_rows[BATCH];
    struct batch batch;
    struct alike alike;
    struct bounds all; /* of every decode side, after step 2 */
    bool may_repeat;   /* a pair may be looked at twice */
    struct near_best nearest[SHORT_NODES + SHORT_RACKS];
};

static inline int64_t min_of(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* ---- place_bounds.c ---- */

uint32_t scan_fill_batch(struct scan *s, uint32_t first);
void scan_batch_clear(struct scan *s);
/* Side i of the batch is filled. */
void scan_batch_take(struct scan *s, uint32_t i);
void scan_bounds_clear(struct bounds *b);
void scan_bounds_join(struct bounds *b, const struct bounds *x);
void scan_fill_side(const struct scan *s, uint32_t d, struct side *side);
void scan_row(struct scan *s, struct row *row);
/* A row whose pairs with the batch are feasible and counted. */
void scan_row_trusted(struct scan *s, struct row *row);
void scan_alone(struct scan *s);
void scan_local(struct scan *s);
void scan_look_at_local(struct scan *s, uint32_t d, struct side *side);
int64_t scan_look_at(struct scan *s, struct row *row, struct side *side,
                     bool trusted);
void scan_resolve(struct scan *s, struct row *row);
struct key scan_row_bound(const struct scan *s, const struct row *row,
                          const struct bounds *b);
bool scan_row_is_feasible(const struct scan *s, const struct row *row,
                          const struct bounds *b);
bool scan_is_hopeless(const struct scan *s, const struct key *key);
void scan_keep(struct scan *s, const struct bt_place_candidate *c);
uint32_t scan_id_of(const struct bt_place_view *view, uint32_t w);
void scan_sort_ranks(struct rank *list, uint32_t count);

#endif
