/* The listening socket: bound here and not by libmicrohttpd, so that a taken
 * port is told apart from other faults, the backlog is ours and the port
 * picked for 0 can be read back. TCP_NODELAY and the send buffer are set on
 * the listener: Linux hands both on to accepted sockets.
 */
#include "httpd_internal.h"
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define BACKLOG           4096
#define SEND_BUFFER_BYTES (256 * 1024)

union address {
    struct sockaddr any;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
};

static socklen_t address_parse(const char *text, uint16_t port,
                               union address *out)
{
    memset(out, 0, sizeof(*out));
    if (inet_pton(AF_INET, text, &out->v4.sin_addr) == 1) {
        out->v4.sin_family = AF_INET;
        out->v4.sin_port = htons(port);
        return sizeof(out->v4);
    }
    if (inet_pton(AF_INET6, text, &out->v6.sin6_addr) == 1) {
        out->v6.sin6_family = AF_INET6;
        out->v6.sin6_port = htons(port);
        return sizeof(out->v6);
    }
    return 0;
}

static uint16_t socket_port(int fd)
{
    union address bound = {0};
    socklen_t length = sizeof(bound);
    if (getsockname(fd, &bound.any, &length) != 0)
        return 0;
    return ntohs(bound.any.sa_family == AF_INET6 ? bound.v6.sin6_port
                                                 : bound.v4.sin_port);
}

static bool socket_open(int fd, const union address *to, socklen_t length)
{
    int on = 1;
    int send_bytes = SEND_BUFFER_BYTES;
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    (void)setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &send_bytes,
                     sizeof(send_bytes));
    return bind(fd, &to->any, length) == 0 && listen(fd, BACKLOG) == 0;
}

enum bt_status httpd_listen(const char *address, uint16_t port, int *fd_out,
                            uint16_t *port_out, char *error_out,
                            size_t error_size)
{
    union address to;
    socklen_t length = address_parse(address, port, &to);
    if (length == 0) {
        snprintf(error_out, error_size,
                 "\"%.64s\" is not a numeric IPv4 or IPv6 address", address);
        return BT_INVALID;
    }
    int fd = socket(to.any.sa_family,
                    SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_TCP);
    if (fd < 0) {
        snprintf(error_out, error_size, "socket: %s", strerror(errno));
        return BT_IO;
    }
    if (!socket_open(fd, &to, length)) {
        int error = errno;
        bool v6 = to.any.sa_family == AF_INET6;
        close(fd);
        snprintf(error_out, error_size, "cannot listen on %s%.64s%s:%u: %s",
                 v6 ? "[" : "", address, v6 ? "]" : "", port,
                 error == EADDRINUSE ? "the port is taken" : strerror(error));
        return error == EADDRINUSE      ? BT_EXISTS
               : error == EADDRNOTAVAIL ? BT_INVALID
                                        : BT_IO;
    }
    *fd_out = fd;
    *port_out = socket_port(fd);
    return BT_OK;
}
