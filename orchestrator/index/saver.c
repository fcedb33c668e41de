/* Saves a snapshot from a forked child, so that the loop stands still for the
 * fork only: the child has the index as it was and writes it at leisure. It
 * uses nothing but memory and files (other threads' locks may be held in it),
 * drops every inherited descriptor, so that it keeps no port open, and ends
 * with its parent. The result comes through a pipe.
 */
#include "snapshot_form.h"

#include "baton/base/units.h"
#include <errno.h>
#include <ev.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* What the child says before it ends. */
struct result {
    enum bt_status status;
    struct bt_snapshot_size size;
};

struct bt_snapshot_saver {
    struct ev_loop *loop;
    ev_io io;
    pid_t pid;
    int fd;
    int64_t pause_ns;
    bt_snapshot_done_fn done;
    void *arg;
    char *path; /* owned */
    struct result result;
    size_t used; /* of result, received */
};

static int64_t now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * BT_NS_PER_S + now.tv_nsec;
}

/* ---- child ---- */

/* All descriptors but stderr and two. */
static void drop_files(int keep, int also)
{
    unsigned int low = (unsigned int)(keep < also ? keep : also);
    unsigned int high = (unsigned int)(keep < also ? also : keep);

    close(STDIN_FILENO);
    close(STDOUT_FILENO);
    if (low > 3)
        (void)close_range(3, low - 1, 0);
    if (high > low + 1)
        (void)close_range(low + 1, high - 1, 0);
    (void)close_range(high + 1, ~0u, 0);
}

static _Noreturn void child(const struct bt_snapshot_job *job,
                            struct bt_snapshot_writer *writer, int fd,
                            pid_t parent)
{
    struct result result;

    signal(SIGTERM, SIG_DFL);
    signal(SIGINT, SIG_DFL);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(1);
    drop_files(fd, snapshot_fd(writer));
    memset(&result, 0, sizeof(result));
    job->fill(job->arg, writer);
    result.status = bt_snapshot_commit(writer, &result.size);
    _exit(write(fd, &result, sizeof(result)) == (ssize_t)sizeof(result) ? 0
                                                                        : 1);
}

/* ---- parent ---- */

static void collect(struct bt_snapshot_saver *s)
{
    /* A default loop may have collected it already. */
    while (s->pid > 0 && waitpid(s->pid, NULL, 0) < 0 && errno == EINTR)
        continue;
    s->pid = 0;
}

/* Somebody else ended it. */
static void killed(struct bt_snapshot_saver *s)
{
    s->result = (struct result){.status = BT_IO, .size.error = EINTR};
    snapshot_temporary(s->path);
}

static void on_result(struct ev_loop *loop, ev_io *io, int events)
{
    struct bt_snapshot_saver *s = io->data;
    char *at = (char *)&s->result + s->used;
    ssize_t n = read(s->fd, at, sizeof(s->result) - s->used);

    (void)events;
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n > 0)
        s->used += (size_t)n;
    if (n > 0 && s->used < sizeof(s->result))
        return;
    ev_io_stop(loop, &s->io);
    collect(s);
    if (s->used < sizeof(s->result))
        killed(s);
    s->done(s->arg, s->result.status, &s->result.size, s->pause_ns);
}

static enum bt_status start(struct bt_snapshot_saver *s,
                            const struct bt_snapshot_job *job, char *error,
                            size_t error_size)
{
    struct bt_snapshot_writer *writer = NULL;
    enum bt_status status =
        bt_snapshot_open(job->path, &writer, error, error_size);
    int64_t began;
    pid_t parent = getpid();
    int fds[2];

    if (status != BT_OK)
        return status;
    if (pipe2(fds, O_CLOEXEC | O_NONBLOCK) != 0)
        goto undo_writer;
    began = now_ns();
    s->pid = fork();
    if (s->pid == 0)
        child(job, writer, fds[1], parent);
    s->pause_ns = now_ns() - began;
    close(fds[1]);
    s->fd = fds[0];
    if (s->pid < 0)
        goto undo_pipe;
    snapshot_forget(writer);
    return BT_OK;
undo_pipe:
    close(fds[0]);
undo_writer:
    snprintf(error, error_size, "no child process: %s", strerror(errno));
    snapshot_unlink(writer);
    snapshot_forget(writer);
    return BT_IO;
}

enum bt_status bt_snapshot_save(struct ev_loop *loop,
                                const struct bt_snapshot_job *job,
                                struct bt_snapshot_saver **out, char *error_out,
                                size_t error_size)
{
    struct bt_snapshot_saver *s = calloc(1, sizeof(*s));
    enum bt_status status;

    if (s == NULL) {
        snprintf(error_out, error_size, "out of memory");
        return BT_NO_MEMORY;
    }
    s->loop = loop;
    s->done = job->done;
    s->arg = job->arg;
    s->path = strdup(job->path);
    snprintf(error_out, error_size, "out of memory");
    status =
        s->path == NULL ? BT_NO_MEMORY : start(s, job, error_out, error_size);
    if (status != BT_OK) {
        free(s->path);
        free(s);
        return status;
    }
    ev_io_init(&s->io, on_result, s->fd, EV_READ);
    s->io.data = s;
    ev_io_start(loop, &s->io);
    *out = s;
    return BT_OK;
}

void bt_snapshot_saver_stop(struct bt_snapshot_saver *s)
{
    ev_io_stop(s->loop, &s->io);
    /* Only while the number is its own: somebody may have collected it. */
    if (s->pid > 0 && waitpid(s->pid, NULL, WNOHANG) == 0) {
        kill(s->pid, SIGKILL);
        collect(s);
        snapshot_temporary(s->path);
    }
    close(s->fd);
    free(s->path);
    free(s);
}
