/* Bounded ring of pointers, one producer, one consumer; see ring.h. Decides
 * when a side must be woken; leaves how to its user.
 * Invariants: 0 <= tail - head <= capacity; a slot is written by the producer
 * only while it is outside of [head, tail), read by the consumer inside. */
#include "ring.h"

#include <assert.h>
#include <stddef.h>
#include <stdlib.h>

bool bt_ring_init(struct bt_ring *ring, uint32_t capacity)
{
    assert(capacity >= 2 && capacity <= BT_RING_MAX &&
           (capacity & (capacity - 1)) == 0);
    ring->slots = calloc(capacity, sizeof(*ring->slots));
    if (ring->slots == NULL)
        return false;
    ring->mask = capacity - 1;
    ring->head_seen = ring->tail_seen = 0;
    atomic_init(&ring->tail, 0);
    atomic_init(&ring->head, 0);
    atomic_init(&ring->asleep, false);
    atomic_init(&ring->starved, false);
    return true;
}

void bt_ring_fini(struct bt_ring *ring)
{
    free(ring->slots);
    ring->slots = NULL;
}

static bool is_full(struct bt_ring *ring, uint32_t tail)
{
    if (tail - ring->head_seen <= ring->mask)
        return false;
    ring->head_seen = atomic_load(&ring->head);
    return tail - ring->head_seen > ring->mask;
}

bool bt_ring_put(struct bt_ring *ring, void *item, bool *wake_out)
{
    uint32_t tail = atomic_load_explicit(&ring->tail, memory_order_relaxed);

    assert(item != NULL);
    *wake_out = false;
    if (is_full(ring, tail)) {
        atomic_store(&ring->starved, true);
        if (is_full(ring, tail))
            return false;
        atomic_store(&ring->starved, false); /* room came just now */
    }
    ring->slots[tail & ring->mask] = item;
    atomic_store(&ring->tail, tail + 1);
    *wake_out =
        atomic_load(&ring->asleep) && atomic_exchange(&ring->asleep, false);
    return true;
}

void *bt_ring_take(struct bt_ring *ring, bool *room_out)
{
    uint32_t head = atomic_load_explicit(&ring->head, memory_order_relaxed);
    void *item;

    *room_out = false;
    if (head == ring->tail_seen) {
        ring->tail_seen =
            atomic_load_explicit(&ring->tail, memory_order_acquire);
        if (head == ring->tail_seen)
            return NULL;
    }
    item = ring->slots[head & ring->mask];
    head++;
    if ((head & (ring->mask >> 1)) != 0) {
        atomic_store_explicit(&ring->head, head, memory_order_release);
        return item;
    }
    /* Every half ring, so once at least on the way from full to empty. */
    atomic_store(&ring->head, head);
    *room_out =
        atomic_load(&ring->starved) && atomic_exchange(&ring->starved, false);
    return item;
}

bool bt_ring_sleep(struct bt_ring *ring)
{
    uint32_t head = atomic_load_explicit(&ring->head, memory_order_relaxed);

    atomic_store(&ring->asleep, true);
    if (atomic_load(&ring->tail) == head)
        return true;
    atomic_store(&ring->asleep, false);
    return false;
}

uint32_t bt_ring_count(const struct bt_ring *ring)
{
    uint32_t head = atomic_load(&ring->head);
    uint32_t count = atomic_load(&ring->tail) - head;

    return count <= ring->mask + 1 ? count : ring->mask + 1;
}
