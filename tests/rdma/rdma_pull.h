/* What rdma_pull was asked to do, and the lines it prints. */
#ifndef BATON_TESTS_RDMA_RDMA_PULL_H
#define BATON_TESTS_RDMA_RDMA_PULL_H

#include "baton/transfer/kv.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PULL_AT_ONCE_MAX 16u

struct pull_args {
    bool is_source;
    const char *fabric;
    struct bt_rail_config rails[BT_RAILS_MAX];
    uint32_t rail_count;
    const char *host; /* sink: of the source; source: to listen on */
    uint16_t port;
    uint32_t blocks, block_bytes; /* of the region */
    uint32_t pull_blocks;         /* in one pull */
    uint32_t at_once, pulls;      /* pulls under way; 0: until the time is up */
    double seconds, deadline_s, heartbeat_s;
    uint32_t chunk_bytes;
};

/* false: usage was printed. Texts stay in argv, which is cut into pieces. */
bool pull_args_read(int argc, char **argv, struct pull_args *out);

/* Word `word` of block `block`, the same in every process: the sink knows what
 * must land without asking anybody. */
uint64_t pull_word(uint32_t block, uint32_t word);
void pull_fill(unsigned char *region, uint32_t blocks, uint32_t block_bytes);
/* Does `bytes` hold block `block`? */
bool pull_is_block(const unsigned char *bytes, uint32_t block,
                   uint32_t block_bytes);

/* Milliseconds of CLOCK_MONOTONIC: in a guest the same as /proc/uptime. */
double pull_now_ms(void);
/* The text as a JSON string body: quotes, backslashes and controls become
 * something harmless. */
void pull_quote(const char *text, char *out, size_t size);

#endif
