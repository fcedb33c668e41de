/* A folder, a loop and blocks with known bytes, for tests of tiers. */
#ifndef TESTS_TIER_BED_H
#define TESTS_TIER_BED_H

#include "baton/transfer/tier.h"
#include <ev.h>

#define TIER_PENDING ((enum bt_status) - 1)

struct tier_bed {
    struct ev_loop *loop;
    char dir[256], path[320];
    uint64_t block_bytes;
};
void tier_bed_init(struct tier_bed *bed, uint64_t block_bytes);
void tier_bed_fini(struct tier_bed *bed); /* with all files */

/* Config of the bed's file: `blocks` blocks, verify on. */
struct bt_nvme_config tier_bed_config(const struct tier_bed *bed,
                                      uint32_t blocks);
/* Fails the test unless it opens. */
struct bt_nvme_pool *tier_bed_open(const struct tier_bed *bed,
                                   const struct bt_nvme_config *config);

/* Blocks of one mapping, 4 KiB aligned; free() them. */
unsigned char *tier_blocks(uint64_t block_bytes, uint32_t count);
/* Bytes that depend on (seed, position) alone. */
void tier_fill(unsigned char *block, uint64_t bytes, uint64_t seed);
bool tier_is(const unsigned char *block, uint64_t bytes, uint64_t seed);

/* Call-back that keeps the status in an enum bt_status set to TIER_PENDING; a
 * second call for it fails the test. */
void tier_got(void *arg, enum bt_status status);
/* Run the loop until *status is not pending; 30 s at most. */
enum bt_status tier_wait(const struct tier_bed *bed,
                         const enum bt_status *status);
/* One request and its end. */
enum bt_status tier_store(const struct tier_bed *bed, struct bt_nvme_pool *pool,
                          uint64_t key, const void *from);
enum bt_status tier_load(const struct tier_bed *bed, struct bt_nvme_pool *pool,
                         uint64_t key, void *to);

#endif
