/* See transfer_options.h. Decides which kinds of fabric there are, how a key
 * file is read and a host name becomes an address; rails are
 * transfer_rails.c's. */
#include "transfer_options.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

bool transfer_fabric_known(const char *kind)
{
    return strcmp(kind, "ucx") == 0 || strcmp(kind, "verbs") == 0 ||
           strcmp(kind, "sim") == 0;
}

/* ---- hosts ---- */

bool transfer_host(const char *command, const char *option, const char *host,
                   char out[TRANSFER_HOST])
{
    const struct addrinfo hints = {.ai_family = AF_UNSPEC,
                                   .ai_socktype = SOCK_STREAM};
    struct addrinfo *found = NULL;
    char numeric[TRANSFER_HOST];
    int error = 0;

    if (strcmp(host, "localhost") == 0) {
        memmove(out, host, sizeof("localhost"));
        return true;
    }
    error = getaddrinfo(host, NULL, &hints, &found);
    if (error == 0)
        error = getnameinfo(found->ai_addr, found->ai_addrlen, numeric,
                            sizeof(numeric), NULL, 0, NI_NUMERICHOST);
    if (found != NULL)
        freeaddrinfo(found);
    if (error != 0) {
        fprintf(stderr, "baton %s: --%s: host '%s': %s\n", command, option,
                host,
                error == EAI_SYSTEM ? strerror(errno) : gai_strerror(error));
        return false;
    }
    memcpy(out, numeric, sizeof(numeric));
    return true;
}

bool transfer_rails_resolve(const char *command, const char *fabric,
                            struct transfer_rails *rails)
{
    char option[64];

    if (fabric != NULL && strcmp(fabric, "sim") == 0)
        return true;
    for (uint32_t i = 0; i < rails->count; i++) {
        struct bt_rail_config *rail = &rails->rails[i];

        if (rail->address == NULL)
            continue;
        snprintf(option, sizeof(option), "%s %s",
                 strcmp(command, "engine") == 0 ? "transfer-rail" : "rail",
                 rail->name);
        if (!transfer_host(command, option, rail->address, rails->hosts[i]))
            return false;
        rail->address = rails->hosts[i];
    }
    return true;
}

/* ---- key ---- */

static int digit(unsigned char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c = (unsigned char)tolower(c);
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static bool from_hex(const unsigned char *text, size_t size,
                     uint8_t key_out[TRANSFER_KEY])
{
    while (size > 0 && isspace(text[size - 1]))
        size--;
    if (size != (size_t)2 * TRANSFER_KEY)
        return false;
    for (size_t i = 0; i < TRANSFER_KEY; i++) {
        int high = digit(text[2 * i]), low = digit(text[2 * i + 1]);

        if (high < 0 || low < 0)
            return false;
        key_out[i] = (uint8_t)(high * 16 + low);
    }
    return true;
}

bool transfer_key_read(const char *command, const char *path,
                       uint8_t key_out[TRANSFER_KEY])
{
    unsigned char text[160];
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, text, sizeof(text)) : -1;

    if (n < 0)
        fprintf(stderr, "baton %s: key file %s: %s\n", command, path,
                strerror(errno));
    if (n >= 0 && fstat(fd, &st) == 0 && (st.st_mode & 077) != 0)
        fprintf(stderr,
                "baton %s: key file %s: others may read it: chmod 600\n",
                command, path);
    if (fd >= 0)
        close(fd);
    if (n < 0)
        return false;
    if (n == TRANSFER_KEY)
        memcpy(key_out, text, TRANSFER_KEY);
    else if (!from_hex(text, (size_t)n, key_out))
        n = -1;
    if (n < 0)
        fprintf(stderr,
                "baton %s: key file %s: not 64 hex digits or 32 bytes\n",
                command, path);
    return n >= 0;
}
