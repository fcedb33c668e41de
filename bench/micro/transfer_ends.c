/* The two processes of `baton bench transfer`: the second runs this program
 * again, told by BT_MICRO_TRANSFER_PEER what to be. */
#include "transfer_parts.h"
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define CONTROL_FD 100
#define JOB_MAX    256

void transfer_cpus_find(struct transfer_cpus *out)
{
    cpu_set_t set;
    int found = 0;

    *out = (struct transfer_cpus){{0, 0}};
    if (sched_getaffinity(0, sizeof(set), &set) != 0)
        return;
    for (int cpu = 0; cpu < CPU_SETSIZE && found < 2; cpu++) {
        if (CPU_ISSET(cpu, &set))
            out->cpu[found++] = cpu;
    }
    if (found == 1)
        out->cpu[1] = out->cpu[0];
}

void transfer_pin(int cpu)
{
    cpu_set_t set;

    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    (void)sched_setaffinity(0, sizeof(set), &set);
}

enum bt_status bt_micro_transfer_peer(const char *job)
{
    struct bt_rail_config rail = {.transports = job};

    return bt_pair_serve(&rail, TRANSFER_REGION, CONTROL_FD);
}

static bool start(const char *transports, int fd, pid_t *child_out)
{
    char *argv[] = {(char[]){"baton"}, (char[]){"bench"}, (char[]){"transfer"},
                    NULL};
    posix_spawn_file_actions_t actions;
    bool started;

    if (setenv(BT_MICRO_TRANSFER_PEER, transports, 1) != 0)
        return false;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, fd, CONTROL_FD);
    started = posix_spawn(child_out, "/proc/self/exe", &actions, NULL, argv,
                          environ) == 0;
    posix_spawn_file_actions_destroy(&actions);
    (void)unsetenv(BT_MICRO_TRANSFER_PEER);
    return started;
}

enum bt_status transfer_ends_open(const char *transports,
                                  const struct transfer_cpus *cpus,
                                  struct transfer_ends *out, char *error_out,
                                  size_t error_size)
{
    struct bt_rail_config rail = {.transports = transports};
    enum bt_status status = BT_IO;
    uint16_t port;
    int fds[2];

    *out = (struct transfer_ends){.control = -1};
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) != 0) {
        snprintf(error_out, error_size, "no socket pair");
        return BT_IO;
    }
    out->control = fds[0];
    transfer_pin(cpus->cpu[0]);
    if (!start(transports, fds[1], &out->child))
        snprintf(error_out, error_size, "no second process");
    else
        status = BT_OK;
    close(fds[1]);
    transfer_pin(cpus->cpu[1]);
    if (status == BT_OK &&
        read(out->control, &port, sizeof(port)) != (ssize_t)sizeof(port)) {
        snprintf(error_out, error_size, "the second process did not start");
        status = BT_IO;
    }
    if (status == BT_OK)
        status = bt_pair_open(&rail, port, TRANSFER_REGION, &out->pair,
                              error_out, error_size);
    if (status != BT_OK)
        transfer_ends_close(out);
    return status;
}

void transfer_ends_close(struct transfer_ends *ends)
{
    if (ends->pair != NULL)
        bt_pair_close(ends->pair);
    if (ends->control >= 0)
        close(ends->control);
    if (ends->child > 0)
        (void)waitpid(ends->child, NULL, 0);
    *ends = (struct transfer_ends){.control = -1};
}
