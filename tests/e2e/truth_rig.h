/* Rig for holding predicted prefix hits against engines' own: `baton serve`,
 * two prefill engines and a decode engine as processes, a client with sessions
 * over shared prefixes, one sample per request from the decision log.
 *
 *   predicted   prompt tokens that the orchestrator expected to be cached on
 *               the prefill worker it chose (hit_p)
 *   actual      usage.cached_tokens of that worker: the truth
 *
 * No time is asserted on; waits end on observable state or fail after
 * TRUTH_WAIT_S.
 */
#ifndef BATON_TESTS_TRUTH_RIG_H
#define BATON_TESTS_TRUTH_RIG_H

#include "engine_rig.h"

#include <poll.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TRUTH_WAIT_S      30
#define TRUTH_BLOCK       16u
#define TRUTH_POOL        1024u /* blocks of a prefill engine */
#define TRUTH_SAMPLES_MAX 32768u
#define TRUTH_CALLS       4u
#define TRUTH_ENGINES     3 /* p0, p1, d0 */

struct truth_sample {
    int64_t sent_ns, ended_ns; /* the client's clock */
    int worker;                /* 0 p0, 1 p1, -1 other */
    uint32_t prompt, predicted, actual;
    char source[16]; /* overlap_source of the decision, "" not told */
};

struct truth_engine {
    const char *name, *encoding, *hash;
    struct rig rig;
    char kv[160];
};

struct truth_call {
    int fd; /* -1: free */
    struct answer raw;
    uint32_t id;
};

struct truth {
    const char *program;
    bool events, replay;
    char bind[64]; /* of serve, "" none */
    struct truth_engine engines[TRUTH_ENGINES];
    struct rig listen, admin, metrics; /* ports of serve */
    pid_t serve;
    char folder[64];
    int log; /* decisions, read side */
    char line[32768];
    size_t line_used;
    struct truth_call calls[TRUTH_CALLS];
    uint32_t next_id, failed;
    uint64_t dice; /* of the workload */
    int64_t start_ns, turn_ns;
    struct truth_sample *samples; /* by id */
};

/* The two prefill engines differ in encoding and form of hashes. swap: which
 * has which; connect: they connect to the orchestrator's socket. All workers
 * are in service when it returns. */
struct truth_setup {
    bool events, replay, swap, connect;
};
void truth_start(struct truth *t, const char *program,
                 const struct truth_setup *setup);
void truth_stop(struct truth *t);
/* After a failed test: ends the processes, keeps the folder. */
void truth_abandon(struct truth *t);

int64_t truth_now_ns(void);
/* Run load for so many requests more. */
void truth_load(struct truth *t, uint32_t requests);
/* Run load until done(t, arg) holds, asked about every 50 ms. */
void truth_load_until(struct truth *t, bool (*done)(struct truth *, void *),
                      void *arg, const char *what);
/* End what is in flight. */
void truth_drain(struct truth *t);

/* Member of a worker in /admin/v1/workers, as text; "" absent. */
void truth_worker(struct truth *t, int engine, const char *member, char *out,
                  size_t size);
long long truth_worker_number(struct truth *t, int engine, const char *member);
/* No new requests to it, or again. */
void truth_hold(struct truth *t, int engine, bool on);
/* Sum over all rows of a metric, whatever their labels; or one row, when its
 * labels are in the name. */
double truth_metric(struct truth *t, const char *name);
/* Distinct blocks that an engine holds now, by its own word. */
long long truth_blocks(struct truth *t, int engine);
/* It forgets its cache, if nothing runs. */
void truth_wipe(struct truth *t, int engine);
/* Load is off: wait until the index has as many blocks of each prefill engine
 * as that holds. */
void truth_expect_exact(struct truth *t);

/* SIGKILL. */
void truth_kill(struct truth *t, int engine);
/* The same command on the same ports again. Returns the time when the new
 * process said that it is ready. */
int64_t truth_start_again(struct truth *t, int engine);

struct truth_share {
    uint32_t requests, equal, over, under;
    uint64_t prompt, predicted, actual, wrong; /* tokens */
};
/* Of samples [from, to) on a worker (-1: any prefill worker). equal, under: in
 * whole blocks (the most that can be predicted is all but one token, engines
 * reuse whole blocks); over: predicted more than a block too much; wrong: the
 * tokens of those. */
struct truth_share truth_share(const struct truth *t, uint32_t from,
                               uint32_t to, int worker);
double truth_percent(uint32_t part, uint32_t whole);

#endif
