/* Two agents in one process for tests of the library, over UCX on loopback:
 * each has a thread and a region of its own. */
#ifndef BATON_TESTS_AGENT_RIG_H
#define BATON_TESTS_AGENT_RIG_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "baton/base/rng.h"
#include "baton/transfer/agent.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RIG_BLOCKS  1024u
#define RIG_BYTES   4096u
#define RIG_WAIT_MS 20000

struct side {
    struct bt_agent *agent;
    uint32_t region;
    unsigned char *memory;
};

static inline void rig_fill(struct side *side, uint64_t seed)
{
    uint64_t *at = (uint64_t *)(void *)side->memory;

    for (size_t i = 0; i < (size_t)RIG_BLOCKS * RIG_BYTES / 8; i++)
        at[i] = bt_mix64(seed + i);
}

static inline struct bt_agent_region rig_region(struct side *side)
{
    return (struct bt_agent_region){
        .name = "kv",
        .base = side->memory,
        .block_count = RIG_BLOCKS,
        .layout = {1, 16, RIG_BYTES, 42},
    };
}

static const char *fabric; /* of the sides; NULL: ucx */

/* config may be NULL; memory is zero. */
static inline void rig_side(struct side *side, const char *name,
                            const struct bt_agent_config *config)
{
    struct bt_agent_config c = {0};
    char error[200] = "";

    if (config != NULL)
        c = *config;
    c.api_version = BT_AGENT_API_VERSION;
    c.name = name;
    c.fabric = fabric;
    c.listen = "127.0.0.1";
    c.checksums = true;
    side->memory = aligned_alloc(4096, (size_t)RIG_BLOCKS * RIG_BYTES);
    assert_non_null(side->memory);
    memset(side->memory, 0, (size_t)RIG_BLOCKS * RIG_BYTES);
    if (bt_agent_open(&c, &side->agent, error, sizeof(error)) != BT_OK)
        fail_msg("open: %s", error);
    const struct bt_agent_region region = rig_region(side);
    if (bt_agent_region(side->agent, &region, &side->region, error,
                        sizeof(error)) != BT_OK)
        fail_msg("region: %s", error);
    assert_true(bt_agent_port(side->agent) > 0);
}

static inline void rig_close(struct side *side)
{
    bt_agent_close(side->agent);
    free(side->memory);
}

/* Up to max events; fails the test when none comes. */
static inline size_t rig_events(struct side *side, struct bt_agent_event *out,
                                size_t max)
{
    struct pollfd p = {.fd = bt_agent_fd(side->agent), .events = POLLIN};

    if (poll(&p, 1, RIG_WAIT_MS) != 1)
        fail_msg("no event within %d ms", RIG_WAIT_MS);
    size_t n = bt_agent_progress(side->agent, out, max);
    assert_true(n > 0);
    return n;
}

/* The next event of this kind; others are dropped. */
static inline struct bt_agent_event rig_next(struct side *side,
                                             enum bt_agent_event_kind kind)
{
    struct bt_agent_event event;

    do
        (void)rig_events(side, &event, 1);
    while (event.kind != kind);
    return event;
}

static inline enum bt_status rig_publish(struct side *side, const char *id,
                                         const uint32_t *blocks, size_t count,
                                         void *owner)
{
    const struct bt_agent_publication p = {
        .region = side->region,
        .request_id = id,
        .blocks = blocks,
        .count = count,
        .lease_ns = 30000000000LL,
        .owner = owner,
    };

    return bt_agent_publish(side->agent, &p);
}

static inline struct bt_agent_pull
rig_pull(const struct side *from, const struct side *to, const char *id)
{
    return (struct bt_agent_pull){
        .region = to->region,
        .host = "127.0.0.1",
        .port = bt_agent_port(from->agent),
        .request_id = id,
        .deadline_ns = 20000000000LL,
    };
}

#endif
