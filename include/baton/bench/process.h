/* A child process of a benchmark: fork, exec, the first line of its standard
 * output, the last ones of its standard error. Children die with the parent
 * thread. Part of bt_ab.
 *
 * The loop should not be libev's default loop: that one collects every child by
 * itself and the exit status would be lost. */
#ifndef BATON_BENCH_PROCESS_H
#define BATON_BENCH_PROCESS_H

#include "baton/base/status.h"
#include <ev.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#define BT_PROCESS_ARGS_MAX 96
#define BT_PROCESS_LINE_MAX 4096

struct bt_process {
    struct ev_loop *loop;
    char name[32];
    char log[512];   /* file of its stderr, "" = inherited */
    pid_t pid;       /* 0 = not running */
    int exit_status; /* of wait, once collected */
    int out;         /* read end of its stdout, -1 closed */
    struct ev_io watcher;
    char line[BT_PROCESS_LINE_MAX]; /* first line of stdout, terminated */
    size_t used;
    bool have_line, eof;
};

/* Fork and exec argv[0]; stderr goes to log (appended) unless it is "". The
 * child gets SIGKILL when this thread ends. BT_IO. */
enum bt_status bt_process_spawn(struct bt_process *p, struct ev_loop *loop,
                                const char *name, const char *log,
                                char *const argv[]);
/* Collect it if it has ended; true when it is gone. */
bool bt_process_is_gone(struct bt_process *p);
void bt_process_signal(struct bt_process *p, int signal);
/* SIGKILL, collect, close. No-op when not running. */
void bt_process_kill(struct bt_process *p);
void bt_process_close(struct bt_process *p);
/* "p0 ended with status 3; its last words:\n..." */
void bt_process_describe(struct bt_process *p, char *out, size_t size);

#endif
