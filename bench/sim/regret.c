/* The truth of a decision: the process is forked for each candidate, the child
 * takes it, runs on without later arrivals and tells when that request had its
 * first token. At most CHILDREN run at once; each is waited for. A child never
 * returns from the simulation: it ends at the token, or when nothing is left.
 *
 * Exact under the world's model, and as expensive as it sounds: a decision
 * costs (candidates x what is left of the requests in flight).
 */
#include "sim_priv.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHILDREN       2u
#define CANDIDATES_MAX 4096u

struct trial {
    pid_t pid;
    int fd;
    uint32_t candidate;
};

/* ---- in the child ---- */

static void tell_parent(struct sim *s, int64_t took_ns)
{
    ssize_t n = write(s->child_pipe, &took_ns, sizeof(took_ns));

    _exit(n == (ssize_t)sizeof(took_ns) ? 0 : 1);
}

void sim_child_sent(struct sim *s, uint32_t request, uint32_t p, uint32_t d)
{
    const struct bt_place_candidate *c = &s->child_pair;
    bool alone = c->p == BT_PLACE_NONE || c->p == c->d;

    if (!s->child_watching)
        return;
    if (p == SIM_NONE ? !alone || d != c->d : alone || p != c->p)
        return;
    s->child_watching = false;
    s->child_request = request;
}

void sim_child_first_token(struct sim *s, uint32_t request)
{
    if (s->child && request == s->child_request)
        tell_parent(s, s->now_ns - s->child_from_ns);
}

void sim_child_finished(struct sim *s, uint32_t request)
{
    if (s->child && request == s->child_request)
        tell_parent(s, SIM_NEVER);
}

void sim_child_ended(struct sim *s)
{
    if (s->child)
        tell_parent(s, SIM_NEVER);
}

static void become_child(struct sim *s, const struct bt_place_candidate *c,
                         int fd)
{
    s->child = s->child_pair_due = s->child_watching = true;
    s->child_pair = *c;
    s->child_request = SIM_NONE;
    s->child_from_ns = s->now_ns;
    s->child_pipe = fd;
    s->arrivals_stopped = true;
    s->journal = NULL;
}

/* ---- in the parent ---- */

static int64_t collect(struct trial *trial)
{
    int64_t took = SIM_NEVER;
    size_t got = 0;
    int status;

    while (got < sizeof(took)) {
        ssize_t n = read(trial->fd, (char *)&took + got, sizeof(took) - got);

        if (n <= 0 && !(n < 0 && errno == EINTR))
            break;
        if (n > 0)
            got += (size_t)n;
    }
    (void)close(trial->fd);
    while (waitpid(trial->pid, &status, 0) < 0 && errno == EINTR)
        ;
    return got == sizeof(took) ? took : SIM_NEVER;
}

/* True in the child. */
static bool launch(struct sim *s, const struct bt_place_candidate *c,
                   struct trial *trial)
{
    int fd[2];

    trial->pid = -1;
    if (pipe(fd) != 0)
        return false;
    trial->pid = fork();
    if (trial->pid == 0) {
        (void)close(fd[0]);
        become_child(s, c, fd[1]);
        return true;
    }
    (void)close(fd[1]);
    trial->fd = fd[0];
    if (trial->pid < 0)
        (void)close(fd[0]);
    return false;
}

struct trials {
    struct trial running[CHILDREN];
    uint32_t head, count;
    int64_t *took; /* by candidate */
};

static void reap(struct trials *t)
{
    struct trial *oldest = &t->running[t->head];

    t->took[oldest->candidate] = collect(oldest);
    t->head = (t->head + 1) % CHILDREN;
    t->count--;
}

/* True in a child. */
static bool try_all(struct sim *s, const struct bt_place_candidate *candidates,
                    uint32_t n, int64_t *took)
{
    struct trials t = {.took = took};

    for (uint32_t i = 0; i < n; i++) {
        struct trial *next;

        took[i] = SIM_NEVER;
        if (t.count == CHILDREN)
            reap(&t);
        next = &t.running[(t.head + t.count) % CHILDREN];
        next->candidate = i;
        if (launch(s, &candidates[i], next))
            return true;
        if (next->pid > 0)
            t.count++;
        else
            sim_fail(s, BT_NO_MEMORY);
    }
    while (t.count > 0)
        reap(&t);
    return false;
}

/* The chosen one first, then the table. */
static uint32_t list(const struct sim *s, const struct bt_place_view *view,
                     const struct bt_placement *placement,
                     struct bt_place_candidate *out)
{
    uint32_t max = s->oracle && s->oracle_width != 0 ? s->oracle_width
                                                     : CANDIDATES_MAX - 1;
    size_t n;

    out[0] = placement->chosen;
    n = bt_place_table(view, &out[1], max);
    return 1 + (uint32_t)(n < max ? n : max);
}

bool sim_truth(struct sim *s, const struct bt_place_view *view,
               const struct bt_placement *placement)
{
    struct bt_place_candidate *all = malloc(CANDIDATES_MAX * sizeof(*all));
    int64_t *took = malloc(CANDIDATES_MAX * sizeof(*took));
    uint32_t n, best = 0;
    bool child = false;

    if (all == NULL || took == NULL) {
        sim_fail(s, BT_NO_MEMORY);
    } else {
        n = list(s, view, placement, all);
        child = try_all(s, all, n, took);
        for (uint32_t i = 1; !child && i < n; i++)
            if (took[i] < took[best])
                best = i;
        if (!child) {
            s->child_pair = all[best];
            if (s->oracle)
                s->regret_ns = 0;
            else if (took[0] != SIM_NEVER)
                s->regret_ns = took[0] - took[best];
        }
    }
    free(all);
    free(took);
    return child || s->oracle;
}
