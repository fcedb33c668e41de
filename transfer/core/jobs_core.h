/* The table behind jobs.h, shared by jobs*.c: blocks of a job in pages, jobs,
 * lanes with a ring of the jobs that have something to send, operations that
 * are out. A job's bytes, in the order of its sorted blocks, are one string
 * 0..total; an operation is one range of that string. */
#ifndef BATON_TRANSFER_CORE_JOBS_CORE_H
#define BATON_TRANSFER_CORE_JOBS_CORE_H

#include "baton/transfer/jobs.h"
#include "baton/transfer/runs.h"

#define JOB_NONE       UINT32_MAX
#define JOB_PAGE       64u        /* blocks */
#define JOB_BLOCKS_MAX (1u << 30) /* of one job */
#define JOB_DAMAGED    (1u << 31) /* in job_block.position: was fetched twice */
#define JOB_LISTED     UINT32_MAX /* in job_block.left: end of that list */
#define JOB_AGAIN      4u         /* ranges that may be, per ops_max */
#define JOB_NEVER      INT64_MAX

/* X(state, name, allowed next, waiting for) */
#define BT_JOB_STATES(X)                                                       \
    X(JOB_FREE, "free", 1u << JOB_WAITING, "a job")                            \
    X(JOB_WAITING, "waiting", 1u << JOB_OPEN | 1u << JOB_DRAINING, "start")    \
    X(JOB_OPEN, "open", 1u << JOB_RUNNING | 1u << JOB_DRAINING,                \
      "its first operation")                                                   \
    X(JOB_RUNNING, "running", 1u << JOB_DRAINING, "its last byte")             \
    X(JOB_DRAINING, "draining", 1u << JOB_ENDED, "operations that are out")    \
    X(JOB_ENDED, "ended", 1u << JOB_FREE, "reap")
enum job_state {
#define X(state, name, next, waits) state,
    BT_JOB_STATES(X)
#undef X
};

struct job_block {
    uint32_t remote, local;
    uint32_t position; /* in the spec's arrays, with JOB_DAMAGED */
    uint32_t left;     /* bytes still to come; while the block is on the list
                          of damaged ones: the next of them + 1 */
};
struct job_page {
    struct job_block blocks[JOB_PAGE];
};

struct job_range {
    uint64_t from, to;
    uint32_t tries;          /* failures that count */
    struct bt_lane_id avoid; /* failed there last */
};
/* A range that waits to be sent again. */
struct job_again {
    struct job_range range;
    uint32_t next;
};

/* A lane of a job. While the job has bytes to send and the lane is open, this
 * is a node of the lane's ring. */
struct job_use {
    struct bt_lane_id lane;
    uint32_t prev, next; /* nodes: job * BT_JOB_LANES_MAX + use; JOB_NONE */
};

struct job {
    enum job_state state;
    uint32_t generation;
    uint64_t serial; /* age */
    void *owner;
    uint32_t count, block_bytes;
    uint64_t total;        /* bytes */
    uint64_t cursor;       /* never sent from here on */
    uint64_t to_send;      /* fresh, again and damaged */
    uint64_t missing;      /* not yet landed */
    struct job_range redo; /* being sent again now; empty: from == to */
    uint32_t again_head, again_tail;
    uint32_t bad_head, bad_tail; /* damaged blocks */
    uint32_t ops_out, use_count;
    int64_t deadline_ns, started_ns, first_ns, last_ns;
    int64_t promote_ns;  /* urgent from then on */
    int64_t start_by_ns; /* slack is this - now */
    uint32_t next;       /* of the free or the ended ones */
    struct job_use uses[BT_JOB_LANES_MAX];
    struct bt_job_end end;
};

struct job_lane {
    struct bt_lane_spec spec;
    uint32_t generation;
    bool is_open, is_used;
    uint32_t ops_out;
    uint64_t bytes_out;
    uint32_t head;      /* node whose turn is next; JOB_NONE */
    int64_t promote_ns; /* no job of the ring is urgent before this */
    uint32_t next;      /* free ones */
};

struct job_op {
    bool is_out;
    uint32_t job, lane, use;
    struct job_range range;
    uint32_t next; /* free ones */
};

/* The operation that ended last: its blocks may yet be reported damaged. */
struct job_verdict {
    uint32_t job; /* JOB_NONE */
    uint32_t first, last, hint;
};

struct bt_jobs {
    struct bt_jobs_config config;
    struct job *jobs;
    struct job_lane *lanes;
    struct job_op *ops;
    struct job_again *again;
    struct job_page *pages;
    uint32_t *page_of;   /* page_stride per job */
    uint32_t *page_free; /* stack */
    uint32_t page_stride, page_free_count;
    uint32_t job_free, lane_free, op_free, again_free;
    uint32_t again_count, again_max;
    uint32_t ended_head, ended_tail;
    uint64_t serial, stamp, blocks;
    struct bt_jobs_load load;
    struct job_verdict verdict;
    /* for bt_jobs_add */
    uint32_t *order;
    struct bt_run *runs;
    uint64_t *seen; /* stamp << 32 | local, by hash */
    uint32_t seen_mask;
};

static inline struct job_block *bt_job_block(const struct bt_jobs *jobs,
                                             const struct job *job, uint32_t i)
{
    size_t row = (size_t)(job - jobs->jobs) * jobs->page_stride;

    return &jobs->pages[jobs->page_of[row + i / JOB_PAGE]].blocks[i % JOB_PAGE];
}

/* ---- jobs.c ---- */
/* NULL: stale. */
struct job *bt_job_get(const struct bt_jobs *jobs, struct bt_job_id id);
struct bt_job_id bt_job_id_of(const struct bt_jobs *jobs,
                              const struct job *job);
void bt_job_move(struct job *job, enum job_state next);
/* Nothing more of it is sent; ended at once if nothing is out. */
void bt_job_finish(struct bt_jobs *jobs, struct job *job,
                   enum bt_status status);
/* End it if it drains and nothing is out. */
void bt_job_drained(struct bt_jobs *jobs, struct job *job);
/* Nobody called the operation's blocks damaged: they are good. */
void bt_job_settle(struct bt_jobs *jobs);

/* ---- jobs_blocks.c ---- */
/* BT_LIMIT, BT_INVALID. */
enum bt_status bt_job_blocks_take(struct bt_jobs *jobs, struct job *job,
                                  const struct bt_job_spec *spec);
void bt_job_blocks_drop(struct bt_jobs *jobs, struct job *job);
/* Bytes from the start of a range that make one operation of this lane; its
 * pieces go to op_out unless that is NULL. */
uint64_t bt_job_cut(const struct bt_jobs *jobs, const struct job *job,
                    const struct job_range *range,
                    const struct bt_lane_spec *lane, struct bt_job_op *op_out);

/* ---- jobs_lanes.c ---- */
bool bt_job_lane_live(const struct bt_jobs *jobs, struct bt_lane_id id);
/* Another open lane than this one? */
bool bt_job_has_other(const struct bt_jobs *jobs, const struct job *job,
                      struct bt_lane_id lane);
/* Put the job in the rings of its lanes, or take it out, as it has bytes to
 * send or not, and bring its urgency up to date. */
void bt_job_relink(struct bt_jobs *jobs, struct job *job);
void bt_job_lane_ended(struct bt_jobs *jobs, struct job_lane *lane,
                       uint64_t bytes);

/* ---- jobs_order.c ---- */
void bt_job_urgency(struct bt_jobs *jobs, struct job *job);
/* Node of the job that is next on this lane, JOB_NONE: none; range_out is what
 * its operation is cut from. promote_out: see job_lane.promote_ns. */
uint32_t bt_job_pick(const struct bt_jobs *jobs, const struct job_lane *lane,
                     int64_t now_ns, struct job_range *range_out,
                     int64_t *promote_out);

/* ---- jobs_again.c ---- */
/* What this lane would send next of the job; false: nothing. */
bool bt_job_source(const struct bt_jobs *jobs, const struct job *job,
                   struct bt_lane_id lane, struct job_range *out);
/* Take the first `bytes` of that range. */
void bt_job_advance(struct bt_jobs *jobs, struct job *job,
                    const struct job_range *range, uint64_t bytes);
/* False: no room for it. */
bool bt_job_again(struct bt_jobs *jobs, struct job *job,
                  const struct job_range *range);
void bt_job_bad(struct bt_jobs *jobs, struct job *job, uint32_t block);
void bt_job_forget(struct bt_jobs *jobs, struct job *job);

#endif
