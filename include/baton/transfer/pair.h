/* Two processes and one rail between them, without the KV protocol: what
 * `baton bench transfer` measures of a transport. The far end (source) holds a
 * region of random bytes; the near end (sink) gets pieces of it into a region
 * of its own, of the same size.
 *
 * One thread per process; calls block up to their limit.
 */
#ifndef BATON_TRANSFER_PAIR_H
#define BATON_TRANSFER_PAIR_H

#include "baton/base/status.h"
#include "baton/transfer/kv.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct bt_pair;

/* Offsets in the regions. */
struct bt_pair_piece {
    uint64_t local, remote;
    uint32_t bytes; /* > 0 */
};
/* `rounds` times all pieces, in gets of `per_get`, at most in_flight out. */
struct bt_pair_load {
    const struct bt_pair_piece *pieces;
    size_t count;
    uint32_t per_get, in_flight, rounds;
    /* The source hashes each piece before (XXH3), the sink after it has landed,
     * and they must agree: BT_CHECKSUM. Pieces have the same size then. */
    bool checksums;
    int64_t limit_ns; /* BT_TIMEOUT */
};
struct bt_pair_result {
    int64_t duration_ns;
    uint64_t bytes, gets;
    double cpu_s; /* of this process */
};

/* The source: listens on the rail's address (127.0.0.1), writes its port (two
 * bytes, of this machine) to fd, serves until fd reads end of file. BT_INVALID:
 * rail; else as the transport's opener says, on stderr too. */
enum bt_status bt_pair_serve(const struct bt_rail_config *rail,
                             size_t region_bytes, int fd);
/* The sink, connected. error_out >= 160 bytes. BT_TIMEOUT, BT_REFUSED, and as
 * the opener says. */
enum bt_status bt_pair_open(const struct bt_rail_config *rail, uint16_t port,
                            size_t region_bytes, struct bt_pair **out,
                            char *error_out, size_t error_size);
void bt_pair_close(struct bt_pair *pair);
/* Most pieces in one get. */
uint32_t bt_pair_pieces_max(const struct bt_pair *pair);
/* What carries it, in words; valid as long as the pair. */
const char *bt_pair_carrier(const struct bt_pair *pair);
/* BT_PEER_DEAD and others: the pair can only be closed then. BT_INVALID: a
 * piece outside the regions, per_get or in_flight out of range. */
enum bt_status bt_pair_get(struct bt_pair *pair,
                           const struct bt_pair_load *load,
                           struct bt_pair_result *out);
/* Do the two regions agree in these pieces (bytes made from a seed that both
 * know)? Compares what the last gets brought. */
bool bt_pair_verify(const struct bt_pair *pair,
                    const struct bt_pair_piece *pieces, size_t count);

#endif
