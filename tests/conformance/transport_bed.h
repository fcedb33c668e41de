/* Test bed for the port transport.h: two transports of one kind on one loop,
 * both listening, regions with known bytes, and connections whose upcalls are
 * held against the rules at the top of transport.h whatever a test is about:
 * none from inside a call, `failed` once at most, nothing after `closed`, each
 * get done once and before `closed`. An end closes its connection as soon as it
 * fails, as transport.h asks for. */
#ifndef BATON_TESTS_CONFORMANCE_TRANSPORT_BED_H
#define BATON_TESTS_CONFORMANCE_TRANSPORT_BED_H

#include "transport_open.h"

#include <ev.h>

#define TBED_REGION     (12u << 20)
#define TBED_PIECES_MAX 256u
#define TBED_SIDES      2

struct tbed_kind {
    const char *name;
    bt_topen_fn open;
    int64_t sim_latency_ns;
    uint64_t sim_rate;
};
/* Ended by a NULL name. */
extern const struct tbed_kind tbed_kinds[], tbed_verbs_kinds[];
/* What to run: tbed_kinds; with BATON_FABRIC=verbs tbed_verbs_kinds, with
 * UCX_TLS=rc... UCX over RDMA. */
const struct tbed_kind *tbed_choose(void);

struct tend;
typedef void (*tend_frame_fn)(struct tend *end, const unsigned char *bytes,
                              size_t size);

/* One end of a connection. */
struct tend {
    struct tbed *bed;
    struct bt_transport *transport;
    struct bt_tconn *conn;
    int failed, closed, frames;
    enum bt_status why;
    bool is_closing;
    size_t last_size;
    int gets_out;
    tend_frame_fn on_frame;
    void *arg;
    struct tend *next_accepted;
};

struct tside {
    struct tbed *bed;
    struct bt_transport *transport;
    struct bt_tlisten *listener;
    uint16_t port;
    unsigned char *region, *target; /* TBED_REGION each, mapped */
    struct bt_tmem *region_mem, *target_mem;
    uint8_t key[256], target_key[256];
    uint16_t key_size, target_key_size;
    struct tend *accepted_first, **accepted_last;
    int accepted;
    bool allows;  /* as soon as accepted; default true */
    bool refuses; /* accept leaves events unset */
    tend_frame_fn on_frame;
};

struct tbed {
    const struct tbed_kind *kind;
    struct ev_loop *loop;
    ev_timer beat;
    const char *address;
    int in_call;
    struct tside side[TBED_SIDES];
};

/* A get or put as a test sees it. */
struct top {
    struct bt_tget get;
    struct tend *end;
    int done;
    enum bt_status status;
    struct bt_tpiece pieces[TBED_PIECES_MAX];
    uint32_t count;
    void (*on_done)(struct top *op);
};

void tbed_open(struct tbed *bed, const struct tbed_kind *kind);
void tbed_close(struct tbed *bed);
/* Listen on a port, 0 picks; sets listener and port if it worked. */
enum bt_status tbed_listen(struct tside *side, uint16_t port);
/* Run the loop until fn(arg), fails the test after a minute. */
void tbed_until(struct tbed *bed, bool (*fn)(void *arg), void *arg,
                const char *what);
void tbed_until_int(struct tbed *bed, const int *value, int least,
                    const char *what);
void tend_until_failed(struct tend *end, const char *what);
/* Whatever was under way has had its chance: so many round trips are made over
 * a connection of its own. */
void tbed_round_trips(struct tbed *bed, int count);

/* Connect from a side to the other one's port; the other end is accepted. */
struct tend *tbed_connect(struct tbed *bed, int from, uint16_t port);
/* Connected, accepted at the other end, and allowed there if it allows. */
void tbed_pair(struct tbed *bed, int from, struct tend **near_out,
               struct tend **far_out);
struct tend *tbed_accepted(struct tside *side);
void tend_send(struct tend *end, const void *bytes, size_t size);
bool tend_sent(struct tend *end);
void tend_close(struct tend *end);
void tend_allow(struct tend *end);
/* Returns once the peer may count on it. Before any frame of a test. */
void tend_allow_told(struct tend *end, struct tend *peer);
void tend_closed(struct tend *end); /* close, wait for it, free */

enum bt_status tbed_map(struct tside *side, void *at, size_t bytes,
                        struct bt_tmem **out);
void tbed_unmap(struct tside *side, struct bt_tmem *mem);
/* The right to the other side's region over this end. */
struct bt_tkey *tend_key(struct tend *end);
struct bt_tkey *tend_target_key(struct tend *end);
enum bt_status tend_key_bytes(struct tend *end, const uint8_t *bytes,
                              size_t size, struct bt_tkey **out);
void tend_key_close(struct tend *end, struct bt_tkey *key);

/* Which side an end is on, and the other one. */
struct tside *tend_side(struct tend *end);
struct tside *tend_other(struct tend *end);

void top_add(struct top *op, void *local, const void *remote, uint32_t bytes);
/* Start it; pieces are in op. */
void top_get(struct top *op, struct tend *end, struct bt_tkey *key);
void top_get_into(struct top *op, struct tend *end, struct bt_tkey *key,
                  struct bt_tmem *local);
void top_put(struct top *op, struct tend *end, struct bt_tkey *key);

void tbed_fill(unsigned char *bytes, size_t size, uint64_t seed);

#endif
