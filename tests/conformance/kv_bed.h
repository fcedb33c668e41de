/* Test bed for KV pulls: regions filled from a seed, a source and a sink with
 * a fabric each on one loop, sources in processes of their own (this program
 * run again with --source), and waiting on observable state. */
#ifndef BATON_TESTS_CONFORMANCE_KV_BED_H
#define BATON_TESTS_CONFORMANCE_KV_BED_H

#include "baton/transfer/kv.h"

#include <ev.h>
#include <stdbool.h>
#include <sys/types.h>

#define BED_NAME_SOURCE "p0"
/* BATON_SLOW=N: the machine is N times slower (emulated, say); beats and time
 * limits are so much longer, and what tests count in beats stays the same. */
double bed_slowness(void);
/* BATON_DIVIDE=N: of so much memory that filling and comparing it would be most
 * of a test's time there, the Nth part. */
uint32_t bed_part(uint32_t blocks);
#define BED_HEARTBEAT_S (0.2 * bed_slowness())
#define BED_LONG_S      30.0
#define BED_SLOW        1000000u /* bytes/s: megabytes stay under way */

typedef enum bt_status (*bed_fabric_fn)(struct ev_loop *loop,
                                        const struct bt_fabric_config *config,
                                        struct bt_fabric **out, char *error,
                                        size_t size);
/* The transports under test, ended by a NULL name: those that BATON_FABRIC
 * names, or all that are there without hardware. */
struct bed_fabric {
    const char *name;
    bed_fabric_fn create;
    bool spawns;    /* reaches other processes */
    bool one_sided; /* a stopped process's memory can still be read */
};
extern const struct bed_fabric bed_fabrics[];
/* A fabric with so many rails, with a key or without. */
struct bed_case {
    const struct bed_fabric *fabric;
    uint32_t rails;
    bool keyed;
};

struct bed {
    struct ev_loop *loop;
    bed_fabric_fn create;
    uint32_t rails;          /* 0: 1 */
    const uint8_t *key;      /* of the source; NULL: none */
    const uint8_t *sink_key; /* of the sink */
    const char *region_name; /* of the source; NULL: the default */
    struct bt_fabric *source_fabric, *sink_fabric;
    struct bt_kv_source *source;
    struct bt_kv_sink *sink;
    struct bt_kv_layout layout;
    uint32_t blocks;
    unsigned char *from, *to;
    uint16_t port;
    bool keyed_refs;   /* the source's references are keys */
    bool no_checksums; /* the sink asks for none */
    int64_t idle_ns;   /* of the sink */
    /* what the source's call-backs saw */
    int checks, released, renewed, refused, left;
    char last_request[BT_KV_REQUEST_MAX + 1];
    char reason[256];
    /* requests "later..." are answered later: this was asked */
    uint64_t ticket;
    int asked;
    uint64_t first_ref;
    /* rail events of the sink */
    int ups, downs;
    struct bt_kv_rail_event last_rail; /* its texts are gone */
    char last_why[128];                /* of the last one down */
    /* flip one byte of block flip_block, flip_after_s after a check, and turn
     * it back flip_back_s later (0: never) */
    double flip_after_s, flip_back_s;
    uint32_t flip_block;
    ev_timer flip, beats;
    bool flipped;
    int ticks; /* heartbeats that passed */
    pid_t child;
};

extern const uint8_t bed_key[32], bed_other_key[32];
/* Address of rail i: of BATON_FABRIC_ADDRESS (one per rail, by comma), else
 * 127.0.0.1 (UCX knows lo by that one only). */
const char *bed_address(uint32_t rail);

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
/* The same as the case at *state says. */
void bed_open_case(struct bed *bed, void **state, uint32_t blocks,
                   uint64_t block_bytes);
/* bed_open_case, bed_source, bed_sink. */
void bed_both(struct bed *bed, void **state, uint32_t blocks,
              uint64_t block_bytes);
/* Skip the test if the fabric of *state stays in this process. */
void bed_need_spawn(void **state);
/* Its source in this process. Requests "ok..." are held, "later..." wait for
 * the test's answer, "expired" and any other are refused. */
void bed_source(struct bed *bed);
void bed_source_at(struct bed *bed, uint16_t port);
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
/* Pull block `remote` into block 0 and wait; its status. */
enum bt_status bed_pull_one(struct bed *bed, const char *request,
                            uint32_t remote, struct bed_end *end);
/* Pull, wait, and check result, bytes and the number of descriptors. */
void bed_pull_ok(struct bed *bed, const uint32_t *remote, const uint32_t *local,
                 size_t count, uint32_t runs);
void bed_same(const struct bed *bed, const unsigned char *to,
              const uint32_t *remote, const uint32_t *local, size_t count);
void bed_line(uint32_t *blocks, uint32_t count);
void bed_slow(struct bed *bed, uint64_t rate, double setup_s);
struct bt_fabric_stats bed_stats(const struct bt_fabric *fabric);
/* Run the loop until *flag >= value; fails the test after a minute. */
void bed_until(struct bed *bed, const int *flag, int value);
/* Run it until some byte of block landed. */
void bed_until_landed(struct bed *bed, uint32_t block);
/* From now on nothing writes to the target region. */
void bed_nothing_lands(struct bed *bed);
void bed_fill(unsigned char *bytes, size_t size, uint64_t seed);
/* main() of a spawned source, if argv asks for it; else returns. */
void bed_child_main(int argc, char **argv);
/* main() of a suite: every test under every case whose rails and key are
 * listed; argv[1] filters by name. */
struct bed_variant {
    uint32_t rails;
    bool keyed;
};
struct CMUnitTest;
int bed_main(int argc, char **argv, const struct CMUnitTest *tests,
             size_t count, const struct bed_variant *variants, size_t n);

#endif
