/* Ids are one-member structs so that mixing them does not compile.
 *
 * A worker id is {slot, generation}: slot = index into the registry
 * (0-based), generation counts the incarnations that lived at that slot, from
 * 1. A request id is {slot, generation} likewise. The zero value is "none".
 */
#ifndef BATON_BASE_IDS_H
#define BATON_BASE_IDS_H

#include <stdbool.h>
#include <stdint.h>

struct bt_worker_id {
    uint32_t v; /* generation << 16 | slot */
};

struct bt_request_id {
    uint64_t v; /* generation << 32 | slot */
};

#define BT_WORKER_SLOTS_MAX 65535u

static inline struct bt_worker_id bt_worker_id_make(uint32_t slot,
                                                    uint32_t generation)
{
    struct bt_worker_id id = {(generation & 0xffffu) << 16 | (slot & 0xffffu)};
    return id;
}

static inline uint32_t bt_worker_slot(struct bt_worker_id id)
{
    return id.v & 0xffffu;
}

static inline uint32_t bt_worker_generation(struct bt_worker_id id)
{
    return id.v >> 16;
}

static inline bool bt_worker_is_none(struct bt_worker_id id)
{
    return id.v == 0;
}

static inline bool bt_worker_same(struct bt_worker_id a, struct bt_worker_id b)
{
    return a.v == b.v;
}

static inline struct bt_request_id bt_request_id_make(uint32_t slot,
                                                      uint32_t generation)
{
    struct bt_request_id id = {(uint64_t)generation << 32 | slot};
    return id;
}

static inline uint32_t bt_request_slot(struct bt_request_id id)
{
    return (uint32_t)id.v;
}

static inline uint32_t bt_request_generation(struct bt_request_id id)
{
    return (uint32_t)(id.v >> 32);
}

#endif
