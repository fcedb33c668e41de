/* What the decorators trace and fault share: a transport around another one,
 * with connections, listeners and gets of its own so that upcalls pass through
 * it too. Everything is on the inner transport's loop and thread.
 *
 * Memory and keys are the inner transport's own and pass through. */
#ifndef BATON_TRANSFER_FABRIC_WRAP_H
#define BATON_TRANSFER_FABRIC_WRAP_H

#include "transport_open.h"

struct wrap_conn {
    struct bt_tconn base;
    struct wrap *wrap;
    struct bt_tconn *inner;
    LIST_ENTRY(wrap_conn) entry;
    uint32_t id; /* from 1 */
    bool is_closing;
};

struct wrap_get {
    struct bt_tget get; /* the inner transport's */
    struct bt_tspan span;
    struct bt_tget *outer;
    struct wrap_conn *conn;
    bool is_put;
    LIST_ENTRY(wrap_get) entry;
};

/* Upcalls of the inner transport; each passes it on (bt_wrap_*) or not. */
struct wrap_hooks {
    size_t conn_size, get_size; /* of what starts with the structs above */
    void (*accepted)(struct wrap_conn *conn); /* NULL: nothing */
    void (*frame)(struct wrap_conn *conn, const void *bytes, size_t size);
    void (*failed)(struct wrap_conn *conn, enum bt_status status);
    void (*closed)(struct wrap_conn *conn);
    void (*done)(struct wrap_get *get, enum bt_status status);
};

struct wrap {
    struct bt_transport base;
    struct bt_transport_ops ops;
    struct bt_transport *inner;
    const struct wrap_hooks *hooks;
    uint32_t last_id;
    LIST_HEAD(, wrap_conn) conns;
    LIST_HEAD(, wrap_get) gets;
    LIST_HEAD(, bt_tlisten) listeners;
};

/* Fills base and ops with calls that only pass on; the decorator then puts its
 * own in. get (and put, if the inner one has it) must be set. */
void bt_wrap_init(struct wrap *wrap, struct bt_transport *inner,
                  const struct wrap_hooks *hooks);
/* Destroys the inner transport, frees all but the wrap itself. */
void bt_wrap_fini(struct wrap *wrap);

/* ---- calls ---- */
enum bt_status bt_wrap_map(struct bt_transport *transport, void *address,
                           size_t bytes, struct bt_tmem **out);
void bt_wrap_why(const struct bt_transport *transport, char *out, size_t size);
void bt_wrap_unmap(struct bt_transport *transport, struct bt_tmem *mem);
enum bt_status bt_wrap_key_pack(struct bt_transport *transport,
                                struct bt_tmem *mem, uint8_t *out, size_t size,
                                uint16_t *used_out);
enum bt_status bt_wrap_key_open(struct bt_tconn *base, const uint8_t *bytes,
                                size_t size, struct bt_tkey **out);
enum bt_status bt_wrap_listen(struct bt_transport *transport,
                              const struct sockaddr *address, socklen_t size,
                              bt_taccept_fn accept, void *arg,
                              uint16_t *port_out, struct bt_tlisten **out);
void bt_wrap_unlisten(struct bt_tlisten *listener);
enum bt_status bt_wrap_connect(struct bt_transport *transport,
                               const struct sockaddr *address, socklen_t size,
                               struct bt_tconn **out);
void bt_wrap_allow(struct bt_tconn *base);
void bt_wrap_close(struct bt_tconn *base);
void bt_wrap_send(struct bt_tconn *base, const void *bytes, size_t size);
bool bt_wrap_sent(const struct bt_tconn *base);
void bt_wrap_describe(const struct bt_tconn *base, char *out, size_t size);
bool bt_wrap_turn(struct bt_transport *transport);
/* Make the record of a get or put. NULL: no memory, hand it to the inner
 * transport as it is (bt_wrap_plain). */
struct wrap_get *bt_wrap_get_new(struct bt_tconn *base,
                                 const struct bt_tspan *span,
                                 struct bt_tget *outer, bool is_put);
void bt_wrap_start(struct wrap_get *get);
void bt_wrap_plain(struct bt_tconn *base, const struct bt_tspan *span,
                   struct bt_tget *get, bool is_put);

/* ---- upcalls ---- */
void bt_wrap_frame(struct wrap_conn *conn, const void *bytes, size_t size);
void bt_wrap_failed(struct wrap_conn *conn, enum bt_status status);
/* Frees conn. */
void bt_wrap_closed(struct wrap_conn *conn);
/* Frees get. */
void bt_wrap_done(struct wrap_get *get, enum bt_status status);

#endif
