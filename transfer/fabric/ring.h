/* Bounded ring of pointers between two threads: one puts, one takes. Neither
 * ever blocks. The one that finds nothing to do says so before it sleeps, and
 * only then does the other one have to wake it:
 *
 *   producer   bt_ring_put    true + *wake_out: wake the consumer now
 *                             false: full, and noted: bt_ring_take asks the
 *                             consumer to wake the producer once it has passed
 *                             the next half of the ring
 *   consumer   bt_ring_take   until NULL, then bt_ring_sleep; false from it:
 *                             something came in between, take again
 *
 * Indices run freely and are masked; each side has a cache line of its own
 * with a copy of the other's index, read anew only when the copy says full or
 * empty (Lamport's queue with the cached indices of FastForward/MCRingBuffer:
 * Lee, Bu, Chandranmenon, "A lock-free, cache-efficient shared ring buffer",
 * 2009). A sleeper's flag and the index it waits for are both written and read
 * in sequential order, so at least one side sees the other: no lost wake-up.
 *
 * The agent has another kind (shell/agent_ring.h): any number of writers, items
 * by value, a descriptor to poll, once per pull. This one is passed several
 * times per piece of a pull, and by one thread on each side, so it has no lock;
 * neither can be made of the other without losing what it is for. */
#ifndef BATON_TRANSFER_FABRIC_RING_H
#define BATON_TRANSFER_FABRIC_RING_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define BT_RING_LINE 64
#define BT_RING_MAX  (1u << 20)

struct bt_ring {
    /* constant */
    void **slots;
    uint32_t mask;
    /* producer's */
    _Alignas(BT_RING_LINE) _Atomic uint32_t tail;
    uint32_t head_seen;
    /* consumer's */
    _Alignas(BT_RING_LINE) _Atomic uint32_t head;
    uint32_t tail_seen;
    /* both, rarely written */
    _Alignas(BT_RING_LINE) atomic_bool asleep; /* consumer waits for more */
    atomic_bool starved;                       /* producer waits for room */
};

/* capacity: a power of two, 2..BT_RING_MAX. False: no memory. The consumer
 * counts as awake until it says otherwise. */
bool bt_ring_init(struct bt_ring *ring, uint32_t capacity);
void bt_ring_fini(struct bt_ring *ring);
/* Producer. False: full, nothing was put. *wake_out is written either way. */
bool bt_ring_put(struct bt_ring *ring, void *item, bool *wake_out);
/* Consumer. NULL: empty. *room_out: the producer waits for room, wake it. */
void *bt_ring_take(struct bt_ring *ring, bool *room_out);
/* Consumer is about to sleep; false: do not, there is something. */
bool bt_ring_sleep(struct bt_ring *ring);
/* Either side; exact only when the other one is quiet. */
uint32_t bt_ring_count(const struct bt_ring *ring);

#endif
