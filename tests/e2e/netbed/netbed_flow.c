/* A TCP flow for measuring a bed's links: `serve` counts what arrives in a
 * window of time, `send` pushes. Single purpose: no protocol, one connection
 * per run; the receiver's count is the figure, as the sender's includes what
 * its own buffers hold.
 *
 *   netbed_flow serve ADDRESS PORT SECONDS   prints Mbit/s of the payload, from
 *                                            0.4 s after the first byte
 *   netbed_flow send FROM ADDRESS PORT       until the other end closes
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define WARM_S    0.4 /* the bucket's first burst is not counted */
#define SILENCE_S 15  /* nobody comes, or nothing arrives */

static char bytes[256 * 1024];

static double now_s(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static bool address_of(const char *text, const char *port,
                       struct sockaddr_in *out)
{
    char *end = NULL;
    unsigned long number = strtoul(port, &end, 10);

    *out = (struct sockaddr_in){.sin_family = AF_INET,
                                .sin_port = htons((uint16_t)number)};
    return *port != 0 && *end == 0 && number <= UINT16_MAX &&
           inet_pton(AF_INET, text, &out->sin_addr) == 1;
}

static int complain(const char *what)
{
    fprintf(stderr, "netbed_flow: %s: %s\n", what, strerror(errno));
    return 1;
}

static bool readable(int fd)
{
    struct pollfd wait = {.fd = fd, .events = POLLIN};

    return poll(&wait, 1, SILENCE_S * 1000) == 1;
}

static int count(int fd, double seconds)
{
    double begin = 0, now;
    uint64_t counted = 0;

    for (;;) {
        ssize_t n = readable(fd) ? read(fd, bytes, sizeof(bytes)) : -1;

        if (n < 0)
            return complain("nothing arrives");
        now = now_s();
        if (begin == 0)
            begin = now;
        if (now - begin >= WARM_S)
            counted += (uint64_t)n;
        if (n == 0 || now - begin >= WARM_S + seconds)
            break;
    }
    if (now - begin < WARM_S + seconds)
        return complain("the sender left");
    printf("%.1f\n", (double)counted * 8 / (now - begin - WARM_S) / 1e6);
    return 0;
}

static int serve(const struct sockaddr_in *address, double seconds)
{
    int one = 1, fd = socket(AF_INET, SOCK_STREAM, 0), peer;

    if (fd < 0 ||
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) != 0 ||
        bind(fd, (const struct sockaddr *)address, sizeof(*address)) != 0 ||
        listen(fd, 1) != 0)
        return complain("listen");
    if (!readable(fd))
        return complain("nobody connects");
    peer = accept(fd, NULL, NULL);
    close(fd);
    return peer < 0 ? complain("accept") : count(peer, seconds);
}

static int send_all(const struct sockaddr_in *from,
                    const struct sockaddr_in *to)
{
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    ssize_t n;

    signal(SIGPIPE, SIG_IGN);
    if (fd < 0 || bind(fd, (const struct sockaddr *)from, sizeof(*from)) != 0 ||
        connect(fd, (const struct sockaddr *)to, sizeof(*to)) != 0)
        return complain("connect");
    do {
        n = write(fd, bytes, sizeof(bytes));
    } while (n > 0 || (n < 0 && errno == EINTR));
    return 0;
}

int main(int argc, char **argv)
{
    struct sockaddr_in one, other;

    if (argc == 5 && strcmp(argv[1], "serve") == 0 &&
        address_of(argv[2], argv[3], &one))
        return serve(&one, strtod(argv[4], NULL));
    if (argc == 5 && strcmp(argv[1], "send") == 0 &&
        address_of(argv[2], "0", &one) && address_of(argv[3], argv[4], &other))
        return send_all(&one, &other);
    fprintf(stderr, "netbed_flow serve ADDRESS PORT SECONDS | "
                    "send FROM ADDRESS PORT\n");
    return 2;
}
