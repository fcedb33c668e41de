/* Leases on source blocks: which blocks may be pulled for which request id, and
 * until when. Pure, fixed size; the agent and the emulated engine keep one.
 *
 *   publish -> live -> released (DONE)            callers give the blocks back
 *                   -> expired  (now >= expiry)   when the lease is `over` and
 *                   -> withdrawn (owner)          no reader is left
 * A lease under read (a granted pull) is not over before its readers have left:
 * a block is never reused under a read. An expired id is remembered for a while
 * so that a late pull gets LEASE_EXPIRED and not NOT_FOUND.
 */
#ifndef BATON_TRANSFER_LEASE_H
#define BATON_TRANSFER_LEASE_H

#include "baton/base/arena.h"
#include "baton/base/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct bt_leases;

struct bt_leases_config {
    uint32_t leases_max;
    uint64_t blocks_max;  /* in all live leases */
    uint32_t expired_max; /* remembered */
};
size_t bt_leases_bytes(const struct bt_leases_config *config);
enum bt_status bt_leases_init(struct bt_arena *arena,
                              const struct bt_leases_config *config,
                              struct bt_leases **out);

/* Blocks are copied. BT_EXISTS: id is live or not yet reaped; BT_LIMIT;
 * BT_INVALID: id empty or over BT_KV_REQUEST_MAX, or a block twice. */
enum bt_status bt_lease_publish(struct bt_leases *leases, const char *id,
                                const uint64_t *blocks, size_t count,
                                int64_t expires_ns, void *owner);
/* May these be read for this id? Adds a reader. NOT_FOUND: no such id, or a
 * block that is not in it; LEASE_EXPIRED. */
enum bt_status bt_lease_read(struct bt_leases *leases, const char *id,
                             const uint64_t *blocks, size_t count,
                             int64_t now_ns);
/* A reader left. */
void bt_lease_left(struct bt_leases *leases, const char *id);
/* Never shortens. NOT_FOUND, LEASE_EXPIRED. */
enum bt_status bt_lease_renew(struct bt_leases *leases, const char *id,
                              int64_t expires_ns);
enum bt_status bt_lease_release(struct bt_leases *leases, const char *id);
enum bt_status bt_lease_withdraw(struct bt_leases *leases, const char *id);

enum bt_lease_why { BT_LEASE_RELEASED, BT_LEASE_EXPIRES, BT_LEASE_WITHDRAWN };
struct bt_lease_over {
    char id[129];
    void *owner;
    enum bt_lease_why why;
    uint32_t block_count;
};
/* Leases that are over at now_ns, in the order of their ends; false: none.
 * Their blocks are free for the owner. */
bool bt_lease_reap(struct bt_leases *leases, int64_t now_ns,
                   struct bt_lease_over *out);
/* Earliest expiry of a live one, INT64_MAX: none. */
int64_t bt_lease_next(const struct bt_leases *leases);
/* Not yet reaped ones, and their blocks. */
uint32_t bt_lease_count(const struct bt_leases *leases);
uint64_t bt_lease_blocks(const struct bt_leases *leases);

#endif
