/* Two verbs transports on one loop: `server` on the first soft-RoCE port,
 * `client` on the second, for tests that need to see inside. */
#ifndef BATON_TEST_VERBS_BED_H
#define BATON_TEST_VERBS_BED_H

#include "fabric_verbs.h"

#include <ev.h>
#include <stdbool.h>
#include <stddef.h>

#define END_FRAMES_MAX 4096

/* One end of a connection and what it has heard. */
struct end {
    struct bt_tconn *conn;
    int frames, failed, closed;
    enum bt_status why;
    size_t bytes; /* in all frames */
    uint64_t sum; /* over all frames in order */
    size_t last_size;
    bool echo; /* send each frame back */
    bool close_on_fail;
};
struct bed {
    struct ev_loop *loop;
    struct bt_transport *server, *client;
    struct bt_tlisten *listener;
    uint16_t port;
    struct end at_server, at_client;
    bool do_allow; /* the server allows at once */
};
/* A get or put with its pieces and what became of it. */
struct move {
    struct bt_tget get;
    struct bt_tspan span;
    int done;
    enum bt_status status;
};

const char *bed_server_address(void);
const char *bed_client_address(void);
/* True (and says so) where there is no RDMA device. */
bool bed_absent(void);
struct bt_transport *bed_transport(struct ev_loop *loop, const char *address);
void bed_open(struct bed *bed, bool do_allow);
/* Both ends are up and know each other. */
void bed_connect(struct bed *bed);
void bed_join(struct bed *bed); /* open, then connect */
void bed_close(struct bed *bed);
/* Run the loop until *counter >= value; fails the test after 30 s. */
void bed_until(struct bed *bed, const int *counter, int value);
/* Address and port of the server. */
socklen_t bed_where(const struct bed *bed, struct sockaddr_storage *out);
void bed_fill(unsigned char *bytes, size_t size, uint64_t seed);
uint64_t bed_mix(uint64_t sum, const unsigned char *bytes, size_t size);
void bed_move(struct bed *bed, struct move *move, bool is_put);
/* A key of server memory opened at the client. */
struct bt_tkey *bed_key(struct bed *bed, struct bt_tmem *mem);
extern const struct bt_tconn_events bed_events;

#endif
