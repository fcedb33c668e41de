/* A transport here and one in a child process, which may be stopped or killed:
 * the far end of test_ucx_traps.c. */
#ifndef UCX_TRAPS_BED_H
#define UCX_TRAPS_BED_H

#include "transport_open.h"
#include <ev.h>
#include <stdio.h>
#include <sys/types.h>

#define BED_REGION (24u << 20)
#define BED_GETS   64

struct bed_op {
    struct bt_tget get;
    struct bed *bed;
    enum bt_status status;
    bool is_done;
};

struct bed {
    const char *transports, *address;
    struct ev_loop *loop;
    struct bt_transport *transport;
    const struct bt_transport_ops *ops;
    struct bt_tconn *conn;
    struct bt_tmem *mem;
    struct bt_tkey *key;
    unsigned char *region;
    uint64_t remote;
    uint16_t port;
    uint8_t packed[1024];
    size_t packed_size;
    pid_t child;
    int control;
    bool is_failed, is_closed, is_late;
    enum bt_status why;
    uint64_t word; /* of the last answer */
    uint32_t answers;
    uint64_t turns; /* of the loop */
    struct bed_op op[BED_GETS];
};

/* What the child's memory holds, a word in eight bytes, by position. */
uint64_t bed_word(uint64_t at);
/* Start the child (mode 'a': allows its peers, 'n': does not), open a transport
 * here. `log`: a file for what UCX warns about, NULL: silent. */
void bed_open(struct bed *bed, const char *transports, char mode,
              const char *log);
/* Connect, learn the child's key. */
void bed_connect(struct bed *bed);
/* The same; the child is killed as UCX here connects to where its data goes.
 * Which end connects there is UCX's choice, by address: false, it was the
 * child, which lives. */
bool bed_connect_killing(struct bed *bed);
void bed_close(struct bed *bed);
/* End the connection; done and closed come within the limit. */
void bed_disconnect(struct bed *bed);
/* Turn the loop until *flag or the limit: false. */
bool bed_wait(struct bed *bed, const bool *flag, double limit_s);
/* Until n operations from the first are done. */
bool bed_wait_ops(struct bed *bed, uint32_t n, double limit_s);
/* Begin operation i: pieces, from or to the child. */
void bed_get(struct bed *bed, uint32_t i, const struct bt_tpiece *pieces,
             uint32_t count);
void bed_put(struct bed *bed, uint32_t i, const struct bt_tpiece *pieces,
             uint32_t count);
/* Ask the child; its answer in word: 'e' at once, 'd' after a second of
 * silence, 'h' hash of its memory. */
void bed_ask(struct bed *bed, char what);
bool bed_answer(struct bed *bed, double limit_s);
uint64_t bed_hash(const void *bytes, size_t size);
void bed_signal(struct bed *bed, int signal);
/* Has the child gone by itself? */
bool bed_child_lives(const struct bed *bed);
int bed_child_main(int argc, char **argv);

#endif
