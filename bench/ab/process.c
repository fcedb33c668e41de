/* Child processes: fork, exec, first line of stdout, last lines of stderr.
 * Decides nothing about what runs. Invariants: a child has its own default
 * signal set-up and dies with this thread (PR_SET_PDEATHSIG); its death shows
 * as the end of its stdout. Only pids from fork() are ever signalled. */
#include "baton/bench/process.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define TAIL_BYTES 700

static void on_output(struct ev_loop *loop, struct ev_io *watcher, int events)
{
    struct bt_process *p = watcher->data;
    char bytes[1024];
    ssize_t count = read(p->out, bytes, sizeof(bytes));

    (void)events;
    if (count < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (count <= 0) {
        p->eof = true;
        ev_io_stop(loop, watcher);
        return;
    }
    for (ssize_t i = 0; i < count && !p->have_line; i++) {
        if (bytes[i] == '\n')
            p->have_line = true;
        else if (p->used + 1 < sizeof(p->line))
            p->line[p->used++] = bytes[i];
    }
    p->line[p->used] = '\0';
}

/* In the child: never returns. Only async-signal-safe calls. */
static void run_child(int out, int log, pid_t parent, char *const argv[])
{
    int null = open("/dev/null", O_RDONLY);
    sigset_t none;

    /* An end asked for now must not run the parent's handler in here. */
    signal(SIGINT, SIG_DFL);
    signal(SIGTERM, SIG_DFL);
    signal(SIGHUP, SIG_DFL);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(127);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    signal(SIGPIPE, SIG_DFL);
    setpgid(0, 0); /* Ctrl-C reaches the parent only: it ends its children */
    if (null >= 0)
        dup2(null, STDIN_FILENO);
    dup2(out, STDOUT_FILENO);
    if (log >= 0)
        dup2(log, STDERR_FILENO);
    execv(argv[0], argv);
    _exit(127);
}

enum bt_status bt_process_spawn(struct bt_process *p, struct ev_loop *loop,
                                const char *name, const char *log,
                                char *const argv[])
{
    pid_t parent = getpid();
    sigset_t all, before;
    int ends[2], file = -1;

    memset(p, 0, sizeof(*p));
    p->loop = loop;
    p->out = -1;
    snprintf(p->name, sizeof(p->name), "%s", name);
    snprintf(p->log, sizeof(p->log), "%s", log);
    if (pipe2(ends, O_CLOEXEC) != 0)
        return BT_IO;
    if (log[0]) {
        file = open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
        if (file < 0)
            goto undo_pipe;
    }
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, &before);
    p->pid = fork();
    if (p->pid != 0)
        sigprocmask(SIG_SETMASK, &before, NULL);
    if (p->pid < 0)
        goto undo_file;
    if (p->pid == 0)
        run_child(ends[1], file, parent, argv);
    if (file >= 0)
        close(file);
    close(ends[1]);
    p->out = ends[0];
    fcntl(p->out, F_SETFL, O_NONBLOCK);
    ev_io_init(&p->watcher, on_output, p->out, EV_READ);
    p->watcher.data = p;
    ev_io_start(loop, &p->watcher);
    return BT_OK;

undo_file:
    p->pid = 0;
    if (file >= 0)
        close(file);
undo_pipe:
    close(ends[0]);
    close(ends[1]);
    return BT_IO;
}

bool bt_process_is_gone(struct bt_process *p)
{
    int status = 0;
    pid_t got;

    if (p->pid <= 0)
        return true;
    got = waitpid(p->pid, &status, WNOHANG);
    if (got == 0 || (got < 0 && errno != ECHILD))
        return false;
    p->exit_status = status; /* 0 if somebody else has collected it */
    p->pid = 0;
    return true;
}

void bt_process_signal(struct bt_process *p, int signal_number)
{
    if (!bt_process_is_gone(p))
        kill(p->pid, signal_number);
}

void bt_process_close(struct bt_process *p)
{
    if (p->out < 0 || !p->loop)
        return;
    ev_io_stop(p->loop, &p->watcher);
    close(p->out);
    p->out = -1;
}

void bt_process_kill(struct bt_process *p)
{
    int status;

    if (!bt_process_is_gone(p)) {
        kill(p->pid, SIGKILL);
        if (waitpid(p->pid, &status, 0) == p->pid)
            p->exit_status = status;
        p->pid = 0;
    }
    bt_process_close(p);
}

/* Last bytes of its log, from the start of a line. */
static void read_tail(const char *path, char *out, size_t size)
{
    FILE *file = path[0] ? fopen(path, "re") : NULL;
    char *line;
    size_t got;
    long end;

    out[0] = '\0';
    if (!file)
        return;
    if (fseek(file, 0, SEEK_END) == 0 && (end = ftell(file)) > 0 &&
        fseek(file, end > TAIL_BYTES ? end - TAIL_BYTES : 0, SEEK_SET) == 0) {
        got = fread(out, 1, size - 1, file);
        out[got] = '\0';
        line = end > TAIL_BYTES ? strchr(out, '\n') : NULL;
        if (line)
            memmove(out, line + 1, strlen(line + 1) + 1);
    }
    fclose(file);
}

void bt_process_describe(struct bt_process *p, char *out, size_t size)
{
    char tail[TAIL_BYTES + 1], how[64];

    if (!bt_process_is_gone(p))
        snprintf(how, sizeof(how), "still runs");
    else if (WIFSIGNALED(p->exit_status))
        snprintf(how, sizeof(how), "was ended by signal %d",
                 WTERMSIG(p->exit_status));
    else
        snprintf(how, sizeof(how), "ended with status %d",
                 WEXITSTATUS(p->exit_status));
    read_tail(p->log, tail, sizeof(tail));
    snprintf(out, size, "%s %s%s%s", p->name, how,
             tail[0] ? "; its last words:\n" : "", tail);
}
