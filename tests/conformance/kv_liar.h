/* An end that speaks frames by hand, over a transport of its own: what a peer
 * that lies, or does not hold the key, could do to a source or a sink. */
#ifndef BATON_TESTS_CONFORMANCE_KV_LIAR_H
#define BATON_TESTS_CONFORMANCE_KV_LIAR_H

#include "kv_bed.h"

#include "baton/transfer/seal.h"
#include "baton/transfer/wire.h"
#include "transport_open.h"

struct liar_end;
struct liar {
    struct bed *bed;
    struct bt_transport *transport;
    struct bt_tlisten *listener;
    uint16_t port;
    /* as a source: what to say to a frame */
    void (*answer)(struct liar_end *end, const struct bt_wire_frame *frame);
    int accepted, closed;
    uint8_t key[256]; /* of the bed's region, if the test wants one */
    uint16_t key_size;
    struct bt_tmem *mem;
    struct liar_end *ends;
};
/* One connection of it. */
struct liar_end {
    struct liar *liar;
    struct bt_tconn *conn; /* NULL: closed */
    int frames, closed;
    struct bt_wire_frame last; /* that came and decodes */
    struct liar_end *next;
};

/* A transport of the case's kind on rail 0's address. */
void liar_open(struct liar *liar, struct bed *bed, const char *kind);
void liar_close(struct liar *liar);
/* Connect to the bed's source. */
struct liar_end *liar_connect(struct liar *liar);
/* Be a source at liar->port. */
void liar_listen(struct liar *liar);
void liar_send(struct liar_end *end, const struct bt_wire_frame *frame);
void liar_send_raw(struct liar_end *end, const void *bytes, size_t size);
/* A HELLO like the bed's sink's, with a nonce. */
struct bt_wire_frame liar_hello(const struct bed *bed, bool is_keyed);
/* WELCOME like the bed's source's, with the liar's own words. */
struct bt_wire_frame liar_welcome(const struct bed *bed);

#endif
