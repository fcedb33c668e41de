/* Cells in child processes: forks up to `jobs` at once, reads each result from
 * a pipe, puts it where its cell stands. Decides nothing about what a cell
 * does. Invariants: results do not depend on the number of processes; a child
 * dies with this process (PR_SET_PDEATHSIG) and, when a run is given up, is
 * killed by its pid; a child that ends badly fails its own cell only. */
#include "report_priv.h"
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CELL_LIMIT_S    3600
#define PROGRESS_WAIT_S 2.0
#define POLL_MS         200
#define BAR_WIDTH       30u

struct slot {
    pid_t pid; /* 0: free */
    int fd;
    size_t cell;
    double since_s;
    struct bt_report_result head;
    size_t head_used;
    size_t sample_used; /* bytes of all arrays, one after the other */
    bool bad;
};

struct pool {
    const struct report_cell *cells;
    const struct bt_report_jobs *jobs;
    struct bt_report_result *results;
    size_t count, next, done;
    struct slot slots[BT_REPORT_JOBS_MAX];
    uint32_t slot_count;
    double since_s, limit_s;
    bool drawn;
};

static double now_s(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* ---- in the child ---- */

static bool write_all(int fd, const void *bytes, size_t count)
{
    const char *at = bytes;

    while (count > 0) {
        ssize_t got = write(fd, at, count);

        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return false;
        at += got;
        count -= (size_t)got;
    }
    return true;
}

static void run_child(const struct pool *pool, size_t cell, int fd,
                      pid_t parent)
{
    const struct report_cell *c = &pool->cells[cell];
    const struct bt_report_jobs *jobs = pool->jobs;
    struct bt_report_result result;
    bool ok;

    signal(SIGINT, SIG_DFL);
    signal(SIGTERM, SIG_DFL);
    signal(SIGPIPE, SIG_DFL);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(1);
    memset(&result, 0, sizeof(result));
    (jobs->run ? jobs->run : bt_report_run_sim)(jobs->run_arg, &c->config,
                                                c->keep_samples, &result);
    if (result.status != BT_OK || !c->keep_samples)
        result.sample_count = 0;
    ok = write_all(fd, &result, sizeof(result));
    for (int i = 0; ok && result.sample_count && i < BT_REPORT_SAMPLE_COUNT;
         i++)
        ok = write_all(fd, result.samples[i],
                       result.sample_count * sizeof(float));
    _exit(ok ? 0 : 1);
}

/* ---- in the parent ---- */

static void cell_failed(struct pool *pool, const struct slot *s,
                        const char *what, int number)
{
    struct bt_report_result *r = &pool->results[s->cell];

    bt_report_result_fini(r);
    memset(r, 0, sizeof(*r));
    r->status = BT_PEER_DEAD;
    snprintf(r->error, sizeof(r->error), "its process %s (%d)", what, number);
}

static bool start(struct pool *pool, struct slot *s)
{
    pid_t parent = getpid();
    int ends[2];

    if (pipe(ends) != 0)
        return false;
    s->pid = fork();
    if (s->pid == 0) {
        close(ends[0]);
        run_child(pool, pool->next, ends[1], parent);
    }
    close(ends[1]);
    if (s->pid < 0) {
        close(ends[0]);
        s->pid = 0;
        return false;
    }
    s->fd = ends[0];
    s->cell = pool->next++;
    s->since_s = now_s();
    s->head_used = s->sample_used = 0;
    s->bad = false;
    return true;
}

/* The head is complete: take it and make room for the samples. */
static void take_head(struct pool *pool, struct slot *s)
{
    const struct report_cell *c = &pool->cells[s->cell];
    struct bt_report_result *r = &pool->results[s->cell];
    size_t limit = c->config.trace ? c->config.trace->count : 0;

    *r = s->head;
    for (int i = 0; i < BT_REPORT_SAMPLE_COUNT; i++)
        r->samples[i] = NULL;
    if (r->sample_count > limit) {
        r->sample_count = 0;
        s->bad = true;
    }
    for (int i = 0; r->sample_count && i < BT_REPORT_SAMPLE_COUNT; i++) {
        r->samples[i] = malloc(r->sample_count * sizeof(float));
        s->bad = s->bad || r->samples[i] == NULL;
    }
}

/* Bytes wanted next and where they go; 0: nothing more. */
static size_t wanted(struct pool *pool, struct slot *s, char **at)
{
    struct bt_report_result *r = &pool->results[s->cell];
    size_t bytes, array, offset;

    if (s->head_used < sizeof(s->head)) {
        *at = (char *)&s->head + s->head_used;
        return sizeof(s->head) - s->head_used;
    }
    bytes = r->sample_count * sizeof(float);
    if (s->bad || bytes == 0 ||
        s->sample_used >= bytes * BT_REPORT_SAMPLE_COUNT)
        return 0;
    array = s->sample_used / bytes;
    offset = s->sample_used % bytes;
    *at = (char *)r->samples[array] + offset;
    return bytes - offset;
}

/* False: the pipe has ended. */
static bool read_some(struct pool *pool, struct slot *s)
{
    char spill[64], *at = spill;
    size_t want = wanted(pool, s, &at);
    ssize_t got = read(s->fd, at, want ? want : sizeof(spill));

    if (got < 0 && errno == EINTR)
        return true;
    if (got <= 0)
        return false;
    if (want == 0) {
        s->bad = true; /* more than was announced */
    } else if (s->head_used < sizeof(s->head)) {
        s->head_used += (size_t)got;
        if (s->head_used == sizeof(s->head))
            take_head(pool, s);
    } else {
        s->sample_used += (size_t)got;
    }
    return true;
}

static void collect(struct pool *pool, struct slot *s)
{
    char *at;
    int how = 0;

    close(s->fd);
    while (waitpid(s->pid, &how, 0) < 0 && errno == EINTR)
        ;
    s->pid = 0;
    pool->done++;
    if (WIFSIGNALED(how))
        cell_failed(pool, s, "was ended by a signal", WTERMSIG(how));
    else if (!WIFEXITED(how) || WEXITSTATUS(how) != 0)
        cell_failed(pool, s, "ended with a bad exit code", WEXITSTATUS(how));
    else if (s->bad || wanted(pool, s, &at) != 0)
        cell_failed(pool, s, "gave an incomplete result", (int)s->bad);
}

static void draw(struct pool *pool)
{
    double spent = now_s() - pool->since_s;
    char bar[BAR_WIDTH + 1];
    size_t full = pool->done * BAR_WIDTH / pool->count;

    if (!pool->jobs->progress || spent < PROGRESS_WAIT_S)
        return;
    for (size_t i = 0; i < BAR_WIDTH; i++)
        bar[i] = i < full ? '#' : '.';
    bar[BAR_WIDTH] = '\0';
    fprintf(stderr, "\r[%s] %zu of %zu runs, %.0f s ", bar, pool->done,
            pool->count, spent);
    fflush(stderr);
    pool->drawn = true;
}

static void kill_all(struct pool *pool)
{
    for (uint32_t i = 0; i < pool->slot_count; i++) {
        struct slot *s = &pool->slots[i];

        if (s->pid == 0)
            continue;
        kill(s->pid, SIGKILL);
        while (waitpid(s->pid, NULL, 0) < 0 && errno == EINTR)
            ;
        close(s->fd);
        s->pid = 0;
    }
}

/* Fill free slots. False: no process can be had and none runs. */
static bool fill(struct pool *pool)
{
    bool any = false;

    for (uint32_t i = 0; i < pool->slot_count; i++) {
        struct slot *s = &pool->slots[i];

        if (s->pid == 0 && pool->next < pool->count && !start(pool, s))
            break;
        any = any || s->pid != 0;
    }
    return any;
}

/* Wait for output of any child, then take what there is. */
static void turn(struct pool *pool)
{
    struct pollfd fds[BT_REPORT_JOBS_MAX];
    struct slot *of[BT_REPORT_JOBS_MAX];
    nfds_t count = 0;

    for (uint32_t i = 0; i < pool->slot_count; i++) {
        struct slot *s = &pool->slots[i];

        if (s->pid == 0)
            continue;
        if (now_s() - s->since_s > pool->limit_s)
            kill(s->pid, SIGKILL);
        of[count] = s;
        fds[count++] = (struct pollfd){.fd = s->fd, .events = POLLIN};
    }
    if (poll(fds, count, POLL_MS) <= 0)
        return;
    for (nfds_t i = 0; i < count; i++) {
        if (fds[i].revents && !read_some(pool, of[i]))
            collect(pool, of[i]);
    }
}

static uint32_t jobs_of(const struct bt_report_jobs *jobs, size_t cells)
{
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    uint32_t n = jobs->jobs ? jobs->jobs : online > 0 ? (uint32_t)online : 1;

    if (n > BT_REPORT_JOBS_MAX)
        n = BT_REPORT_JOBS_MAX;
    return n < cells ? n : (uint32_t)cells;
}

enum bt_status report_pool_run(const struct report_cell *cells, size_t count,
                               const struct bt_report_jobs *jobs,
                               struct bt_report_result *results)
{
    struct pool *pool;
    enum bt_status status = BT_OK;

    if (count == 0)
        return BT_OK;
    pool = calloc(1, sizeof(*pool));
    if (!pool)
        return BT_NO_MEMORY;
    pool->cells = cells;
    pool->jobs = jobs;
    pool->results = results;
    pool->count = count;
    pool->slot_count = jobs_of(jobs, count);
    pool->since_s = now_s();
    pool->limit_s = jobs->cell_limit_ns > 0 ? (double)jobs->cell_limit_ns / 1e9
                                            : CELL_LIMIT_S;
    fflush(NULL); /* a child must not print the parent's buffers */
    while (pool->done < count && status == BT_OK) {
        if (!fill(pool))
            status = BT_IO;
        else
            turn(pool);
        draw(pool);
    }
    if (pool->drawn)
        fprintf(stderr, "\r%*s\r", (int)BAR_WIDTH + 40, "");
    kill_all(pool);
    free(pool);
    return status;
}
