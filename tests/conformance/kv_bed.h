/* Test bed for KV pulls: regions filled from a seed, a source and a sink with
 * a fabric each on one loop, sources in processes of their own (this program
 * run again with --source), and waiting on observable state. */
#ifndef BATON_TESTS_CONFORMANCE_KV_BED_H
#define BATON_TESTS_CONFORMANCE_KV_BED_H

#include "baton/transfer/kv.h"

#include <ev.h>
#include <sys/types.h>

#define BED_NAME_SOURCE "p0"
#define BED_HEARTBEAT_S 0.1

typedef enum bt_status (*bed_fabric_fn)(struct ev_loop *loop,
                                        const struct bt_fabric_config *config,
                                        struct bt_fabric **out, char *error,
                                        size_t size);
/* The transports under test, ended by a NULL name. */
struct bed_fabric {
    const char *name;
    bed_fabric_fn create;
};
extern const struct bed_fabric bed_fabrics[];

struct bed {
    struct ev_loop *loop;
    bed_fabric_fn create;
    struct bt_fabric *source_fabric, *sink_fabric;
    struct bt_kv_source *source;
    struct bt_kv_sink *sink;
    struct bt_kv_layout layout;
    uint32_t blocks;
    unsigned char *from, *to;
    uint16_t port;
    /* what the source's call-backs saw */
    int checks, released, renewed, refused;
    char last_request[BT_KV_REQUEST_MAX + 1];
    char reason[256];
    /* flip one byte of block flip_block, flip_after_s after a check, and turn
     * it back flip_back_s later (0: never) */
    double flip_after_s, flip_back_s;
    uint32_t flip_block;
    ev_timer flip, beats;
    bool flipped;
    int ticks; /* heartbeats that passed */
    pid_t child;
};

/* How a pull ended. */
struct bed_end {
    int calls;
    struct bt_kv_pull_end end;
    char peer[BT_KV_NAME_MAX], detail[128];
    int at_tick;
    struct bed *bed;
};

void bed_open(struct bed *bed, bed_fabric_fn create, uint32_t blocks,
              uint64_t block_bytes);
/* Its source in this process. Requests "ok..." are held, "expired" and any
 * other are refused. */
void bed_source(struct bed *bed);
/* Its source in a process of its own, killed with this one; port 0 picks. */
void bed_spawn(struct bed *bed, uint16_t port);
void bed_kill(struct bed *bed, int signal_number);
void bed_sink(struct bed *bed);
struct bt_kv_sink *bed_other_sink(struct bed *bed, unsigned char *to);
void bed_close(struct bed *bed);

enum bt_status bed_pull(struct bed *bed, struct bt_kv_sink *sink,
                        const char *request, const uint32_t *remote,
                        const uint32_t *local, size_t count, double deadline_s,
                        struct bed_end *end, struct bt_kv_pull **out);
/* Run the loop until *flag >= value; fails the test after a minute. */
void bed_until(struct bed *bed, const int *flag, int value);
/* Run it until some byte of block landed. */
void bed_until_landed(struct bed *bed, uint32_t block);
void bed_fill(unsigned char *bytes, size_t size, uint64_t seed);
/* main() of a spawned source, if argv asks for it; else returns. */
void bed_child_main(int argc, char **argv);

#endif
