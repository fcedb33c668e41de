/* ucx_perftest beside us: server on the sending CPU, client on the receiving
 * one; its "Final:" line. It allocates its memory itself, uses one buffer over
 * and over, and polls; nothing is set but UCX_TLS. */
#include "transfer_parts.h"
#include <arpa/inet.h>
#include <fcntl.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PROGRAM  "ucx_perftest"
#define TRIES    40 /* until the server listens */
#define NAP_NS   50000000L
#define OUTPUT   8192
#define MIB      1048576.0
#define WARM_UPS "20"
#define OVERALL  6 /* of the words behind "Final:" */

static uint16_t free_port(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t size = sizeof(address);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    uint16_t port = 0;

    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (fd >= 0 &&
        bind(fd, (const struct sockaddr *)&address, sizeof(address)) == 0 &&
        getsockname(fd, (struct sockaddr *)&address, &size) == 0)
        port = ntohs(address.sin_port);
    if (fd >= 0)
        close(fd);
    return port;
}

/* Standard output to fd, or nowhere. */
static bool start(char *const argv[], int fd, pid_t *child_out)
{
    posix_spawn_file_actions_t actions;
    bool started;

    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 2, "/dev/null", O_WRONLY, 0);
    if (fd >= 0)
        posix_spawn_file_actions_adddup2(&actions, fd, 1);
    else
        posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0);
    started =
        posix_spawnp(child_out, argv[0], &actions, NULL, argv, environ) == 0;
    posix_spawn_file_actions_destroy(&actions);
    return started;
}

/* "Final:  N  typical average overall  average overall  ..." */
static double figure(const char *text)
{
    const char *at = strstr(text, "Final:");
    double value = 0;

    if (at == NULL)
        return 0;
    at += strlen("Final:");
    for (int i = 0; i < OVERALL; i++) {
        char *end;

        value = strtod(at, &end);
        if (end == at)
            return 0;
        at = end;
    }
    return value * MIB;
}

/* The client's figure, 0: none (the server may not listen yet). */
static double run_client(char *const argv[])
{
    char text[OUTPUT] = "";
    size_t used = 0;
    pid_t child;
    ssize_t n;
    int fds[2];

    if (pipe2(fds, O_CLOEXEC) != 0)
        return 0;
    if (!start(argv, fds[1], &child)) {
        close(fds[0]);
        close(fds[1]);
        return 0;
    }
    close(fds[1]);
    while (used < sizeof(text) - 1 &&
           (n = read(fds[0], text + used, sizeof(text) - 1 - used)) > 0)
        used += (size_t)n;
    close(fds[0]);
    (void)waitpid(child, NULL, 0);
    return figure(text);
}

enum bt_status transfer_perftest(const char *test, const char *transports,
                                 const struct transfer_cpus *cpus,
                                 uint64_t size, uint64_t bytes,
                                 double *bytes_per_s_out)
{
    char port[16], bytes_each[32], count[32];
    char *server[] = {(char[]){PROGRAM}, (char[]){"-p"}, port, NULL};
    char *client[] = {(char[]){PROGRAM},
                      (char[]){"-p"},
                      port,
                      (char[]){"127.0.0.1"},
                      (char[]){"-t"},
                      (char *)(uintptr_t)test,
                      (char[]){"-s"},
                      bytes_each,
                      (char[]){"-n"},
                      count,
                      (char[]){"-w"},
                      (char[]){WARM_UPS},
                      NULL};
    const struct timespec nap = {.tv_nsec = NAP_NS};
    double got = 0;
    pid_t child;

    snprintf(port, sizeof(port), "%u", free_port());
    snprintf(bytes_each, sizeof(bytes_each), "%" PRIu64, size);
    snprintf(count, sizeof(count), "%" PRIu64, bytes / size);
    if (setenv("UCX_TLS", transports, 1) != 0)
        return BT_NO_MEMORY;
    transfer_pin(cpus->cpu[0]);
    if (!start(server, -1, &child)) {
        (void)unsetenv("UCX_TLS");
        return BT_NOT_FOUND;
    }
    transfer_pin(cpus->cpu[1]);
    for (int i = 0; i < TRIES && got <= 0; i++) {
        nanosleep(&nap, NULL);
        got = run_client(client);
    }
    if (got <= 0)
        (void)kill(child, SIGKILL);
    (void)waitpid(child, NULL, 0);
    (void)unsetenv("UCX_TLS");
    if (got <= 0)
        return BT_IO;
    *bytes_per_s_out = got;
    return BT_OK;
}
