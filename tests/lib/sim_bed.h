/* A small cluster and a trace made by hand, for tests of the simulator. */
#ifndef BT_TEST_SIM_BED_H
#define BT_TEST_SIM_BED_H

#include "baton/base/units.h"
#include "baton/bench/sim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BED_REQUESTS_MAX 4096
#define BED_BLOCKS_MAX   65536
#define BED_KV           327680ull /* Llama-3.1-70B, bf16 */

struct bed {
    struct bt_sim_cluster cluster;
    struct bt_trace trace;
    struct bt_trace_request requests[BED_REQUESTS_MAX];
    uint64_t blocks[BED_BLOCKS_MAX];
    struct bt_sim_config config;
    struct bt_sim_result result;
    char error[512];
};

static inline void bed_pool(struct bed *b, unsigned int roles, uint32_t count)
{
    struct bt_sim_pool *p = &b->cluster.pools[b->cluster.pool_count++];

    *p = (struct bt_sim_pool){.roles = roles,
                              .count = count,
                              .kv_tokens = 1000000,
                              .decode_slots = 64,
                              .fetch = true};
    (void)snprintf(p->name, sizeof(p->name), "pool%u", b->cluster.pool_count);
    (void)bt_compute_preset("h100-70b-tp8", &p->compute);
}

/* p prefill and d decode workers, one switch, 50 GB/s, nothing for set-up. */
static inline struct bed *bed_open(uint32_t p, uint32_t d)
{
    struct bed *b = calloc(1, sizeof(*b));

    if (b == NULL)
        abort();
    b->cluster.kv_bytes_per_token = BED_KV;
    b->cluster.descriptor_tokens = 512;
    b->cluster.mode.pieces = 1;
    bed_pool(b, BT_ROLE_PREFILL, p);
    bed_pool(b, BT_ROLE_DECODE, d);
    b->cluster.fabric_count = 1;
    b->cluster.fabrics[0].nic_bytes_per_s = 50000000000ull;
    b->trace.requests = b->requests;
    b->trace.blocks = b->blocks;
    b->trace.block_tokens = 512;
    b->trace.has_prefixes = true;
    bt_sim_config_init(&b->config);
    b->config.cluster = &b->cluster;
    b->config.trace = &b->trace;
    b->config.warmup = 0;
    b->config.check = true;
    b->config.policy = "round_robin";
    return b;
}

/* first_id: the prompt's blocks are first_id, first_id + 1, ...; a prompt that
 * shares its first n blocks with an earlier one takes them from there. */
static inline void bed_add(struct bed *b, int64_t at_ns, uint32_t input,
                           uint32_t output, uint64_t first_id)
{
    struct bt_trace_request *r = &b->requests[b->trace.count++];

    r->arrival_ns = at_ns;
    r->input_tokens = input;
    r->output_tokens = output;
    r->block_at = b->trace.block_count;
    r->block_count = (input + 511) / 512;
    for (uint32_t i = 0; i < r->block_count; i++)
        b->blocks[b->trace.block_count++] = first_id + i;
    if (first_id + r->block_count > b->trace.block_ids)
        b->trace.block_ids = first_id + r->block_count;
}

/* The last request shares its first n blocks with request `of`. */
static inline void bed_share(struct bed *b, size_t of, uint32_t n)
{
    const struct bt_trace_request *r = &b->requests[b->trace.count - 1];

    for (uint32_t i = 0; i < n; i++)
        b->blocks[r->block_at + i] = b->blocks[b->requests[of].block_at + i];
}

static inline const struct bt_sim_record *bed_run(struct bed *b)
{
    bt_sim_result_fini(&b->result);
    if (bt_sim_run(&b->config, &b->result, b->error, sizeof(b->error)) !=
        BT_OK) {
        (void)fprintf(stderr, "bt_sim_run: %s\n", b->error);
        abort();
    }
    if (b->result.check_failures != 0)
        (void)fprintf(stderr, "check: %s\n", b->result.first_failure);
    return b->result.records;
}

static inline void bed_close(struct bed *b)
{
    bt_sim_result_fini(&b->result);
    free(b);
}

#endif
