/* Derives and checks the endpoints of ranks. Decides which are acceptable:
 * tcp with a port, or ipc for a single rank (engines refuse it for more);
 * leaves connecting to others. Messages name the number that is wrong.
 */
#include "endpoint.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#define PORT_MAX 65535u

static bool is_ipc(const char *endpoint)
{
    return strncmp(endpoint, "ipc://", 6) == 0;
}

/* host: everything before the colon. */
static bool split(const char *endpoint, size_t *host_out, uint64_t *port_out)
{
    const char *colon = strrchr(endpoint, ':');
    uint64_t port = 0;

    if (strncmp(endpoint, "tcp://", 6) != 0 || colon < endpoint + 7 ||
        colon[1] == '\0' || strlen(colon + 1) > 9)
        return false;
    for (const char *at = colon + 1; *at != '\0'; at++) {
        if (*at < '0' || *at > '9')
            return false;
        port = port * 10 + (uint64_t)(*at - '0');
    }
    *host_out = (size_t)(colon - endpoint);
    *port_out = port;
    return true;
}

enum bt_status endpoint_of_rank(const char *base, uint32_t rank, char *out,
                                size_t size, char *error_out, size_t error_size)
{
    size_t host;
    uint64_t port;
    int length;

    if (is_ipc(base) && base[6] != '\0') {
        if (rank > 0) {
            snprintf(error_out, error_size,
                     "%.64s: rank %" PRIu32 " has no ipc path of its own", base,
                     rank);
            return BT_INVALID;
        }
        length = snprintf(out, size, "%s", base);
        return length < 0 || (size_t)length >= size ? BT_INVALID : BT_OK;
    }
    if (!split(base, &host, &port)) {
        snprintf(error_out, error_size,
                 "%.64s: neither tcp://host:port nor ipc://path", base);
        return BT_INVALID;
    }
    if (port == 0 || port + rank > PORT_MAX) {
        snprintf(error_out, error_size,
                 "%.64s: rank %" PRIu32 " would be at port %" PRIu64
                 ", outside 1..65535",
                 base, rank, port + rank);
        return BT_INVALID;
    }
    length = snprintf(out, size, "%.*s:%" PRIu64, (int)host, base, port + rank);
    if (length < 0 || (size_t)length >= size) {
        snprintf(error_out, error_size, "%.64s: too long", base);
        return BT_INVALID;
    }
    return BT_OK;
}

enum bt_status endpoints_check(const char *events, const char *replay,
                               uint32_t ranks, char *error_out,
                               size_t error_size)
{
    size_t events_host, replay_host;
    uint64_t events_port, replay_port;
    char out[ENDPOINT_MAX];
    const char *each[2] = {events, replay};

    for (int i = 0; i < 2; i++)
        if (each[i] != NULL &&
            endpoint_of_rank(each[i], ranks - 1, out, sizeof(out), error_out,
                             error_size) != BT_OK)
            return BT_INVALID;
    if (events == NULL || replay == NULL ||
        !split(events, &events_host, &events_port) ||
        !split(replay, &replay_host, &replay_port) ||
        events_host != replay_host || strncmp(events, replay, events_host) != 0)
        return BT_OK;
    if (replay_port < events_port + ranks &&
        events_port < replay_port + ranks) {
        uint64_t at = replay_port > events_port ? replay_port : events_port;

        snprintf(error_out, error_size,
                 "%.64s: port %" PRIu64 " would be both events and replay of "
                 "%" PRIu32 " ranks; replay from port %" PRIu64 " on",
                 replay, at, ranks, events_port + ranks);
        return BT_INVALID;
    }
    return BT_OK;
}
